"""From a configuration to an agent: the built-in ones, chosen by name."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from crushlite.agent.base import Agent, agent_factory
from crushlite.config import scrubbed_environment
from crushlite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crushlite.agent.base import AgentFactory
    from crushlite.agent.coder import Brain
    from crushlite.agent.providers.base import Provider
    from crushlite.clock import Clock
    from crushlite.config import Config, Selected

__all__ = ["coder", "find_agent"]

log = logging.getLogger(__name__)


def find_agent(name: str, clock: Clock) -> AgentFactory:
    """The agent behind `--agent`: auto, coder, offline, or module:attr."""
    if name == "auto":
        return lambda path, env, config: _chosen(path, env, config, clock)
    if name == "coder":
        return lambda path, env, config: coder(path, env, config, clock)
    if name == "offline":
        from crushlite.agent.offline import OfflineAgent

        return agent_factory(OfflineAgent())
    module, found, attribute = name.partition(":")
    if not found or not module or not attribute:
        raise UsageError(f"agent {name!r}: use auto, coder, offline, or module:attr")
    sys.path.insert(0, os.getcwd())  # `serve` is typed where the agent is being written
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(f"agent {name!r}: {error}") from error
    return agent_factory(target)


def _chosen(path: Path, env: Mapping[str, str], config: Config, clock: Clock) -> Agent | None:
    choice = config.choice()
    log.info("workspace %s: %s", path, choice.reason)
    if choice.agent == "coder":
        return coder(path, env, config, clock)
    from crushlite.agent.offline import OfflineAgent

    return Agent(OfflineAgent())


def coder(path: Path, env: Mapping[str, str], config: Config, clock: Clock) -> Agent | None:
    """The coder with the configured models; None if there is none it could use."""
    if config.large is None or config.small is None:
        return None
    # Imported here: whoever runs an agent of their own does not pay for this one.
    from crushlite.agent.coder import CoderAgent, Options
    from crushlite.agent.tools.base import Desk
    from crushlite.agent.tools.registry import all_tools

    options = Options(
        context_paths=config.options.context_paths,
        auto_summarize=not config.options.disable_auto_summarize,
    )
    return Agent(
        CoderAgent(
            desk=Desk(path, scrubbed_environment(env, config)),
            large=_brain(config.large, clock),
            small=_brain(config.small, clock),
            tools=all_tools(disabled=config.options.disabled_tools),
            options=options,
            clock=clock,
        )
    )


def _brain(selected: Selected, clock: Clock) -> Brain:
    from crushlite.agent.coder import Brain

    provider = selected.provider
    return Brain(
        _provider(selected, clock), selected.model, selected.choice, provider.system_prompt_prefix
    )


def _provider(selected: Selected, clock: Clock) -> Provider:
    config = selected.provider
    if config.type == "anthropic":
        from crushlite.agent.providers.anthropic import AnthropicProvider

        return AnthropicProvider(
            config.base_url,
            config.api_key,
            extra_headers=config.extra_headers,
            extra_body=config.extra_body,
            clock=clock,
        )
    from crushlite.agent.providers.openai import OpenAIProvider

    return OpenAIProvider(
        config.base_url,
        config.api_key,
        extra_headers=config.extra_headers,
        extra_body=config.extra_body,
        clock=clock,
    )
