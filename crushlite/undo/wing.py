"""Undo: which run changed which file, commands included, and putting it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing
from ..wings import has_wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .changes import ChangesPart


class UndoWing(Wing):
    """Reads what filehistory/ has stored: without that wing there is nothing to undo."""

    def routes(self) -> Sequence[Entry]:
        if not has_wing("filehistory"):
            return ()
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> ChangesPart | None:
        if not has_wing("filehistory"):
            return None
        from ..filehistory.part import HistoryPart
        from .changes import ChangesPart

        found = (part for part in workspace.parts if isinstance(part, HistoryPart))
        return next((ChangesPart(workspace, history) for history in found), None)
