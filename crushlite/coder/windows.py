"""The context windows that model servers of this machine use.

Before a model is loaded its server tells at best what the model was trained for. What it is loaded
with may be a fraction of that (Ollama: 4096 tokens on most machines), and what does not fit is cut
off without a word. So the server is asked again once the model has answered.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from .history import estimated_tokens
from .providers.base import ProviderError
from .providers.listing import with_windows
from .providers.transport import MODELS_SECONDS, Timeouts, Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..clock import Clock
    from ..config.providers import Provider
    from ..outbound.proxies import Proxies
    from ..protocol.config import Model
    from .providers.base import ModelRequest

ROOM = 1024  # tokens for the conversation: with less not even a prompt and its answer fit
LOADING = ("ollama", "lmstudio")  # kinds of servers that load a model when it is asked


async def told_windows(
    provider: Provider, models: list[Model], clock: Clock, seconds: float, proxies: Proxies
) -> list[Model]:
    """The models with the context windows that the server tells beside its list. That is not below
    the path of the OpenAI dialect."""
    key = provider.api_key
    transport = Transport(
        provider.base_url.rstrip("/").removesuffix("/v1"),
        headers=[("Authorization", f"Bearer {key}")] if key else (),
        extra_headers=provider.extra_headers.items(),
        clock=clock,
        timeouts=Timeouts(connect=seconds),
        proxies=proxies,
        own_listener=provider.found,
    )
    try:
        return await with_windows(provider.type, models, transport, clock, seconds)
    finally:
        await transport.aclose()


def loaded_window(
    provider: Provider, model: Model, clock: Clock, proxies: Proxies
) -> Callable[[], Awaitable[int]] | None:
    """A function that asks for the window with which a model that has answered is loaded; it
    answers 0 if that is not told. None if the server is of no kind that loads models."""
    if provider.type not in LOADING:
        return None

    async def ask() -> int:
        unknown = dataclasses.replace(model, context_window=0)
        (told,) = await told_windows(provider, [unknown], clock, MODELS_SECONDS, proxies)
        return told.context_window

    return ask


def require_room(request: ModelRequest, window: int) -> None:
    """Raise ProviderError if what comes with every request leaves less than ROOM of a window of so
    many tokens, 0 if that is unknown."""
    texts = [f"{t.name}{t.description}{json.dumps(t.parameters)}" for t in request.tools]
    fixed = estimated_tokens(request.system, *texts)
    if 0 < window < fixed + ROOM:
        raise ProviderError(
            f"the model server has loaded {request.model} with a context window of {window} "
            f"tokens; instructions and tools alone take about {fixed}, and what does not fit is "
            "cut off",
            advice="Load it with 32768 or more: for Ollama set OLLAMA_CONTEXT_LENGTH where it is "
            "started, or num_ctx in the Modelfile; in LM Studio set the context length",
        )
