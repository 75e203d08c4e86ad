"""Reading the answers of Anthropic's messages API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .base import CallPiece, ModelStop, Piece, Text, Thought, Tokens
from .decoding import SurrogateJoiner, cut_off, object_of, stop_reason, text_field, whole_number
from .failures import malformed, refusal
from .reply import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...http.sse import SSEEvent

_REASONS = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
    "refusal": "content_filter",
}


class _Block:
    """A content block that has begun. `call` is its number among the tool calls; None if it is
    none."""

    def __init__(self, kind: str, call: int | None) -> None:
        self.kind = kind
        self.call = call
        self.input: dict[str, Any] = {}  # given with the start; usually deltas follow instead
        self.arguments = 0  # how many characters of them have been streamed
        self.thinking = ""
        self.signature = ""
        self.data = ""
        self.join = SurrogateJoiner()


class MessagesDecoder:
    """The events of one answer, turned into pieces. Implements decoding.Decoder."""

    def __init__(self) -> None:
        self.done = False
        self._begun = False
        self._reason = ""
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._thoughts: list[dict[str, Any]] = []  # complete blocks, as they must be sent back

    @property
    def finished(self) -> bool:
        return bool(self._reason)

    def feed(self, event: SSEEvent) -> list[Piece]:
        if not event.data.strip():
            return []
        value = object_of(event)
        if event.event == WHOLE:
            return self._whole(value)
        handle = self._HANDLERS.get(text_field(value, "type") or event.event)
        return handle(self, value) if handle is not None else []  # unknown kinds are to be ignored

    def end(self) -> list[Piece]:
        if not self._begun:
            raise malformed("no answer at all")
        if not self._reason and not self.done:
            raise cut_off()
        # A block that was never closed, in an answer that was, is closed here.
        rest = [piece for index in list(self._blocks) for piece in self._close(index)]
        reason = _REASONS.get(self._reason, "unknown")
        return [*rest, ModelStop(stop_reason(reason, has_calls=self._calls > 0))]

    def _whole(self, value: dict[str, Any]) -> list[Piece]:
        """The pieces of an answer that is one document: the same as those of a stream."""
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

    # Events -------------------------------------------------------------------------------------

    def _message_start(self, value: dict[str, Any]) -> list[Piece]:
        message = value.get("message")
        if not isinstance(message, dict):
            raise malformed(f"a message_start without a message: {value!r}")
        self._begun = True
        return _tokens(message.get("usage"))

    def _block_start(self, value: dict[str, Any]) -> list[Piece]:
        block, index = value.get("content_block"), whole_number(value.get("index"))
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
        opened.data = text_field(block, "data")
        return pieces + self._grow(opened, block)

    def _block_delta(self, value: dict[str, Any]) -> list[Piece]:
        delta, block = value.get("delta"), self._block(value)
        if not isinstance(delta, dict):
            raise malformed(f"a delta that is no object: {value!r}")
        return self._grow(block, delta)

    def _grow(self, block: _Block, delta: dict[str, Any]) -> list[Piece]:
        """Add what a delta, or the start of a block, brings. Return the pieces of it."""
        block.signature += text_field(delta, "signature")
        if block.kind == "tool_use":
            text = block.join(text_field(delta, "partial_json"))
            block.arguments += len(text)
            return [CallPiece(block.call or 0, arguments=text)] if text else []
        if block.kind == "thinking":
            text = block.join(text_field(delta, "thinking"))
            block.thinking += text
            return [Thought(text)] if text else []
        text = block.join(text_field(delta, "text")) if block.kind == "text" else ""
        return [Text(text)] if text else []

    def _block_stop(self, value: dict[str, Any]) -> list[Piece]:
        self._block(value)
        return self._close(value["index"])

    def _message_delta(self, value: dict[str, Any]) -> list[Piece]:
        delta = value.get("delta")
        if not isinstance(delta, dict):
            raise malformed(f"a message_delta that is no object: {value!r}")
        self._reason = text_field(delta, "stop_reason") or self._reason
        return _tokens(value.get("usage"))

    def _message_stop(self, value: dict[str, Any]) -> list[Piece]:
        self.done = True
        return []

    _HANDLERS: dict[str, Callable[[MessagesDecoder, dict[str, Any]], list[Piece]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
    }

    # Blocks -------------------------------------------------------------------------------------

    def _block(self, value: dict[str, Any]) -> _Block:
        """The open block that an event names by its index. Raises ProviderError if there is
        none."""
        index = whole_number(value.get("index"))
        block = self._blocks.get(index) if index is not None else None
        if block is None:
            raise malformed(f"a part of a block that never began: {value!r}")
        return block

    def _close(self, index: int) -> list[Piece]:
        """End a block. Return what can be said only now: the arguments of a call that came without
        deltas, or the signature of the thinking so far."""
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
        """The signature of all the thinking so far; each one replaces the one before. How it is
        made: see anthropic.py."""
        first, *more = self._thoughts
        if more or first["type"] != "thinking" or first["signature"].startswith("["):
            return json.dumps(self._thoughts)
        return str(first["signature"])


def _tokens(usage: Any) -> list[Piece]:
    """The tokens of a report of usage; none if it reports nothing."""
    if not isinstance(usage, dict):
        return []
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    prompt, read, write = (whole_number(usage.get(name)) for name in names)
    completion = whole_number(usage.get("output_tokens"))
    if not (prompt or read or write):
        # No prompt is empty: a server sends zeros that counts the prompt in its other report.
        prompt = read = write = None
    tokens = Tokens(prompt, completion, read, write)
    return [tokens] if tokens != Tokens() else []
