"""Chat completions: the API that OpenAI defined and nearly every model server speaks with small
differences.

A request is made of the fields that all of them take. Where one server refuses a field that another
needs, its complaint names the field: the request is sent again without it, and the provider
remembers that. Reading the answer is in openai_answer.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..proxies import NO_PROXIES
from .base import ProviderError
from .listing import listed_models
from .openai_answer import ChatDecoder
from .transport import MODELS_SECONDS, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ...clock import Clock
    from ...protocol.config import Model
    from ..proxies import Proxies
    from .base import ChatMessage, Image, ModelRequest, Piece
    from .transport import Timeouts

# One try for each field that a server may refuse, and the last.
_TRIES = 4


class OpenAIProvider:
    """A server that speaks `POST {base_url}/chat/completions`.

    Raises ProviderError at once for a base URL or header that can never work. Configured headers
    and body fields win over our own of the same name.
    """

    def __init__(  # noqa: PLR0913 - what a configuration says of a provider, by keyword
        self,
        base_url: str,
        api_key: str = "",
        *,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock,
        proxies: Proxies = NO_PROXIES,
        own_listener: bool = False,
    ) -> None:
        key = api_key.strip().removeprefix("Bearer ")
        self._transport = Transport(
            base_url,
            headers=[("Authorization", f"Bearer {key}")] if key else [],
            extra_headers=(extra_headers or {}).items(),
            clock=clock,
            timeouts=timeouts,
            proxies=proxies,
            extra_body=extra_body,
            own_listener=own_listener,
        )
        self._extra_body = dict(extra_body or {})
        # What this server takes, as far as it is known; `_adapt` learns from refusals.
        self._stream_options = True
        self._completion_tokens = self._transport.endpoint.host.endswith(
            (".openai.com", ".openai.azure.com")
        )
        self._return_thinking = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """See ModelClient."""
        for left in reversed(range(_TRIES)):
            body, decoder = self._body(request), ChatDecoder()
            answer = self._transport.pieces(
                "/chat/completions", body.copy, decoder, chars=request.chars
            )
            try:
                async with contextlib.aclosing(answer):
                    async for piece in answer:
                        yield piece
            except ProviderError as error:
                if left and not decoder.begun and self._adapt(error, body):
                    continue
                raise
            return

    async def list_models(self, timeout: float = MODELS_SECONDS) -> list[Model]:
        """The models that the server offers, in its order. Raises ProviderError, also if
        the answer is not complete within `timeout` seconds."""
        return await self._transport.get("/models", listed_models, timeout=timeout)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        messages = _messages(request, return_thinking=self._return_thinking)
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
        for name in ("temperature", "top_p"):
            if (value := getattr(request, name)) is not None:
                body[name] = value
        if request.reasoning_effort:
            body["reasoning_effort"] = request.reasoning_effort
        body |= self._extra_body
        if not body["stream"]:
            body.pop("stream_options", None)
        return body

    def _adapt(self, error: ProviderError, body: dict[str, Any]) -> bool:
        """Learn from a refusal that names a field. Return whether another try is worth it. This is
        decided by the body that was sent, not by what is known: another request may have learned
        the same meanwhile."""
        if error.upstream_status not in (400, 422):
            return False
        words = str(error)
        if "stream_options" in words and "stream_options" in body:
            self._stream_options = False
        elif "max_completion_tokens" in words and "max_tokens" in body:
            self._completion_tokens = True
        elif "max_completion_tokens" in words and "max_completion_tokens" in body:
            self._completion_tokens = False
        elif "reasoning_content" in words and not self._return_thinking:
            self._return_thinking = True
        else:
            return False
        return True


# The history as chat messages -------------------------------------------------------------------


def _messages(request: ModelRequest, *, return_thinking: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if request.system:
        found.append({"role": "system", "content": request.system})
    # Images in tool results. A tool message holds only text, so a user message with the images
    # follows its group.
    shown: list[Image] = []
    for message in request.messages:
        if message.role != "tool" and shown:
            found.append(_image_message(shown))
            shown = []
        if message.role == "tool":
            result = {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
            found.append(result)
            shown += message.images
        elif message.role == "assistant":
            found.append(_assistant(message, return_thinking=return_thinking))
        else:
            found.append({"role": "user", "content": _content(message.text, message.images)})
    if shown:
        found.append(_image_message(shown))
    return found


def _image_message(images: list[Image]) -> dict[str, Any]:
    return {"role": "user", "content": _content("The images of the tool results above:", images)}


def _content(text: str, images: list[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        url = f"data:{image.mime_type};base64,{image.data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _assistant(message: ChatMessage, *, return_thinking: bool) -> dict[str, Any]:
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
    if return_thinking and message.thinking:
        found["reasoning_content"] = message.thinking
    return found
