"""Reading the answers of chat completions.

Servers differ most here, so answers are read generously; but what cannot be understood is a
ProviderError and never guessed. In short:

- An answer is complete at a finish_reason or at [DONE]. A stream that ends before both is broken.
- The parts of a tool call are put together by index, else by id, else by order. Calls get their
  index by appearance, and an id if the server gave none.
- Reasoning comes in one of four fields; it is streamed.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from .base import CallPiece, ModelStop, Piece, Text, Thought, Tokens
from .decoding import SurrogateJoiner, cut_off, object_of, stop_reason, text_field, whole_number
from .failures import malformed, refusal
from .reply import WHOLE

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
# Finish reasons of servers that failed after they had begun to answer.
_FAILURES = frozenset({"error", "network_error", "insufficient_system_resource"})


class _Call:
    """One tool call, as far as it has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.given = ""  # the server's id
        self.id = ""  # the id in the pieces, from the first one on
        self.name = ""
        self.held = ""  # arguments that came before the name
        self.arguments: list[str] = []
        self.join = SurrogateJoiner()

    @property
    def complete(self) -> bool:
        """Whether the arguments are a JSON document already."""
        try:
            json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return True


class _Calls:
    """The tool calls of an answer, put together from their parts."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, item: Any) -> list[CallPiece]:
        """Take one part of a call. Raises ProviderError if it cannot be one."""
        if not isinstance(item, dict):
            raise malformed(f"a tool call that is no object: {item!r}")
        function = item.get("function") or {}
        index = item.get("index")
        if not isinstance(function, dict) or (index is not None and whole_number(index) is None):
            raise malformed(f"a tool call of a strange shape: {item!r}")
        name, id_ = text_field(function, "name"), text_field(item, "id")
        call = self._find(whole_number(index), id_, name)
        call.given = call.given or id_
        call.name = call.name or name
        call.held += _arguments(function)
        if not call.name:
            return []
        text, call.held = call.join(call.held), ""
        if text:
            call.arguments.append(text)
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
            return next((c for c in self._calls if c.given == id_), None) or self._new()
        if last is None and not name:
            raise malformed("a part of a tool call that never began")
        # Only the order is left: a name begins a call, unless it repeats that of an open one.
        if last is None or (name and (name != last.name or last.complete)):
            return self._new()
        return last

    def _new(self) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _unused_id(self, given: str) -> str:
        """The server's id; a new one if there is none or another call of this answer has it, since
        a result names its call by the id."""
        if given and all(call.id != given for call in self._calls):
            return given
        return f"call_{uuid.uuid4().hex}"


def _arguments(function: dict[str, Any]) -> str:
    """The arguments as text. Some servers send the object itself instead of its JSON."""
    value = function.get("arguments")
    return (
        json.dumps(value) if isinstance(value, dict | list) else text_field(function, "arguments")
    )


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
        return [*self._calls.end(), ModelStop("content_filter" if self._refused else stop)]

    def _choice(self, chunk: dict[str, Any]) -> list[Piece]:
        """The pieces in the first choice of a chunk, of which there is only one."""
        choices = chunk.get("choices")
        if not choices:
            # The usage, or an object that a gateway adds: `end` quotes it if no answer follows.
            if not isinstance(chunk.get("usage"), dict) and chunk:
                self._remark = chunk
            return []
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise malformed(f"choices of a strange shape: {choices!r}")
        choice = choices[0]
        self.begun = True
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise malformed(f"a delta that is no object: {delta!r}")
        pieces = self._delta(delta)
        reason = text_field(choice, "finish_reason")
        if reason in _FAILURES:
            raise refusal(choice.get("error") or f"the model stopped with {reason}")
        self._reason = reason or self._reason
        return pieces

    def _delta(self, delta: dict[str, Any]) -> list[Piece]:
        text, thought = _parts(delta.get("content"))
        thought = _reasoning(delta) or thought
        refused = delta.get("refusal")
        if isinstance(refused, str) and refused:
            self._refused = True
            text += refused
        thought, text = self._join_thought(thought), self._join_text(text)
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if text:
            pieces.append(Text(text))
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise malformed(f"tool_calls that are no list: {calls!r}")
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
        raise malformed(f"a content of a strange shape: {content!r}")
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif not isinstance(part, dict):
            raise malformed(f"a part of the content of a strange shape: {part!r}")
        elif isinstance(part.get("text"), str):
            text += part["text"]
        elif "thinking" in part:
            thought += "".join(_parts(part["thinking"]))
    return text, thought


def _reasoning(delta: dict[str, Any]) -> str:
    """The reasoning in a delta, from the first field that holds any: servers that fill two fields
    put the same into both."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        value = delta.get(name)
        if isinstance(value, str) and value:
            return value
    details = delta.get("reasoning_details")
    found = ""
    for detail in details if isinstance(details, list) else []:
        text = (detail.get("text") or detail.get("summary")) if isinstance(detail, dict) else None
        found += text if isinstance(text, str) else ""
    return found


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
        return Tokens(prompt, completion or None, read)
    return Tokens(None, completion or None)
