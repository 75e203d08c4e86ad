"""Agents of other makers: `--agent acp:COMMAND`, and the choice of one for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest, UsageError
from ..wing import Wing
from .command import PREFIX, read_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from ..agent.base import Agent, AgentFactory
    from ..api.entry import Entry
    from ..clock import Clock
    from ..wing import OpenWorkspace
    from .part import AgentsPart


class AgentsWing(Wing):
    def agent(self, name: str, clock: Clock) -> AgentFactory | None:
        if not name.startswith(PREFIX):
            return None
        try:
            command = read_command(name)
        except BadRequest as error:
            raise UsageError(error.message) from None

        def make(path: Path, env: Mapping[str, str], config: Any) -> Agent:
            from ..agent.base import Agent
            from .agent import ExternalAgent

            return Agent(ExternalAgent(command, path, env, clock))

        return make

    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> AgentsPart:
        from .part import AgentsPart

        part = AgentsPart(workspace)
        await part.load()
        return part
