"""The history of files: which versions a session has made of which file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ..store.files import record_changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock
    from ..events import Hub
    from ..store import ScopedStore
    from ..store.files import Change
    from ..wing import WorkspacePart

PUBLISHED = 200  # versions of one report that are sent to clients: the rest they can ask for


class FileHistory:
    def __init__(
        self, store: ScopedStore, hub: Hub, clock: Clock, parts: Sequence[WorkspacePart]
    ) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._parts = parts

    async def record(self, session_id: str, changes: Sequence[Change]) -> None:
        """Keep versions of files, and publish them. Before it awaits anything, it calls
        `file_changed` of every part."""
        for change in changes:
            for part in self._parts:
                part.file_changed(change)
        now = self._clock.now()
        for file in (await self._store.write(record_changes, session_id, changes, now))[:PUBLISHED]:
            self._hub.publish("created", file)


def mode_of(path: str) -> int | None:
    """The permission bits of a file; None if there is none. Blocks."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return None
