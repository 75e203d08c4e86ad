"""Anthropic's messages API, and the servers that speak it.

What the API demands of a history, and what is done about it:

- Roles alternate: neighbours of one role become one message. Tool results are blocks of a user
  message and come first in it.
- A block of text holds more than white space: others are left out, and so is a message without any
  blocks.
- Thinking is sent back exactly as it came, with its signature, or not at all. An answer with a
  single plain block of thinking is stored as its text and signature. Of any other (several blocks,
  or redacted ones), all blocks are stored as JSON in the place of the signature.
- While thinking is on, a turn that has called tools begins with thinking. A turn that does not (it
  was begun by another model) is continued without thinking.

Four places are marked for caching, as many as the API allows: the end of the tools, of the system
text, and of the two newest user messages. What comes before them is sent again, unchanged, with the
next step. The older of the two marks in messages is where the last request ended: the cache is
found there even if more blocks have come since than the API looks back by itself.

Reading the answer is in anthropic_answer.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..jsontext import loads
from ..proxies import NO_PROXIES
from .anthropic_answer import MessagesDecoder
from .listing import listed_models
from .transport import MODELS_SECONDS, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ...clock import Clock
    from ...protocol.config import Model
    from ..proxies import Proxies
    from .base import ChatMessage, Image, ModelRequest, Piece
    from .transport import Timeouts

_VERSION = "2023-06-01"
# The API has no default of its own; every current model can answer at least this much.
_MAX_TOKENS = 8192
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24_000}
_LEAST_BUDGET = 1024
_CACHED = {"type": "ephemeral"}
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicProvider:
    """A server that speaks `POST {base_url}/v1/messages`; a base URL may end in /v1 already.

    Raises ProviderError at once for a base URL or header that can never work. Configured headers
    and body fields win over our own of the same name. A key that begins with "Bearer " goes into
    Authorization, any other into x-api-key.
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
    ) -> None:
        headers = [("anthropic-version", _VERSION)]
        key = api_key.strip()
        if key:
            bearer = key.startswith("Bearer ")
            headers.append(("Authorization" if bearer else "x-api-key", key))
        self._transport = Transport(
            base_url,
            headers=headers,
            extra_headers=(extra_headers or {}).items(),
            clock=clock,
            timeouts=timeouts,
            proxies=proxies,
            extra_body=extra_body,
        )
        versioned = self._transport.endpoint.prefix.endswith("/v1")
        self._prefix = "" if versioned else "/v1"
        self._extra_body = dict(extra_body or {})

    def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """See ModelClient."""
        path = f"{self._prefix}/messages"
        return self._transport.pieces(
            path, lambda: self._body(request), MessagesDecoder(), chars=request.chars
        )

    async def list_models(self, timeout: float = MODELS_SECONDS) -> list[Model]:
        """The models that the server offers, the newest first. Raises ProviderError,
        also if the answer is not complete within `timeout` seconds."""
        path = f"{self._prefix}/models"
        return await self._transport.get(path, listed_models, timeout=timeout)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        limit = request.max_tokens if request.max_tokens > 0 else _MAX_TOKENS
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": limit,
            "messages": _messages(request.messages),
            "stream": True,
        }
        if request.system.strip():
            system = {"type": "text", "text": request.system, "cache_control": _CACHED}
            body["system"] = [system]
        if request.tools:
            body["tools"] = [
                {"name": t.name, "description": t.description, "input_schema": t.parameters}
                for t in request.tools
            ]
            body["tools"][-1]["cache_control"] = _CACHED
        budget = _budget(request, limit)
        if budget:
            # With thinking, the API refuses a temperature.
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        else:
            for name in ("temperature", "top_p"):
                if (value := getattr(request, name)) is not None:
                    body[name] = value
        return body | self._extra_body


def _budget(request: ModelRequest, limit: int) -> int:
    """How many tokens the model may use for thinking; 0 turns it off."""
    effort = request.reasoning_effort
    if not (request.think or effort) or effort == "none" or not _may_think(request.messages):
        return 0
    # Half of the limit is left for the answer itself.
    budget = min(_BUDGETS.get(effort, _BUDGETS["medium"]), limit // 2)
    return budget if budget >= _LEAST_BUDGET else 0


def _may_think(messages: list[ChatMessage]) -> bool:
    """Whether each step of the unfinished turn, if there is one, begins with signed thinking: the
    API refuses thinking in a turn that began without."""
    for message in reversed(messages):
        if message.role == "user":
            return True
        if message.tool_calls and not message.signature:
            return False
    return True


# The history as messages ------------------------------------------------------------------------


def _messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        else:
            found.append({"role": role, "content": blocks})
    for entry in found:
        # A stable sort: tool results first, otherwise in their order.
        entry["content"].sort(key=lambda block: block["type"] != "tool_result")
    for entry in [entry for entry in found if entry["role"] == "user"][-2:]:
        entry["content"][-1]["cache_control"] = _CACHED
    return found


def _blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [_result(message)]
    if message.role == "assistant":
        calls = [
            {"type": "tool_use", "id": _id(c.id), "name": c.name, "input": _object(c.input)}
            for c in message.tool_calls
        ]
        return [*_thinking(message), *_text(message.text), *calls]
    return [*(_image(image) for image in message.images), *_text(message.text)]


def _result(message: ChatMessage) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = message.text
    if message.images:
        content = [*_text(message.text), *(_image(image) for image in message.images)]
    block = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id), "content": content}
    return block | ({"is_error": True} if message.is_error else {})


def _thinking(message: ChatMessage) -> list[dict[str, Any]]:
    """The blocks of thinking of a message (see the header for how they are stored)."""
    signature = message.signature
    if signature.startswith("["):
        try:
            blocks = loads(signature)
        except ValueError:
            return []
        return [block for block in blocks if isinstance(block, dict) and "type" in block]
    if not signature:
        return []
    return [{"type": "thinking", "thinking": message.thinking, "signature": signature}]


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": image.mime_type, "data": image.data}
    return {"type": "image", "source": source}


def _id(id_: str) -> str:
    """The id of a tool call. Those of other providers may hold characters that the API refuses."""
    return _NOT_IN_AN_ID.sub("_", id_)


def _object(text: str) -> dict[str, Any]:
    """The arguments of a tool call; empty if they are no JSON object."""
    try:
        value = loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
