"""One time limit after another, at the price of a number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock, Timer

# Timers may fire a hair early in floating point.
_EPSILON = 1e-3


class Deadline:
    """Calls `passed` when the time of the latest `within` is up, unless it is `off` by then.

    There is at most one timer, due no later than the deadline; one that fires too early is armed
    again. So a connection whose requests each arrive whole moves a number and touches no timer.
    """

    __slots__ = ("_clock", "_due", "_fires", "_passed", "_timer")

    def __init__(self, clock: Clock, passed: Callable[[], None]) -> None:
        self._clock = clock
        self._passed = passed
        self._due = math.inf
        self._timer: Timer | None = None
        self._fires = math.inf  # when the timer does

    def within(self, seconds: float) -> None:
        """From now on; what was set before counts no more."""
        due = self._due = self._clock.time() + seconds
        if self._timer is not None:
            if self._fires <= due:
                return
            self._timer.cancel()
        self._arm(seconds)

    def off(self) -> None:
        self._due = math.inf

    def cancel(self) -> None:
        """For good. Lets go of `passed`, whose owner also has this: nothing is left in a circle."""
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
    """What happens when the time of nobody is up."""
