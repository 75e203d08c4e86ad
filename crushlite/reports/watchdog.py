"""Logs which code blocks the event loop.

An agent that computes for seconds without awaiting stops every client of the daemon. That can only
be reported: a thread schedules a call on the loop and, if the call is not made in time, logs the
stack of the loop's thread, once per stall. While the loop waits for events nothing is scheduled: it
is not late, and an idle daemon should not be woken up. So the pauses between two checks of a loop
that waits grow, until an agent begins to work.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..clock import Clock

log = logging.getLogger(__name__)

FRAMES = 6  # that are logged
BEAT = 0.25  # seconds between two checks of a loop that is busy
SHORT = (
    1.0  # a pause that is not ended when an agent begins: waking a thread costs as much as a check
)
GROWTH = 4  # by which a pause is multiplied at each check of a loop that waits,
LONGEST = 30.0  # up to this: a check wakes the whole process
# The two innermost functions of a loop that waits. Both: an agent may wait for a selector too.
_WAITING = selectors.DefaultSelector.select.__code__, asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]


class Watchdog:
    def __init__(self, *, limit: float = 1.0) -> None:
        self.stalls = 0  # how often the loop was late by more than the limit
        self.worst = 0.0  # seconds that a call was late, at most
        self._limit = limit
        self._asked: float | None = None  # when the call was scheduled that is not made yet
        self._late = 0.0  # seconds by which the last call was late
        self._pause = BEAT
        self._stopped = False
        self._wake = threading.Event()  # ends a pause: an agent begins, or the thread must end
        self._loop_thread = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch the running loop, from whose thread this is called."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread.start()

    def agent_begins(self) -> None:
        """Check at short pauses again: an agent may block the loop from now on."""
        if self._pause > SHORT:
            self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def lag(self) -> float:
        """Seconds by which the loop is late now, or was at the last check."""
        asked = self._asked
        return self._late if asked is None else max(self._late, time.monotonic() - asked)

    def _answer(self) -> None:
        if self._asked is not None:
            self._late = max(0.0, time.monotonic() - self._asked)
            self.worst = max(self.worst, self._late)
            self._asked = None

    def _watch(self) -> None:
        """The thread: checks the loop until `stop` is called."""
        reported = False
        while True:
            if self._wake.wait(self._pause):
                self._wake.clear()
                self._pause = BEAT
            if self._stopped:
                return
            asked = self._asked  # read once: the loop may set it to None meanwhile
            if asked is None:
                reported = False
                idle = self._is_waiting()
                self._pause = min(GROWTH * self._pause, LONGEST) if idle else BEAT
            elif not reported and (late := time.monotonic() - asked) >= self._limit:
                reported = True
                where = (TimeoutError, TimeoutError("it is still there"), self._where())
                log.warning("the event loop is blocked for %.1f s", late, exc_info=where)
                self.stalls += 1

    def _is_waiting(self) -> bool:
        """Whether the loop waits for events. If it does not, schedule a call on it."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None and frame.f_back and (frame.f_code, frame.f_back.f_code) == _WAITING:
            self._late = 0.0
            return True
        self._asked = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked = None  # the loop is closed
        return False

    def _where(self) -> TracebackType | None:
        """The innermost functions of the loop's thread."""
        frame = sys._current_frames().get(self._loop_thread)
        found: TracebackType | None = None
        for _ in range(FRAMES):
            if frame is not None:
                found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno or 0)
                frame = frame.f_back
        return found


class Vitals:
    """The daemon as health and metrics see it."""

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
