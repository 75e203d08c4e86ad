"""Google's own API for Gemini (`type: gemini`).

A conversation is a list of contents of the roles user and model, which alternate; the results of
all calls of an answer are in the content after it. Parts of an answer may be signed: each signature
goes back with the part that it came with (see returned.py), which newer models demand of calls. For
calls that another model made, the API has a word that says so in place of a signature.

Reading the answer is in gemini_answer.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .client import ProviderClient, merged, without_reasoning
from .gemini_answer import API, GeminiDecoder
from .returned import placed, record_of

if TYPE_CHECKING:
    from .base import ChatMessage, Image, ModelRequest, ProviderError

# For the first call of an answer that has no signature, as the documentation of signatures says.
UNSIGNED = "skip_thought_signature_validator"
_BUDGETS = {"none": 0, "minimal": 512, "low": 2048, "medium": 8192, "high": 24_576}
_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}
_BEFORE_LEVELS = re.compile(r"gemini-[12]\b")
_SETTINGS = {
    "max_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
}


class GeminiProvider(ProviderClient):
    """A server that speaks `POST {base_url}/models/{model}:streamGenerateContent`."""

    def __init__(self, base_url: str, *args: Any, **options: Any) -> None:
        # The address of the same server for chat completions, which old configurations have.
        super().__init__(base_url.rstrip("/").removesuffix("/openai"), *args, **options)

    def _headers(self, key: str) -> list[tuple[str, str]]:
        return [("x-goog-api-key", key.removeprefix("Bearer "))] if key else []

    def _path(self, request: ModelRequest) -> str:
        model = quote(request.model.removeprefix("models/"), safe="")
        return f"/models/{model}:streamGenerateContent?alt=sse"

    def _models_path(self) -> str:
        return "/models?pageSize=1000"

    def _decoder(self) -> GeminiDecoder:
        return GeminiDecoder()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"contents": _contents(request.messages)}
        if request.system.strip():
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            declared = [
                {"name": t.name, "description": t.description, "parametersJsonSchema": t.parameters}
                for t in request.tools
            ]
            body["tools"] = [{"functionDeclarations": declared}]
        config = {
            theirs: value
            for ours, theirs in _SETTINGS.items()
            if (value := getattr(request, ours)) is not None and (ours != "max_tokens" or value > 0)
        }
        if thinking := _thinking(request):
            config["thinkingConfig"] = thinking
        if config:
            body["generationConfig"] = config
        return merged(body, self._configured)

    def _adapted(
        self, error: ProviderError, body: dict[str, Any], request: ModelRequest
    ) -> ModelRequest | None:
        words = error.said.lower().replace("_", " ")
        # Signatures are tied to the model, which may have been changed.
        return without_reasoning(request) if "thought signature" in words else None


def _thinking(request: ModelRequest) -> dict[str, Any]:
    """How the model is told to think; empty if it is left to it."""
    effort = request.reasoning_effort
    if not effort and not request.think:
        return {}
    shown = {"includeThoughts": effort != "none"}
    if not effort:
        return shown
    if _BEFORE_LEVELS.search(request.model):
        # It is part of the limit of the answer: half of that is left for the answer itself.
        most = request.max_tokens // 2 if request.max_tokens > 0 else _BUDGETS["high"]
        return {**shown, "thinkingBudget": min(_BUDGETS.get(effort, _BUDGETS["high"]), most)}
    return {**shown, "thinkingLevel": _LEVELS.get(effort, effort)}


# The history as contents --------------------------------------------------------------------------


def _contents(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    names: dict[str, tuple[str, str]] = {}  # of calls, and the ids that the server gave them
    for message in messages:
        role = "model" if message.role == "assistant" else "user"
        if message.role == "assistant":
            parts = _answer(message, names)
        elif message.role == "tool":
            parts = _result(message, *names.get(message.tool_call_id, ("", "")))
        else:
            parts = [*(_media(image) for image in message.images), *_text(message.text)]
        if not parts:
            continue
        if found and found[-1]["role"] == role:
            found[-1]["parts"] += parts
        else:
            found.append({"role": role, "parts": parts})
    for content in found:
        # A stable sort: results first, otherwise in their order.
        content["parts"].sort(key=lambda part: content["role"] == "user" and not _is_result(part))
    return found


def _is_result(part: dict[str, Any]) -> bool:
    return "functionResponse" in part


def _answer(message: ChatMessage, names: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """The parts of an answer. Adds its calls to `names`."""
    found: list[dict[str, Any]] = []
    signed = False
    for part in placed(record_of(message, API), message):
        signature = part.entry.get("signature")
        made: dict[str, Any]
        if (call := part.call) is not None:
            given = part.entry.get("id") or ""
            names[call.id] = call.name, given
            # The first call is always signed; others of the same answer need not be.
            signature = signature or ("" if signed else UNSIGNED)
            signed = True
            made = {"functionCall": {"name": call.name, "args": call.arguments}}
            if given:
                made["functionCall"]["id"] = given
        elif part.text or signature:
            made = {"text": part.text or ""}
        else:
            continue
        found.append(made | ({"thoughtSignature": signature} if signature else {}))
    return found


def _result(message: ChatMessage, name: str, given: str) -> list[dict[str, Any]]:
    response = {"error" if message.is_error else "output": message.text}
    result: dict[str, Any] = {"name": name, "response": response}
    if given:
        result["id"] = given
    return [{"functionResponse": result}, *(_media(image) for image in message.images)]


def _media(image: Image) -> dict[str, Any]:
    return {"inlineData": {"mimeType": image.mime_type, "data": image.data}}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"text": text}] if text.strip() else []
