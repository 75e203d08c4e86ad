"""Time that moves when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

from ..clock import resolve_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Timer


class _FakeTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Time that moves only when a test says so.

    `advance` fires due timers in order, each at its own instant, and lets the event loop run
    between them, so that what a timer starts can itself arm a timer within the same advance.
    """

    def __init__(self, start: float = 1_000.0, wall: float = 1_789_000_000.0) -> None:
        self._time = start
        self._wall_offset = wall - start
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._time

    def now(self) -> float:
        return self._time + self._wall_offset

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        timer = _FakeTimer(callback)
        heapq.heappush(self._timers, (self._time + max(delay, 0.0), next(self._order), timer))
        return timer

    async def sleep(self, delay: float) -> None:
        if delay <= 0:  # as on the real clock: only a turn for the others, no timer
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay, lambda: resolve_once(woken))
        try:
            await woken
        finally:
            timer.cancel()

    @property
    def pending(self) -> int:
        """How many timers are armed: a test can check that nothing was left behind."""
        return sum(1 for _, _, timer in self._timers if timer.callback is not None)

    async def advance(self, seconds: float) -> None:
        end = self._time + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._time = max(self._time, due)
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()
                await self.settle()
        self._time = max(self._time, end)  # two advances may overlap: time never goes back

    async def settle(self, ticks: int = 10) -> None:
        """Let tasks that are ready run; ten ticks cover every chain of callbacks we have."""
        for _ in range(ticks):
            await asyncio.sleep(0)
