"""Reading the answers of Google's API for Gemini.

Each event is a response of its own, with the parts that have come since the last one: text,
thoughts, or a whole tool call. The answer is complete with a `finishReason`; every event reports
the usage so far.
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
    decode_json,
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
    from ...http.sse import SSEEvent
    from .returned import Entry

API = "gemini"  # the name of its records

_REASONS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens"}
_FILTERED = frozenset(
    {
        *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
        *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
    }
)
# The model wrote a call that is none: another try may do better.
_FAILURES = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


class GeminiDecoder:
    """The events of one answer, turned into pieces. Implements decoding.Decoder."""

    def __init__(self) -> None:
        self.begun = False
        self.done = False
        self._reason = ""
        self._calls = 0
        self._parts = 0
        self._record: list[Entry] = []
        self._signed = 0  # characters of signatures
        self._tokens: Tokens | None = None
        self._join_text = SurrogateJoiner()
        self._join_thought = SurrogateJoiner()

    @property
    def finished(self) -> bool:
        return bool(self._reason)

    def feed(self, event: SSEEvent) -> list[Piece]:
        if not event.data.strip():
            return []
        if event.event == WHOLE and event.data.lstrip("\ufeff \t\r\n").startswith("["):
            return self._list(decode_json(event.data))
        pieces = self._response(object_of(event))
        self.done = self.done or event.event == WHOLE
        return pieces

    def end(self) -> list[Piece]:
        if not self.begun:
            raise malformed("no answer at all")
        if not self._reason:
            raise cut_off()
        pieces: list[Piece] = []
        if self._signed:
            pieces.append(Thought("", signature_of(API, self._record)))
        reason = _REASONS.get(self._reason, "unknown")
        reason = "content_filter" if self._reason in _FILTERED else reason
        return [*pieces, ModelStop(stop_reason(reason, has_calls=self._calls > 0))]

    def _list(self, value: Any) -> list[Piece]:
        """All responses in one document: what servers send that ignore `alt=sse`."""
        pieces: list[Piece] = []
        for response in items_of(value, "responses"):
            if not isinstance(response, dict) or response.get("error"):
                raise refusal(value)
            pieces += self._response(response)
        self.done = True
        return pieces

    def _response(self, value: dict[str, Any]) -> list[Piece]:
        pieces: list[Piece] = []
        feedback = value.get("promptFeedback")
        if isinstance(feedback, dict) and text_field(feedback, "blockReason"):
            self.begun, self._reason = True, text_field(feedback, "blockReason")
            if self._reason not in _FILTERED:
                self._reason = "PROHIBITED_CONTENT"
        for candidate in items_of(value.get("candidates"), "candidates")[:1]:
            if not isinstance(candidate, dict):
                raise malformed("a candidate that is no object", value)
            pieces += self._candidate(candidate)
        pieces += self._usage(value.get("usageMetadata"))
        return pieces

    def _candidate(self, candidate: dict[str, Any]) -> list[Piece]:
        self.begun = True
        content = candidate.get("content") or {}
        if not isinstance(content, dict):
            raise malformed("a content that is no object", candidate)
        pieces: list[Piece] = []
        for part in items_of(content.get("parts"), "parts"):
            if not isinstance(part, dict):
                raise malformed("a part that is no object", part)
            pieces += self._part(part)
        reason = text_field(candidate, "finishReason")
        if reason in _FAILURES:
            said = text_field(candidate, "finishMessage") or "no reason given"
            raise ProviderError(f"the model stopped with {reason}: {said}", retryable=True)
        self._reason = reason or self._reason
        return pieces

    def _part(self, part: dict[str, Any]) -> list[Piece]:
        self._parts += 1
        signature = text_field(part, "thoughtSignature")
        self._signed += len(signature)
        if self._signed > HELD_CHARS:
            raise malformed("a signature that is too long")
        given = {"signature": signature} if signature else {}
        call = part.get("functionCall")
        if call is not None:
            return self._call(call, given)
        if part.get("thought"):
            text = self._join_thought(text_field(part, "text"))
            if signature:
                self._place_text(0, given)
            return [Thought(text)] if text else []
        text = self._join_text(text_field(part, "text"))
        if text or signature:
            self._place_text(len(text), given)
        return [Text(text)] if text else []

    def _call(self, call: Any, given: Entry) -> list[Piece]:
        if not isinstance(call, dict) or not text_field(call, "name"):
            raise malformed("a tool call without a name", call)
        if self._calls >= MOST_ITEMS:
            raise ProviderError(f"the provider sent more than {MOST_ITEMS} tool calls")
        arguments = call.get("args") or {}
        if not isinstance(arguments, dict):
            raise malformed("arguments that are no object", call)
        id_ = text_field(call, "id")
        self._record.append(call_place(**given, **({"id": id_} if id_ else {})))
        number, self._calls = self._calls, self._calls + 1
        id_ = id_ or f"call_{random_hex(16)}"
        return [CallPiece(number, id_, text_field(call, "name"), written(arguments))]

    def _place_text(self, chars: int, given: Entry) -> None:
        """Note where text came. Neighbours are one, unless one of them is signed."""
        last = self._record[-1] if self._record else {}
        if last.get("place") == "text" and not given and "signature" not in last:
            last["chars"] += chars
        else:
            if len(self._record) >= 2 * MOST_ITEMS:
                raise ProviderError(f"the provider signed more than {MOST_ITEMS} parts")
            self._record.append(text_place(chars, **given))

    def _usage(self, usage: Any) -> list[Piece]:
        """The usage of a response, unless it is the same as the last one. Thoughts are paid for as
        output, and counted apart from it."""
        if not isinstance(usage, dict):
            return []
        names = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount")
        prompt, read, answer = (whole_number(usage.get(name)) for name in names)
        thoughts = whole_number(usage.get("thoughtsTokenCount"))
        prompt = (prompt or 0) + (whole_number(usage.get("toolUsePromptTokenCount")) or 0)
        read = min(read, prompt) if read is not None else None
        completion = (answer or 0) + (thoughts or 0)
        tokens = Tokens(prompt - (read or 0) or None, completion or None, read)
        if tokens in (self._tokens, Tokens()):
            return []
        self._tokens = tokens
        return [tokens]
