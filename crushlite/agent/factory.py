"""Factories: what makes the agent of a workspace. Apart from base.py, which a daemon loads with its
first workspace."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from .base import Agent, AgentFactory


async def _unchanged(env: Mapping[str, str], config: Any, again: bool) -> Any:
    return config


async def _nothing(env: Mapping[str, str], config: Any, everywhere: bool) -> None:
    pass


@dataclass(frozen=True, slots=True)
class FollowsConfig:
    """A factory that is called again whenever the configuration has changed; the new agent answers
    later runs.

    `complete` is awaited before each call, with the client's environment and the configuration, and
    returns a configuration. It may add what is not in the files, such as the models that a server
    offers; it must not raise and not take long. Its last argument is true if a client asked for
    it, so that nothing remembered should be used.

    `look` finds out what is not needed at once, and remembers it for later calls of `complete`. It
    is awaited in the background: it may take seconds, and must not raise. Its last argument is
    true if a person wants to know what there is, beyond what the configuration names.
    """

    make: AgentFactory
    complete: Callable[[Mapping[str, str], Any, bool], Awaitable[Any]] = _unchanged
    look: Callable[[Mapping[str, str], Any, bool], Awaitable[None]] = _nothing

    def __call__(self, path: Path, env: Mapping[str, str], config: Any) -> Agent | None:
        return self.make(path, env, config)


def agent_factory(target: Any) -> AgentFactory:
    """The factory for what the user gave as an agent; it is called once per workspace.

    A class, or a callable whose parameters are named path, env and config, is a factory itself.
    Anything else is the agent, shared by all workspaces. Raises UsageError for what is no agent.
    """
    if isinstance(target, FollowsConfig):
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
