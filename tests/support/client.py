"""A client against a scripted server on real sockets, with a fake clock."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.client import Client, EventStream, Lost, Recovered, RemoteWorkspace
from crushlite.http.messages import Request, Response, Stream
from crushlite.http.router import Route
from crushlite.protocol.events import Envelope, Resync
from crushlite.testing.fake_clock import FakeClock
from tests.support.http import HTTPTestCase, RecordingStream
from tests.support.routes import TABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.http.server import HTTPServer

__all__ = [
    "ACCEPTED",
    "CREATE",
    "EVENTS",
    "INIT",
    "LOOK",
    "ME",
    "PROMPT",
    "VERSION",
    "ClientTestCase",
    "Feed",
    "Impatient",
    "W",
    "answer",
    "done",
    "frame",
    "refused",
]

ME = "11111111-2222-4333-8444-555555555555"
W = "/v1/workspaces/{id}"
EVENTS = ("GET", W + "/events")
CREATE = ("POST", "/v1/workspaces")
PROMPT = ("POST", W + "/agent")
INIT = ("POST", W + "/agent/init")
LOOK = ("POST", W + "/current-session")
VERSION = {"version": "1", "commit": "c", "build_id": "b", "go_version": "none", "platform": "p"}
ACCEPTED = {"run_id": "r1", "session_id": "s1", "state": "active"}


def answer(value: object, status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode())


def refused(status: int, code: str, message: str = "said the server") -> Response:
    return answer({"message": message, "code": code}, status)


def frame(number: int | None, kind: str = "run_complete", **payload: Any) -> bytes:
    """One event; the number is its id."""
    body = {"type": kind, "payload": {"type": "updated", "payload": payload}}
    line = b"" if number is None else b"id: e-%d\n" % number
    return line + b"data: " + json.dumps(body).encode() + b"\n\n"


def done(number: int | None) -> bytes:
    return frame(number, session_id="s1", run_id=f"r{number}")


class Impatient(FakeClock):
    """A clock whose sleeps end at once. They are recorded, and `at_sleep` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.at_sleep: Callable[[float], Awaitable[None]] | None = None

    async def sleep(self, delay: float) -> None:
        self.slept.append(delay)
        self._time += delay
        if self.at_sleep is not None:
            await self.at_sleep(delay)
        await asyncio.sleep(0)


class Feed(RecordingStream):
    """An event stream that a test writes to. It begins with `first` and, if `brief`, ends there."""

    def __init__(self, first: bytes = b"", *, brief: bool = False) -> None:
        super().__init__()
        self.first = first
        self.brief = brief
        self.gone = asyncio.Event()

    def opened(self, sink: Any) -> None:
        super().opened(sink)
        sink.write(self.first)
        if self.brief:
            sink.close()

    def closed(self) -> None:
        super().closed()
        self.gone.set()

    def send(self, data: bytes) -> None:
        assert self.sink is not None
        self.sink.write(data)

    def drop(self) -> None:
        assert self.sink is not None
        self.sink.close()


class ClientTestCase(HTTPTestCase):
    """A server with the daemon's own route table, where a test says what each route answers."""

    def setUp(self) -> None:
        super().setUp()
        self.patient = self.clock
        self.clock = self.impatient = Impatient()
        # By method and pattern. A list is used up one by one, its last entry again and again.
        self.answers: dict[tuple[str, str], Any] = {CREATE: self.created, INIT: Response(200)}
        self.requests: list[Request] = []
        self.feeds: list[Feed] = []
        self.births = 0
        logging.getLogger("crushlite.client").addHandler(logging.NullHandler())

    async def asyncSetUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "s"
        self.server = await self.start()
        self.client = Client(f"unix://{self.path}", client_id=ME, clock=self.clock)

    async def asyncTearDown(self) -> None:
        await self.within(self.client.aclose())
        await self.stop()
        self.assertEqual(self.clock.pending, 0)

    async def start(self, *, tcp: bool = False) -> HTTPServer:
        routes = (
            Route(entry.method, entry.pattern, functools.partial(self.handle, entry.pattern))
            for entry in TABLE
        )
        server = self.serve(*routes)
        if tcp:
            sock = socket.create_server(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        else:
            sock = socket.socket(socket.AF_UNIX)
            self.path.unlink(missing_ok=True)
            sock.bind(str(self.path))
        await server.listen(sock)
        return server

    async def stop(self) -> None:
        await self.within(self.server.drain(5.0))

    async def handle(self, pattern: str, request: Request) -> Response | Stream:
        self.requests.append(request)
        planned = self.answers.get((request.head.method, pattern), Response(200))
        if isinstance(planned, list):
            planned = planned.pop(0) if len(planned) > 1 else planned[0]
        if callable(planned):
            planned = planned()
        if asyncio.iscoroutine(planned):
            planned = await planned
        if isinstance(planned, Feed):
            self.feeds.append(planned)
        assert isinstance(planned, Response | Stream)
        return planned

    def created(self) -> Response:
        self.births += 1
        return answer({"id": f"w{self.births}", "path": "/p", "config": {}})

    async def workspace(self) -> RemoteWorkspace:
        workspace = await self.client.create("/p")
        self.requests.clear()
        return workspace

    @property
    def targets(self) -> list[str]:
        return [f"{request.head.method} {request.head.target}" for request in self.requests]

    @property
    def positions(self) -> list[str | None]:
        """The Last-Event-ID of each subscription."""
        asked = (r for r in self.requests if r.head.segments[-1] == "events")
        return [request.headers.get("Last-Event-ID") for request in asked]

    async def runs_of(self, stream: EventStream, count: int) -> list[str]:
        """The run ids of the next events, `resync` for a resync, without `lost` and `recovered`."""
        found: list[str] = []
        for _ in range(count):
            event = await self.event_of(stream)
            resync = isinstance(event.payload, Resync)
            found.append("resync" if resync else event.payload.run_id)
        return found

    async def event_of(self, stream: EventStream) -> Envelope:
        """The next event that is neither `lost` nor `recovered`."""
        while True:
            event = await self.within(stream.__anext__())
            if not isinstance(event.payload, Lost | Recovered):
                return event

    async def over(self, stream: EventStream) -> None:
        with self.assertRaises(StopAsyncIteration):
            await self.event_of(stream)
