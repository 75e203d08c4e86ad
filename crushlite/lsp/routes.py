"""The routes about language servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.context import EMPTY, answer, body
from ..api.entry import Entry, W
from .wire import LSPClientInfo, StartLSP

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response
    from .part import LspPart


def _part(context: Context, request: Request) -> LspPart:
    from .part import LspPart

    return context.workspace(request).part(LspPart)


async def list_servers(context: Context, request: Request) -> Response:
    """The language servers that are configured, or that a file has called for."""
    servers = await _part(context, request).all_servers()
    return answer({name: server.info for name, server in servers.items()})


async def list_diagnostics(context: Context, request: Request) -> Response:
    """What a language server finds wrong, by the URI of a file."""
    server = await _part(context, request).server(request.params["name"])
    return answer({uri: [each.wire for each in some] for uri, some in server.found.items()})


async def start_servers(context: Context, request: Request) -> Response:
    """Start the language servers for a file, in the background."""
    _part(context, request).touch(Path(body(StartLSP, request).path))
    return EMPTY


async def stop_servers(context: Context, request: Request) -> Response:
    """End the language servers; the next file that is touched starts its own again."""
    workspace = context.workspace(request)
    await workspace.carry_out(_part(context, request).stop())
    return EMPTY


ROUTES = (
    Entry("GET", W + "/lsps", list_servers, gives=dict[str, LSPClientInfo]),
    Entry("GET", W + "/lsps/{name}/diagnostics", list_diagnostics, gives=dict[str, Any]),
    Entry("POST", W + "/lsps/start", start_servers, takes=StartLSP),
    Entry("POST", W + "/lsps/stop", stop_servers),
)
