"""OpenAI's Responses API, for providers of the type `openai`.

Nothing is stored at the provider: every request holds the whole conversation, and the reasoning of
the model comes encrypted and goes back with it (see returned.py). Items keep the ids and the order
in which they came: the API refuses reasoning without the item that followed it.

A server of that type that does not know the API is asked by chat completions instead. Reading the
answer is in responses_answer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import merged, without_reasoning
from .openai import OpenAIProvider
from .responses_answer import API, ResponsesDecoder
from .returned import placed, record_of

if TYPE_CHECKING:
    from .base import ChatMessage, Image, ModelRequest, ProviderError
    from .decoding import Decoder
    from .returned import Placed

_ENCRYPTED = "reasoning.encrypted_content"
_ID_CHARS = 64  # more the API does not take


class ResponsesProvider(OpenAIProvider):
    """A server that speaks `POST {base_url}/responses`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # What this server takes; `_adapted` learns from refusals.
        self._speaks_chat = False
        self._without_encryption: set[str] = set()  # models that do not reason
        self._summaries = True

    def _path(self, request: ModelRequest) -> str:
        return super()._path(request) if self._speaks_chat else "/responses"

    def _decoder(self) -> Decoder:
        return super()._decoder() if self._speaks_chat else ResponsesDecoder()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        if self._speaks_chat:
            return super()._body(request)
        items = [item for message in request.messages for item in _items(message)]
        body: dict[str, Any] = {"model": request.model, "input": items}
        body |= {"stream": True, "store": False}
        if request.system:
            body["instructions"] = request.system
        if request.model not in self._without_encryption:
            body["include"] = [_ENCRYPTED]
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in request.tools
            ]
        if request.max_tokens > 0:
            body["max_output_tokens"] = request.max_tokens
        for name in ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"):
            if (value := getattr(request, name)) is not None:
                body[name] = value
        if request.think or request.reasoning_effort:
            reasoning = {"effort": request.reasoning_effort} if request.reasoning_effort else {}
            body["reasoning"] = reasoning | ({"summary": "auto"} if self._summaries else {})
        return merged(body, self._configured)

    def _adapted(
        self, error: ProviderError, body: dict[str, Any], request: ModelRequest
    ) -> ModelRequest | None:
        if "input" not in body:
            return super()._adapted(error, body, request)
        words = error.said.lower()
        if error.upstream_status in (404, 405):
            # A model that does not exist is answered with 404 too.
            self._speaks_chat = "model" not in words
            return request if self._speaks_chat else None
        if "summar" in words and "summary" in body.get("reasoning", {}):
            self._summaries = False
        elif "encrypted content is not supported" in words and "include" in body:
            self._without_encryption.add(request.model)
        elif "encrypted" in words or "reasoning' item" in words or "type 'reasoning'" in words:
            return without_reasoning(request)
        else:
            return None
        return request


# The history as items -----------------------------------------------------------------------------


def _items(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [_result(message)]
    if message.role != "assistant":
        return [{"role": "user", "content": _content(message.text, message.images)}]
    parts = placed(record_of(message, API), message)
    # Reasoning that nothing followed (the answer was cut off) would be refused.
    while parts and parts[-1].text is None and parts[-1].call is None:
        parts.pop()
    return [item for part in parts if (item := _item(part)) is not None]


def _item(part: Placed) -> dict[str, Any] | None:
    given = {name: part.entry[name] for name in ("id", "phase") if part.entry.get(name)}
    if (call := part.call) is not None:
        item = {"type": "function_call", "call_id": _id(call.id), "name": call.name}
        return {**item, "arguments": call.input or "{}", **given}
    if part.text is None:
        own = part.entry.get("item")
        return own if isinstance(own, dict) else None
    if not part.text:
        return None
    text = {"type": "output_text", "text": part.text, "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {**message, **given}


def _result(message: ChatMessage) -> dict[str, Any]:
    output: str | list[dict[str, Any]] = message.text
    if message.images:
        output = _content(message.text, message.images)
    item = {"type": "function_call_output", "call_id": _id(message.tool_call_id)}
    return {**item, "output": output}


def _content(text: str, images: list[Image]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if text or not images:
        parts.append({"type": "input_text", "text": text})
    for image in images:
        url = f"data:{image.mime_type};base64,{image.data}"
        if image.is_document:
            name = image.name or "document.pdf"
            parts.append({"type": "input_file", "filename": name, "file_data": url})
        else:
            parts.append({"type": "input_image", "image_url": url, "detail": "auto"})
    return parts


def _id(id_: str) -> str:
    return id_[-_ID_CHARS:]
