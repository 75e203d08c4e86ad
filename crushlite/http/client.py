"""The HTTP client of the package, with keep-alive and streaming.

A connection goes back to the pool only if the answer ended exactly where HTTP says it ends. A
request that fails on a REUSED connection before a byte of the answer came is sent again, once, on a
fresh one, but only if running it twice is harmless: the server may have closed the idle connection
at the very moment it was chosen, which looks the same as a crash after the work.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
from typing import TYPE_CHECKING, Protocol

import h11

from ..clock import resolve_once, time_limit
from ..records import dataclass
from .messages import Headers, Pairs
from .outbox import header_lines
from .peer import peer_uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from ssl import SSLContext

    from ..clock import Clock, Timer

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_FRAMING = frozenset({"host", "content-length", "transfer-encoding"})
_VISIBLE = re.compile(r"[\x21-\x7e]+")
# What a parser is told of a request: all that it needs to know is whether it was HEAD.
_SENT = [h11.Request(method=each, target="/", headers=[("Host", "_")]) for each in ("GET", "HEAD")]

# Reading stops above so many unread bytes and goes on when they are read: then the server waits.
_UNREAD_LIMIT = 1 << 20
_EVENTS = 500  # parsed in one step of the event loop: a chunk may hold a single byte
_INFORMATIONAL = 50  # responses with a status of 1xx before the real one
_BODY_LIMIT = 64 << 20
_CONNECT_CALL = r"\[Errno (\d+)\] Connect call failed"
_HEAD_LIMIT = 64 * 1024
_IDLE_CONNECTIONS = 4
# Below the server's own idle limit, so that the client closes first.
_IDLE_SECONDS = 60.0


class ClientError(Exception):
    """Base of the failures of a connection or an answer: callers act on them differently."""


class ConnectFailed(ClientError):
    """No connection could be made, so nothing was sent; the cause is the OSError."""


def why_unreachable(error: OSError | ValueError) -> str:
    """Why a connection could not be made, in words. asyncio's own have numbers, and repeat the
    address; of a name with several addresses they say all that for each."""
    numbers = {int(number) for number in re.findall(_CONNECT_CALL, str(error))}
    words = ", ".join(os.strerror(number) for number in sorted(numbers))
    return words or re.sub(r"^\[Errno -?\d+\] ", "", str(error))


class PeerMismatch(ClientError):
    """The server's process belongs to another user. Nothing was sent to it."""


class ConnectionLost(ClientError):
    """The connection ended before the answer did; the request may have run."""


class ResponseTimeout(ClientError):
    """The answer did not come in the time given; the request may have run."""


class ProtocolError(ClientError):
    """The answer is not HTTP, or longer than the limit."""


class Connector(Protocol):
    """Makes connections; tests use one that makes memory transports."""

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect a protocol of this factory. Raises ConnectFailed or PeerMismatch."""


@dataclass(frozen=True, slots=True)
class UnixConnector:
    """Connects to a unix socket whose process has the uid `expect_uid`, if that is not None."""

    path: str
    expect_uid: int | None

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        opening = asyncio.get_running_loop().create_unix_connection(factory, self.path)
        transport = await _connected(opening, self.path)
        if self.expect_uid is not None:
            uid = peer_uid(transport.get_extra_info("socket"))
            if uid != self.expect_uid:
                transport.abort()
                raise PeerMismatch(f"{self.path} is served by user {uid}, not {self.expect_uid}")
        return transport


@dataclass(frozen=True, slots=True)
class TCPConnector:
    """Connects to a host and port, with TLS if a context is given."""

    host: str
    port: int
    ssl: SSLContext | None = None

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(factory, self.host, self.port, ssl=self.ssl)
        return await _connected(opening, f"{self.host}:{self.port}")


async def _connected(
    opening: Awaitable[tuple[asyncio.Transport, asyncio.Protocol]], where: str
) -> asyncio.Transport:
    try:
        transport, _ = await opening
    except OSError as error:  # includes ssl.SSLError
        raise ConnectFailed(f"cannot connect to {where}: {why_unreachable(error)}") from error
    return transport


@dataclass(frozen=True, slots=True)
class ClientResponse:
    status: int
    headers: Headers
    body: bytes


class StreamResponse:
    """An answer whose body is read as it comes. Fed by its connection, read by one task."""

    def __init__(self, parser: h11.Connection, transport: asyncio.Transport, clock: Clock) -> None:
        self.status = 0  # until the head has come
        self.headers = Headers()
        self.idle_timeout: float | None = None  # seconds before each piece of the body
        self._parser = parser
        self._transport = transport
        self._clock = clock
        self.received = 0  # bytes of any kind
        self.complete = False
        self._chunks: list[bytes] = []
        self._unread = 0
        self._unparsed = False  # `_parse_on` is scheduled
        self._informed = 0
        self._error: ClientError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # Called by the connection.

    def feed(self, data: bytes | None) -> None:
        """Parse bytes from the server; empty at EOF, None to go on with those that came before."""
        self.received += len(data or b"")
        if self.complete or self._error is not None:
            return
        try:
            if data is not None:
                self._parser.receive_data(data)
            if not self._unparsed:
                self._parse()
        except h11.RemoteProtocolError as error:
            if data != b"":
                self.fail(ProtocolError(f"the answer is not HTTP: {error}"))
            else:
                self.fail(ConnectionLost("the connection ended before the answer did"))
        self._wake()

    def _parse(self) -> None:
        for _ in range(_EVENTS):
            event = self._parser.next_event()
            if isinstance(event, h11.Data):
                self._chunks.append(bytes(event.data))
                self._unread += len(event.data)
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                fields = ((name.decode("ascii"), v.decode("latin-1")) for name, v in event.headers)
                self.headers = Headers(fields)
            elif isinstance(event, h11.EndOfMessage):
                self.complete = True
                self._transport.resume_reading()  # else the next answer here would never be read
                return
            elif isinstance(event, h11.InformationalResponse):
                self._informed += 1
                if self._informed > _INFORMATIONAL:
                    self.fail(ProtocolError("the server sends informational responses only"))
                    return
            else:
                break
        else:
            # What came holds many small chunks. The rest is parsed in later steps of the loop, and
            # nothing more is read until then.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._parse_on)
            self._unparsed = True
            return
        if event is h11.PAUSED:
            self.fail(ProtocolError("the server switched protocols"))
        if self._unread > _UNREAD_LIMIT:
            self._transport.pause_reading()
        elif not self._unread:
            self._transport.resume_reading()

    def _parse_on(self) -> None:
        self._unparsed = False
        self.feed(None)

    def fail(self, error: ClientError) -> None:
        """Make the reader raise an error, unless the answer is complete or has failed before."""
        if not self.complete and self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve_once(self._waiter)

    # Called by the reader.

    async def wait_head(self) -> None:
        while not self.status:
            await self._more()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The bytes of the body that have arrived. An error is raised after those before it."""
        if not self._chunks and not self.complete:
            async with _answer_within(self._clock, self.idle_timeout):
                while not self._chunks and not self.complete:
                    await self._more()
        if not self._chunks:
            raise StopAsyncIteration
        # Joined: a server that streams sends each word as a chunk of its own, and a slow reader
        # would need a step for each.
        chunk = b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        if not self._unparsed:
            self._transport.resume_reading()
        return chunk

    async def read(self, limit: int = _BODY_LIMIT) -> bytes:
        """The rest of the body. Raises ProtocolError if it is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self:
            body += chunk
            if len(body) > limit:
                raise ProtocolError(f"the answer is longer than {limit} bytes")
        return bytes(body)

    async def _more(self) -> None:
        if self._error is not None:
            # A copy: an exception that is kept here would keep the frames of its traceback alive.
            raise type(self._error)(*self._error.args)
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    @property
    def reusable(self) -> bool:
        """Whether another request can follow: both are complete, and no bytes came after them."""
        parser = self._parser
        return (
            self.complete
            and not self._chunks
            and parser.their_state is h11.DONE
            and not parser.trailing_data[0]
            and not self._transport.get_write_buffer_size()
        )


class _PooledConnection(asyncio.Protocol):
    """A connection to the server, with at most one answer to come."""

    def __init__(self, client: HTTPClient) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._response: StreamResponse | None = None
        self.gone = asyncio.get_running_loop().create_future()
        self.idle_timer: Timer | None = None
        self.reused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._client.connections.add(self)
        if self._client.closed:  # it was under way then
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._response is not None:
            self._response.feed(data)
        else:
            self.abort()  # bytes without a request

    def eof_received(self) -> bool:
        if self._response is not None:
            self._response.feed(b"")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None:
            self._response.fail(ConnectionLost(f"the connection was lost: {exc or 'closed'}"))
        self._response = self._transport = None
        self.stop_idling()
        self._client.connections.discard(self)
        if self in self._client.idle:
            self._client.idle.remove(self)
        resolve_once(self.gone)

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def has_news(self) -> bool:
        """Whether there is something to be read: on an idle connection most often its end."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return False  # a transport in memory
        poll = select.poll()  # not select(), which knows 1,024 files
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, method: str, data: bytes, clock: Clock) -> StreamResponse:
        assert self._transport is not None
        self._transport.write(data)  # first: the server works while the parser is made
        response = self._response = StreamResponse(_parser(method), self._transport, clock)
        return response

    def finish(self) -> bool:
        """Detach the answer and return whether another request can follow it."""
        response, self._response = self._response, None
        return response is not None and self.alive and response.reusable

    def stop_idling(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class HTTPClient:
    """Requests to one server. Safe to use from many tasks of one loop."""

    def __init__(
        self,
        connector: Connector,
        *,
        host_header: str,
        headers: Iterable[tuple[str, str]] = (),
        clock: Clock,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._connector = connector
        self._headers: Pairs = (("Host", host_header), *headers)
        self.clock = clock
        self._idle_seconds = idle_seconds
        # Kept by the connections themselves, from when they are made until they are lost.
        self.connections: set[_PooledConnection] = set()
        self.idle: list[_PooledConnection] = []  # the most recently used last, and taken first
        self.closed = False

    async def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        timeout: float | None = 30.0,
        limit: int = _BODY_LIMIT,
    ) -> ClientResponse:
        """Send a request and read the whole answer, within `timeout` seconds in all. Raises
        ClientError, and ValueError for what cannot be sent."""
        async with (
            _answer_within(self.clock, timeout),
            self.stream(method, target, body=body, headers=headers, timeout=None) as response,
        ):
            content = await response.read(limit)
        return ClientResponse(response.status, response.headers, content)

    def stream(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        timeout: float | None = 30.0,
        idle_timeout: float | None = None,
    ) -> AbstractAsyncContextManager[StreamResponse]:
        """Send a request and read the answer as it comes. `timeout` bounds the time to its head,
        `idle_timeout` that before each piece of the body. An early exit closes the connection."""
        request = method, target, body, (*self._headers, *headers)
        return _Exchange(self, request, timeout, idle_timeout)

    async def aclose(self) -> None:
        """Close every connection, those in use too, and wait until their sockets are closed."""
        self.closed = True
        gone = [connection.gone for connection in self.connections]
        for connection in tuple(self.connections):
            connection.abort()
        if gone:
            await asyncio.wait(gone)

    async def __aenter__(self) -> HTTPClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # For exchanges.

    async def open(
        self, method: str, target: str, body: bytes, headers: Pairs
    ) -> tuple[_PooledConnection, StreamResponse]:
        """Send a request and wait for the head of its answer."""
        data = _framed(method, target, body, headers)
        connection = await self._acquire(method)
        while True:
            response = connection.send(method, data, self.clock)
            try:
                await response.wait_head()
            except ConnectionLost:
                twice_is_harmless = method in _IDEMPOTENT and not response.received
                if not connection.reused or not twice_is_harmless:
                    raise
            except BaseException:
                connection.abort()
                raise
            else:
                return connection, response
            connection = await self._connect()

    async def _acquire(self, method: str) -> _PooledConnection:
        while self.idle:
            connection = self.idle.pop()
            connection.stop_idling()
            # Only an idempotent request can be sent again if the server has closed this one.
            if connection.alive and (method in _IDEMPOTENT or not connection.has_news()):
                connection.reused = True
                return connection
            connection.abort()
        return await self._connect()

    async def _connect(self) -> _PooledConnection:
        if self.closed:
            raise ClientError("the client is closed")
        connection = _PooledConnection(self)
        try:
            await self._connector.connect(lambda: connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    def release(self, connection: _PooledConnection) -> None:
        if not connection.finish() or self.closed or len(self.idle) >= _IDLE_CONNECTIONS:
            connection.abort()
            return
        connection.idle_timer = self.clock.call_later(self._idle_seconds, connection.abort)
        self.idle.append(connection)


@dataclass(slots=True)
class _Exchange:
    """What `HTTPClient.stream` returns: sends the request and waits for the head of the answer; at
    the end gives the connection back, or closes it if the block has raised."""

    client: HTTPClient
    request: tuple[str, str, bytes, Pairs]
    timeout: float | None
    idle_timeout: float | None
    connection: _PooledConnection | None = None

    async def __aenter__(self) -> StreamResponse:
        async with _answer_within(self.client.clock, self.timeout):
            self.connection, response = await self.client.open(*self.request)
        response.idle_timeout = self.idle_timeout
        return response

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self.connection is not None
        if kind is None:
            self.client.release(self.connection)
        else:
            self.connection.abort()


def _framed(method: str, target: str, body: bytes, headers: Pairs) -> bytes:
    """The request as bytes. Raises ValueError without the target in it, which may hold a key."""
    if not _VISIBLE.fullmatch(method) or not _VISIBLE.fullmatch(target):
        raise ValueError("not a request: its method or target has a character that HTTP forbids")
    if any(name.lower() in _FRAMING for name, _ in headers[1:]):  # the first is our own Host
        raise ValueError(f"these headers cannot be given: {', '.join(sorted(_FRAMING))}")
    length = b"Content-Length: %d\r\n" % len(body) if body or method in _WITH_BODY else b""
    line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    return b"%b%b%b\r\n%b" % (line, header_lines(headers), length, body)


def _parser(method: str) -> h11.Connection:
    """What reads the answer to a request with this method: one to HEAD has no body."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
    parser.send(_SENT[method == "HEAD"])
    parser.send(h11.EndOfMessage())
    return parser


def _answer_within(clock: Clock, seconds: float | None) -> AbstractAsyncContextManager[None]:
    """A block that raises ResponseTimeout after `seconds`; None means no limit."""
    return time_limit(clock, seconds, ResponseTimeout(f"no answer within {seconds or 0:g} s"))
