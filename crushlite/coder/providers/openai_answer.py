"""Reading the answers of chat completions.

Servers differ most here, so answers are read generously; but what cannot be understood is a
ProviderError and never guessed. In short:

- An answer is complete at a finish_reason or at [DONE]. A stream that ends before both is broken.
- The parts of a tool call are put together by index, else by id, else by order. Calls get their
  index by appearance, and an id if the server gave none.
- Reasoning comes in one of four fields; it is streamed. Which one it was, and details that must be
  returned as they are, is the record of the answer (see returned.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...unique import random_hex
from ..jsontext import loads
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
from .returned import signature_of

if TYPE_CHECKING:
    from ...http.sse import SSEEvent

_REASONS = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
}
CHECKED_CHARS = 8 << 20  # see _is_complete
API = "chat"  # the name of its records
# Finish reasons of servers that failed after they had begun to answer.
_FAILURES = frozenset({"error", "network_error", "insufficient_system_resource"})
_PLAIN = frozenset({"content", "role"})  # the fields of a delta that is only a piece of text


class _Call:
    """One tool call, as far as it has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.given = ""  # the server's id
        self.id = ""  # the id in the pieces, from the first one on
        self.name = ""
        self.held: list[str] = []  # arguments that came before the name
        self.held_chars = 0
        self.arguments: list[str] = []
        self.chars = 0  # of the arguments
        self.join = SurrogateJoiner()


class _Calls:
    """The tool calls of an answer, put together from their parts."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}  # the server's ids
        self._ids: set[str] = set()  # of the pieces
        self._checked = 0  # characters that `_is_complete` has read in vain

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, item: Any) -> list[CallPiece]:
        """Take one part of a call. Raises ProviderError if it cannot be one."""
        if not isinstance(item, dict):
            raise malformed("a tool call that is no object", item)
        function = item.get("function") or {}
        index = item.get("index")
        if not isinstance(function, dict) or (index is not None and whole_number(index) is None):
            raise malformed("a tool call of a strange shape", item)
        name, id_ = text_field(function, "name"), text_field(item, "id")
        call = self._find(whole_number(index), id_, name)
        if id_ and not call.given:
            call.given = id_
            self._by_id.setdefault(id_, call)
        call.name = call.name or name
        given = _arguments(function)
        if not call.name:
            call.held.append(given)
            call.held_chars += len(given)
            if call.held_chars > HELD_CHARS:
                raise malformed("the arguments of a tool call without a name")
            return []
        text = call.join("".join([*call.held, given]))
        call.held.clear()
        if text:
            call.arguments.append(text)
            call.chars += len(text)
        if call.id:
            return [CallPiece(call.number, arguments=text)] if text else []
        call.id = self._unused_id(call.given)
        return [CallPiece(call.number, call.id, call.name, text)]

    def end(self) -> list[Piece]:
        """Pieces with `{}` for calls that came without arguments: they must be JSON in the end.
        Raises ProviderError for a call without a name."""
        if any(not call.name for call in self._calls):
            raise malformed("a tool call without a name")
        return [CallPiece(c.number, arguments="{}") for c in self._calls if not c.arguments]

    def _find(self, index: int | None, id_: str, name: str) -> _Call:
        """The call that a part belongs to; a new one if it begins one."""
        last = self._calls[-1] if self._calls else None
        if index is not None:
            known = self._by_index.get(index)
            # Some servers number every call 0: another id with a name is another call.
            if known is None or (name and id_ and known.given and id_ != known.given):
                known = self._by_index[index] = self._new()
            return known
        if id_:
            return self._by_id.get(id_) or self._new()
        if last is None and not name:
            raise malformed("a part of a tool call that never began")
        # Only the order is left: a name begins a call, unless it repeats that of an open one.
        if last is None or (name and (name != last.name or self._is_complete(last))):
            return self._new()
        return last

    def _is_complete(self, call: _Call) -> bool:
        """Whether the arguments are a JSON document already. Reads at most CHECKED_CHARS in vain:
        a server may repeat the name with every part, and each check reads all parts."""
        if not call.arguments or not call.arguments[-1].rstrip().endswith(("}", "]")):
            return False
        if self._checked > CHECKED_CHARS:
            return False
        try:
            loads("".join(call.arguments))
        except ValueError:
            self._checked += call.chars
            return False
        return True

    def _new(self) -> _Call:
        if len(self._calls) > MOST_ITEMS:
            raise ProviderError(f"the provider sent more than {MOST_ITEMS} tool calls")
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _unused_id(self, given: str) -> str:
        """The server's id; a new one if there is none or another call of this answer has it, since
        a result names its call by the id."""
        found = given if given and given not in self._ids else f"call_{random_hex(16)}"
        self._ids.add(found)
        return found


def _arguments(function: dict[str, Any]) -> str:
    """The arguments as text. Some servers send the object itself instead of its JSON."""
    value = function.get("arguments")
    return written(value) if isinstance(value, dict | list) else text_field(function, "arguments")


class ChatDecoder:
    """The events of one answer, turned into pieces. Implements decoding.Decoder."""

    def __init__(self) -> None:
        self.begun = False  # something of the answer itself has come
        self.done = False
        self._reason = ""
        self._refused = False
        self._calls = _Calls()
        self._tokens: Tokens | None = None
        self._join_text = SurrogateJoiner()
        self._join_thought = SurrogateJoiner()
        self._field = ""  # the one with the reasoning
        self._details = _Details()
        self._remark: dict[str, Any] | None = None  # the last object that was no part of an answer

    @property
    def finished(self) -> bool:
        return bool(self._reason)

    def feed(self, event: SSEEvent) -> list[Piece]:
        data = event.data.strip()
        if not data:
            return []
        if data == "[DONE]":
            self.done = True
            return []
        chunk = object_of(event)
        pieces = self._choice(chunk) + self._usage(chunk)
        self.done = self.done or event.event == WHOLE
        return pieces

    def end(self) -> list[Piece]:
        if not self.begun:
            raise malformed("no answer at all") if self._remark is None else refusal(self._remark)
        if not self._reason and not self.done:
            raise cut_off()
        reason = _REASONS.get(self._reason.lower(), "unknown")
        stop = stop_reason(reason, has_calls=len(self._calls) > 0)
        stop = "content_filter" if self._refused else stop
        return [*self._calls.end(), *self._returned(), ModelStop(stop)]

    def _returned(self) -> list[Piece]:
        """What the server wants back with the answer, if there is anything."""
        details = self._details.whole()
        if not self._field and not details:
            return []
        entry = {"field": self._field} | ({"details": details} if details else {})
        return [Thought("", signature_of(API, [entry]))]

    def _choice(self, chunk: dict[str, Any]) -> list[Piece]:
        """The pieces in the first choice of a chunk, of which there is only one."""
        choices = chunk.get("choices")
        if not choices:
            # The usage, or an object that a gateway adds: `end` quotes it if no answer follows.
            if not isinstance(chunk.get("usage"), dict) and chunk:
                self._remark = chunk
            return []
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise malformed("choices of a strange shape", choices)
        choice = choices[0]
        self.begun = True
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise malformed("a delta that is no object", delta)
        pieces = self._delta(delta)
        reason = text_field(choice, "finish_reason")
        if reason in _FAILURES:
            raise refusal(choice.get("error") or f"the model stopped with {reason}")
        self._reason = reason or self._reason
        return pieces

    def _delta(self, delta: dict[str, Any]) -> list[Piece]:
        if delta.keys() <= _PLAIN and isinstance(delta.get("content"), str):
            text = self._join_text(delta["content"])  # nearly every delta: only a piece of text
            return [Text(text)] if text else []
        text, thought = _parts(delta.get("content"))
        field, reasoning = _reasoning(delta)
        self._field = self._field or field
        thought = reasoning or thought
        self._details.add(delta.get("reasoning_details"))
        refused = delta.get("refusal")
        if isinstance(refused, str) and refused:
            self._refused = True
            text += refused
        thought, text = self._join_thought(thought), self._join_text(text)
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if text:
            pieces.append(Text(text))
        calls = items_of(delta.get("tool_calls"), "tool_calls")
        if delta.get("function_call"):  # the field before there were tool_calls
            calls = [*calls, {"index": 0, "function": delta["function_call"]}]
        for item in calls:
            pieces += self._calls.add(item)
        return pieces

    def _usage(self, chunk: dict[str, Any]) -> list[Piece]:
        """The usage in a chunk, unless it is the same as the last one."""
        usage = chunk.get("usage")
        if usage is None and isinstance(chunk.get("x_groq"), dict):
            usage = chunk["x_groq"].get("usage")
        tokens = _tokens(usage) if isinstance(usage, dict) else None
        if tokens is None or tokens == self._tokens:
            return []
        self._tokens = tokens
        return [tokens]


def _parts(content: Any) -> tuple[str, str]:
    """The text and the reasoning in a content, which is a string or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise malformed("a content of a strange shape", content)
    text, thought = "", ""
    for part in items_of(content, "parts of the content"):
        if isinstance(part, str):
            text += part
        elif not isinstance(part, dict):
            raise malformed("a part of the content of a strange shape", part)
        elif isinstance(part.get("text"), str):
            text += part["text"]
        elif "thinking" in part:
            thought += "".join(_parts(part["thinking"]))
    return text, thought


def _reasoning(delta: dict[str, Any]) -> tuple[str, str]:
    """The reasoning in a delta and the name of its field, the first one that holds any: servers
    that fill two fields put the same into both."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        value = delta.get(name)
        if isinstance(value, str) and value:
            return name, value
    details = delta.get("reasoning_details")
    found = ""
    for detail in items_of(details if isinstance(details, list) else [], "reasoning_details"):
        text = (detail.get("text") or detail.get("summary")) if isinstance(detail, dict) else None
        found += text if isinstance(text, str) else ""
    return "", found


class _Details:
    """The reasoning details of a gateway, put together from their parts. They are returned only if
    something in them is signed or encrypted, and dropped if they are too long to be stored."""

    _GROWING = ("text", "summary", "data", "signature")

    def __init__(self) -> None:
        self._found: dict[tuple[str, Any], dict[str, Any]] = {}  # by type and index
        self._pieces: dict[tuple[tuple[str, Any], str], list[str]] = {}
        self._chars = 0

    def add(self, details: Any) -> None:
        if self._chars > HELD_CHARS or len(self._found) > MOST_ITEMS:
            return
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict) or not isinstance(detail.get("type"), str):
                continue
            index = whole_number(detail.get("index"))
            key = (detail["type"], len(self._found) if index is None else index)
            known = self._found.setdefault(key, {})
            for name, value in detail.items():
                if name in self._GROWING and isinstance(value, str):
                    self._pieces.setdefault((key, name), []).append(value)
                    self._chars += len(value)
                elif isinstance(value, str | int) and (value or name not in known):
                    known[name] = value
                    self._chars += len(str(value))

    def whole(self) -> list[dict[str, Any]]:
        for (key, name), pieces in self._pieces.items():
            self._found[key][name] = "".join(pieces)
        found = list(self._found.values())
        bound = any(detail.get("signature") or detail.get("data") for detail in found)
        fits = self._chars <= HELD_CHARS and len(found) <= MOST_ITEMS
        return found if bound and fits else []


def _tokens(usage: dict[str, Any]) -> Tokens | None:
    """A report of usage as Tokens; None if it says nothing. Zeros come from a server that does not
    count tokens, or has not counted them yet."""
    prompt, completion = (
        whole_number(usage.get("prompt_tokens")),
        whole_number(usage.get("completion_tokens")),
    )
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    read = whole_number(cached if cached is not None else usage.get("prompt_cache_hit_tokens"))
    if not prompt and not completion:
        return None
    if prompt:
        read = min(read, prompt) if read is not None else None
        prompt -= read or 0
        write = whole_number(details.get("cache_write_tokens")) if isinstance(details, dict) else 0
        write = min(write or 0, prompt) or None
        return Tokens(prompt - (write or 0), completion or None, read, write)
    return Tokens(None, completion or None)
