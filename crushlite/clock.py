"""Injected time: every timer, deadline and timestamp of the hosting, the hub and HTTP comes from a
Clock; waits for threads and processes are in real time.

`time()` is monotonic and drives timers; `now()` is wall-clock seconds for records. Nothing is
ever ordered by `now()`: clocks jump, sequence numbers do not.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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


class time_limit:
    """`asyncio.timeout` on a Clock: raises `failure`, or TimeoutError if none is given, after
    `seconds`; None means no limit."""

    # Not made from a generator: event loops keep track of those, and a turn has several limits.

    def __init__(
        self, clock: Clock, seconds: float | None, failure: Exception | None = None
    ) -> None:
        self._clock, self._seconds, self._failure = clock, seconds, failure
        self._timer: Timer | None = None
        self._expired = False

    async def __aenter__(self) -> None:
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._cancels = task, task.cancelling()
            self._timer = self._clock.call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(self, kind: object, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._expired:
            is_ours = self._task.uncancel() <= self._cancels  # nobody else has cancelled the task
            if is_ours and kind is asyncio.CancelledError:
                raise self._failure or TimeoutError from None


def seconds_of(text: str) -> float:
    """A number of seconds as a text. Raises ValueError if it is none, or negative or infinite."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value
