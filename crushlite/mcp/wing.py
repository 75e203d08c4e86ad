"""Tool servers: each workspace has those that its configuration names, and its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing
from ..wings import has_wing
from .places import StartingPlaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .part import McpPart

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
        from .routes import ROUTES

        return ROUTES
