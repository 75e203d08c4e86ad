"""The wing of language servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.context import EMPTY, answer, body
from ..api.entry import Entry, W
from ..wing import Wing
from ..wings import has_wing
from .wire import LSPClientInfo, StartLSP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.context import Context
    from ..http.messages import Request, Response
    from ..wing import OpenWorkspace
    from .part import LspPart, LspSettings


class LspWing(Wing):
    def routes(self) -> Sequence[Entry]:
        return (
            Entry("GET", W + "/lsps", list_servers, gives=dict[str, LSPClientInfo]),
            Entry("GET", W + "/lsps/{name}/diagnostics", list_diagnostics, gives=dict[str, Any]),
            Entry("POST", W + "/lsps/start", start_servers, takes=StartLSP),
            Entry("POST", W + "/lsps/stop", stop_servers),
        )

    async def open(self, workspace: OpenWorkspace) -> LspPart:
        from .part import LspPart

        return LspPart(workspace, lambda: _settings(workspace))


def _settings(workspace: OpenWorkspace) -> LspSettings:
    """What the configuration of a workspace says now."""
    from .part import LspSettings

    profile = workspace.profile
    if has_wing("config"):
        from ..config.profile import FileProfile

        if isinstance(profile, FileProfile):
            config = profile.config
            return LspSettings(config.lsp, config.options.auto_lsp, config.own_folders)
    return LspSettings({}, own_folders=(profile.data_dir,))


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
