"""Making a provider that can be asked, from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...clock import Clock
    from ...config import Provider
    from ..proxies import Proxies
    from .anthropic import AnthropicProvider
    from .openai import OpenAIProvider


def provider_of(
    config: Provider, clock: Clock, proxies: Proxies
) -> AnthropicProvider | OpenAIProvider:
    """Raises ProviderError for a base URL or header that can never work."""
    kind: type[AnthropicProvider | OpenAIProvider]
    # Imported here: a workspace mostly uses only one of the two.
    if config.type == "anthropic":
        from .anthropic import AnthropicProvider as kind
    else:
        from .openai import OpenAIProvider as kind
    return kind(
        config.base_url,
        config.api_key,
        extra_headers=config.extra_headers,
        extra_body=config.extra_body,
        clock=clock,
        proxies=proxies,
    )
