"""Sessions and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.codec import dumps, encode
from ..protocol.sessions import Session
from .context import EMPTY, answer, answer_list, body

if TYPE_CHECKING:
    from ..http.messages import Request, Response
    from .context import Context


def _with_viewers(context: Context, request: Request, session: Session) -> Session:
    session.attached_clients = context.backend.claims.viewers(request.params["id"], session.id)
    return session


async def list_sessions(context: Context, request: Request) -> Response:
    viewed = context.backend.claims.viewed(request.params["id"])
    listed = await context.workspace(request).sessions(viewed)
    texts = [
        one if isinstance(one, bytes) else dumps(encode(_with_viewers(context, request, one)))
        for one in listed
    ]
    return answer_list([b",".join(texts)])


async def create(context: Context, request: Request) -> Response:
    """Create a session. Of the object that clients send only the title is read."""
    workspace = context.workspace(request)
    return answer(await workspace.create_session(body(Session, request).title))


async def get(context: Context, request: Request) -> Response:
    session = await context.workspace(request).session(request.params["sid"])
    return answer(_with_viewers(context, request, session))


async def rename(context: Context, request: Request) -> Response:
    """Rename a session. Clients send a whole session, whose counters may be out of date: only the
    title is read, and an empty one changes nothing."""
    workspace, session_id = context.workspace(request), request.params["sid"]
    title = body(Session, request).title
    renamed = (
        workspace.rename_session(session_id, title) if title else workspace.session(session_id)
    )
    return answer(_with_viewers(context, request, await renamed))


async def delete(context: Context, request: Request) -> Response:
    await context.workspace(request).delete_session(request.params["sid"])
    return EMPTY


async def messages(context: Context, request: Request) -> Response:
    """The messages of a session. An unknown one has none: the Crush UI asks for child sessions
    before they exist."""
    transcript = context.workspace(request).transcript
    return answer_list(await transcript.messages_json(request.params["sid"]))


async def user_messages(context: Context, request: Request) -> Response:
    """The user messages of a session or, if the path names none, of all."""
    transcript = context.workspace(request).transcript
    return answer_list(await transcript.user_messages_json(request.params.get("sid")))
