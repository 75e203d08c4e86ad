"""What health and metrics say about the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from ..http.server import Statistics


class LoopWatch(Protocol):
    """What the watchdog knows about the event loop."""

    stalls: int  # how often the loop was blocked since the start
    worst: float  # seconds it was late, at most

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late now, or was when it was last asked."""


@dataclass(slots=True)
class Vitals:
    """The daemon as health and metrics see it; `begin` is called when it starts."""

    clock: Clock
    http: Callable[[], Statistics]
    loop: LoopWatch
    started: float = 0.0

    def begin(self) -> None:
        self.started = self.clock.time()

    @property
    def uptime(self) -> float:
        return self.clock.time() - self.started
