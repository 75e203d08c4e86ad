"""Stores what agents, commands and undoings report of files, and publishes the new versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wing import WorkspacePart
from . import queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wing import Change, OpenWorkspace

PUBLISHED = 200  # versions of files in one report that are sent to clients: the rest they can read


class HistoryPart(WorkspacePart):
    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace

    async def files_changed(self, session_id: str, changes: Sequence[Change]) -> None:
        store, now = self._workspace.store, self._workspace.clock.now()
        files = await store.write(queries.record_changes, session_id, changes, now)
        for file in files[:PUBLISHED]:
            self._workspace.hub.publish("created", file)

    async def file_read(self, session_id: str, path: str) -> None:
        now = self._workspace.clock.now()
        await self._workspace.store.write(queries.mark_read, session_id, path, now)
