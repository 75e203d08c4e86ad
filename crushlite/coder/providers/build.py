"""Making a provider that can be asked, from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...clock import Clock
    from ...config.providers import Provider
    from ...outbound.proxies import Proxies
    from .client import ProviderClient


def provider_of(
    config: Provider,
    clock: Clock,
    proxies: Proxies,
    options: Mapping[str, Any] | None = None,
) -> ProviderClient:
    """The provider of a configuration; `options` are those of the model, which win over those of
    the provider. Raises ProviderError for a base URL or header that can never work."""
    more: dict[str, Any] = {}
    api: type[ProviderClient]
    # Imported here: a workspace mostly uses only one of them.
    match config.type:
        case "anthropic":
            from .anthropic import AnthropicProvider as api
        case "gemini" | "google":
            from .gemini import GeminiProvider as api
        case "openai":
            from .responses import ResponsesProvider as api
        case kind:
            from .openai import OpenAIProvider as api

            more["kind"] = kind
    return api(
        config.base_url,
        config.api_key,
        extra_headers=config.extra_headers,
        extra_body=config.extra_body,
        options=merged(config.provider_options, options or {}),
        clock=clock,
        proxies=proxies,
        own_listener=config.found,
        **more,
    )
