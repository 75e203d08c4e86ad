"""Making the agent of a workspace from its configuration."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from ..agent.base import Agent
from ..listen import default_socket
from ..version import NAME
from ..worktree.paths import OwnFolders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..config.options import ConfigOptions
    from ..config.providers import Selected
    from ..config.view import Config
    from ..outbound.proxies import Proxies
    from .loop import ServedModel
    from .tools.results import ResultFiles

log = logging.getLogger(__name__)


def coder_or_offline(
    path: Path,
    env: Mapping[str, str],
    config: Config,
    clock: Clock,
    searches: asyncio.Semaphore | None = None,
    results: ResultFiles | None = None,
) -> Agent | None:
    """The coder if the configuration names a model it can use, else the offline agent."""
    choice = config.choice()
    log.info("workspace %s: %s", path, choice)
    if choice.agent == "coder":
        return coder(path, env, config, clock, searches, results)
    from ..offline.agent import OfflineAgent

    return Agent(OfflineAgent(why=choice.reason))


def coder(
    path: Path,
    env: Mapping[str, str],
    config: Config,
    clock: Clock,
    searches: asyncio.Semaphore | None = None,
    results: ResultFiles | None = None,
) -> Agent | None:
    """The coder with the configured models; None if no usable model is configured. `searches` and
    `results` are shared by all coders of a daemon."""
    if config.large is None or config.small is None:
        return None
    from ..outbound.proxies import proxies_of
    from .attribution import commit_instructions
    from .loop import CoderAgent, CoderOptions
    from .subagents import AgentTool, Ingredients
    from .tools.base import SEARCHES, ToolContext, view_lines
    from .tools.registry import all_tools
    from .tools.results import ResultFiles

    proxies = proxies_of(env)
    options = CoderOptions(
        context_paths=config.options.context_paths,
        global_paths=_global_paths(env, config.options),
        auto_summarize=not config.options.disable_auto_summarize,
        commits=commit_instructions(config.options.attribution, config.large.model.id),
        disabled_tools=config.options.disabled_tools,
    )
    context = ToolContext(
        path,
        config.command_env(env),
        OwnFolders(path, (*config.own_folders, default_socket().parent)),
        searches=searches or asyncio.Semaphore(SEARCHES),
        view_lines=view_lines(config.large.model.context_window),
        images=config.large.model.supports_attachments,
        results=results or ResultFiles(),
    )
    large, small = (_served(each, clock, proxies) for each in (config.large, config.small))

    def serve(name: str) -> ServedModel | None:
        return _served_as(name, config, clock, proxies)

    made_of = Ingredients(context, large, small, options, clock, config.read_agents, serve)
    tools = all_tools(config.options.disabled_tools, clock=clock)
    sub_agents = AgentTool(made_of, tools)
    if sub_agents.name not in config.options.disabled_tools:
        tools = [*tools, sub_agents]
    return Agent(
        CoderAgent(
            context=context,
            large=large,
            small=small,
            tools=tools,
            options=options,
            clock=clock,
            sub_agents=sub_agents,
        )
    )


def _global_paths(env: Mapping[str, str], options: ConfigOptions) -> tuple[str, ...]:
    """The user's own context files: the usual ones, then those that the user's configuration
    names. Only the user's files can name a context path that begins with `~`."""
    home = env.get("HOME") or os.path.expanduser("~")
    folder = env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    usual = ("AGENTS.md", f"{NAME}/AGENTS.md", "crush/CRUSH.md")
    configured = [name for name in options.context_paths if name.startswith("~/")]
    configured += options.global_context_paths
    return (
        *(os.path.join(folder, name) for name in usual),
        *(os.path.join(home, name.removeprefix("~/")) for name in configured),
    )


def _served(selected: Selected, clock: Clock, proxies: Proxies) -> ServedModel:
    from .loop import ServedModel
    from .providers.build import provider_of
    from .windows import loaded_window

    options = selected.choice.provider_options
    provider = provider_of(selected.provider, clock, proxies, options)
    prefix = selected.provider.system_prompt_prefix
    measure = loaded_window(selected.provider, selected.model, clock, proxies)
    return ServedModel(provider, selected.model, selected.choice, prefix, measure)


def _served_as(name: str, config: Config, clock: Clock, proxies: Proxies) -> ServedModel | None:
    """The model of a name; None if there is none."""
    selected = config.served_as(name)
    return None if selected is None else _served(selected, clock, proxies)
