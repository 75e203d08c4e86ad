"""Sessions, their messages and their files: the versions that turns stored, and what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..protocol.codec import dumps, encode
from ..protocol.sessions import NEVER, FileRead, Session
from ..store import files as file_rows
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


# Files ----------------------------------------------------------------------------------------


async def history(context: Context, request: Request) -> Response:
    """Every stored version of every file the session changed."""
    store = context.workspace(request).store
    return answer(await store.read(file_rows.list_files, request.params["sid"]))


async def read_files(context: Context, request: Request) -> Response:
    """What the session has read, the last read first."""
    store = context.workspace(request).store
    return answer(await store.read(file_rows.list_read, request.params["sid"]))


async def mark_read(context: Context, request: Request) -> Response:
    workspace, wanted = context.workspace(request), body(FileRead, request)
    if not wanted.path or "\0" in wanted.path:
        raise BadRequest("path must not be empty or contain NUL")
    now = workspace.clock.now()
    await workspace.store.write(file_rows.mark_read, wanted.session_id, wanted.path, now)
    return EMPTY


async def last_read(context: Context, request: Request) -> Response:
    store = context.workspace(request).store
    session, path = request.query_one("session_id"), request.query_one("path")
    if not session or not path:
        raise BadRequest("session_id and path are required")
    at = await store.read(file_rows.last_read, session, path)
    if at is None:
        return answer(NEVER)
    from datetime import UTC, datetime  # only now: it takes 2 ms to load

    return answer(datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"))
