"""The public test harness: what crushlite tests itself with, for tools that build on it.

LocalDaemon     an in-process daemon on a real socket, with a scripted agent
Participant     one client of it: requests and an event stream
EventReader     an event stream with `wait_for` and `never`
ScriptedAgent   an agent whose every move the test decides
FakeClock       time that moves when the test says so
InlineExecutor  for `Stores(executor=...)`: a store that runs in the calling thread

`crushlite.fake_model` is a model server for agents that speak to one.
"""

from __future__ import annotations

from ..store import Stores
from .fake_clock import FakeClock
from .harness import Answer, EventReader, LocalDaemon, Participant, Seen
from .inline import InlineExecutor
from .scripted import ScriptedAgent, ScriptedRun

__all__ = [
    "Answer",
    "EventReader",
    "FakeClock",
    "InlineExecutor",
    "LocalDaemon",
    "Participant",
    "ScriptedAgent",
    "ScriptedRun",
    "Seen",
    "Stores",
]
