"""Reading the answers of Anthropic's messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import CallPiece, ModelStop, Piece, ProviderError, Text, Thought, Tokens
from .decoding import (
    HELD_CHARS,
    MOST_ITEMS,
    SurrogateJoiner,
    cut_off,
    items_of,
    object_of,
    stop_reason,
    text_field,
    whole_number,
    written,
)
from .failures import malformed, refusal
from .reply import WHOLE
from .returned import call_place, text_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...http.sse import SSEEvent
    from .returned import Entry

SIGNED_AT_ONCE = 16  # blocks of thinking whose signature is passed on when each ends

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
        self.chars = 0  # of text or arguments that have been streamed
        self.thinking: list[str] = []
        self.signature: list[str] = []
        self.held = 0  # characters of the signature
        self.data = ""
        self.join = SurrogateJoiner()


class MessagesDecoder:
    """The events of one answer, turned into pieces. Implements decoding.Decoder."""

    def __init__(self) -> None:
        self.done = False
        self.begun = False
        self._reason = ""
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._begun_blocks = 0
        self._record: list[Entry] = []  # complete blocks of thinking, and places; see returned.py
        self._thoughts = 0  # blocks of thinking in it

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
        if not self.begun:
            raise malformed("no answer at all")
        if not self._reason and not self.done:
            raise cut_off()
        # A block that was never closed, in an answer that was, is closed here.
        rest = [piece for index in list(self._blocks) for piece in self._close(index)]
        if self._thoughts > SIGNED_AT_ONCE or self._is_interleaved:
            rest.append(Thought("", self._signature()))
        reason = _REASONS.get(self._reason, "unknown")
        return [*rest, ModelStop(stop_reason(reason, has_calls=self._calls > 0))]

    def _whole(self, value: dict[str, Any]) -> list[Piece]:
        """The pieces of an answer that is one document: the same as those of a stream."""
        content = value.get("content")
        if not isinstance(content, list):
            raise refusal(value)
        pieces: list[Piece] = []
        for index, block in enumerate(items_of(content, "content blocks")):
            pieces += self._block_start({"index": index, "content_block": block})
            pieces += self._close(index)
        pieces += self._message_delta({"delta": value, "usage": value.get("usage")})
        self.begun = self.done = True
        return pieces

    # Events -------------------------------------------------------------------------------------

    def _message_start(self, value: dict[str, Any]) -> list[Piece]:
        message = value.get("message")
        if not isinstance(message, dict):
            raise malformed("a message_start without a message", value)
        self.begun = True
        return _tokens(message.get("usage"))

    def _block_start(self, value: dict[str, Any]) -> list[Piece]:
        block, index = value.get("content_block"), whole_number(value.get("index"))
        if not isinstance(block, dict) or index is None or index in self._blocks:
            raise malformed("a content block of a strange shape", value)
        self._begun_blocks += 1
        if self._begun_blocks > MOST_ITEMS:
            raise ProviderError(f"the provider sent more than {MOST_ITEMS} content blocks")
        self.begun = True
        kind = block.get("type")
        pieces: list[Piece] = []
        number = None
        if kind == "tool_use":
            id_, name = block.get("id"), block.get("name")
            if not isinstance(id_, str) or not isinstance(name, str) or not id_ or not name:
                raise malformed("a tool call without id or name", block)
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
            raise malformed("a delta that is no object", value)
        return self._grow(block, delta)

    def _grow(self, block: _Block, delta: dict[str, Any]) -> list[Piece]:
        """Add what a delta, or the start of a block, brings. Return the pieces of it."""
        if signed := text_field(delta, "signature"):
            block.signature.append(signed)
            block.held += len(signed)
            if block.held > HELD_CHARS:
                raise malformed("a signature that is too long")
        if block.kind == "tool_use":
            text = block.join(text_field(delta, "partial_json"))
            block.chars += len(text)
            return [CallPiece(block.call or 0, arguments=text)] if text else []
        if block.kind == "thinking":
            text = block.join(text_field(delta, "thinking"))
            block.thinking.append(text)
            return [Thought(text)] if text else []
        text = block.join(text_field(delta, "text")) if block.kind == "text" else ""
        block.chars += len(text)
        return [Text(text)] if text else []

    def _block_stop(self, value: dict[str, Any]) -> list[Piece]:
        self._block(value)
        return self._close(value["index"])

    def _message_delta(self, value: dict[str, Any]) -> list[Piece]:
        delta = value.get("delta")
        if not isinstance(delta, dict):
            raise malformed("a message_delta that is no object", value)
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
            raise malformed("a part of a block that never began", value)
        return block

    def _close(self, index: int) -> list[Piece]:
        """End a block. Return what can be said only now: the arguments of a call that came without
        deltas, or the signature of the thinking so far."""
        block = self._blocks.pop(index)
        if block.call is not None:
            self._record.append(call_place())
            return [] if block.chars else [CallPiece(block.call, arguments=written(block.input))]
        if block.kind == "text":
            self._record.append(text_place(block.chars))
            return []
        if block.kind == "thinking" and block.signature:
            thought = {"type": "thinking", "thinking": "".join(block.thinking)}
            self._record.append({**thought, "signature": "".join(block.signature)})
        elif block.kind == "redacted_thinking" and block.data:
            self._record.append({"type": "redacted_thinking", "data": block.data})
        else:
            return []
        self._thoughts += 1
        # All of them are in the signature: to repeat them after each of many would be quadratic.
        return [Thought("", self._signature())] if self._thoughts <= SIGNED_AT_ONCE else []

    @property
    def _is_interleaved(self) -> bool:
        """Whether thinking came after text or calls."""
        return any("place" not in entry for entry in self._record[self._thoughts :])

    def _signature(self) -> str:
        """The signature of all the thinking so far; each one replaces the one before. How it is
        made: see anthropic.py."""
        if self._is_interleaved:
            return written(self._record)
        first, *more = self._record[: self._thoughts]
        if more or first["type"] != "thinking" or first["signature"].startswith(("[", "{")):
            return written([first, *more])
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
