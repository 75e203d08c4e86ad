"""Injected time: every timer, deadline and timestamp of the hosting, the hub and HTTP comes from a
Clock; waits for threads and processes are in real time.

`time()` is monotonic and drives timers; `now()` is wall-clock seconds for records. Nothing is
ever ordered by `now()`: clocks jump, sequence numbers do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable


class Timer(Protocol):
    """What `call_later` returns. Cancelling twice, or after it fired, is harmless."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    def time(self) -> float: ...

    def now(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer: ...

    async def sleep(self, delay: float) -> None: ...


class SystemClock:
    """Real time, on the running event loop."""

    def time(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)


def resolve_once(future: asyncio.Future[None]) -> None:
    """Resolve a future that may be resolved already."""
    if not future.done():
        future.set_result(None)


async def wait_at_most(clock: Clock, future: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future without owning it; False when the time was up first."""
    if future.done() or seconds <= 0:
        return future.done()
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, lambda: resolve_once(waiter))
    future.add_done_callback(_wake := lambda _: resolve_once(waiter))
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(_wake)
    return future.done()


async def all_done(clock: Clock, futures: Iterable[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait for several futures without owning them; False when the time was up first."""
    deadline = clock.time() + seconds
    for future in futures:
        if not await wait_at_most(clock, future, deadline - clock.time()):
            return False
    return True


@contextlib.asynccontextmanager
async def time_limit(clock: Clock, seconds: float | None) -> AsyncIterator[None]:
    """`asyncio.timeout` on a Clock: raises TimeoutError after `seconds`; None means no limit."""
    async with asyncio.timeout(None) as scope:
        if seconds is None:
            yield
            return
        timer = clock.call_later(seconds, lambda: scope.reschedule(-math.inf))
        try:
            yield
        finally:
            timer.cancel()


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
