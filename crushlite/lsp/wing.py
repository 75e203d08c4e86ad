"""The wing of language servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import Wing
from ..wings import has_wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.entry import Entry
    from ..wing import OpenWorkspace
    from .part import LspPart, LspSettings


class LspWing(Wing):
    def routes(self) -> Sequence[Entry]:
        from .routes import ROUTES

        return ROUTES

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
