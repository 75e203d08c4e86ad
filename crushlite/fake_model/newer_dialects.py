"""OpenAI's Responses API and Google's API for Gemini, as the fake model speaks them."""

from __future__ import annotations

import json
from typing import Any

from ..records import dataclass
from .dialects import OPENAI_FAILURES, Counts, cut, event


@dataclass(frozen=True, slots=True)
class _Names:
    """How an item that grows is written: its field, an empty part of that, and its events."""

    field: str
    index: str
    added: str
    text: str
    part: dict[str, Any]
    more: dict[str, Any]


_MESSAGE = _Names(
    "content",
    "content_index",
    "content_part",
    "output_text",
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    {"logprobs": []},
)
_REASONING = _Names(
    "summary",
    "summary_index",
    "reasoning_summary_part",
    "reasoning_summary_text",
    {"type": "summary_text", "text": ""},
    {},
)


class ResponsesDialect:
    """Responses: numbered events about items, each with its index; no `[DONE]`. Reasoning comes
    sealed, which is different for each request."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._model = request.get("model", "fake")
        self._length = len(request.get("input", []))
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None  # the item that grows: a message, or reasoning
        self._used_tools = False

    def _event(self, kind: str, **more: Any) -> bytes:
        data = b""
        if not self._number and kind not in ("response.created", "error"):
            data += self._event("response.created", response=self._response("in_progress"))
            data += self._event("response.in_progress", response=self._response("in_progress"))
        number, self._number = self._number, self._number + 1
        return data + event({"type": kind, **more, "sequence_number": number}, kind)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        found = {"id": "resp_1", "object": "response", "created_at": 1, "status": status}
        output = [] if status == "in_progress" else self._output
        found |= {"model": self._model, "output": output, "error": None, "usage": None}
        found |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**found, "incomplete_details": None, **more}

    def _begin(self, item: dict[str, Any]) -> bytes:
        data = self._close()
        self._output.append(item)
        shown = {**item, "status": "in_progress"}
        shown |= {name: [] for name in ("content", "summary") if name in item}
        shown |= {"arguments": ""} if "arguments" in item else {}
        shown.pop("encrypted_content", None)
        index = len(self._output) - 1
        return data + self._event("response.output_item.added", output_index=index, item=shown)

    def _close(self) -> bytes:
        """End the item that is open."""
        item = self._open
        if item is None:
            return b""
        names = _MESSAGE if item["type"] == "message" else _REASONING
        [part] = item[names.field]
        at = self._at(names)
        done = {**at, "text": part["text"], **names.more}
        data = self._event(f"response.{names.text}.done", **done)
        data += self._event(f"response.{names.added}.done", **at, part=part)
        self._open = None
        return data + self._done(item)

    def _done(self, item: dict[str, Any]) -> bytes:
        index = len(self._output) - 1
        return self._event("response.output_item.done", output_index=index, item=item)

    def _grow(self, type_: str, text: str) -> bytes:
        """Add to the open item of this type; begin one if it is another."""
        names = _MESSAGE if type_ == "message" else _REASONING
        data = b""
        if self._open is None or self._open["type"] != type_:
            item = self._item(type_)
            data += self._begin(item)
            self._open = item
            item[names.field] = [dict(names.part)]
            part = dict(names.part)
            data += self._event(f"response.{names.added}.added", **self._at(names), part=part)
        self._open[names.field][0]["text"] += text
        more = {**self._at(names), "delta": text, **names.more}
        return data + self._event(f"response.{names.text}.delta", **more)

    def _at(self, names: _Names) -> dict[str, Any]:
        """Where the open item is."""
        assert self._open is not None
        return {
            "item_id": self._open["id"],
            "output_index": len(self._output) - 1,
            names.index: 0,
        }

    def _item(self, type_: str) -> dict[str, Any]:
        number = f"{self._length}_{len(self._output)}"
        if type_ == "message":
            message = {"id": f"msg_{number}", "type": type_, "role": "assistant"}
            return {**message, "status": "completed", "content": []}
        return {
            "id": f"rs_{number}",
            "type": type_,
            "summary": [],
            "encrypted_content": f"sealed {number}",
        }

    def text(self, text: str) -> bytes:
        return self._grow("message", text)

    def think(self, text: str) -> bytes:
        return self._grow("reasoning", text)

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        self._used_tools = True
        item = {
            "id": f"fc_{self._length}_{len(self._output)}",
            "type": "function_call",
            "status": "completed",
            "call_id": id_,
            "name": name,
            "arguments": arguments,
        }
        data = self._begin(item)
        at = {"item_id": item["id"], "output_index": len(self._output) - 1}
        for piece in cut(arguments, count):
            data += self._event("response.function_call_arguments.delta", **at, delta=piece)
        done = {**at, "name": name, "arguments": arguments}
        return (
            data + self._event("response.function_call_arguments.done", **done) + self._done(item)
        )

    def finish(self, reason: str, usage: Counts | None) -> bytes:
        data = self._close()
        more: dict[str, Any] = {}
        if usage is not None:
            more["usage"] = {
                "input_tokens": usage.prompt,
                "input_tokens_details": {
                    "cached_tokens": usage.cache_read,
                    "cache_write_tokens": usage.cache_write,
                },
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.completion,
            }
        if reason in ("length", "content_filter"):
            why = "max_output_tokens" if reason == "length" else reason
            more["incomplete_details"] = {"reason": why}
            response = self._response("incomplete", **more)
            return data + self._event("response.incomplete", response=response)
        return data + self._event(
            "response.completed", response=self._response("completed", **more)
        )

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "fake_error", "code": status}}

    def failure(self, kind: str) -> tuple[int, dict[str, Any]]:
        status, code, type_, message = OPENAI_FAILURES[kind]
        error = {"message": message, "type": type_, "param": None, "code": code}
        return status, {"error": error}

    def break_off(self, kind: str) -> bytes:
        _, code, type_, message = OPENAI_FAILURES[kind]
        error = {"code": code or type_, "message": message}
        return self._event("response.failed", response=self._response("failed", error=error))


class GeminiDialect:
    """Gemini: each event is a response with the new parts; the last one says how it ended. The
    first call of an answer is signed, else its last part."""

    _REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
    _FAILURES: dict[str, tuple[int, str, str]] = {
        "unauthorized": (
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
        ),
        "overflow": (
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200000) exceeds the maximum number of tokens allowed.",
        ),
        "rate_limit": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
        "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    }

    def __init__(self, request: dict[str, Any], model: str = "fake") -> None:
        self._model = model
        # Signatures are base64.
        self._signature = f"c2lnbmVk{len(request.get('contents', [])):04}"
        self._calls = 0

    def _chunk(self, parts: list[dict[str, Any]], **more: Any) -> bytes:
        content = {"parts": parts, "role": "model"}
        usage = more.pop("usageMetadata", None)
        response: dict[str, Any] = {"candidates": [{"content": content, "index": 0, **more}]}
        response |= {"usageMetadata": usage} if usage else {}
        return event({**response, "modelVersion": self._model, "responseId": "r1"})

    def text(self, text: str) -> bytes:
        return self._chunk([{"text": text}])

    def think(self, text: str) -> bytes:
        return self._chunk([{"text": text, "thought": True}])

    def tool_call(self, id_: str, name: str, arguments: str, count: int) -> bytes:
        call = {"name": name, "args": json.loads(arguments), "id": id_}
        signed = {"thoughtSignature": self._signature} if not self._calls else {}
        self._calls += 1
        return self._chunk([{"functionCall": call, **signed}])

    def finish(self, reason: str, usage: Counts | None) -> bytes:
        more: dict[str, Any] = {"finishReason": self._REASONS.get(reason, reason) or "STOP"}
        if reason == "tool_calls":
            more["finishReason"] = "STOP"
        if usage is not None:
            counts = {
                "promptTokenCount": usage.prompt,
                "candidatesTokenCount": usage.completion - usage.reasoning,
                "totalTokenCount": usage.prompt + usage.completion,
            }
            counts |= {"thoughtsTokenCount": usage.reasoning} if usage.reasoning else {}
            counts |= {"cachedContentTokenCount": usage.cache_read} if usage.cache_read else {}
            more["usageMetadata"] = counts
        last = {"text": ""}
        return self._chunk([last if self._calls else last | self._signed], **more)

    @property
    def _signed(self) -> dict[str, str]:
        return {"thoughtSignature": self._signature}

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"code": status, "message": message, "status": "FAKE_ERROR"}}

    def failure(self, kind: str) -> tuple[int, dict[str, Any]]:
        code, status, message = self._FAILURES[kind]
        error: dict[str, Any] = {"code": code, "message": message, "status": status}
        if kind == "rate_limit":
            retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.001s"}
            error["details"] = [retry]
        return code, {"error": error}

    def break_off(self, kind: str) -> bytes:
        return event(self.failure(kind)[1])
