"""Making the agent of a workspace from its configuration."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..agent.base import Agent
from ..listen import default_socket
from ..worktree.paths import OwnFolders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..config import Config, Selected
    from .loop import ServedModel
    from .proxies import Proxies

log = logging.getLogger(__name__)


def coder_or_offline(
    path: Path,
    env: Mapping[str, str],
    config: Config,
    clock: Clock,
    searches: asyncio.Semaphore | None = None,
) -> Agent | None:
    """The coder if the configuration names a model it can use, else the offline agent."""
    choice = config.choice()
    log.info("workspace %s: %s", path, choice)
    if choice.agent == "coder":
        return coder(path, env, config, clock, searches)
    from ..agent.offline import OfflineAgent

    return Agent(OfflineAgent(why=choice.reason))


def coder(
    path: Path,
    env: Mapping[str, str],
    config: Config,
    clock: Clock,
    searches: asyncio.Semaphore | None = None,
) -> Agent | None:
    """The coder with the configured models; None if no usable model is configured. `searches` is
    shared by all coders of a daemon."""
    if config.large is None or config.small is None:
        return None
    from .loop import CoderAgent, CoderOptions
    from .proxies import proxies_of
    from .tools.base import SEARCHES, ToolContext, view_lines
    from .tools.registry import all_tools

    proxies = proxies_of(env)
    options = CoderOptions(
        context_paths=config.options.context_paths,
        auto_summarize=not config.options.disable_auto_summarize,
    )
    return Agent(
        CoderAgent(
            context=ToolContext(
                path,
                config.command_env(env),
                OwnFolders(path, (*config.own_folders, default_socket().parent)),
                searches=searches or asyncio.Semaphore(SEARCHES),
                view_lines=view_lines(config.large.model.context_window),
                images=config.large.model.supports_attachments,
            ),
            large=_served(config.large, clock, proxies),
            small=_served(config.small, clock, proxies),
            tools=all_tools(config.options.disabled_tools, clock=clock),
            options=options,
            clock=clock,
        )
    )


def _served(selected: Selected, clock: Clock, proxies: Proxies) -> ServedModel:
    from .loop import ServedModel
    from .providers.build import provider_of

    provider = provider_of(selected.provider, clock, proxies)
    prefix = selected.provider.system_prompt_prefix
    return ServedModel(provider, selected.model, selected.choice, prefix)
