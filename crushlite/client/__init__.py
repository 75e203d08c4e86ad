"""The asyncio client: typed requests, typed errors, and event streams that reconnect.

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

What a request raises: the class of `crushlite.errors` that belongs to the code of the daemon's
answer; ConnectionFailed, which says whether anything was sent; WrongPeer for a socket of another
user, to which nothing was sent. How a run ends raises nothing: its failure and its cancellation are
fields of its `run_complete`.

Streams resume by themselves. Where events may have been missed, a stream yields an event of kind
`resync`: a client that shows state must then read it again. See `stream` and `following`.
"""

from ..protocol.events import Envelope, Resync
from .client import Client, RemoteWorkspace
from .following import Follower, RunStream
from .stream import EventStream, Lost, Recovered
from .wire import ConnectionFailed

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
]
