"""The external agents of one workspace, and which of them answers in which session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ..agent.base import Agent
from ..commands.environment import hide_secrets
from ..errors import BadRequest, CrushliteError
from ..features.wire import OfferedAgent
from ..store import sessions as session_rows
from ..wing import WorkspacePart
from ..wings import has_wing
from .agent import ExternalAgent
from .choices import AgentChoices
from .command import PREFIX, AgentCommand, read_command
from .failures import HIDDEN, AgentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..agent.base import Turn
    from ..config.agents import AgentProgram
    from ..wing import OpenWorkspace

log = logging.getLogger(__name__)

DEFAULT = "default"  # as the name of an agent: that of the workspace


class AgentsPart(WorkspacePart):
    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace
        self._choices = AgentChoices(workspace)
        self._chosen: dict[str, str] = {}  # by session
        self._agents: dict[AgentCommand, tuple[ExternalAgent, Agent]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Read what was chosen for the sessions."""
        try:
            self._chosen = await self._choices.load()
        except CrushliteError as error:
            log.warning("the agents of sessions are not known: %s", error)

    # Choosing -----------------------------------------------------------------------------------

    def offered(self) -> list[OfferedAgent]:
        """The agents that the configuration names."""
        return [
            OfferedAgent(name, hide_secrets(_command_of(program).line, HIDDEN))
            for name, program in self._programs().items()
        ]

    def chosen(self, session_id: str) -> str:
        return self._chosen.get(session_id, "")

    async def choose(self, session_id: str, name: str) -> None:
        """Let an agent answer the runs of a session that start from now on. Raises BadRequest if
        there is no such agent, SessionNotFound, and ConfigError if the choice cannot be kept."""
        name = "" if name.strip() == DEFAULT else name.strip()
        await self._workspace.store.read(session_rows.get_session, session_id)
        if name:
            await self._require(name)
        await self._choices.keep(session_id, name)
        self._chosen[session_id] = name

    async def _require(self, name: str) -> None:
        """Raise BadRequest if there is no agent of that name. The files may have been edited since
        they were read."""
        try:
            self._command(name)
        except BadRequest:
            if not has_wing("config") or name.startswith(PREFIX):
                raise
            from ..config.part import ConfigPart

            await self._workspace.part(ConfigPart).reread()
            self._command(name)

    def _programs(self) -> Mapping[str, AgentProgram]:
        if not has_wing("config"):
            return {}
        from ..config.profile import FileProfile

        profile = self._workspace.profile
        return profile.config.programs if isinstance(profile, FileProfile) else {}

    def _command(self, name: str) -> AgentCommand:
        """The command behind a name. Raises BadRequest if there is none."""
        if name.startswith(PREFIX):
            return read_command(name)
        programs = self._programs()
        if name in programs:
            return _command_of(programs[name])
        known = ", ".join(programs) or "none"
        raise BadRequest(
            f"there is no agent {name!r}: `agents` in crush.json names {known}; "
            f"another one can be given as {PREFIX}'COMMAND ARGS', and {DEFAULT} is the daemon's own"
        )

    # Answering ----------------------------------------------------------------------------------

    def agent_of(self, session_id: str) -> Agent | None:
        name = self._chosen.get(session_id)
        if not name:
            return None
        try:
            command = self._command(name)
        except BadRequest as error:
            return _unavailable(error.message)
        if command not in self._agents:
            self._close_others(command)
            workspace = self._workspace
            external = ExternalAgent(command, workspace.path, workspace.env, workspace.clock)
            self._agents[command] = external, Agent(external)
        return self._agents[command][1]

    def _close_others(self, command: AgentCommand) -> None:
        """End an agent whose entry has been changed, so that no session has its command any more.
        If it is at work, it ends with the workspace."""
        chosen = self._chosen_commands()
        for known, (external, _) in list(self._agents.items()):
            if known.name == command.name and known not in chosen and external.idle:
                del self._agents[known]
                task = asyncio.create_task(external.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def _chosen_commands(self) -> set[AgentCommand]:
        """The commands of the agents that sessions have, as far as there still are such agents."""
        found = set()
        for name in set(filter(None, self._chosen.values())):
            with contextlib.suppress(BadRequest):
                found.add(self._command(name))
        return found

    async def close(self) -> None:
        ending = [external.aclose() for external, _ in self._agents.values()]
        await asyncio.gather(*ending, *self._closing, return_exceptions=True)


def _command_of(program: AgentProgram) -> AgentCommand:
    return AgentCommand(program.name, (program.command, *program.args), program.env)


def _unavailable(why: str) -> Agent:
    """Answers for an agent that was chosen and is not there any more: with an error, as no other
    agent was asked for."""

    async def refuse(turn: Turn) -> None:
        raise AgentFailed(f"the agent of this session is not available: {why}")

    return Agent(refuse)
