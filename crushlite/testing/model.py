"""A model server on a loopback port whose every byte a test decides.

It speaks `/chat/completions` (and `/messages`, the Anthropic shape: a call answers in the dialect
it was asked in) and `/models`, below any prefix, with real sockets, chunked streams and kept-alive
connections. Either the test plays the model, call by call:

    async with FakeModel() as model:
        ...                                   # make something ask model.base_url
        call = await model.call(1)            # the first request is here
        await call.text("hel")
        await call.tool_call("c1", "bash", '{"command": "ls"}', pieces=3)
        await call.finish("tool_calls", usage=(10, 5))

or a script does, which maps a request to steps that are played at once:

    FakeModel(script=lambda request: [Say("Hello."), End()])
    FakeModel(script=obedient)                # does what the last user message says

Every wait is bounded by `patience`: a hang is a failure that says what was waited for. Writing to
a client that has gone is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..clock import SystemClock

if TYPE_CHECKING:
    from types import TracebackType

    from ..clock import Clock

PATIENCE = 20.0  # seconds: far above what anything takes, so that only a hang reaches it

Pairs = Iterable[tuple[str, str]]


# Steps of a script.


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Think:
    text: str


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call; an empty id is minted from the number of the request."""

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """On the model's clock. The rest is not played if the client leaves meanwhile."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """An error answer; as the first step only, since a stream has its status already."""

    status: int
    message: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Cut the connection."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the answer. Without a reason: tool_calls after a Use, else stop."""

    reason: str = ""
    usage: tuple[int, int] | None = (10, 5)


Step = Say | Think | Use | Wait | Fail | Drop | End
Script = Callable[[dict[str, Any]], Sequence[Step]]


# The two dialects: what a step looks like on the wire.


def _event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode("ascii")


def _cut(text: str, pieces: int) -> list[str]:
    """`text` in about `pieces` parts of equal size, at least one."""
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


class _ChatDialect:
    """`chat.completion.chunk` objects, then `[DONE]`."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._model = request.get("model", "fake")
        self._calls = 0

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        return self._object([{"index": 0, "delta": delta, "finish_reason": reason}])

    def _object(self, choices: list[Any], **more: Any) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": self._model}
        return _event({**base, "choices": choices, **more})

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def think(self, text: str) -> bytes:
        return self._chunk({"reasoning_content": text})

    def tool_call(self, id_: str, name: str, pieces: list[str]) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        first = {"index": index, "id": id_, "type": "function"}
        function = {"name": name, "arguments": pieces[0]}
        parts = [self._chunk({"tool_calls": [{**first, "function": function}]})]
        parts += [
            self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces[1:]
        ]
        return b"".join(parts)

    def finish(self, reason: str, usage: tuple[int, int] | None) -> bytes:
        reason = reason or ("tool_calls" if self._calls else "stop")
        end = self._chunk({}, reason)
        if usage is not None:
            prompt, completion = usage
            counts = {"prompt_tokens": prompt, "completion_tokens": completion}
            end += self._object([], usage={**counts, "total_tokens": prompt + completion})
        return end + b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "fake_error", "code": status}}


class _MessagesDialect:
    """Named events; each step is a content block of its own."""

    _REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

    def __init__(self, request: dict[str, Any]) -> None:
        self._model = request.get("model", "fake")
        self._blocks = 0
        self._used_tools = False

    def _start(self, prompt: int = 1) -> bytes:
        if self._blocks:
            return b""
        usage = {"input_tokens": prompt, "output_tokens": 1}
        message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
        message |= {"model": self._model, "content": [], "stop_reason": None, "usage": usage}
        return _event({"type": "message_start", "message": message}, "message_start")

    def _block(self, block: dict[str, Any], deltas: list[dict[str, Any]]) -> bytes:
        data = self._start()
        index, self._blocks = self._blocks, self._blocks + 1
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("content_block_start", {"content_block": block}),
            *(("content_block_delta", {"delta": delta}) for delta in deltas),
            ("content_block_stop", {}),
        ]
        for kind, more in kinds:
            data += _event({"type": kind, "index": index, **more}, kind)
        return data

    def text(self, text: str) -> bytes:
        return self._block({"type": "text", "text": ""}, [{"type": "text_delta", "text": text}])

    def think(self, text: str) -> bytes:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        thought = {"type": "thinking_delta", "thinking": text}
        return self._block(block, [thought, {"type": "signature_delta", "signature": "signed"}])

    def tool_call(self, id_: str, name: str, pieces: list[str]) -> bytes:
        self._used_tools = True
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        return self._block(
            block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        )

    def finish(self, reason: str, usage: tuple[int, int] | None) -> bytes:
        reason = reason or ("tool_calls" if self._used_tools else "stop")
        delta = {"stop_reason": self._REASONS.get(reason, reason), "stop_sequence": None}
        more: dict[str, Any] = {"delta": delta}
        if usage is not None:
            more["usage"] = {"input_tokens": usage[0], "output_tokens": usage[1]}
        data = self._start() + _event({"type": "message_delta", **more}, "message_delta")
        return data + _event({"type": "message_stop"}, "message_stop")

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "fake_error", "message": message}}


class ModelCall:
    """One request to the model, and the answer the test gives it."""

    def __init__(
        self, model: FakeModel, line: _Line, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self.path = path
        self.headers = headers  # names in lower case
        self.body = body
        self.request: dict[str, Any] = _decoded(body)
        self._model = model
        self._line = line
        self._begun = False
        self._over = False
        anthropic = path.endswith("/messages")
        self._dialect: _ChatDialect | _MessagesDialect = (
            _MessagesDialect(self.request) if anthropic else _ChatDialect(self.request)
        )

    def __repr__(self) -> str:
        return f"<ModelCall {self.path} {'over' if self._over else 'open'}>"

    @property
    def open(self) -> bool:
        """Whether the answer is still to be finished, and somebody is there to hear it."""
        return not self._over

    # Streaming.

    async def text(self, text: str) -> None:
        await self._stream(self._dialect.text(text))

    async def think(self, text: str) -> None:
        await self._stream(self._dialect.think(text))

    async def tool_call(self, id_: str, name: str, arguments: str, pieces: int = 1) -> None:
        """A whole tool call, its arguments in about this many pieces."""
        await self._stream(self._dialect.tool_call(id_, name, _cut(arguments, pieces)))

    async def finish(self, reason: str = "", usage: tuple[int, int] | None = (10, 5)) -> None:
        """The finish chunk, the usage (prompt and completion tokens; None: none), the end. Without
        a reason: tool_calls after a tool call, else stop."""
        await self._stream(self._dialect.finish(reason, usage))
        self.end()

    def begin(
        self, status: int = 200, content_type: str = "text/event-stream", headers: Pairs = ()
    ) -> None:
        """Send the head of a stream; the first piece does so by itself."""
        if not self._begun:
            pairs = [("Content-Type", content_type), *headers, ("Transfer-Encoding", "chunked")]
            self.bare(_head(status, pairs))

    def raw(self, data: bytes) -> None:
        """Bytes of the stream, just as they are."""
        self.begin()
        if data:
            self.bare(b"%x\r\n%b\r\n" % (len(data), data))

    def bare(self, data: bytes) -> None:
        """Bytes on the wire without any framing: for answers that are not even HTTP."""
        self._begun = True
        if not self._over:
            self._line.write(data)

    def end(self) -> None:
        """End the stream where it is, as HTTP wants it; nothing is added."""
        self.begin()
        self.bare(b"0\r\n\r\n")
        self.release()

    # Other answers.

    def error(self, status: int, message: str, headers: Pairs = ()) -> None:
        """An error answer instead of a stream, in the shape of the dialect."""
        body = json.dumps(self._dialect.error(status, message)).encode("ascii")
        self.reply(status, body, headers=headers)

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Pairs = (),
    ) -> None:
        """A whole answer instead of a stream."""
        pairs = [("Content-Type", content_type), *headers, ("Content-Length", str(len(body)))]
        self.bare(_head(status, pairs) + body)
        self.release()

    def drop(self) -> None:
        """Cut the connection where it is."""
        self._line.abort()
        self.release()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        await self._model.within(asyncio.shield(self._line.lost), f"{self!r}: the client to leave")

    def release(self) -> None:
        """The answer is over, or nobody hears it any more."""
        if not self._over:
            self._over = True
            self._model.call_over(self)
            self._line.call_over()

    async def _stream(self, data: bytes) -> None:
        self.raw(data)
        await self._model.within(self._line.drained(), f"{self!r}: the client to read")


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


class _Line(asyncio.Protocol):
    """A connection: whole requests in (one at a time, with Content-Length), bytes out."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._call: ModelCall | None = None
        self._paused: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._model.line_made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._call is not None:
            self._call.release()
        self._model.line_lost(self)

    def pause_writing(self) -> None:
        self._paused = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)
        self._paused = None

    async def drained(self) -> None:
        """Give way, and wait while the client reads too slowly."""
        await asyncio.sleep(0)
        if self._paused is not None:
            await asyncio.shield(self._paused)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def call_over(self) -> None:
        self._call = None
        # Not now: whoever ended the call is still in the middle of it.
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Take a request out of the buffer, unless one is being answered."""
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
    """See the module's docstring.

    `requests` are the decoded bodies in order of arrival, `concurrent` the calls open now,
    `most_concurrent` the most there ever were, `most_concurrent_by` the same by the text of the
    first user message; `connections` counts those ever made. `models` are the ids it offers.
    """

    def __init__(
        self,
        *,
        script: Script | None = None,
        models: Sequence[str] = ("fake-large", "fake-small"),
        clock: Clock | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.calls: list[ModelCall] = []
        self.models = list(models)
        self.concurrent = 0
        self.most_concurrent = 0
        self.most_concurrent_by: dict[str, int] = {}
        self.connections = 0
        self.port = 0
        self._script = script
        self._clock = clock or SystemClock()
        self._patience = patience
        self._minted = 0
        self._concurrent_by: Counter[str] = Counter()
        self._lines: set[_Line] = set()
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
        self._server = await loop.create_server(lambda: _Line(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        lost = [line.lost for line in self._lines]
        plays = list(self._plays.values())
        for line in tuple(self._lines):
            line.abort()
        for play in plays:
            play.cancel()
        if lost or plays:
            await self.within(asyncio.wait([*lost, *plays]), "the connections to end")

    async def call(self, number: int = 1) -> ModelCall:
        """Wait until the request with this number (from 1) is here; return its handle."""
        while len(self.calls) < number:
            if self._arrival is None:
                self._arrival = asyncio.get_running_loop().create_future()
            what = f"request {number} to the model; {len(self.calls)} came"
            await self.within(asyncio.shield(self._arrival), what)
        return self.calls[number - 1]

    async def within(self, awaitable: Any, what: str) -> None:
        """Wait, but not for ever."""
        try:
            async with asyncio.timeout(self._patience):
                await awaitable
        except TimeoutError:
            raise AssertionError(f"waited {self._patience:g} s for {what}") from None

    # What connections and calls report.

    def line_made(self, line: _Line) -> None:
        self.connections += 1
        self._lines.add(line)

    def line_lost(self, line: _Line) -> None:
        self._lines.discard(line)

    def arrived(self, method: str, call: ModelCall) -> None:
        if method == "GET" and call.path.endswith("/models"):
            data = [{"id": name, "object": "model"} for name in self.models]
            call.reply(200, json.dumps({"object": "list", "data": data}).encode("ascii"))
        elif method == "POST" and call.path.endswith(("/chat/completions", "/messages")):
            self._begin(call)
        else:
            call.error(404, f"the fake model has no {method} {call.path}")

    def _begin(self, call: ModelCall) -> None:
        self.calls.append(call)
        text = _first_text(call.request)
        self.concurrent += 1
        self._concurrent_by[text] += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        most = max(self.most_concurrent_by.get(text, 0), self._concurrent_by[text])
        self.most_concurrent_by[text] = most
        if self._script is not None:
            play = asyncio.get_running_loop().create_task(self._play(call, self._script))
            self._plays[call] = play
            play.add_done_callback(lambda _: self._plays.pop(call, None))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._arrival = None

    def call_over(self, call: ModelCall) -> None:
        if call not in self.calls:
            return
        self.concurrent -= 1
        self._concurrent_by[_first_text(call.request)] -= 1
        play = self._plays.get(call)
        if play is not None and play is not asyncio.current_task():
            play.cancel()  # the client has left: what remains would be said to nobody

    async def _play(self, call: ModelCall, script: Script) -> None:
        try:
            steps = list(script(call.request))
        except Exception as error:  # noqa: BLE001 - the test must see it, not hang
            call.error(500, f"the script of the fake model failed: {error!r}")
            return
        with contextlib.suppress(asyncio.CancelledError):  # only `call_over` and `aclose` cancel
            for step in steps:
                await self._take(call, step)

    async def _take(self, call: ModelCall, step: Step) -> None:
        match step:
            case Say(text):
                await call.text(text)
            case Think(text):
                await call.think(text)
            case Use(name, arguments, id_):
                await call.tool_call(id_ or self._mint(call), name, arguments, pieces=2)
            case Wait(seconds):
                await self._clock.sleep(seconds)
            case Fail(status, message, headers):
                call.error(status, message, headers)
            case Drop():
                call.drop()
            case End(reason, usage):
                await call.finish(reason, usage)

    def _mint(self, call: ModelCall) -> str:
        self._minted += 1
        return f"call_{self.calls.index(call) + 1}_{self._minted}"


# The ready-made script.


def _messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    found = request.get("messages")
    return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


def _text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts that may be results."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (p.get("text") or _text_of(p.get("content")) for p in parts if isinstance(p, dict))
    return "\n".join(text for text in texts if text)


def _first_text(request: dict[str, Any]) -> str:
    return next((_text_of(m.get("content")) for m in _messages(request) if _is_user(m)), "")


def _is_result(message: dict[str, Any]) -> bool:
    if message.get("role") == "tool":
        return True
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)


def _is_user(message: dict[str, Any]) -> bool:
    return message.get("role") == "user" and not _is_result(message)


_QUESTIONS = [
    {
        "id": "q1",
        "type": "single_choice",
        "label": "DB",
        "question": "Which database?",
        "description": "Pick one.",
        "choices": [
            {"id": "pg", "label": "Postgres", "description": "big"},
            {"id": "sq", "label": "SQLite", "description": "small"},
        ],
    }
]


def obedient(request: dict[str, Any]) -> list[Step]:
    """A script that obeys the last user message:

    `@bash CMD`, `@write FILE TEXT`, `@ask` and `@tool NAME JSON` call a tool, and the answer to
    its result is "The tool said: ..."; `@slow S` waits S seconds in mid-answer; `@fail [STATUS]`
    answers an error, 400 unless told; anything else gets "Hello from the model. You said: ...".
    A request without tools is one for a title.
    """
    if not request.get("tools"):
        return [Say("Fake Title"), End()]
    messages = _messages(request)
    last = messages[-1] if messages else {}
    text = _text_of(last.get("content"))
    if _is_result(last):
        return [Say(f"The tool said: {text}"), End()]
    word, _, rest = text.strip().partition(" ")
    order = _ORDERS.get(word)
    if order is None:
        return [Say("Hello from the model. "), Say(f"You said: {text}"), End()]
    return order(rest)


def _bash(rest: str) -> list[Step]:
    return _use("bash", {"command": rest, "description": "What the user asked for"})


def _write(rest: str) -> list[Step]:
    name, _, content = rest.partition(" ")
    return _use("write", {"file_path": name, "content": content})


def _ask(rest: str) -> list[Step]:
    return _use("question", {"questions": _QUESTIONS})


def _tool(rest: str) -> list[Step]:
    name, _, arguments = rest.partition(" ")
    return [Use(name, arguments or "{}"), End()]


def _slow(rest: str) -> list[Step]:
    return [Say("One moment. "), Wait(float(rest or 1)), Say("Here I am."), End()]


def _fail(rest: str) -> list[Step]:
    status, _, message = rest.partition(" ")
    return [Fail(int(status or 400), message or "The fake model fails as it was told.")]


def _use(name: str, arguments: dict[str, Any]) -> list[Step]:
    return [Use(name, json.dumps(arguments)), End()]


_ORDERS: dict[str, Callable[[str], list[Step]]] = {
    "@bash": _bash,
    "@write": _write,
    "@ask": _ask,
    "@tool": _tool,
    "@slow": _slow,
    "@fail": _fail,
}
