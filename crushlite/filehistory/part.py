"""Stores which files were read and changed, and publishes the new versions."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING

from ..wing import Author, WorkspacePart
from . import queries
from .queries import Change, FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wing import OpenWorkspace

PUBLISHED = 200  # versions of files in one report that are sent to clients: the rest they can read


class HistoryPart(WorkspacePart):
    def __init__(self, workspace: OpenWorkspace) -> None:
        self.listeners: list[Callable[[Change], None]] = []  # of each change, before it is stored
        self._workspace = workspace

    async def file_read(self, session_id: str, path: str) -> None:
        now = self._workspace.clock.now()
        await self._workspace.store.write(queries.mark_read, session_id, path, now)

    async def file_changed(
        self, author: Author, path: str, before: str | None, after: str | None
    ) -> None:
        mode = await asyncio.to_thread(_mode_of, path) if after is not None else None
        # A change of the content keeps the mode: it was the same before.
        old, new = (FileState(text, None if text is None else mode) for text in (before, after))
        await self._keep(author.session_id, [Change(path, old, new, author.run_id)])

    async def report(self, session_id: str, changes: Sequence[Change]) -> None:
        """Keep changes that no agent has reported, after all parts were told as if one had."""
        for change in changes:
            author, old, new = Author(session_id, change.run_id), change.before, change.after
            for part in self._workspace.parts:
                if part is not self:
                    await part.file_changed(author, change.path, old.content, new.content)
        await self._keep(session_id, changes)

    async def _keep(self, session_id: str, changes: Sequence[Change]) -> None:
        """Store the versions of files that changes make, and publish them."""
        for change in changes:
            for listener in self.listeners:
                listener(change)
        store, now = self._workspace.store, self._workspace.clock.now()
        files = await store.write(queries.record_changes, session_id, changes, now)
        for file in files[:PUBLISHED]:
            self._workspace.hub.publish("created", file)


def _mode_of(path: str) -> int | None:
    """The permission bits of a file; None if there is none. Blocks."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return None
