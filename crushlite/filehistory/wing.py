"""Keeps versions of the files that sessions changed, and which files they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .part import HistoryPart


class HistoryWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> HistoryPart:
        from .part import HistoryPart

        return HistoryPart(workspace)
