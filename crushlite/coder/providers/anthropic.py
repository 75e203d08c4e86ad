"""Anthropic's messages API, and the servers that speak it.

What the API demands of a history, and what is done about it:

- Roles alternate: neighbours of one role become one message. Tool results are blocks of a user
  message and come first in it.
- A block of text holds more than white space: others are left out, and so is a message without any
  blocks.
- Thinking is sent back exactly as it came, with its signature and in its place, or not at all. An
  answer with a single plain block of thinking at its beginning is stored as its text and signature.
  Of any other (several blocks, redacted ones, thinking between text and calls), all blocks are
  stored as a list in the place of the signature, with the places of text and calls (returned.py).

Newer models decide themselves how much they think (adaptive thinking, steered by an effort); older
ones get a budget of tokens, and think between tool calls too because a beta header asks for it.
Which one a model wants is known by its name, and corrected by its refusal. Thinking is not switched
inside a turn: with a budget, the API refuses it in a turn that began without, which is continued
without then (another model may have begun it).

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
from .anthropic_answer import MessagesDecoder
from .client import ProviderClient, merged, without_reasoning
from .returned import placed

if TYPE_CHECKING:
    from .base import ChatMessage, Image, ModelRequest, ProviderError
    from .returned import Entry

_VERSION = "2023-06-01"
_INTERLEAVED = "interleaved-thinking-2025-05-14"
# The API has no default of its own; every current model can answer at least this much.
_MAX_TOKENS = 8192
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 24_000, "max": 48_000}
_LEAST_BUDGET = 1024
_CACHED = {"type": "ephemeral"}
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION_IN_NAME = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")
_FIRST_ADAPTIVE = (4, 6)


class AnthropicProvider(ProviderClient):
    """A server that speaks `POST {base_url}/v1/messages`; a base URL may end in /v1 already. A key
    that begins with "Bearer " goes into Authorization, any other into x-api-key."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        versioned = self._transport.endpoint.prefix.endswith("/v1")
        self._prefix = "" if versioned else "/v1"
        # By model: adaptive, enabled (with a budget) or always (it cannot be changed); learned from
        # refusals.
        self._modes: dict[str, str] = {}

    def _headers(self, key: str) -> list[tuple[str, str]]:
        headers = [("anthropic-version", _VERSION), ("anthropic-beta", _INTERLEAVED)]
        if key:
            bearer = key.startswith("Bearer ")
            headers.append(("Authorization" if bearer else "x-api-key", key))
        return headers

    def _path(self, request: ModelRequest) -> str:
        return f"{self._prefix}/messages"

    def _models_path(self) -> str:
        return f"{self._prefix}/models"

    def _decoder(self) -> MessagesDecoder:
        return MessagesDecoder()

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
        mode = self._modes.get(request.model) or mode_of(request.model)
        body |= _thinking_fields(request, limit, mode)
        if body.get("thinking", {}).get("type") not in ("enabled", "adaptive"):
            # With thinking, the API refuses these.
            for name in ("temperature", "top_p", "top_k"):
                if (value := getattr(request, name)) is not None:
                    body[name] = value
        return merged(body, self._configured)

    def _adapted(
        self, error: ProviderError, body: dict[str, Any], request: ModelRequest
    ) -> ModelRequest | None:
        words = error.said
        if "thinking" not in words:
            return None
        sent = body.get("thinking", {}).get("type", "")
        if sent == "enabled" and "adaptive" in words:
            self._modes[request.model] = "adaptive"
        elif sent == "adaptive" and "adaptive" in words:
            self._modes[request.model] = "enabled"
        elif sent == "disabled" and "disabled" in words:
            self._modes[request.model] = "always"
        elif "block" in words:
            # Blocks of thinking are tied to the model, which may have been changed.
            return without_reasoning(request)
        else:
            return None
        return request


def mode_of(model: str) -> str:
    """How a model is told to think, by its name: adaptive, or enabled with a budget."""
    found = _VERSION_IN_NAME.search(model)
    if found is None:
        return "adaptive" if re.search("claude-(mythos|fable)", model) else "enabled"
    version = int(found[1]), int(found[2] or 0)
    return "adaptive" if version >= _FIRST_ADAPTIVE else "enabled"


def _thinking_fields(request: ModelRequest, limit: int, mode: str) -> dict[str, Any]:
    """The fields of a body that turn thinking on or off; none for what a model does by itself."""
    effort = request.reasoning_effort
    if mode != "enabled":
        if effort == "none" and mode != "always":
            return {"thinking": {"type": "disabled"}}
        if effort == "none" or not (request.think or effort):
            return {}
        thinking = {"type": "adaptive", "display": "summarized"}
        effort = "low" if effort == "minimal" else effort
        return {"thinking": thinking} | ({"output_config": {"effort": effort}} if effort else {})
    budget = _budget(request, limit)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget else {}


def _budget(request: ModelRequest, limit: int) -> int:
    """How many tokens the model may use for thinking; 0 turns it off."""
    effort = request.reasoning_effort
    if not (request.think or effort) or effort == "none" or not _may_think(request.messages):
        return 0
    # Half of the limit is left for the answer itself.
    wanted = _BUDGETS["max"] if effort == "xhigh" else _BUDGETS.get(effort, _BUDGETS["medium"])
    budget = min(wanted, limit // 2)
    return budget if budget >= _LEAST_BUDGET else 0


def _may_think(messages: list[ChatMessage]) -> bool:
    """Whether the unfinished turn, if there is one, began with thinking. Later steps of it may come
    without."""
    first: ChatMessage | None = None
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "assistant" and message.tool_calls:
            first = message
    return first is None or bool(_thinking(first))


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
        found: list[dict[str, Any]] = []
        for part in placed(_thinking(message), message):
            if part.text is not None:
                found += _text(part.text)
            elif (call := part.call) is not None:
                arguments = call.arguments
                block = {"type": "tool_use", "id": _id(call.id), "name": call.name}
                found.append({**block, "input": arguments})
            else:
                found.append(part.entry)
        return found
    return [*(_image(image) for image in message.images), *_text(message.text)]


def _result(message: ChatMessage) -> dict[str, Any]:
    content: str | list[dict[str, Any]] = message.text
    if message.images:
        content = [*_text(message.text), *(_image(image) for image in message.images)]
    block = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id), "content": content}
    return block | ({"is_error": True} if message.is_error else {})


def _thinking(message: ChatMessage) -> list[Entry]:
    """The record of a message (see the header for how it is stored); empty for one that another API
    has made, and without thinking."""
    signature = message.signature
    if signature.startswith("["):
        try:
            blocks = loads(signature)
        except ValueError:
            return []
        return [b for b in blocks if isinstance(b, dict) and ("type" in b or "place" in b)]
    if not signature or signature.startswith("{"):
        return []
    return [{"type": "thinking", "thinking": message.thinking, "signature": signature}]


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _image(image: Image) -> dict[str, Any]:
    source = {"type": "base64", "media_type": image.mime_type, "data": image.data}
    if image.is_document:
        return {"type": "document", "source": source} | (
            {"title": image.name} if image.name else {}
        )
    return {"type": "image", "source": source}


def _id(id_: str) -> str:
    """The id of a tool call. Those of other providers may hold characters that the API refuses."""
    return _NOT_IN_AN_ID.sub("_", id_)
