"""The routes of the files of a session: the versions that were stored, and what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.context import EMPTY, answer, body
from ..api.entry import Entry, Param, W
from ..errors import BadRequest
from ..features.wire import FileRead
from ..protocol.sessions import NEVER, File
from . import queries

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response

S = W + "/sessions/{sid}"
T = W + "/filetracker"
LAST_READ = (
    Param("session_id", "The session that read it.", required=True),
    Param("path", "What it read.", required=True),
)


async def history(context: Context, request: Request) -> Response:
    """Every stored version of every file the session changed."""
    store = context.workspace(request).store
    return answer(await store.read(queries.list_files, request.params["sid"]))


async def read_files(context: Context, request: Request) -> Response:
    """What the session has read, the last read first."""
    store = context.workspace(request).store
    return answer(await store.read(queries.list_read, request.params["sid"]))


async def mark_read(context: Context, request: Request) -> Response:
    workspace, wanted = context.workspace(request), body(FileRead, request)
    if not wanted.path or "\0" in wanted.path:
        raise BadRequest("path must not be empty or contain NUL")
    now = workspace.clock.now()
    await workspace.store.write(queries.mark_read, wanted.session_id, wanted.path, now)
    return EMPTY


async def last_read(context: Context, request: Request) -> Response:
    store = context.workspace(request).store
    session, path = request.query_one("session_id"), request.query_one("path")
    if not session or not path:
        raise BadRequest("session_id and path are required")
    at = await store.read(queries.last_read, session, path)
    if at is None:
        return answer(NEVER)
    from datetime import UTC, datetime  # only now: it takes 2 ms to load

    return answer(datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"))


ROUTES = (
    Entry("GET", S + "/history", history, gives=list[File]),
    Entry("GET", S + "/filetracker/files", read_files, gives=list[str]),
    Entry("POST", T + "/read", mark_read, takes=FileRead),
    Entry("GET", T + "/lastread", last_read, gives=str, params=LAST_READ),
)
