"""The public test harness: what crushlite tests itself with, for tools that build on it.

LocalDaemon     an in-process daemon on a real socket, with a scripted agent
Participant     one client of it: requests and an event stream
EventReader     an event stream with `wait_for` and `never`
ScriptedAgent   an agent whose every move the test decides
FakeModel       a model server that answers what the test decides, over HTTP;
                Say, Think, Use, Wait, Fail, End are the steps of its scripts
FakeClock       time that moves when the test says so
InlineExecutor  for `Stores(executor=...)`: a store that runs in the calling thread
MemoryTransport, connect_pair   HTTP without sockets
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..agent.scripted import ScriptedAgent, ScriptedRun
from ..clock import FakeClock
from ..store import InlineExecutor, Stores
from .harness import Answer, EventReader, LocalDaemon, Participant, Seen
from .memory import MemoryTransport, connect_pair

if TYPE_CHECKING:
    from .model import End, Fail, FakeModel, ModelCall, Say, Think, Use, Wait, obedient

__all__ = [
    "Answer",
    "End",
    "EventReader",
    "Fail",
    "FakeClock",
    "FakeModel",
    "InlineExecutor",
    "LocalDaemon",
    "MemoryTransport",
    "ModelCall",
    "Participant",
    "Say",
    "ScriptedAgent",
    "ScriptedRun",
    "Seen",
    "Stores",
    "Think",
    "Use",
    "Wait",
    "connect_pair",
    "obedient",
]

_MODEL = ("End", "Fail", "FakeModel", "ModelCall", "Say", "Think", "Use", "Wait", "obedient")


def __getattr__(name: str) -> Any:
    """Import the fake model on first use (PEP 562): most tests need none."""
    if name not in _MODEL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".model", __name__), name)
