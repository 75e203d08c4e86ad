"""How workspaces are set up when no wing decides on it: no configuration files, one agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreUnusable
from ..protocol.codec import encode
from ..realpath import real_path
from ..version import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..agent.base import Agent, AgentFactory
    from ..protocol.config import AgentInfo, SelectedModel
    from ..wing import Opening, Setup

OWN_DATA_DIR = f".{NAME}"


def own_data_dir(workspace: Path) -> Path:
    """The data directory inside a project. It may have come with a clone, as a link to anywhere:
    raises StoreUnusable if it leads out of the project."""
    folder = workspace / OWN_DATA_DIR
    real = Path(real_path(folder))
    if not real.is_relative_to(real_path(workspace)):
        raise StoreUnusable(
            f"{folder} leads out of the project, to {real}: remove the link, or choose that data "
            "directory with --data-dir"
        )
    return real


def own_provider(agent: AgentInfo) -> dict[str, Any]:
    """An agent that needs no provider as one on the wire: the Crush client needs one to start."""
    name = agent.model_cfg.provider
    return {"id": name, "name": name, "type": "openai-compat", "models": [encode(agent.model)]}


class PlainProfile:
    """Implements wing.Profile."""

    warning = ""

    def __init__(self, opening: Opening, agents: AgentFactory) -> None:
        wanted = opening.data_dir or own_data_dir(opening.path)
        self.data_dir = Path(real_path(wanted))
        self._path = opening.path
        self._agents = agents

    def make_agent(
        self, env: Mapping[str, str], models: Mapping[str, SelectedModel]
    ) -> Agent | None:
        return None if models else self._agents(self._path, env, None)

    def command_env(self, env: Mapping[str, str]) -> None:
        return None

    def allows(self, tool: str, action: str) -> bool:
        return False

    def wire(self, agent: AgentInfo) -> dict[str, Any]:
        own = agent.model_cfg.provider
        model = encode(agent.model_cfg)
        return {
            "options": {
                "data_directory": str(self.data_dir),
                "disable_default_providers": True,
                "context_paths": [],
                "disable_metrics": True,
                "initialize_as": "AGENTS.md",
                "tui": {},
            },
            "models": {"large": model, "small": model} if agent.is_ready else {},
            "providers": {own: own_provider(agent)} if agent.is_ready else {},
            "mcp": {},
            "lsp": {},
            "permissions": {"allowed_tools": []},
        }


def plain_setup(agents: AgentFactory) -> Setup:
    async def profile(opening: Opening) -> PlainProfile:
        return PlainProfile(opening, agents)

    return profile
