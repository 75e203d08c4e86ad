"""Names whoever blocks the event loop.

An agent that computes for seconds without awaiting stops every client of the daemon. Nothing can
prevent that inside one process, but it can be named: a thread asks the loop for a sign of life, and
if none comes it logs where the loop's thread stands, once per stall.

A loop that waits for events is not asked: it is not late, and an idle daemon shall stay asleep.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
import traceback

log = logging.getLogger(__name__)

BEAT = 0.25  # seconds between two looks at a loop that is busy,
LONGEST = 2.0  # doubled each time up to this while it is idle: a look wakes the whole process
# Where a loop waits, and from where: an agent may wait for a selector of its own.
_WAITING = selectors.DefaultSelector.select.__code__, asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]


class Watchdog:
    def __init__(self, *, limit: float = 1.0) -> None:
        self.stalls = 0  # how often the loop was late since the start
        self.worst = 0.0  # seconds an answer was late, at most
        self._limit = limit
        self._asked: float | None = None  # when, while there is no answer
        self._late = 0.0  # seconds the last answer took
        self._stop = threading.Event()
        self._loop_thread = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Call on the loop to be watched."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late now, or was when it was last asked."""
        asked = self._asked
        return self._late if asked is None else max(self._late, time.monotonic() - asked)

    def _answer(self) -> None:
        if self._asked is not None:
            self._late = max(0.0, time.monotonic() - self._asked)
            self.worst = max(self.worst, self._late)
            self._asked = None

    def _watch(self) -> None:
        reported = False
        pause = BEAT
        while not self._stop.wait(pause):
            asked = self._asked  # once: the loop may answer between two looks
            if asked is None:
                reported = False
                pause = min(2 * pause, LONGEST) if self._is_waiting() else BEAT
            elif not reported and (late := time.monotonic() - asked) >= self._limit:
                reported = True
                log.warning("the event loop is blocked for %.1f s:\n%s", late, self._where())
                self.stalls += 1

    def _is_waiting(self) -> bool:
        """Whether the loop has nothing to do; if it has, it is asked."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None and frame.f_back and (frame.f_code, frame.f_back.f_code) == _WAITING:
            self._late = 0.0
            return True
        self._asked = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked = None  # the loop is closed: nobody is left to wait for it
        return False

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(gone)"
