"""Anthropic's messages API, and the servers that speak it.

What the API wants of a history, and what is done about it:

- Roles alternate: neighbours of one role become one message; tool results are blocks of a user
  message, and come first in it.
- Blocks of text hold more than white space: others are left out, and a message of nothing too.
- Thinking goes back exactly as it came, with its signature, or not at all. An answer with a single
  plain block of it is stored as its text and signature; any other (several blocks, or redacted
  ones) puts all its blocks, as JSON, in the place of the signature.
- While thinking is on, a turn that has called tools begins with thinking. One that does not (it
  was begun by another model) is continued without.

Four places are marked for caching, as many as the API takes: the end of the tools, of the system
text, and of the two newest user messages. What stands before them is sent again, unchanged, with
the next step: the older of the two marks is where the last request ended, and is found also if
more blocks have come since than the API looks back by itself.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ..proxies import NO_PROXIES
from .base import CallPiece, ModelStop, Piece, ProviderError, Text, Thought, Tokens
from .transport import (
    MODELS_SECONDS,
    WHOLE,
    Mender,
    Timeouts,
    Transport,
    count,
    decoded,
    malformed,
    model_ids,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from ...clock import Clock
    from ...http.sse import SSEEvent
    from ..proxies import Proxies
    from .base import ChatMessage, Image, ModelRequest

_VERSION = "2023-06-01"
# The API has no default of its own; every current model can answer at least this much.
_MAX_TOKENS = 8192
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24_000}
_LEAST_BUDGET = 1024
_CACHED = {"type": "ephemeral"}

_REASONS = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
    "refusal": "content_filter",
}
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicProvider:
    """A server that speaks `POST {base_url}/v1/messages`; a base URL may end in /v1 already.

    Raises ProviderError at once for a base URL or header that can never work. Configured headers
    and body fields win over our own of the same name. A key that begins with "Bearer " goes into
    Authorization, any other into x-api-key.
    """

    def __init__(  # noqa: PLR0913 - what a configuration says of a provider, by keyword
        self,
        base_url: str,
        api_key: str = "",
        *,
        extra_headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        extra_body: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        headers = [("anthropic-version", _VERSION)]
        key = api_key.strip()
        if key:
            bearer = key.startswith("Bearer ")
            headers.append(("Authorization" if bearer else "x-api-key", key))
        self._transport = Transport(
            base_url,
            headers=headers,
            extra_headers=dict(extra_headers).items(),
            clock=clock,
            timeouts=timeouts,
            proxies=proxies,
        )
        versioned = self._transport.endpoint.prefix.endswith("/v1")
        self._prefix = "" if versioned else "/v1"
        self._extra_body = dict(extra_body or {})

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        decoder, body = _Decoder(), self._body(request)
        async with self._transport.post(f"{self._prefix}/messages", body) as reply:
            async for event in reply:
                for piece in decoder.feed(event):
                    yield piece
                if decoder.done:
                    break
                if decoder.finished:
                    reply.hurry()
            rest = decoder.end()
            await reply.drain()
        # Outside of the block: the connection is free again even if nobody reads on.
        for piece in rest:
            yield piece

    async def list_models(self, timeout: float = MODELS_SECONDS) -> list[str]:
        """The ids of the models the server offers, the newest first; the answer must be here
        within `timeout` seconds."""
        path = f"{self._prefix}/models"
        return await self._transport.get(path, model_ids, timeout=timeout)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        limit = request.max_tokens if request.max_tokens > 0 else _MAX_TOKENS
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": limit,
            "messages": _messages(request.messages),
            "stream": True,
        }
        if request.system.strip():
            system = {"type": "text", "text": request.system, "cache_control": _CACHED}
            body["system"] = [system]
        if request.tools:
            body["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": t.parameters}
                for t in request.tools
            ]
            body["tools"][-1]["cache_control"] = _CACHED
        budget = _budget(request, limit)
        if budget:
            # The API takes no temperature beside it.
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        else:
            for name in ("temperature", "top_p"):
                if (value := getattr(request, name)) is not None:
                    body[name] = value
        return body | self._extra_body


def _budget(request: ModelRequest, limit: int) -> int:
    """How many tokens the model may think; 0 for not at all."""
    effort = request.reasoning_effort
    if not (request.think or effort) or effort == "none" or not _may_think(request.messages):
        return 0
    # The answer itself must fit beside it.
    budget = min(_BUDGETS.get(effort, _BUDGETS["medium"]), limit // 2)
    return budget if budget >= _LEAST_BUDGET else 0


def _may_think(messages: list[ChatMessage]) -> bool:
    """Whether each step of the unfinished turn, if there is one, begins with signed thinking."""
    for message in reversed(messages):
        if message.role == "user":
            return True
        if message.tool_calls and not message.signature:
            return False
    return True


# Writing the history.


def _messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        else:
            found.append({"role": role, "content": blocks})
    for entry in found:
        # Stable: what was in order stays in order.
        entry["content"].sort(key=lambda block: block["type"] != "tool_result")
    for entry in [entry for entry in found if entry["role"] == "user"][-2:]:
        entry["content"][-1]["cache_control"] = _CACHED
    return found


def _blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [_result(message)]
    if message.role == "assistant":
        calls = [
            {"type": "tool_use", "id": _id(c.id), "name": c.name, "input": _object(c.input)}
            for c in message.tool_calls
        ]
        return [*_thinking(message), *_text(message.text), *calls]
    return [*(_image(image) for image in message.images), *_text(message.text)]


def _result(message: ChatMessage) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = message.text
    if message.images:
        content = [*_text(message.text), *(_image(image) for image in message.images)]
    block = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id), "content": content}
    return block | ({"is_error": True} if message.is_error else {})


def _thinking(message: ChatMessage) -> list[dict[str, Any]]:
    signature = message.signature
    if signature.startswith("["):
        try:
            blocks = json.loads(signature)
        except (ValueError, RecursionError):
            return []
        return [block for block in blocks if isinstance(block, dict) and "type" in block]
    if not signature:
        return []
    return [{"type": "thinking", "thinking": message.thinking, "signature": signature}]


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": image.mime_type, "data": image.data}
    return {"type": "image", "source": source}


def _id(id_: str) -> str:
    """Ids of other providers may hold characters that are refused here."""
    return _NOT_IN_AN_ID.sub("_", id_)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# Reading the answer.


class _Block:
    """A content block that has begun. `call` is its number among the tool calls, if it is one."""

    def __init__(self, kind: str, call: int | None) -> None:
        self.kind = kind
        self.call = call
        self.input: dict[str, Any] = {}  # given with the start; the deltas are the rule
        self.arguments = 0  # characters streamed
        self.thinking = ""
        self.signature = ""
        self.data = ""
        self.mend = Mender()


class _Decoder:
    """One answer: events in, pieces out. Knows no time and no connection."""

    def __init__(self) -> None:
        self.done = False  # the server said that nothing follows
        self._begun = False
        self._reason = ""
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._thoughts: list[dict[str, Any]] = []  # whole blocks, as they must go back

    @property
    def finished(self) -> bool:
        """The answer is complete; only its formal end may follow."""
        return bool(self._reason)

    def feed(self, event: SSEEvent) -> list[Piece]:
        data = event.data.strip()
        if not data:
            return []
        value = decoded(data)
        if not isinstance(value, dict):
            raise refusal(value) if event.event == WHOLE else malformed(f"no object: {data}")
        if value.get("type") == "error" or event.event == "error" or value.get("error"):
            raise refusal(value)
        if event.event == WHOLE:
            return self._whole(value)
        handle = self._HANDLERS.get(_string(value, "type") or event.event)
        return handle(self, value) if handle is not None else []  # new kinds are to be ignored

    def end(self) -> list[Piece]:
        """The stream is over: what remains to be said, with Stop as the last; raises if the
        answer is not complete."""
        if not self._begun:
            raise malformed("no answer at all")
        if not self._reason and not self.done:
            text = "the provider's stream ended before the answer was complete"
            raise ProviderError(text, retryable=True)
        # A block that was never closed, in an answer that was, is closed here.
        rest = [piece for index in list(self._blocks) for piece in self._close(index)]
        reason = _REASONS.get(self._reason, "unknown")
        if self._calls and reason in ("end_turn", "unknown"):
            reason = "tool_use"
        elif reason == "tool_use" and not self._calls:
            reason = "unknown"
        return [*rest, ModelStop(reason)]

    def _whole(self, value: dict[str, Any]) -> list[Piece]:
        """An answer in one document: the same as a stream of its blocks."""
        content = value.get("content")
        if not isinstance(content, list):
            raise refusal(value)
        pieces: list[Piece] = []
        for index, block in enumerate(content):
            pieces += self._block_start({"index": index, "content_block": block})
            pieces += self._close(index)
        pieces += self._message_delta({"delta": value, "usage": value.get("usage")})
        self._begun = self.done = True
        return pieces

    # Events.

    def _message_start(self, value: dict[str, Any]) -> list[Piece]:
        message = value.get("message")
        if not isinstance(message, dict):
            raise malformed(f"a message_start without a message: {value!r}")
        self._begun = True
        return _tokens(message.get("usage"))

    def _block_start(self, value: dict[str, Any]) -> list[Piece]:
        block, index = value.get("content_block"), count(value.get("index"))
        if not isinstance(block, dict) or index is None or index in self._blocks:
            raise malformed(f"a content block of a strange shape: {value!r}")
        self._begun = True
        kind = block.get("type")
        pieces: list[Piece] = []
        number = None
        if kind == "tool_use":
            id_, name = block.get("id"), block.get("name")
            if not isinstance(id_, str) or not isinstance(name, str) or not id_ or not name:
                raise malformed(f"a tool call without id or name: {block!r}")
            number, self._calls = self._calls, self._calls + 1
            pieces.append(CallPiece(number, id_, name))
        opened = self._blocks[index] = _Block(str(kind), number)
        given = block.get("input")
        opened.input = given if isinstance(given, dict) else {}
        opened.data = _string(block, "data")
        return pieces + self._grow(opened, block)

    def _block_delta(self, value: dict[str, Any]) -> list[Piece]:
        delta, block = value.get("delta"), self._block(value)
        if not isinstance(delta, dict):
            raise malformed(f"a delta that is no object: {value!r}")
        return self._grow(block, delta)

    def _grow(self, block: _Block, delta: dict[str, Any]) -> list[Piece]:
        """What a delta, or the start of a block, adds. Its field says what it is."""
        block.signature += _string(delta, "signature")
        if block.kind == "tool_use":
            text = block.mend(_string(delta, "partial_json"))
            block.arguments += len(text)
            return [CallPiece(block.call or 0, arguments=text)] if text else []
        if block.kind == "thinking":
            text = block.mend(_string(delta, "thinking"))
            block.thinking += text
            return [Thought(text)] if text else []
        text = block.mend(_string(delta, "text")) if block.kind == "text" else ""
        return [Text(text)] if text else []

    def _block_stop(self, value: dict[str, Any]) -> list[Piece]:
        self._block(value)
        return self._close(value["index"])

    def _message_delta(self, value: dict[str, Any]) -> list[Piece]:
        delta = value.get("delta")
        if not isinstance(delta, dict):
            raise malformed(f"a message_delta that is no object: {value!r}")
        self._reason = _string(delta, "stop_reason") or self._reason
        return _tokens(value.get("usage"))

    def _message_stop(self, value: dict[str, Any]) -> list[Piece]:
        self.done = True
        return []

    _HANDLERS: dict[str, Callable[[_Decoder, dict[str, Any]], list[Piece]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
    }

    # Blocks.

    def _block(self, value: dict[str, Any]) -> _Block:
        index = count(value.get("index"))
        block = self._blocks.get(index) if index is not None else None
        if block is None:
            raise malformed(f"a part of a block that never began: {value!r}")
        return block

    def _close(self, index: int) -> list[Piece]:
        block = self._blocks.pop(index)
        if block.call is not None and not block.arguments:
            return [CallPiece(block.call, arguments=json.dumps(block.input))]
        if block.kind == "thinking" and block.signature:
            thought = {"type": "thinking", "thinking": block.thinking}
            self._thoughts.append({**thought, "signature": block.signature})
        elif block.kind == "redacted_thinking" and block.data:
            self._thoughts.append({"type": "redacted_thinking", "data": block.data})
        else:
            return []
        return [Thought("", self._signature())]

    def _signature(self) -> str:
        """For all the thinking so far: it replaces the one given before."""
        first, *more = self._thoughts
        if more or first["type"] != "thinking" or first["signature"].startswith("["):
            return json.dumps(self._thoughts)
        return str(first["signature"])


def _string(value: dict[str, Any], name: str) -> str:
    """A field that may be missing, but is text if it is there."""
    found = value.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise malformed(f"a {name} that is no text: {found!r}")
    return found


def _tokens(usage: Any) -> list[Piece]:
    if not isinstance(usage, dict):
        return []
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    prompt, read, write = (count(usage.get(name)) for name in names)
    completion = count(usage.get("output_tokens"))
    if not (prompt or read or write):
        # No prompt is empty: these are the zeros of a server that tells it in its other report.
        prompt = read = write = None
    tokens = Tokens(prompt, completion, read, write)
    return [tokens] if tokens != Tokens() else []
