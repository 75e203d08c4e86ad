"""What the HTTP tests share: a server on memory transports, under one time limit per test."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import h11

from crushlite.http.connection import Connection, State
from crushlite.http.limits import Limits
from crushlite.http.messages import ByteSink, HTTPError, Pairs, Request, Response, Stream
from crushlite.http.router import Guard, Route, Router
from crushlite.http.server import HTTPServer
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")


def streams_of(server: HTTPServer) -> list[Connection]:
    """The connections that are answered with a stream."""
    return [each for each in server.connections if each.state is State.STREAM]


class HTTPTestCase(BoundedTestCase):
    """Every test leaves no timer behind."""

    def setUp(self) -> None:
        self.clock = FakeClock()
        # Errors are provoked on purpose; what must be logged is asserted with assertLogs.
        logging.getLogger("crushlite.http").addHandler(logging.NullHandler())

    async def within(self, awaitable: Awaitable[T], seconds: float = 5.0) -> T:
        async with asyncio.timeout(seconds):
            return await awaitable

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until a condition holds that depends on real sockets."""
        while not condition():  # noqa: ASYNC110 - nothing in the process announces it
            await asyncio.sleep(0)

    def serve(
        self,
        *routes: Route,
        limits: Limits | None = None,
        guard: Guard | None = None,
        **options: Any,
    ) -> HTTPServer:
        router = Router(routes, guard=guard) if guard else Router(routes)
        return HTTPServer(router, clock=self.clock, limits=limits or Limits(), **options)

    def connect(self, server: HTTPServer) -> MemoryTransport:
        transport = MemoryTransport(Connection(server, "memory", 80))
        transport.connect()
        return transport

    async def settle(self) -> None:
        await self.clock.settle()

    async def exchange(self, server: HTTPServer, data: bytes, *, step: int = 0) -> MemoryTransport:
        """Send bytes on a fresh connection and let everything that follows happen."""
        transport = self.connect(server)
        transport.feed(data, step=step)
        await self.settle()
        return transport


class Recorder:
    """A handler that answers with the number of its call and keeps the requests."""

    def __init__(self, *, gated: bool = False) -> None:
        self.requests: list[Request] = []
        self.finished = 0
        self.gate = asyncio.Event()
        if not gated:
            self.gate.set()

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        number = len(self.requests)
        await self.gate.wait()
        self.finished += 1
        return Response(200, b'{"n":%d}' % number)


class RecordingStream(Stream):
    """A stream that notes every call made to it."""

    headers: Pairs = (("Content-Type", "text/event-stream"),)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sink: ByteSink | None = None
        self.on_resumed: Callable[[], None] = lambda: None

    def opened(self, sink: ByteSink) -> None:
        self.calls.append("opened")
        self.sink = sink

    def resumed(self) -> None:
        self.calls.append("resumed")
        self.on_resumed()

    def closed(self) -> None:
        self.calls.append("closed")


class Reply:
    """One response, as an independent parser (h11's client side) reads it."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = dict(headers)
        self.body = body

    def __repr__(self) -> str:
        return f"<Reply {self.status} {self.body[:60]!r}>"


def replies(
    data: bytes | bytearray, methods: Iterable[str] = (), *, eof: bool = False
) -> list[Reply]:
    """Parse everything a server wrote. `methods` names the requests where they were not GET."""
    found: list[Reply] = []
    names = iter(methods)
    rest = bytes(data)
    while rest:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=next(names, "GET"), target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(rest)
        if eof:
            client.receive_data(b"")
        reply, rest = _one(client)
        found.append(reply)
    return found


def _one(client: h11.Connection) -> tuple[Reply, bytes]:
    status, headers, body = 0, [], bytearray()
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
            headers = [(n.decode(), v.decode()) for n, v in event.headers]
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return Reply(status, headers, bytes(body)), client.trailing_data[0]
        elif isinstance(event, h11.InformationalResponse):
            continue
        else:
            raise AssertionError(f"not a complete response: {event!r}")


def get(path: str = "/ok", *headers: str) -> bytes:
    return _request("GET", path, headers)


def post(path: str, body: bytes, *headers: str) -> bytes:
    return _request("POST", path, (f"Content-Length: {len(body)}", *headers)) + body


def chunked(path: str, chunks: Iterable[bytes], *headers: str) -> bytes:
    head = _request("POST", path, ("Transfer-Encoding: chunked", *headers))
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


def _request(method: str, path: str, headers: Iterable[str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def fail(request: Request) -> Response:
    raise RuntimeError("boom with a secret")


async def refuse(request: Request) -> Response:
    raise HTTPError(409, "conflict", "not now", (("X-Why", "because"),))


def state_of(transport: MemoryTransport) -> str:
    connection = transport.protocol
    assert isinstance(connection, Connection)
    return connection.state.value
