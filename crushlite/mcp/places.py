"""How many tool servers of a daemon start at a time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..clock import Clock

PLACE_SECONDS = 5.0  # that a server may keep others from starting


class StartingPlaces:
    """Lets some servers of a daemon start at a time: the machine has other work. A server that is
    silent gives its place up after PLACE_SECONDS, so that it delays no other for long."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @contextlib.asynccontextmanager
    async def place(self, clock: Clock) -> AsyncIterator[None]:
        """Wait for a place, and hold it until the block ends, or PLACE_SECONDS have passed."""
        await self._free.acquire()
        held = contextlib.ExitStack()  # it gives the place back once, whoever closes it first
        held.callback(self._free.release)
        timer = clock.call_later(PLACE_SECONDS, held.close)
        try:
            yield
        finally:
            timer.cancel()
            held.close()
