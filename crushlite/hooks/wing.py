"""Hooks of the user, run when agents do something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing
from ..wings import has_wing

if TYPE_CHECKING:
    from ..wing import OpenWorkspace
    from .part import HooksPart


class HooksWing(Wing):
    async def open(self, workspace: OpenWorkspace) -> HooksPart | None:
        if not has_wing("config"):
            return None  # hooks are in the configuration files
        from ..config.part import ConfigPart
        from ..config.profile import FileProfile
        from .part import HooksPart

        if not isinstance(workspace.profile, FileProfile):
            return None
        workspace.part(ConfigPart).hooks_are_run = True
        return HooksPart(workspace, workspace.profile)
