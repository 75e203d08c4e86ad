"""Whether a store can write, as the event loop knows it.

A write that fails for a reason of the store's own (a full disk, a lock, an I/O error, damage) is
*trouble*; one that is refused (no such session, a bad value) is not. Trouble lasts until a write
has reached the file again. It is noted before the futures of that write are resolved, so whoever is
told of a failure finds the trouble, and whoever is told of a success finds none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase, StoreBusy, StoreFailed, StoreFull, StoreOverloaded

if TYPE_CHECKING:
    from collections.abc import Callable

TROUBLE = (StoreFull, StoreOverloaded, StoreBusy, StoreFailed, CorruptDatabase)


class StoreHealth:
    """Used in the event loop only."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._watchers: list[Callable[[], None]] = []

    def failed(self, reason: str) -> None:
        self.trouble = reason

    def worked(self) -> None:
        if self.trouble is None:
            return
        self.trouble = None
        loop = asyncio.get_running_loop()
        for watcher in self._watchers:
            loop.call_soon(watcher)  # each on its own: one that raises silences no other

    def on_healed(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)

    def off_healed(self, watcher: Callable[[], None]) -> None:
        self._watchers.remove(watcher)
