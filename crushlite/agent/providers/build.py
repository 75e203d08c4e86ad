"""From a configured provider to one that can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crushlite.agent.providers.anthropic import AnthropicProvider
    from crushlite.agent.providers.openai import OpenAIProvider
    from crushlite.agent.proxies import Proxies
    from crushlite.clock import Clock
    from crushlite.config import Provider

__all__ = ["provider_of"]


def provider_of(
    config: Provider, clock: Clock, proxies: Proxies
) -> AnthropicProvider | OpenAIProvider:
    """Raises ProviderError for a base URL or header that can never work."""
    if config.type == "anthropic":
        from crushlite.agent.providers.anthropic import AnthropicProvider

        return AnthropicProvider(
            config.base_url,
            config.api_key,
            extra_headers=config.extra_headers,
            extra_body=config.extra_body,
            clock=clock,
            proxies=proxies,
        )
    from crushlite.agent.providers.openai import OpenAIProvider

    return OpenAIProvider(
        config.base_url,
        config.api_key,
        extra_headers=config.extra_headers,
        extra_body=config.extra_body,
        clock=clock,
        proxies=proxies,
    )
