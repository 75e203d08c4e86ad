"""Health, version, control, clients."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..errors import BadRequest, ServerInUse
from ..protocol.workspaces import Control, VersionInfo
from ..version import WIRE_VERSION
from .context import EMPTY, answer, body, canonical_client

if TYPE_CHECKING:
    from ..http.messages import Request, Response
    from .context import Context


async def health(context: Context, request: Request) -> Response:
    """Empty and quick: clients ask it before they do anything else."""
    return EMPTY


async def version(context: Context, request: Request) -> Response:
    import platform  # only now: it takes 2 ms to load

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return answer(
        VersionInfo(
            version=WIRE_VERSION,
            commit="unknown",
            build_id=WIRE_VERSION,
            go_version="none",
            platform=f"{sys.platform}/{machine}",
            agent=context.backend.served,
        )
    )


async def control(context: Context, request: Request) -> Response:
    """End the daemon if it is idle. On a unix socket only crushlite's own clients may ask: the
    Crush client asks every server of another build to leave, and would then start its own."""
    wanted = body(Control, request)
    if wanted.command not in ("shutdown", "shutdown_if_idle"):
        raise BadRequest(f"unknown command {wanted.command!r}: use shutdown_if_idle or shutdown")
    if request.peer.kind == "unix" and wanted.client != "crushlite":
        hosting = bool(context.backend.everything())
        reason = "server is hosting live workspaces" if hosting else "the server stays"
        raise ServerInUse(f'{reason}: add "client":"crushlite" to ask an idle one to leave')
    context.backend.shutdown_if_idle()
    return EMPTY


async def retire_client(context: Context, request: Request) -> Response:
    context.backend.retire(
        canonical_client(request.params["client_id"], "invalid client_id: not a UUID")
    )
    return EMPTY
