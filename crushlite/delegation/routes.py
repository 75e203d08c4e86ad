"""The route by which clients ask for a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import EMPTY
from ..api.entry import Entry, W
from ..errors import BadRequest
from ..hosting.prompts import refuse_child

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response


async def summarize(context: Context, request: Request) -> Response:
    """Summarize a session. Answered when the summary is done; it goes on if the client leaves."""
    workspace, session_id = context.workspace(request), request.params["sid"]
    refuse_child(session_id)
    agent = workspace.runs.agents.require(session_id)
    session = await workspace.session(session_id)
    if session.message_count or session.is_busy:
        if not agent.summarizes:
            raise BadRequest("this agent cannot summarize: it has no such method")
        await workspace.runs.summarize(session_id)
    return EMPTY


ROUTES = (Entry("POST", W + "/agent/sessions/{sid}/summarize", summarize),)
