"""Names whoever blocks the event loop.

An agent that computes for seconds without awaiting stops every client of the daemon. Nothing can
prevent that inside one process, but it can be named: a thread notices that the loop's heartbeat is
late and logs where the loop's thread stands, once per stall.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

BEAT = 0.25  # seconds between heartbeats


class Watchdog:
    def __init__(self, *, limit: float = 1.0) -> None:
        self.stalls = 0  # how often the loop was late since the start
        self.worst = 0.0  # seconds a heartbeat was late, at most
        self._limit = limit
        self._last = time.monotonic()
        self._late = 0.0  # seconds the last heartbeat was late
        self._stop = threading.Event()
        self._loop_thread = 0
        self._handle: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Call on the loop to be watched."""
        self._loop_thread = threading.get_ident()
        self._last = time.monotonic()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late now, or was at its last heartbeat."""
        return max(self._late, time.monotonic() - self._last - BEAT)

    def _beat(self) -> None:
        now = time.monotonic()
        self._late = max(0.0, now - self._last - BEAT)
        self.worst = max(self.worst, self._late)
        self._last = now
        self._handle = asyncio.get_running_loop().call_later(BEAT, self._beat)

    def _watch(self) -> None:
        reported = 0.0
        while not self._stop.wait(BEAT):
            late = time.monotonic() - self._last - BEAT
            if late >= self._limit and reported != self._last:
                reported = self._last
                self.stalls += 1
                log.warning("the event loop is blocked for %.1f s:\n%s", late, self._where())

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(gone)"
