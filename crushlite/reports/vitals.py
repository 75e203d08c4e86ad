"""The daemon as health and metrics see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..clock import Clock


class Vitals:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop = Watchdog()
        self._began = clock.time()

    def begin(self) -> None:
        """The daemon has started, and its loop is this one."""
        self._began = self.clock.time()
        self.loop.start()

    def end(self) -> None:
        self.loop.stop()

    @property
    def uptime(self) -> float:
        return self.clock.time() - self._began
