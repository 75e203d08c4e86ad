"""Files of a session: the versions that its turns stored, and which files were read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..protocol.sessions import FileRead
from ..store import files as file_rows
from .context import EMPTY, answer, body

if TYPE_CHECKING:
    from ..http.messages import Request, Response
    from .context import Context

NEVER = "0001-01-01T00:00:00Z"  # what a Go client takes for "no time"


async def history(context: Context, request: Request) -> Response:
    """Every stored version of every file the session changed."""
    store = context.workspace(request).store
    return answer(await store.read(file_rows.list_files, request.params["sid"]))


async def read_files(context: Context, request: Request) -> Response:
    """What the session has read, the last read first."""
    store = context.workspace(request).store
    return answer(await store.read(file_rows.list_read, request.params["sid"]))


async def mark_read(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    wanted = body(FileRead, request)
    if not wanted.path or "\0" in wanted.path:
        raise BadRequest("path must not be empty or contain NUL")
    read = wanted.session_id, wanted.path, workspace.clock.now()
    await workspace.store.write(file_rows.mark_read, *read)
    return EMPTY


async def last_read(context: Context, request: Request) -> Response:
    workspace = context.workspace(request)
    session, path = request.query_one("session_id"), request.query_one("path")
    if not session or not path:
        raise BadRequest("session_id and path are required")
    at = await workspace.store.read(file_rows.last_read, session, path)
    if at is None:
        return answer(NEVER)
    return answer(datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"))
