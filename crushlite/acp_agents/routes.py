"""The routes about which agent answers in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import answer, body
from ..api.entry import Entry, W
from ..features.wire import OfferedAgent, SessionAgent

if TYPE_CHECKING:
    from ..api.context import Context
    from ..hosting.workspace import Workspace
    from ..http.messages import Request, Response
    from .part import AgentsPart

SESSION = W + "/sessions/{sid}/agent"


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


ROUTES = (
    Entry("GET", W + "/agents", list_agents, gives=list[OfferedAgent]),
    Entry("GET", SESSION, session_agent, gives=SessionAgent),
    Entry("PUT", SESSION, choose_agent, takes=SessionAgent, gives=SessionAgent),
)
