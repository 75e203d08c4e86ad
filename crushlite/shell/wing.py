"""Runs the commands of agents, and those that a person types into a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .part import ShellPart


class ShellWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> ShellPart:
        from .part import ShellPart

        return ShellPart(workspace)
