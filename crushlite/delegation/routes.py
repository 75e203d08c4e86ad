"""The route by which clients ask for a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import EMPTY
from ..api.entry import Entry, W
from ..errors import BadRequest, ProviderFailed
from ..hosting.prompts import refuse_child
from ..store import STORE_ERRORS
from .summaries import write_summary

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response
    from ..protocol.messages import Prompt


async def summarize(context: Context, request: Request) -> Response:
    """Summarize a session. Answered when the summary is done; it goes on if the client leaves."""
    workspace, session_id = context.workspace(request), request.params["sid"]
    refuse_child(session_id)
    agents = workspace.runs.agents
    agent = agents.require(session_id)
    session = await workspace.session(session_id)
    if not session.message_count and not session.is_busy:
        return EMPTY
    if not agent.summarizes:
        raise BadRequest("this agent cannot summarize: it has no such method")

    async def write(wanted: Prompt) -> None:
        agent = agents.serving(session_id)
        await agents.ready(agent)
        await write_summary(workspace, wanted, agent, None)

    ended = await workspace.runs.summarize(session_id, write)
    if isinstance(ended.cause, STORE_ERRORS):
        raise ended.cause
    if ended.failure is not None:
        raise ProviderFailed(ended.failure.detail)
    return EMPTY


ROUTES = (Entry("POST", W + "/agent/sessions/{sid}/summarize", summarize),)
