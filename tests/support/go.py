"""HTTP and events as the Crush client speaks them, byte by byte, over plain asyncio streams.

It follows the rules of Go's net/http and shares no code with the package, so it fails where the
real client would. It distinguishes two ends of an event stream, as the real client does: after
`io.EOF` the client reconnects; after any other error it never gets an event again (`deaf`), which
is a failure here.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.gojson import EVENTS, DecodeError, Shape, marshal, read, unmarshal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

    Exchange = Callable[["Connection", bytes], Awaitable["Reply"]]

__all__ = [
    "PATIENCE",
    "Event",
    "EventStream",
    "GoClient",
    "GoError",
    "Refused",
    "Reply",
    "Transport",
    "UnexpectedEOF",
    "together",
]

PATIENCE = 60.0  # seconds: far above what anything takes, so that only a hang reaches it
IDLE_CONNECTIONS = 2  # per host
IDLE_SECONDS = 90.0
LINE_LIMIT = 1 << 27  # the client has none


class GoError(Exception):
    """A request failed below HTTP: refused, reset, cut off."""


class UnexpectedEOF(GoError):
    """Go's io.ErrUnexpectedEOF: the body ended before its framing said so."""


class Refused(Exception):
    """An answer with another status than the client wants."""

    def __init__(self, status: int, message: str, what: str) -> None:
        super().__init__(f"{what}: status code {status}: {message}")
        self.status = status
        self.message = message


@dataclass
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    @property
    def keep(self) -> bool:
        """Whether the connection can be used again: its framing must say where the body ends."""
        closes = "close" in self.headers.get("connection", "").lower()
        framed = self.framing != "close"
        return framed and not closes

    @property
    def framing(self) -> str:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return "chunked"
        return (
            "length" if "content-length" in self.headers or self.status in (204, 304) else "close"
        )


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Await all at once. If one fails, the others are cancelled before the error is raised: else
    their connections would stay open."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Connection:
    """One connection, and what Go's read loop does with it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._peek: asyncio.Task[bytes] | None = None
        self.idle_since = 0.0

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def flush(self) -> None:
        """Write everything; an error is ignored, since a server may answer and close before."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def head(self) -> Reply:
        """The next head, past any 100 Continue."""
        while True:
            status = (await self._line()).split(" ", 2)
            if len(status) < 2 or not status[0].startswith("HTTP/1.1") or not status[1].isdecimal():
                raise GoError(f"malformed HTTP response {status!r}")
            headers: dict[str, str] = {}
            while line := await self._line():
                name, colon, value = line.partition(":")
                if not colon or name != name.strip():
                    raise GoError(f"malformed MIME header line {line!r}")
                headers.setdefault(name.lower(), value.strip())
            if int(status[1]) >= 200:
                return Reply(int(status[1]), headers)

    async def pieces(self, reply: Reply) -> AsyncGenerator[bytes, None]:
        """The body, in pieces. Ends at io.EOF; raises where Go would return another error."""
        try:
            if reply.framing == "chunked":
                while size := int(await self._line(), 16):
                    yield await self._reader.readexactly(size)
                    if await self._line():
                        raise GoError("malformed chunked encoding")
                while await self._line():
                    pass  # trailers
            elif reply.framing == "length":
                yield await self._reader.readexactly(int(reply.headers.get("content-length", "0")))
            else:
                while piece := await self._reader.read(1 << 16):
                    yield piece
        except asyncio.IncompleteReadError:
            raise UnexpectedEOF("unexpected EOF") from None
        except ConnectionError as error:
            raise GoError(f"read: {error}") from None

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise UnexpectedEOF("unexpected EOF")
        return line[:-2].decode("latin-1")

    def park(self) -> None:
        """Read between requests, as Go does, to notice that the server closes."""
        self.idle_since = time.monotonic()
        self._peek = asyncio.create_task(self._reader.read(1))

    async def unpark(self) -> bool:
        """Take it out of the pool; False if the server has closed it meanwhile."""
        assert self._peek is not None
        peek, self._peek = self._peek, None
        await asyncio.sleep(0)  # so that an end that has already come is seen
        peek.cancel()
        await asyncio.wait([peek])
        if peek.cancelled():
            return time.monotonic() - self.idle_since < IDLE_SECONDS
        with contextlib.suppress(ConnectionError):
            if unsolicited := peek.result():
                raise AssertionError(f"unsolicited response on an idle channel: {unsolicited!r}")
        return False

    async def close(self) -> None:
        if self._peek is not None:
            self._peek.cancel()
            await asyncio.wait([self._peek])
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Transport:
    """The client of net/http: headers in Go's order, at most two idle connections; a GET is sent
    again if its kept connection was dead, a POST is not."""

    def __init__(self, url: str) -> None:
        scheme, _, self._address = url.partition("://")
        self._unix = scheme == "unix"
        self._host = "api.crush.localhost" if self._unix else self._address
        self._idle: list[Connection] = []
        self._closed = False
        self.dialed = 0
        self.sent: list[bytes] = []  # the requests, as they went out

    async def round_trip(
        self, method: str, target: str, body: bytes | None = None, kind: str = "application/json"
    ) -> Reply:
        """One request with its whole answer."""
        headers = {"Content-Type": kind} if body is not None else {}
        request = self.request(method, target, headers, body)
        connection, reply = await self._try(request, self._exchange, again=method == "GET")
        await self._give_back(connection, keep=reply.keep)
        return reply

    async def open(self, target: str) -> tuple[Connection, Reply]:
        """A GET whose body is a stream; the caller closes the connection."""
        wanted = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
        request = self.request("GET", target, wanted | {"Connection": "keep-alive"})
        return await self._try(request, self._ask, again=True)

    async def _try(
        self, request: bytes, exchange: Exchange, *, again: bool
    ) -> tuple[Connection, Reply]:
        connection, reused = await self._take()
        try:
            return connection, await exchange(connection, request)
        except (ConnectionError, GoError) as error:
            await connection.close()
            if not reused or not again:
                raise GoError(f"{request[:80]!r}: {error!r}") from error
        except BaseException:
            await connection.close()
            raise
        connection = await self._dial()
        try:
            return connection, await exchange(connection, request)
        except (ConnectionError, GoError) as error:
            await connection.close()
            raise GoError(f"{request[:80]!r}: {error!r}") from error
        except BaseException:  # canceled, as in `together`
            await connection.close()
            raise

    def request(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None = None
    ) -> bytes:
        """The request as bytes: Host, User-Agent and the length first, then the others sorted, then
        Accept-Encoding, which Go adds by itself."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines.append("User-Agent: Go-http-client/1.1")
        if body is not None or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body or b'')}")
        lines += [f"{name}: {headers[name]}" for name in sorted(headers)]
        if not self._unix:
            lines.append("Accept-Encoding: gzip")
        request = "\r\n".join([*lines, "", ""]).encode() + (body or b"")
        self.sent.append(request)
        return request

    async def _ask(self, connection: Connection, request: bytes) -> Reply:
        """Write and read at once: a server may refuse a long body before it has read it."""
        connection.send(request)
        _, reply = await together(connection.flush(), connection.head())
        assert isinstance(reply, Reply)
        return reply

    async def _exchange(self, connection: Connection, request: bytes) -> Reply:
        reply = await self._ask(connection, request)
        async with contextlib.aclosing(connection.pieces(reply)) as pieces:
            reply.body = b"".join([piece async for piece in pieces])
        return reply

    async def _take(self) -> tuple[Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            try:
                if await connection.unpark():
                    return connection, True
            except BaseException:  # canceled, as in `together`
                await connection.close()
                raise
            await connection.close()
        return await self._dial(), False

    async def _dial(self) -> Connection:
        self.dialed += 1
        try:
            if self._unix:
                pair = await asyncio.open_unix_connection(self._address, limit=LINE_LIMIT)
            else:
                host, _, port = self._address.rpartition(":")
                pair = await asyncio.open_connection(host, int(port), limit=LINE_LIMIT)
        except OSError as error:
            raise GoError(f"dial: {error}") from error
        return Connection(*pair)

    async def _give_back(self, connection: Connection, *, keep: bool) -> None:
        if keep and not self._closed and len(self._idle) < IDLE_CONNECTIONS:
            connection.park()
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        self._closed = True  # a request that is under way does not leave its connection here
        while self._idle:
            await self._idle.pop().close()


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """An event as the client decodes it; `raw` is the payload as it was sent."""

    kind: str
    action: str
    payload: dict[str, Any]
    raw: dict[str, Any] = field(repr=False)

    def __getitem__(self, key: str) -> Any:
        return self.payload[key]


class EventStream:
    """The client's reader. `warnings` are the lines that would be in its log: there must be none.
    It is `closed` at a clean end, and `deaf` (the error) after any other one."""

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self.reply = reply
        self.seen: list[Event] = []
        self.warnings: list[str] = []
        self.closed = False
        self.deaf: Exception | None = None
        self.on_event: Callable[[Event], None] = lambda event: None
        self._next = 0
        self._changed = asyncio.Event()
        self._connection = connection
        self._task = asyncio.create_task(self._read())

    async def wait_for(self, kind: str, **fields: Any) -> Event:
        """The next event of a kind with these fields; `action` is the inner type."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    while self._next < len(self.seen):
                        event = self.seen[self._next]
                        self._next += 1
                        if _matches(event, kind, fields):
                            return event
                    self._check(f"before {kind} {fields}")
                    await self.more()
        except TimeoutError:
            last = [f"{event.kind} {event.action}" for event in self.seen[-12:]]
            raise AssertionError(f"no {kind} {fields} came; the last were {last}") from None

    async def more(self) -> None:
        """Wait for another event, or for the end."""
        async with asyncio.timeout(PATIENCE):
            await self._changed.wait()
        self._changed.clear()

    def all(self, kind: str, **fields: Any) -> list[Event]:
        return [event for event in self.seen if _matches(event, kind, fields)]

    async def end(self) -> None:
        """Wait for the end; it must be io.EOF, and the log must be clean."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([self._task])
        if self.deaf is not None or self.warnings:
            raise AssertionError(f"the client is deaf: {self.deaf!r}; its log: {self.warnings}")
        self._task.result()

    async def hang_up(self) -> None:
        """Abort the request, as the client does when it quits or dies."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self.warnings:
            raise AssertionError(f"the client's log: {self.warnings}")

    def _check(self, when: str) -> None:
        if self.warnings or self.deaf is not None or self.closed:
            end = "closed" if self.closed else f"deaf: {self.deaf!r}"
            raise AssertionError(f"the stream {when}: {end}; log: {self.warnings}")

    async def _read(self) -> None:
        rest = b""
        try:
            async with contextlib.aclosing(self._connection.pieces(self.reply)) as pieces:
                async for piece in pieces:
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._take(line.strip())
                    self._changed.set()
            self.closed = True
        except GoError as error:
            self.deaf = error
        finally:
            self._changed.set()
            await self._connection.close()

    def _take(self, line: bytes) -> None:
        if not line:
            return
        if not line.startswith(b"data:"):
            self.warnings.append(f"Invalid event format: {line!r}")
            return
        try:
            outer = unmarshal(line[len(b"data:") :].strip())
            kind, inner = outer["type"], outer["payload"]
            if kind not in EVENTS:
                raise DecodeError(f"unknown event type {kind!r}")
            shape, actions = EVENTS[kind]
            if inner["type"] not in actions:
                raise DecodeError(f"unknown {kind} type {inner['type']!r}")
            payload = read(shape, inner["payload"])
        except (DecodeError, AssertionError, KeyError, TypeError) as error:
            self.warnings.append(f"{error!r} in {line[:200]!r}")
            return
        event = Event(kind, inner["type"], payload, inner["payload"])
        self.on_event(event)
        self.seen.append(event)


def _matches(event: Event, kind: str, fields: dict[str, Any]) -> bool:
    action = fields.get("action", event.action)
    rest = {key: value for key, value in fields.items() if key != "action"}
    wanted = event.kind == kind and event.action == action
    return wanted and all(event[key] == value for key, value in rest.items())


# The client library -----------------------------------------------------------------------------


class GoClient:
    """The client's calls: each has a path, the statuses it accepts, and the struct it decodes."""

    def __init__(self, url: str) -> None:
        self.transport = Transport(url)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        shape: Shape | None = None,
        *,
        statuses: tuple[int, ...] = (200,),
        kind: str = "application/json",
    ) -> Any:
        """Send a request with `body` as JSON. Without a shape the answer's body is not read."""
        content = None if body is None else marshal(body)
        async with asyncio.timeout(PATIENCE):
            target = joined(path)
            reply = await self.transport.round_trip(method, target, content, kind)
        if reply.status not in statuses:
            raise Refused(reply.status, _message(reply), f"{method} {path}")
        return None if shape is None else read(shape, unmarshal(reply.body))

    async def stream(self, path: str) -> EventStream:
        """Subscribe; returns when the headers have come."""
        async with asyncio.timeout(PATIENCE):
            connection, reply = await self.transport.open(joined(path))
            if reply.status == 200:
                return EventStream(connection, reply)
            try:
                async with contextlib.aclosing(connection.pieces(reply)) as pieces:
                    reply.body = b"".join([piece async for piece in pieces])
            finally:
                await connection.close()
        raise Refused(reply.status, _message(reply), f"GET {path}")


def joined(path: str) -> str:
    """Go's path.Join: an empty id takes its segment with it."""
    place, mark, query = path.partition("?")
    return posixpath.normpath(place) + mark + query


def _message(reply: Reply) -> str:
    try:
        return str(unmarshal(reply.body)["message"])
    except (DecodeError, KeyError, TypeError):
        return ""
