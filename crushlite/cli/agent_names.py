"""Finding the agent that `serve --agent NAME` names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from ..agent.factory import agent_factory
from ..errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from ..agent.base import Agent, AgentFactory
    from ..clock import Clock
    from ..wing import Wing


def find_agent(name: str, clock: Clock, wings: Iterable[Wing]) -> AgentFactory:
    """The factory of the agents of this name: that of a wing, `offline`, or `module:attr`. `auto`
    is offline if no wing has it. Raises UsageError for any other name."""
    for wing in wings:
        found = wing.agent(name, clock)
        if found is not None:
            return found
    if name == "auto":
        from ..offline.agent import OfflineAgent

        return agent_factory(OfflineAgent(why="this installation has no agent that uses a model"))
    if name == "offline":
        return _offline
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(
            f"agent {name!r}: use auto, coder, offline, acp:'COMMAND ARGS', or module:attr"
        )
    # The module of an agent is mostly where `serve` is run. It comes last on the path: what this
    # package imports itself must not be found there.
    sys.path.append(os.getcwd())
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(f"agent {name!r}: {error}") from error
    return agent_factory(target)


def _offline(path: Path, env: Mapping[str, str], config: Any) -> Agent:
    """The offline agent, which says so if a model is configured that would answer instead. It
    follows no changes of the configuration: else prompts could choose models that do not answer."""
    from ..agent.base import Agent
    from ..offline.agent import OfflineAgent

    large = getattr(config, "large", None)
    name = f"{large.provider.id}/{large.model.id}" if large is not None else ""
    return Agent(OfflineAgent(instead_of=name))
