"""Health, version, control, clients."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

from crushlite.api.context import EMPTY, answer, body, canonical_client
from crushlite.errors import BadRequest, ServerInUse
from crushlite.protocol.workspaces import Control, VersionInfo
from crushlite.version import __version__

if TYPE_CHECKING:
    from crushlite.api.context import Context
    from crushlite.http.messages import Request, Response

__all__ = ["control", "health", "retire_client", "version"]


async def health(context: Context, request: Request) -> Response:
    return EMPTY


async def version(context: Context, request: Request) -> Response:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return answer(
        VersionInfo(
            version=f"crushlite-{__version__}",
            commit="unknown",
            build_id=f"crushlite-{__version__}",
            go_version="none",
            platform=f"{sys.platform}/{machine}",
        )
    )


async def control(context: Context, request: Request) -> Response:
    """Leave if idle. On a unix socket only our own clients may ask: the Crush client asks every
    server of another build to leave before it uses it, and would start its own."""
    wanted = body(Control, request)
    if wanted.command not in ("shutdown", "shutdown_if_idle"):
        raise BadRequest(f"unknown command {wanted.command!r}: use shutdown_if_idle or shutdown")
    if request.peer.kind == "unix" and wanted.client != "crushlite":
        raise ServerInUse('the server stays: add "client":"crushlite" to ask it to leave')
    context.backend.shutdown_if_idle()
    return EMPTY


async def retire_client(context: Context, request: Request) -> Response:
    context.backend.retire(canonical_client(request.params["client_id"]))
    return EMPTY
