"""Workspaces: creating, reading and releasing one, and its event stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..protocol.sessions import CurrentSession, check_id
from ..protocol.workspaces import CreateWorkspace, Space, Workspace
from ..version import WIRE_VERSION, __version__
from .context import EMPTY, answer, body, canonical_client, client_of, wire_config

if TYPE_CHECKING:
    from ..hosting.workspace import Workspace as HostedWorkspace
    from ..http.messages import Request, Response, Stream
    from .context import Context


def describe(hosted: HostedWorkspace, client: str | None = None) -> Workspace:
    """A workspace on the wire. A client sees the environment it sent itself, and no other."""
    return Workspace(
        id=hosted.id,
        path=hosted.asked.path,
        yolo=hosted.asked.yolo,
        debug=hosted.asked.debug,
        data_dir=str(hosted.profile.data_dir),
        version=WIRE_VERSION,
        config=wire_config(hosted),
        env=hosted.envs.get(client, []) if client is not None else [],
        channels=hosted.asked.channels,
        warning=hosted.profile.warning,
    )


async def create(context: Context, request: Request) -> Response:
    wanted = body(CreateWorkspace, request)
    if not wanted.client_id:
        raise BadRequest("invalid client_id: a UUID is required")
    wanted.client_id = canonical_client(wanted.client_id, "invalid client_id: not a UUID")
    view = describe(await context.backend.create(wanted), wanted.client_id)
    if wanted.version not in ("", __version__, WIRE_VERSION):
        differs = (
            f"client version {wanted.version[:80]} differs from the daemon's {WIRE_VERSION}: "
            "if something misbehaves, restart the older of the two"
        )
        view.warning = "\n".join(filter(None, (differs, view.warning)))
    return answer(view)


async def list_workspaces(context: Context, request: Request) -> Response:
    return answer([describe(each) for each in context.backend.everything()])


async def get(context: Context, request: Request) -> Response:
    return answer(describe(context.workspace(request)))


async def release(context: Context, request: Request) -> Response:
    """End the claim of a client on a workspace; one that has closed already is no error."""
    context.backend.release(request.params["id"], client_of(request))
    return EMPTY


async def compact(context: Context, request: Request) -> Response:
    """Return unused space of the workspace's store to the disk. Answered when that is done; refused
    while something runs in the store, whose writes would have to wait."""
    return answer(Space(*await context.backend.compact(context.workspace(request))))


async def current_session(context: Context, request: Request) -> Response:
    client = client_of(request)
    wanted = body(CurrentSession, request)
    check_id("session_id", wanted.session_id)
    context.backend.claims.look(request.params["id"], client, wanted.session_id)
    return EMPTY


async def events(context: Context, request: Request) -> Stream:
    client = client_of(request)
    last_id = request.headers.get("Last-Event-ID")
    resume = last_id is not None or request.query_one("resume") in ("1", "true")
    deltas = request.query_one("deltas") in ("1", "true")
    return context.backend.attach(
        request.params["id"], client, resume=resume, deltas=deltas, last_id=last_id
    )
