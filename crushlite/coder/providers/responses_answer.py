"""Reading the answers of OpenAI's Responses API.

An answer is a list of items: reasoning, messages, calls. Each begins with `output_item.added`,
grows by deltas and ends with `output_item.done`, which holds all of it. The last event holds the
usage and says how the answer ended; without it the stream is broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...unique import random_hex
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
from .returned import call_place, signature_of, text_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...http.sse import SSEEvent
    from .returned import Entry

API = "responses"  # the name of its records

_REASONS = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}
_KEPT = ("type", "id", "summary", "content", "encrypted_content")  # of an item of reasoning


class _Item:
    """An item that has begun. `call` is its number among the calls; None if it is none."""

    def __init__(self, kind: str, call: int | None) -> None:
        self.kind = kind
        self.call = call
        self.entry: Entry | None = None  # in the record, once it is known
        self.chars = 0  # that were streamed of its text, its summary or its arguments
        self.parts = 0  # of its summary
        self.join = SurrogateJoiner()


class ResponsesDecoder:
    """The events of one answer, turned into pieces. Implements decoding.Decoder."""

    def __init__(self) -> None:
        self.begun = False
        self.done = False
        self._reason = ""
        self._refused = False
        self._items: dict[int, _Item] = {}  # by output index, in order of appearance
        self._calls = 0
        self._held = 0  # characters of the items of reasoning, as JSON

    @property
    def finished(self) -> bool:
        return self.done

    def feed(self, event: SSEEvent) -> list[Piece]:
        data = event.data.strip()
        if not data or data == "[DONE]":
            return []
        value = object_of(event)
        if event.event == WHOLE:
            return self._whole(value)
        handle = self._HANDLERS.get(text_field(value, "type") or event.event)
        return handle(self, value) if handle is not None else []  # unknown kinds are to be ignored

    def end(self) -> list[Piece]:
        if not self.done:
            raise cut_off() if self.begun else malformed("no answer at all")
        pieces: list[Piece] = [
            CallPiece(item.call, arguments="{}")
            for item in self._items.values()
            if item.call is not None and not item.chars
        ]
        if record := self._record():
            pieces.append(Thought("", signature_of(API, record)))
        stop = stop_reason(self._reason, has_calls=self._calls > 0)
        return [*pieces, ModelStop("content_filter" if self._refused else stop)]

    def _whole(self, value: dict[str, Any]) -> list[Piece]:
        """The pieces of an answer that is one document: the same as those of a stream."""
        if not isinstance(value.get("output"), list):
            raise refusal(value)
        pieces: list[Piece] = []
        for index, item in enumerate(items_of(value["output"], "items")):
            pieces += self._added({"output_index": index, "item": item})
            pieces += self._item_done({"output_index": index, "item": item})
        return pieces + self._ended({"response": value})

    def _record(self) -> list[Entry]:
        """What must be returned with the answer, in its order; empty without any reasoning, because
        then it need not be."""
        found = [item.entry for item in self._items.values() if item.entry is not None]
        return found if any("item" in entry for entry in found) else []

    # Events ---------------------------------------------------------------------------------------

    def _added(self, value: dict[str, Any]) -> list[Piece]:
        item, index = value.get("item"), whole_number(value.get("output_index"))
        if not isinstance(item, dict) or index is None or index in self._items:
            raise malformed("an item of a strange shape", value)
        if len(self._items) >= MOST_ITEMS:
            raise ProviderError(f"the provider sent more than {MOST_ITEMS} items")
        self.begun = True
        kind = text_field(item, "type")
        opened = self._items[index] = _Item(kind, None)
        given: dict[str, Any] = {
            name: text for name in ("id", "phase") if (text := text_field(item, name))
        }
        if kind == "message":
            opened.entry = text_place(**given)
        if kind != "function_call":
            return []
        opened.call, self._calls = self._calls, self._calls + 1
        opened.entry = call_place(**given)
        name = text_field(item, "name")
        if not name:
            raise malformed("a tool call without a name", item)
        id_ = text_field(item, "call_id") or f"call_{random_hex(16)}"
        return [CallPiece(opened.call, id_, name)]

    def _item_done(self, value: dict[str, Any]) -> list[Piece]:
        item, opened = value.get("item"), self._item(value)
        if not isinstance(item, dict):
            raise malformed("an item that is no object", value)
        if opened.kind == "reasoning":
            return self._reasoning_done(opened, item)
        if opened.chars:
            return []
        if opened.call is not None:
            return self._grow(opened, text_field(item, "arguments"))
        pieces: list[Piece] = []
        for part in _parts(item, "content") if opened.kind == "message" else ():
            if isinstance(part, dict):
                refused = text_field(part, "refusal")
                self._refused = self._refused or bool(refused)
                pieces += self._grow(opened, text_field(part, "text") or refused)
        return pieces

    def _reasoning_done(self, opened: _Item, item: dict[str, Any]) -> list[Piece]:
        pieces: list[Piece] = []
        if not opened.chars:
            for part in [*_parts(item, "summary"), *_parts(item, "content")]:
                if isinstance(part, dict):
                    self._new_part(opened)
                    pieces += self._grow(opened, text_field(part, "text"))
        # Without its encrypted content an item cannot be returned: the provider stores nothing.
        if text_field(item, "encrypted_content"):
            kept = {name: item[name] for name in _KEPT if item.get(name) is not None}
            self._held += len(written(kept))
            if self._held > HELD_CHARS:
                raise malformed("encrypted reasoning that is too long")
            opened.entry = {"item": {"summary": [], **kept}}
        return pieces

    def _text(self, value: dict[str, Any]) -> list[Piece]:
        return self._grow(self._item(value), text_field(value, "delta"))

    def _refusal(self, value: dict[str, Any]) -> list[Piece]:
        self._refused = True
        return self._text(value)

    def _part(self, value: dict[str, Any]) -> list[Piece]:
        self._new_part(self._item(value))
        return []

    def _ended(self, value: dict[str, Any]) -> list[Piece]:
        response = value.get("response")
        if not isinstance(response, dict):
            raise malformed("an end without a response", value)
        if response.get("status") == "failed" or response.get("error"):
            raise refusal(response.get("error") or "the response failed")
        details = response.get("incomplete_details")
        reason = text_field(details, "reason") if isinstance(details, dict) else ""
        ended = response.get("status") in (None, "completed")
        self._reason = "end_turn" if ended and not reason else _REASONS.get(reason, "unknown")
        self.begun = self.done = True
        return _tokens(response.get("usage"))

    _HANDLERS: dict[str, Callable[[ResponsesDecoder, dict[str, Any]], list[Piece]]] = {
        "response.output_item.added": _added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text,
        "response.refusal.delta": _refusal,
        "response.function_call_arguments.delta": _text,
        "response.reasoning_summary_part.added": _part,
        "response.reasoning_summary_text.delta": _text,
        "response.reasoning_text.delta": _text,
        "response.completed": _ended,
        "response.incomplete": _ended,
        "response.failed": _ended,
    }

    # Items ----------------------------------------------------------------------------------------

    def _item(self, value: dict[str, Any]) -> _Item:
        """The item that an event names by its index. Raises ProviderError if there is none."""
        index = whole_number(value.get("output_index"))
        item = self._items.get(index) if index is not None else None
        if item is None:
            raise malformed("a part of an item that never began", value)
        return item

    def _new_part(self, item: _Item) -> None:
        item.parts += 1

    def _grow(self, item: _Item, text: str) -> list[Piece]:
        text = item.join(text)
        if not text:
            return []
        if item.kind == "reasoning" and item.parts > 1:
            text, item.parts = f"\n\n{text}", 1  # summaries of several steps
        item.chars += len(text)
        if item.call is not None:
            return [CallPiece(item.call, arguments=text)]
        if item.kind == "reasoning":
            return [Thought(text)]
        if item.kind == "message" and item.entry is not None:
            item.entry["chars"] += len(text)
            return [Text(text)]
        return []


def _parts(item: dict[str, Any], name: str) -> list[Any]:
    return items_of(item.get(name), "parts")


def _tokens(usage: Any) -> list[Piece]:
    if not isinstance(usage, dict):
        return []
    prompt = whole_number(usage.get("input_tokens"))
    details = usage.get("input_tokens_details")
    read = whole_number(details.get("cached_tokens")) if isinstance(details, dict) else None
    write = whole_number(details.get("cache_write_tokens")) if isinstance(details, dict) else None
    if prompt is not None:
        read = min(read or 0, prompt)
        write = min(write or 0, prompt - read)
        prompt -= read + write
    tokens = Tokens(prompt, whole_number(usage.get("output_tokens")), read, write)
    return [tokens] if tokens != Tokens() else []
