"""The server of the fake model: connections, calls and their answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..clock import SystemClock, resolve_once
from .dialects import ChatDialect, Counts, MessagesDialect
from .newer_dialects import GeminiDialect, ResponsesDialect
from .scripts import Break, Drop, End, Fail, Refuse, Say, Think, Use, Wait, first_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock
    from .dialects import Dialect
    from .scripts import Script, Step

_GEMINI = ":streamGenerateContent"
_APIS = ("/chat/completions", "/messages", "/responses", _GEMINI)

PATIENCE = 20.0  # seconds: far above what anything takes, so that only a hang reaches it

Pairs = Iterable[tuple[str, str]]


class ModelCall:
    """One request to the model, and the answer the test gives it."""

    def __init__(
        self,
        model: FakeModel,
        connection: _Connection,
        path: str,
        headers: dict[str, str],
        body: bytes,
    ) -> None:
        self.path = path
        self.headers = headers  # names in lower case
        self.body = body
        self.request: dict[str, Any] = _decoded(body)
        self._model = model
        self._connection = connection
        self._begun = False
        self._over = False
        self._dialect = _dialect(path, self.request)

    def __repr__(self) -> str:
        return f"<ModelCall {self.path} {'over' if self._over else 'open'}>"

    @property
    def open(self) -> bool:
        """Whether the answer is not finished and the client is still connected."""
        return not self._over

    # Streaming ----------------------------------------------------------------------------------

    async def text(self, text: str) -> None:
        await self._stream(self._dialect.text(text))

    async def think(self, text: str) -> None:
        await self._stream(self._dialect.think(text))

    async def tool_call(self, id_: str, name: str, arguments: str, pieces: int = 1) -> None:
        """A complete tool call, with its arguments in about so many pieces."""
        await self._stream(self._dialect.tool_call(id_, name, arguments, pieces))

    async def finish(
        self, reason: str = "", usage: tuple[int, int] | Counts | None = (10, 5)
    ) -> None:
        """Send the finish reason (by default tool_calls after a tool call, else stop) and the usage
        (prompt and completion tokens; None for none), and end the stream."""
        counts = Counts(*usage) if isinstance(usage, tuple) else usage
        await self._stream(self._dialect.finish(reason, counts))
        self.end()

    async def refuse(self, kind: str) -> None:
        """Fail as the API documents it: with an error response, or inside the stream if that has
        begun, which ends then. See Dialect.failure for the kinds."""
        if self._begun:
            await self._stream(self._dialect.break_off(kind))
            self.end()
        else:
            status, document = self._dialect.failure(kind)
            self.reply(status, json.dumps(document).encode("ascii"))

    def begin(
        self, status: int = 200, content_type: str = "text/event-stream", headers: Pairs = ()
    ) -> None:
        """Send the head of a stream. Called by the first piece if the test has not called it."""
        if not self._begun:
            pairs = [("Content-Type", content_type), *headers, ("Transfer-Encoding", "chunked")]
            self.bare(_head(status, pairs))

    def raw(self, data: bytes) -> None:
        """Send bytes of the stream as they are."""
        self.begin()
        if data:
            self.bare(b"%x\r\n%b\r\n" % (len(data), data))

    def bare(self, data: bytes) -> None:
        """Send bytes without any framing: for answers that are not even HTTP."""
        self._begun = True
        if not self._over:
            self._connection.write(data)

    def end(self) -> None:
        """End the stream where it is, as HTTP demands; nothing is added."""
        self.begin()
        self.bare(b"0\r\n\r\n")
        self.release()

    # Other answers ------------------------------------------------------------------------------

    def error(self, status: int, message: str, headers: Pairs = ()) -> None:
        """Answer with an error instead of a stream, in the shape of the API."""
        body = json.dumps(self._dialect.error(status, message)).encode("ascii")
        self.reply(status, body, headers=headers)

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Pairs = (),
    ) -> None:
        """Answer with a complete body instead of a stream."""
        pairs = [("Content-Type", content_type), *headers, ("Content-Length", str(len(body)))]
        self.bare(_head(status, pairs) + body)
        self.release()

    def drop(self) -> None:
        """Abort the connection in the middle of the answer."""
        self._connection.abort()
        self.release()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        await self._model.wait_for(
            asyncio.shield(self._connection.lost), f"{self!r}: the client to leave"
        )

    def release(self) -> None:
        """The answer is complete, or the client has gone: take the next request."""
        if not self._over:
            self._over = True
            self._model.call_over(self)
            self._connection.call_over()

    async def _stream(self, data: bytes) -> None:
        self.raw(data)
        await self._model.wait_for(self._connection.drained(), f"{self!r}: the client to read")


def _dialect(path: str, request: dict[str, Any]) -> Dialect:
    """The API that a path belongs to."""
    if path.endswith("/messages"):
        return MessagesDialect(request)
    if path.endswith("/responses"):
        return ResponsesDialect(request)
    if path.endswith(_GEMINI):
        return GeminiDialect(request, path.rpartition("/")[2].removesuffix(_GEMINI))
    return ChatDialect(request)


def _head(status: int, pairs: Pairs) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in pairs)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _Connection(asyncio.Protocol):
    """Reads complete requests (with Content-Length), one at a time, and writes bytes."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._call: ModelCall | None = None
        self._writable: asyncio.Future[None] | None = None  # set while writing is paused
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._model.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        resolve_once(self.lost)
        if self._call is not None:
            self._call.release()
        self._model.connection_lost(self)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            resolve_once(self._writable)
        self._writable = None

    async def drained(self) -> None:
        """Let other tasks run, and wait while the client reads too slowly."""
        await asyncio.sleep(0)
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def call_over(self) -> None:
        self._call = None
        # Not at once: the caller is still in the middle of ending the call.
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next request in the buffer if it is complete and none is being answered."""
        end = self._buffer.find(b"\r\n\r\n")
        if self._call is not None or self._transport is None or end < 0:
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        stop = end + 4 + int(headers.get("content-length", "0"))
        if len(self._buffer) < stop:
            return
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, _, target = first.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        call = self._call = ModelCall(self._model, self, path, headers, body)
        self._model.arrived(method, call)


class FakeModel:
    """The server; see the header of the package.

    `requests` are the decoded bodies in order of arrival. `concurrent` is the number of open calls,
    `most_concurrent` its maximum so far, and `most_concurrent_by` the maxima by the text of the
    first user message. `connections` counts all that were ever made. `models` are the ids in the
    list of models, `apis` the ends of the paths that are answered. `port` is where it listens, a
    free one if that is 0.
    """

    def __init__(
        self,
        *,
        script: Script | None = None,
        models: Sequence[str] = ("fake-large", "fake-small"),
        apis: tuple[str, ...] = _APIS,
        clock: Clock | None = None,
        patience: float = PATIENCE,
        port: int = 0,
    ) -> None:
        self.calls: list[ModelCall] = []
        self.models = list(models)
        self.apis = apis
        self.concurrent = 0
        self.most_concurrent = 0
        self.most_concurrent_by: dict[str, int] = {}
        self.connections = 0
        self.port = port
        self._script = script
        self._clock = clock or SystemClock()
        self._patience = patience
        self._ids = 0
        self._concurrent_by: Counter[str] = Counter()
        self._open: set[_Connection] = set()
        self._plays: dict[ModelCall, asyncio.Task[None]] = {}
        self._arrival: asyncio.Future[None] | None = None
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [call.request for call in self.calls]

    async def __aenter__(self) -> FakeModel:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening and abort all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        lost = [connection.lost for connection in self._open]
        plays = list(self._plays.values())
        for connection in tuple(self._open):
            connection.abort()
        for play in plays:
            play.cancel()
        if lost or plays:
            await self.wait_for(asyncio.wait([*lost, *plays]), "the connections to end")

    async def call(self, number: int = 1) -> ModelCall:
        """Wait until the request with this number (from 1) has arrived; return it."""
        while len(self.calls) < number:
            if self._arrival is None:
                self._arrival = asyncio.get_running_loop().create_future()
            what = f"request {number} to the model; {len(self.calls)} came"
            await self.wait_for(asyncio.shield(self._arrival), what)
        return self.calls[number - 1]

    async def wait_for(self, awaitable: Any, what: str) -> None:
        """Await something; raises AssertionError, which names it, when `patience` is over."""
        try:
            async with asyncio.timeout(self._patience):
                await awaitable
        except TimeoutError:
            raise AssertionError(f"waited {self._patience:g} s for {what}") from None

    # What connections and calls report -----------------------------------------------------------

    def connection_made(self, connection: _Connection) -> None:
        self.connections += 1
        self._open.add(connection)

    def connection_lost(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def arrived(self, method: str, call: ModelCall) -> None:
        if method == "GET" and call.path.endswith("/models"):
            call.reply(200, json.dumps(self._listed(call)).encode("ascii"))
        elif method == "POST" and call.path.endswith(self.apis):
            self._begin(call)
        else:
            call.error(404, f"the fake model has no {method} {call.path}")

    def _listed(self, call: ModelCall) -> dict[str, Any]:
        if "x-goog-api-key" in call.headers:
            methods = ["generateContent", "countTokens"]
            models = [
                {"name": f"models/{name}", "supportedGenerationMethods": methods}
                for name in self.models
            ]
            return {"models": models}
        data = [{"id": name, "object": "model"} for name in self.models]
        return {"object": "list", "data": data}

    def _begin(self, call: ModelCall) -> None:
        self.calls.append(call)
        text = first_text(call.request)
        self.concurrent += 1
        self._concurrent_by[text] += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        most = max(self.most_concurrent_by.get(text, 0), self._concurrent_by[text])
        self.most_concurrent_by[text] = most
        if self._script is not None:
            play = asyncio.get_running_loop().create_task(self._play(call, self._script))
            self._plays[call] = play
            play.add_done_callback(lambda _: self._plays.pop(call, None))
        if self._arrival is not None:
            resolve_once(self._arrival)
        self._arrival = None

    def call_over(self, call: ModelCall) -> None:
        if call not in self.calls:
            return
        self.concurrent -= 1
        self._concurrent_by[first_text(call.request)] -= 1
        play = self._plays.get(call)
        if play is not None and play is not asyncio.current_task():
            play.cancel()  # the client has gone: the rest of the script is not needed

    async def _play(self, call: ModelCall, script: Script) -> None:
        try:
            steps = list(script(call.request))
        except Exception as error:  # noqa: BLE001 - the test must see it, not hang
            call.error(500, f"the script of the fake model failed: {error!r}")
            return
        try:
            for step in steps:
                await self._perform(call, step)
        except asyncio.CancelledError:
            pass  # only `call_over` and `aclose` cancel
        except Exception:
            call.drop()  # the client must not wait for the rest
            raise

    async def _perform(self, call: ModelCall, step: Step) -> None:
        match step:
            case Say(text):
                await call.text(text)
            case Think(text):
                await call.think(text)
            case Use(name, arguments, id_):
                text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
                await call.tool_call(id_ or self._new_id(call), name, text, pieces=2)
            case Wait(seconds):
                await self._clock.sleep(seconds)
            case Fail(status, message, headers):
                call.error(status, message, headers)
            case Refuse(kind):
                await call.refuse(kind)
            case Drop():
                call.drop()
            case Break():
                call.end()
            case End(reason, usage):
                await call.finish(reason, usage)

    def _new_id(self, call: ModelCall) -> str:
        self._ids += 1
        return f"call_{self.calls.index(call) + 1}_{self._ids}"
