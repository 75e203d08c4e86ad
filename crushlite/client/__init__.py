"""The asyncio client: typed requests, typed refusals, and an event stream that comes back.

    async with Client("unix:///path/to.sock") as client:
        workspace = await client.create("/path/to/project")
        print((await workspace.ask("hello")).text)

        async with workspace.start("and now step by step") as run:  # the events of one run
            async for event in run:
                print(event.kind, event.payload)
        print(run.ending)

        async with workspace.events() as events:  # everything that happens in the workspace
            async for event in events:
                print(event.kind, event.payload)

`crushlite.launch.open_workspace` does the same with a daemon that is found or started.

What can go wrong, by what the caller can do about it: a refusal by the daemon is the class of
`crushlite.errors` that belongs to its code; ConnectionFailed says whether anything was sent; a
socket of another user is WrongPeer, and nothing was sent to it. What becomes of a run is no
exception: its failure and its cancellation are told by its `run_complete`.

Streams resume by themselves. Where one cannot know that nothing was missed, it yields an event of
kind `resync`: whoever shows state must then read it afresh. See `stream` and `following`.
"""

from ..protocol.events import Envelope, Resync
from .connection import Client
from .following import Follower, RunStream
from .stream import EventStream, Lost, Recovered
from .wire import ConnectionFailed
from .workspace import RemoteWorkspace, SessionExport

__all__ = [
    "Client",
    "ConnectionFailed",
    "Envelope",
    "EventStream",
    "Follower",
    "Lost",
    "Recovered",
    "RemoteWorkspace",
    "Resync",
    "RunStream",
    "SessionExport",
]
