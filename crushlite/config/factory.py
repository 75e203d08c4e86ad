"""Factories of agents that depend on the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..agent.factory import ReadyFactory
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from ..agent.base import Agent, AgentFactory


async def _unchanged(env: Mapping[str, str], config: Any, again: bool) -> Any:
    return config


async def _nothing(env: Mapping[str, str], config: Any, everywhere: bool) -> None:
    pass


@dataclass(frozen=True, slots=True)
class FollowsConfig(ReadyFactory):
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
