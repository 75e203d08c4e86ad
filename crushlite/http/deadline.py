"""A time limit that is replaced often, without a new timer each time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock, Timer

# Timers may fire this much early, in floating point.
_EPSILON = 1e-3


class Deadline:
    """Calls `passed` when the time of the latest `set` is up, unless it was cleared since.

    There is at most one timer, due no later than the deadline; one that fires too early is armed
    again. So on a connection whose requests each arrive whole, `set` only stores a number.
    """

    __slots__ = ("_clock", "_due", "_fires", "_passed", "_timer")

    def __init__(self, clock: Clock, passed: Callable[[], None]) -> None:
        self._clock = clock
        self._passed = passed
        self._due = math.inf
        self._timer: Timer | None = None
        self._fires = math.inf  # when the timer does

    def set(self, seconds: float) -> None:
        """Replace the deadline: call `passed` in `seconds`."""
        due = self._due = self._clock.time() + seconds
        if self._timer is not None:
            if self._fires <= due:
                return
            self._timer.cancel()
        self._arm(seconds)

    def clear(self) -> None:
        """Do not call `passed` until the next `set`."""
        self._due = math.inf

    def cancel(self) -> None:
        """Never call `passed` again, and drop it: it refers to the object that holds this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._passed = _nothing

    def _arm(self, seconds: float) -> None:
        self._fires = self._due
        self._timer = self._clock.call_later(seconds, self._fired)

    def _fired(self) -> None:
        self._timer = None
        remaining = self._due - self._clock.time()
        if remaining == math.inf:
            return
        if remaining > _EPSILON:
            self._arm(remaining)
        else:
            self._passed()


def _nothing() -> None:
    """Stands for `passed` after `cancel`."""
