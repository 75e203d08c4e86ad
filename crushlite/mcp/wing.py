"""Tool servers: each workspace has those that its configuration names, and its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..api.entry import Entry, Param, W
from ..features.wire import GetPrompt, McpState, NamedServer, UsedServers, WantServers
from ..wing import Wing
from ..wings import has_wing
from . import routes
from .places import StartingPlaces
from .wire import McpPrompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wing import OpenWorkspace
    from .part import McpPart

SERVER = Param("name", "The tool server.", required=True)
STARTING = 4  # servers that start at the same time in a daemon


class McpWing(Wing):
    def __init__(self) -> None:
        self._starting = StartingPlaces(STARTING)

    async def open(self, workspace: OpenWorkspace) -> McpPart | None:
        if not has_wing("config"):
            return None
        from ..config.profile import FileProfile

        if not isinstance(workspace.profile, FileProfile):
            return None
        from ..outbound.proxies import proxies_of
        from .part import McpPart

        proxies = proxies_of(workspace.env)
        return McpPart(workspace, workspace.profile, proxies, self._starting)

    def routes(self) -> Sequence[Entry]:
        mcp = W + "/mcp"
        return (
            Entry("GET", mcp + "/states", routes.states, gives=dict[str, McpState]),
            Entry(
                "POST",
                mcp + "/servers",
                routes.want_servers,
                takes=WantServers,
                gives=UsedServers,
            ),
            Entry("GET", mcp + "/prompts", routes.prompts, gives=list[McpPrompt]),
            Entry(
                "POST",
                mcp + "/get-prompt",
                routes.get_prompt,
                takes=GetPrompt,
                gives=dict[str, str],
            ),
            Entry(
                "POST",
                mcp + "/read-resource",
                routes.read_resource,
                takes=NamedServer,
                gives=list[dict[str, str]],
            ),
            Entry("POST", mcp + "/refresh-tools", routes.refresh_tools, takes=NamedServer),
            Entry("POST", mcp + "/refresh-prompts", routes.refresh_prompts, takes=NamedServer),
            Entry("POST", mcp + "/refresh-resources", routes.refresh_resources, takes=NamedServer),
            Entry("GET", mcp + "/pending-auth", routes.pending_sign_ins, gives=list[Any]),
            Entry(
                "GET",
                mcp + "/auth-url",
                routes.sign_in_address,
                gives=dict[str, Any],
                params=(SERVER,),
            ),
            Entry("POST", mcp + "/auth", routes.sign_in, takes=NamedServer),
            Entry("POST", mcp + "/docker/enable", routes.containers),
            Entry("POST", mcp + "/docker/disable", routes.containers),
        )
