"""The two APIs of the fake model: what each step of an answer looks like on the wire."""

from __future__ import annotations

import json
from typing import Any


def _event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode("ascii")


def _cut(text: str, pieces: int) -> list[str]:
    """`text` in about `pieces` parts of equal size; at least one."""
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


class ChatDialect:
    """Chat completions: `chat.completion.chunk` objects, then `[DONE]`."""

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

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        pieces = _cut(arguments, count)
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


class MessagesDialect:
    """Anthropic messages: named events; each step is a content block of its own."""

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

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        pieces = _cut(arguments, count)
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
