"""Undo: which run changed which file, commands included, and putting it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .changes import ChangesPart


class UndoWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> ChangesPart:
        from .changes import ChangesPart

        return ChangesPart(workspace)
