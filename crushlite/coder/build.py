"""From a configuration to an agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..agent.base import Agent
from ..config import scrubbed_environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..config import Config, Selected
    from .coder import Brain
    from .proxies import Proxies

log = logging.getLogger(__name__)


def coder_or_offline(
    path: Path, env: Mapping[str, str], config: Config, clock: Clock
) -> Agent | None:
    """The coder if the configuration names a model it can use, else the offline agent."""
    choice = config.choice()
    log.info("workspace %s: %s", path, choice)
    if choice.agent == "coder":
        return coder(path, env, config, clock)
    from ..agent.offline import OfflineAgent

    return Agent(OfflineAgent(why=choice.reason))


def coder(path: Path, env: Mapping[str, str], config: Config, clock: Clock) -> Agent | None:
    """The coder with the configured models; None if there is none it could use."""
    if config.large is None or config.small is None:
        return None
    from .coder import CoderAgent, CoderOptions
    from .proxies import proxies_of
    from .tools.base import ToolContext
    from .tools.registry import all_tools

    proxies = proxies_of(env)
    options = CoderOptions(
        context_paths=config.options.context_paths,
        auto_summarize=not config.options.disable_auto_summarize,
    )
    return Agent(
        CoderAgent(
            context=ToolContext(path, scrubbed_environment(env, config.secrets())),
            large=_brain(config.large, clock, proxies),
            small=_brain(config.small, clock, proxies),
            tools=all_tools(disabled=config.options.disabled_tools),
            options=options,
            clock=clock,
        )
    )


def _brain(selected: Selected, clock: Clock, proxies: Proxies) -> Brain:
    from .coder import Brain
    from .providers.build import provider_of

    provider = selected.provider
    model, choice = selected.model, selected.choice
    asked = provider_of(provider, clock, proxies)
    return Brain(asked, model, choice, provider.system_prompt_prefix)
