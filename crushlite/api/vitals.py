"""The daemon as a process, for health and metrics: time, the event loop, connections, and what the
operating system counts. Everything is read when it is asked for; nothing is sampled."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from ..http.server import Statistics

PROC = Path("/proc/self")


class LoopWatch(Protocol):
    """What the watchdog knows about the event loop."""

    stalls: int  # how often the loop was blocked since the start
    worst: float  # seconds it was late, at most

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late now, or was when it was last asked."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process as the operating system counts it; None where this system does not say."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    most_files: int | None  # None also if there is no limit

    @classmethod
    def now(cls) -> Process:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            time.process_time(),
            _resident(),
            _open_files(),
            None if soft == resource.RLIM_INFINITY else soft,
        )


@dataclass(slots=True)
class Vitals:
    """Made with the daemon; `begin` is called when it starts."""

    clock: Clock
    http: Callable[[], Statistics]
    loop: LoopWatch
    started: float = 0.0

    def begin(self) -> None:
        self.started = self.clock.time()

    @property
    def uptime(self) -> float:
        return self.clock.time() - self.started


def _resident() -> int | None:
    try:
        pages = int((PROC / "statm").read_text("ascii").split()[1])
    except FileNotFoundError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int | None:
    try:
        return len(os.listdir(PROC / "fd")) - 1  # one of them is the listing itself
    except FileNotFoundError:
        return None
