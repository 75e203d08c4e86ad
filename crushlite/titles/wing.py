"""Lets the agent give a session its title."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from ..wing import OpenWorkspace
    from .part import TitlesPart


class TitlesWing(Wing):
    async def open(self, workspace: OpenWorkspace) -> TitlesPart:
        from .part import TitlesPart

        return TitlesPart(workspace)
