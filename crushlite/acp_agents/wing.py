"""Agents of other makers: `--agent acp:COMMAND`, and the choice of one for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..agent.base import Agent
from ..api.context import answer, body
from ..api.entry import Entry, W
from ..errors import BadRequest, UsageError
from ..features.wire import OfferedAgent, SessionAgent
from ..wing import Wing
from .command import PREFIX, read_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from ..agent.base import AgentFactory
    from ..api.context import Context
    from ..clock import Clock
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from ..wing import OpenWorkspace
    from .part import AgentsPart

SESSION = W + "/sessions/{sid}/agent"


class AgentsWing(Wing):
    def agent(self, name: str, clock: Clock) -> AgentFactory | None:
        if not name.startswith(PREFIX):
            return None
        try:
            command = read_command(name)
        except BadRequest as error:
            raise UsageError(error.message) from None

        def make(path: Path, env: Mapping[str, str], config: Any) -> Agent:
            from .agent import ExternalAgent

            return Agent(ExternalAgent(command, path, env, clock))

        return make

    def routes(self) -> Sequence[Entry]:
        return (
            Entry("GET", W + "/agents", list_agents, gives=list[OfferedAgent]),
            Entry("GET", SESSION, session_agent, gives=SessionAgent),
            Entry("PUT", SESSION, choose_agent, takes=SessionAgent, gives=SessionAgent),
        )

    async def open(self, workspace: OpenWorkspace) -> AgentsPart:
        from .part import AgentsPart

        part = AgentsPart(workspace)
        await part.load()
        return part


def _part(workspace: Workspace) -> AgentsPart:
    from .part import AgentsPart

    return workspace.part(AgentsPart)


async def list_agents(context: Context, request: Request) -> Response:
    """The agents that can be chosen by name."""
    return answer(_part(context.workspace(request)).offered())


async def session_agent(context: Context, request: Request) -> Response:
    """Which agent answers in a session."""
    workspace = context.workspace(request)
    session = await workspace.session(request.params["sid"])
    return answer(SessionAgent(_part(workspace).chosen(session.id)))


async def choose_agent(context: Context, request: Request) -> Response:
    """Let another agent answer the runs of a session that start from now on."""
    workspace, wanted = context.workspace(request), body(SessionAgent, request)
    part, session_id = _part(workspace), request.params["sid"]
    await workspace.carry_out(part.choose(session_id, wanted.agent))
    return answer(SessionAgent(part.chosen(session_id)))
