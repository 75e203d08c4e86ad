"""Skills and commands: what they are, and one catalogue of all commands of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .part import SkillsPart


class SkillsWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

    async def open(self, workspace: OpenWorkspace) -> SkillsPart:
        from .part import SkillsPart, reader

        return SkillsPart(workspace, reader(workspace))
