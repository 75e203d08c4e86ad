"""What makes agents. Apart from base.py, which a daemon loads with its first workspace."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .base import Agent, AgentFactory


class ReadyFactory:
    """Base of factories that are given as an agent: they are used as they are."""

    __slots__ = ()

    def __call__(self, path: Path, env: Mapping[str, str], config: Any) -> Agent | None:
        raise NotImplementedError


def agent_factory(target: Any) -> AgentFactory:
    """The factory for what the user gave as an agent; it is called once per workspace. A class, or
    a callable whose parameters are named path, env and config, is a factory itself. Anything else
    is the agent, shared by all workspaces. Raises UsageError for what is no agent."""
    if isinstance(target, ReadyFactory):
        return target
    if isinstance(target, type) or _takes_workspace(target):
        return lambda path, env, config: _made(target(path=path, env=env, config=config))
    from .base import Agent

    agent = Agent(target)
    return lambda path, env, config: agent


def _made(agent: Any) -> Agent | None:
    """What a factory has returned, as an Agent. None stays None: the workspace refuses prompts."""
    from .base import Agent

    return agent if agent is None or isinstance(agent, Agent) else Agent(agent)


def _takes_workspace(target: Any) -> bool:
    """Whether a callable has the parameters of a factory."""
    from .base import RunsTurns

    if isinstance(target, RunsTurns) or not callable(target):
        return False
    try:
        names = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False
    return {"path", "env", "config"} <= set(names)
