"""Chat completions and Anthropic's messages as the fake model speaks them: what each step of an
answer looks like on the wire, and each failure, as the public documentation of the API has it. The
other two APIs are in newer_dialects.py.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from ..records import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of an answer. `prompt` includes those that were read from a cache or written to it,
    `completion` those of reasoning."""

    prompt: int
    completion: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Dialect(Protocol):
    """An API: the bytes of each step of an answer."""

    def text(self, text: str) -> bytes: ...

    def think(self, text: str) -> bytes: ...

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes: ...

    def finish(self, reason: str, usage: Counts | None) -> bytes: ...

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an error with any text."""
        ...

    def failure(self, kind: str) -> tuple[int, dict[str, Any]]:
        """Status and body of a failure: unauthorized, overflow, rate_limit or overloaded."""
        ...

    def break_off(self, kind: str) -> bytes:
        """The same failure in the middle of an answer."""
        ...


def event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode("ascii")


def cut(text: str, pieces: int) -> list[str]:
    """`text` in about `pieces` parts of equal size; at least one."""
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


OPENAI_FAILURES: dict[str, tuple[int, str | None, str, str]] = {
    "unauthorized": (
        401,
        "invalid_api_key",
        "invalid_request_error",
        "Incorrect API key provided.",
    ),
    "overflow": (
        400,
        "context_length_exceeded",
        "invalid_request_error",
        "Your input exceeds the context window of this model. Please adjust your input.",
    ),
    "rate_limit": (429, "rate_limit_exceeded", "tokens", "Rate limit reached for this model."),
    "overloaded": (503, None, "server_error", "The engine is currently overloaded."),
}


class ChatDialect:
    """Chat completions: `chat.completion.chunk` objects, then `[DONE]`."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._model = request.get("model", "fake")
        self._calls = 0

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        return self._object([{"index": 0, "delta": delta, "finish_reason": reason}])

    def _object(self, choices: list[Any], **more: Any) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": self._model}
        return event({**base, "choices": choices, **more})

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def think(self, text: str) -> bytes:
        return self._chunk({"reasoning_content": text})

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        pieces = cut(arguments, count)
        index, self._calls = self._calls, self._calls + 1
        first = {"index": index, "id": id_, "type": "function"}
        function = {"name": name, "arguments": pieces[0]}
        parts = [self._chunk({"tool_calls": [{**first, "function": function}]})]
        parts += [
            self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces[1:]
        ]
        return b"".join(parts)

    def finish(self, reason: str, usage: Counts | None) -> bytes:
        reason = reason or ("tool_calls" if self._calls else "stop")
        end = self._chunk({}, reason)
        if usage is not None:
            counts: dict[str, Any] = {
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.completion,
                "total_tokens": usage.prompt + usage.completion,
            }
            if usage.cache_read or usage.cache_write:
                details = {"cached_tokens": usage.cache_read}
                details |= {"cache_write_tokens": usage.cache_write} if usage.cache_write else {}
                counts["prompt_tokens_details"] = details
            end += self._object([], usage=counts)
        return end + b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "fake_error", "code": status}}

    def failure(self, kind: str) -> tuple[int, dict[str, Any]]:
        status, code, type_, message = OPENAI_FAILURES[kind]
        error = {"message": message, "type": type_, "param": None, "code": code}
        return status, {"error": error}

    def break_off(self, kind: str) -> bytes:
        return event(self.failure(kind)[1])


class MessagesDialect:
    """Anthropic messages: named events; each step is a content block of its own."""

    _REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

    def __init__(self, request: dict[str, Any]) -> None:
        self._model = request.get("model", "fake")
        self._signature = f"signed {len(request.get('messages', []))}"
        self._blocks = 0
        self._used_tools = False

    def _start(self, prompt: int = 1) -> bytes:
        if self._blocks:
            return b""
        usage = {"input_tokens": prompt, "output_tokens": 1}
        message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
        message |= {"model": self._model, "content": [], "stop_reason": None, "usage": usage}
        return event({"type": "message_start", "message": message}, "message_start")

    def _block(self, block: dict[str, Any], deltas: list[dict[str, Any]]) -> bytes:
        data = self._start()
        index, self._blocks = self._blocks, self._blocks + 1
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("content_block_start", {"content_block": block}),
            *(("content_block_delta", {"delta": delta}) for delta in deltas),
            ("content_block_stop", {}),
        ]
        for kind, more in kinds:
            data += event({"type": kind, "index": index, **more}, kind)
        return data

    def text(self, text: str) -> bytes:
        return self._block({"type": "text", "text": ""}, [{"type": "text_delta", "text": text}])

    def think(self, text: str) -> bytes:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        thought = {"type": "thinking_delta", "thinking": text}
        return self._block(
            block, [thought, {"type": "signature_delta", "signature": self._signature}]
        )

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        pieces = cut(arguments, count)
        self._used_tools = True
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        return self._block(
            block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        )

    def finish(self, reason: str, usage: Counts | None) -> bytes:
        reason = reason or ("tool_calls" if self._used_tools else "stop")
        delta = {"stop_reason": self._REASONS.get(reason, reason), "stop_sequence": None}
        more: dict[str, Any] = {"delta": delta}
        if usage is not None:
            cached = usage.cache_read + usage.cache_write
            counts = {"input_tokens": usage.prompt - cached, "output_tokens": usage.completion}
            if cached:
                counts["cache_read_input_tokens"] = usage.cache_read
                counts["cache_creation_input_tokens"] = usage.cache_write
            more["usage"] = counts
        data = self._start() + event({"type": "message_delta", **more}, "message_delta")
        return data + event({"type": "message_stop"}, "message_stop")

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "fake_error", "message": message}}

    _FAILURES = {
        "unauthorized": (401, "authentication_error", "invalid x-api-key"),
        "overflow": (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
        ),
        "rate_limit": (429, "rate_limit_error", "This would exceed your rate limit."),
        "overloaded": (529, "overloaded_error", "Overloaded"),
    }

    def failure(self, kind: str) -> tuple[int, dict[str, Any]]:
        status, type_, message = self._FAILURES[kind]
        error = {"type": type_, "message": message}
        return status, {"type": "error", "error": error, "request_id": "req_1"}

    def break_off(self, kind: str) -> bytes:
        return event(self.failure(kind)[1], "error")
