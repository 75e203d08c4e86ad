"""From a configuration to an agent: the built-in ones, chosen by name."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from ..agent.base import Agent, FollowsConfig, agent_factory
from ..config import scrubbed_environment
from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..agent.base import AgentFactory
    from ..clock import Clock
    from ..config import Config, Selected
    from .coder import Brain
    from .discovery import LocalServer
    from .proxies import Proxies

log = logging.getLogger(__name__)


def find_agent(name: str, clock: Clock, local: Sequence[LocalServer] = ()) -> AgentFactory:
    """The agent behind `--agent`: auto, coder, offline, or module:attr. `local` are the model
    servers that `auto` looks for on this machine if none is configured."""
    if name in ("auto", "coder"):
        # Imported here, as everything that speaks to models: whoever runs an agent of their own
        # does not pay for it with a slower start.
        from .discovery import Discovery

        discovery = Discovery(clock, local if name == "auto" else ())
        make = _chosen if name == "auto" else coder
        return FollowsConfig(
            lambda path, env, config: make(path, env, config, clock), discovery.complete
        )
    if name == "offline":
        from ..agent.offline import OfflineAgent

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
    from ..agent.offline import OfflineAgent

    return Agent(OfflineAgent(why=choice.reason.removeprefix("offline: ")))


def coder(path: Path, env: Mapping[str, str], config: Config, clock: Clock) -> Agent | None:
    """The coder with the configured models; None if there is none it could use."""
    if config.large is None or config.small is None:
        return None
    from .coder import CoderAgent, Options
    from .proxies import proxies_of
    from .tools.base import Desk
    from .tools.registry import all_tools

    proxies = proxies_of(env)
    options = Options(
        context_paths=config.options.context_paths,
        auto_summarize=not config.options.disable_auto_summarize,
    )
    return Agent(
        CoderAgent(
            desk=Desk(path, scrubbed_environment(env, config)),
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
