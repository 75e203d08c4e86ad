"""Chat completions: the API that OpenAI defined and nearly every model server speaks with small
differences.

A request is made of the fields that all of them take. Where one server refuses a field that another
needs, its complaint names the field: the request is sent again without it, and the provider
remembers that. Reading the answer is in openai_answer.py.

The reasoning of a turn that called tools goes back, in the field in which it came: servers go on
with it, and some demand it in every later request. The reasoning of a turn without calls is not
sent: no server needs it, and some refuse it.

OpenRouter caches prompts for Claude only where they are marked: the system text and the two newest
messages that no model wrote, as in anthropic.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .client import ProviderClient, merged
from .openai_answer import API, ChatDecoder
from .returned import record_of

if TYPE_CHECKING:
    from .base import ChatMessage, Image, ModelRequest, ProviderError
    from .decoding import Decoder
    from .returned import Entry

_CACHED = {"type": "ephemeral"}
_DEMANDED = re.compile(r"missing|must be|required", re.IGNORECASE)
_SETTINGS = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


class OpenAIProvider(ProviderClient):
    """A server that speaks `POST {base_url}/chat/completions`. `kind` is the configured type of the
    provider: OpenRouter has some fields of its own."""

    def __init__(self, *args: Any, kind: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        host = self._transport.endpoint.host
        self._is_openai = host.endswith((".openai.com", ".openai.azure.com"))
        self._is_openrouter = kind == "openrouter" or host.endswith("openrouter.ai")
        # What this server takes, as far as it is known; `_adapted` learns from refusals.
        self._stream_options = True
        self._completion_tokens = self._is_openai
        self._return_thinking = False
        self._unwanted: set[str] = set()  # fields with reasoning that it refuses

    def _headers(self, key: str) -> list[tuple[str, str]]:
        key = key.removeprefix("Bearer ")
        return [("Authorization", f"Bearer {key}")] if key else []

    def _path(self, request: ModelRequest) -> str:
        return "/chat/completions"

    def _decoder(self) -> Decoder:
        return ChatDecoder()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        messages = self._messages(request)
        body: dict[str, Any] = {"model": request.model, "messages": messages, "stream": True}
        if self._stream_options:
            body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in request.tools
            ]
        if request.max_tokens > 0:
            name = "max_completion_tokens" if self._completion_tokens else "max_tokens"
            body[name] = request.max_tokens
        for name in _SETTINGS:
            if (value := getattr(request, name)) is not None:
                body[name] = value
        effort = request.reasoning_effort or ("medium" if request.think else "")
        if effort and self._is_openrouter:
            body["reasoning"] = {"effort": effort}
        elif effort:
            body["reasoning_effort"] = effort
        body = merged(body, self._configured)
        if not body["stream"]:
            body.pop("stream_options", None)
        return body

    def _adapted(
        self, error: ProviderError, body: dict[str, Any], request: ModelRequest
    ) -> ModelRequest | None:
        words = error.said
        if "stream_options" in words and "stream_options" in body:
            self._stream_options = False
        elif "max_completion_tokens" in words and "max_tokens" in body:
            self._completion_tokens = True
        elif "max_completion_tokens" in words and "max_completion_tokens" in body:
            self._completion_tokens = False
        elif "reasoning_content" in words and _DEMANDED.search(words) and not self._return_thinking:
            self._return_thinking = True
        elif refused := _refused_field(words, body):
            self._unwanted.add(refused)
            self._return_thinking = False
        else:
            return None
        return request

    # The history as chat messages -----------------------------------------------------------------

    def _messages(self, request: ModelRequest) -> list[dict[str, Any]]:
        marked = self._is_openrouter and "claude" in request.model
        found: list[dict[str, Any]] = []
        if request.system:
            found.append({"role": "system", "content": request.system})
        # Images in tool results. A tool message holds only text, so a user message with the images
        # follows its group.
        shown: list[Image] = []
        role = ""  # of the message before
        for message in request.messages:
            if message.role != "tool" and shown:
                found.append(self._image_message(shown))
                shown = []
            if message.role == "tool":
                result = {"role": "tool", "tool_call_id": message.tool_call_id}
                found.append({**result, "content": message.text})
                shown += message.images
            elif message.role == "assistant":
                found.append(self._assistant(message, after_tools=role == "tool"))
            else:
                content = self._content(message.text, message.images)
                found.append({"role": "user", "content": content})
            role = message.role
        if shown:
            found.append(self._image_message(shown))
        if marked:
            _mark(found)
        return found

    def _image_message(self, images: list[Image]) -> dict[str, Any]:
        content = self._content("The images of the tool results above:", images)
        return {"role": "user", "content": content}

    def _content(self, text: str, images: list[Image]) -> str | list[dict[str, Any]]:
        if not images:
            return text
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        for image in images:
            url = f"data:{image.mime_type};base64,{image.data}"
            if not image.is_document:
                parts.append({"type": "image_url", "image_url": {"url": url}})
            elif self._is_openai or self._is_openrouter:
                file = {"filename": image.name or "document.pdf", "file_data": url}
                parts.append({"type": "file", "file": file})
            else:
                parts.append({"type": "text", "text": image.left_out})
        return parts

    def _assistant(self, message: ChatMessage, *, after_tools: bool) -> dict[str, Any]:
        """`after_tools`: it follows the results of calls of its turn."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.input or "{}"},
            }
            for call in message.tool_calls
        ]
        # Null is right only next to tool calls, where some servers refuse an empty text.
        found: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        if calls:
            found["tool_calls"] = calls
        elif not message.text:
            found["content"] = ""
        if calls or after_tools:
            found |= self._reasoning(message)
        if self._return_thinking and message.thinking:
            found["reasoning_content"] = message.thinking
        return found

    def _reasoning(self, message: ChatMessage) -> dict[str, Any]:
        """The fields with the reasoning of a message."""
        record: list[Entry] = record_of(message, API)
        # A server that demands it wants an empty one, too, where the model did not reason.
        found: dict[str, Any] = {"reasoning_content": ""} if self._return_thinking else {}
        for entry in record[:1]:
            field, details = entry.get("field"), entry.get("details")
            if details:
                found["reasoning_details"] = details
            elif isinstance(field, str):
                found[field] = message.thinking
        return {name: value for name, value in found.items() if name not in self._unwanted}


def _refused_field(words: str, body: dict[str, Any]) -> str:
    """The field with reasoning that a refusal names and that was sent; empty if there is none."""
    sent = {name for message in body["messages"] for name in message}
    named = ("reasoning_content", "reasoning_details", "reasoning", "thinking")
    return next((name for name in named if name in sent and name in words), "")


def _mark(messages: list[dict[str, Any]]) -> None:
    """Mark messages for caching. All that may be marked become lists of parts: else the one that is
    not marked any more would differ from what it was."""
    markable = []
    for message in messages:
        if message["role"] != "assistant":
            content = message["content"]
            if isinstance(content, str):
                message["content"] = [{"type": "text", "text": content}]
            markable.append(message)
    first = markable[:1] if markable and markable[0]["role"] == "system" else []
    for message in [*first, *markable[len(first) :][-2:]]:
        message["content"][-1]["cache_control"] = _CACHED
