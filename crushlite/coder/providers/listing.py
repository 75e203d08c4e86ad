"""What providers say about their models: the lists that they answer, and what model servers of this
machine tell elsewhere.

There is no standard beyond an id. The fields that are read here are those of the public
documentation of OpenRouter, Anthropic, Google, Groq, vLLM, llama.cpp, LM Studio and Ollama. All of
it was written by a server, so it is bounded, and what does not look right is left out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from ...clock import time_limit
from ...protocol.config import Model
from ...records import dataclass
from .base import ProviderError
from .failures import refusal

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ...clock import Clock
    from .transport import Transport

MOST = 1000  # models of one list
MAX_ID = 200  # characters of an id or a name
MAX_WINDOW = 100_000_000  # tokens
SHOWN = 50  # models of an Ollama that are asked for one by one,
AT_ONCE = 8  # so many at the same time

_NO_CHAT = re.compile(
    r"embed|rerank|whisper|moderation|transcribe|dall-e|stable-diffusion"
    r"|(?:^|[-/_])(?:bge|tts|clip|sora|davinci|babbage|guard|realtime|audio|image|imagen|veo)"
    r"(?:[-_.:/\d]|$)",
    re.I,
)
_WINDOWS = (
    *("context_length", "context_window", "max_model_len", "max_input_tokens", "inputTokenLimit"),
    "n_ctx",
)
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.M)
# Prices per token in the list of OpenRouter, and ours per million. Ours of the cache are called
# after the direction: what is written to it comes in, what is read comes out.
_PRICES = {
    "prompt": "cost_per_1m_in",
    "completion": "cost_per_1m_out",
    "input_cache_write": "cost_per_1m_in_cached",
    "input_cache_read": "cost_per_1m_out_cached",
}


def can_chat(ident: str) -> bool:
    """Whether a model can hold a conversation, as far as its name tells."""
    return _NO_CHAT.search(ident) is None


def listed_models(answer: Any) -> list[Model]:
    """The models in an answer to a request for a list, in its order. Raises ProviderError if it is
    no list."""
    found = answer
    if isinstance(answer, dict):
        found = answer.get("data", answer.get("models"))
    if not isinstance(found, list):
        raise refusal(answer)
    models: dict[str, Model] = {}
    for entry in found[:MOST]:
        fields = entry if isinstance(entry, dict) else {"id": entry}
        # Google calls models/NAME what a request calls NAME, and tells what each can be asked for.
        ident = _text(fields.get("id")) or _text(fields.get("name")).removeprefix("models/")
        methods = fields.get("supportedGenerationMethods", ["generateContent"])
        if ident and "generateContent" in _list(methods):
            models.setdefault(ident, _model(ident, fields))
    return list(models.values())


def _model(ident: str, fields: dict[str, Any]) -> Model:
    names = (fields.get(key) for key in ("display_name", "displayName", "name"))
    name = next(filter(None, map(_text, names)), "")
    pricing = _object(fields.get("pricing"))
    prices: dict[str, Any] = {ours: _price(pricing.get(theirs)) for theirs, ours in _PRICES.items()}
    return Model(
        id=ident,
        name=name or ident,
        context_window=_first_window(fields) or _first_window(_object(fields.get("meta"))),
        can_reason="reasoning" in _list(fields.get("supported_parameters")),
        supports_attachments="image"
        in _list(_object(fields.get("architecture")).get("input_modalities")),
        **prices,
    )


def _text(value: Any) -> str:
    good = isinstance(value, str) and len(value) <= MAX_ID and value.isprintable()
    return value.strip() if good else ""


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _price(value: Any) -> float:
    """Dollars per million tokens, of a text or number of dollars per token; 0 if it is none."""
    try:
        price = float(value) * 1_000_000
    except (TypeError, ValueError):
        return 0.0
    return round(price, 6) if math.isfinite(price) and price > 0 else 0.0


def _window(value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WINDOW
    return value if good else 0


def _first_window(fields: dict[str, Any]) -> int:
    return next(filter(None, (_window(fields.get(name)) for name in _WINDOWS)), 0)


# Servers of this machine ------------------------------------------------------------------------


async def with_windows(
    kind: str, models: list[Model], server: Transport, clock: Clock, seconds: float
) -> list[Model]:
    """The models with the context windows that a server of this kind (ollama, lmstudio, llamacpp)
    uses for them. What it does not tell within the time stays as it is. Never raises
    ProviderError."""
    asks = {"ollama": _ask_ollama, "lmstudio": _ask_lmstudio, "llamacpp": _ask_llamacpp}.get(kind)
    found: dict[str, _Facts] = {}
    if asks is not None and any(not model.context_window for model in models):
        try:
            async with time_limit(clock, seconds):
                await asks(server, [model.id for model in models], found, seconds)
        except (ProviderError, TimeoutError):
            pass  # what has come until then is used
    return [_completed(model, found.get(model.id)) for model in models]


@dataclass(frozen=True, slots=True)
class _Facts:
    window: int
    images: bool = False


def _completed(model: Model, facts: _Facts | None) -> Model:
    if facts is None:
        return model
    return dataclasses.replace(
        model,
        context_window=model.context_window or facts.window,
        supports_attachments=model.supports_attachments or facts.images,
    )


async def _ask_ollama(
    server: Transport, ids: list[str], found: dict[str, _Facts], seconds: float
) -> None:
    """A loaded model has the window that it was loaded with. Another one will get that of its
    `num_ctx`; if it has none, the most that it was trained for is the best that is known."""
    loaded = await server.get("/api/ps", lambda answer: answer, timeout=seconds)
    windows: dict[str, int] = {}
    for entry in map(_object, _list(_object(loaded).get("models"))):
        for name in (entry.get("name"), entry.get("model")):
            windows[_text(name)] = _window(entry.get("context_length"))
    free = asyncio.Semaphore(AT_ONCE)

    async def show(ident: str) -> None:
        async with free:
            read = await server.post("/api/show", {"model": ident}, _object, timeout=seconds)
        images = "vision" in _list(read.get("capabilities"))
        found[ident] = _Facts(windows.get(ident) or _shown_window(read), images)

    async with asyncio.TaskGroup() as group:
        for ident in ids[:SHOWN]:
            group.create_task(_quietly(show(ident)))


async def _quietly(asking: Coroutine[Any, Any, None]) -> None:
    try:
        await asking
    except ProviderError:
        pass  # this model cannot be shown; the others can


def _shown_window(shown: dict[str, Any]) -> int:
    parameters = shown.get("parameters")
    if isinstance(parameters, str) and (match := _NUM_CTX.search(parameters)):
        return _window(int(match[1]))
    info = _object(shown.get("model_info"))
    return _window(info.get(f"{info.get('general.architecture')}.context_length"))


async def _ask_lmstudio(
    server: Transport, ids: list[str], found: dict[str, _Facts], seconds: float
) -> None:
    """The window of a loaded model, else the most that it can have. The list has another shape
    since version 0.4; the older address is still there."""
    try:
        answer = await server.get("/api/v1/models", _object, timeout=seconds)
        for entry in map(_object, _list(answer.get("models"))):
            images = bool(_object(entry.get("capabilities")).get("vision"))
            instances = [_object(each) for each in _list(entry.get("loaded_instances"))]
            loaded = {
                _text(each.get("id")): _window(_object(each.get("config")).get("context_length"))
                for each in instances
            }
            windows = [*filter(None, loaded.values())] or [_window(entry.get("max_context_length"))]
            found[_text(entry.get("key"))] = _Facts(min(windows), images)
            found.update((name, _Facts(size, images)) for name, size in loaded.items() if size)
    except ProviderError:
        answer = await server.get("/api/v0/models", _object, timeout=seconds)
        for entry in map(_object, _list(answer.get("data"))):
            loaded_window = _window(entry.get("loaded_context_length"))
            window = loaded_window or _window(entry.get("max_context_length"))
            found[_text(entry.get("id"))] = _Facts(window, entry.get("type") == "vlm")


async def _ask_llamacpp(
    server: Transport, ids: list[str], found: dict[str, _Facts], seconds: float
) -> None:
    """The server has one model, and one window for each of its slots."""
    answer = await server.get("/props", _object, timeout=seconds)
    settings = _object(answer.get("default_generation_settings"))
    images = bool(_object(answer.get("modalities")).get("vision"))
    found.update(dict.fromkeys(ids, _Facts(_window(settings.get("n_ctx")), images)))
