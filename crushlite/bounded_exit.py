"""Signals that end the process in a bounded time, whatever hangs.

A handler in Python runs in the main thread, between two of its instructions: not while that thread
waits in a system call that does not return, and what it asks of the event loop is not done while an
agent blocks the loop. So a thread of its own learns of signals through a pipe that is written by
the C code of the interpreter. The first signal asks to leave and starts the clock. A second one, or
the end of the time, ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEGIN, _END = 254, 255  # what is written to the pipe beside the numbers of signals
_LOG_SECONDS = 0.5  # seconds for the log and the files: what they need may hang as well


class BoundedExit:
    """`leave` is called with the number of the first signal, in the thread of this object; `clean`
    when the process is about to be ended by force, `seconds` after it began to leave."""

    def __init__(
        self, seconds: float, leave: Callable[[int], None], clean: Callable[[], None]
    ) -> None:
        self._seconds = seconds
        self._leave = leave
        self._clean = clean
        self._reading, self._writing = -1, -1

    def begin(self) -> None:
        """The process leaves for another reason than a signal: start the clock."""
        self._tell(_BEGIN)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Handle SIGNALS, and put the handlers back that were there before. Not with
        `loop.add_signal_handler`, which does not say which handler it replaces. Only in the main
        thread: in any other one nothing is handled, and no time is bounded."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        thread = threading.Thread(target=self._watch, name="bounded exit", daemon=True)
        thread.start()
        wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(wakeup)
            self._tell(_END)
            thread.join()
            os.close(self._reading)
            os.close(self._writing)
            self._reading, self._writing = -1, -1

    def _handle(self, number: int, frame: object) -> None:
        """The interpreter has told the thread already, unless an agent that handles signals itself
        has taken the place of the pipe."""
        other = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        if other != self._writing:
            signal.set_wakeup_fd(other)
            self._tell(number)

    def _tell(self, what: int) -> None:
        if self._writing >= 0:
            with contextlib.suppress(BlockingIOError):  # a thousand signals are enough
                os.write(self._writing, bytes([what]))

    def _watch(self) -> None:
        """The thread: waits for signals, and for the end of the time."""
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        deadline: float | None = None
        signaled = False
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not poll.poll(left):
                return self._exit(1, f"not ended {self._seconds:g} s after it was to leave", True)
            for what in os.read(self._reading, 1024):
                if what == _END:
                    return None
                if what != _BEGIN and what not in SIGNALS:
                    continue
                deadline = deadline or time.monotonic() + self._seconds
                if what != _BEGIN and signaled:
                    return self._exit(130, "second signal: leaving at once", False)
                if what != _BEGIN:
                    signaled = True
                    self._leave(what)

    def _exit(self, code: int, why: str, stacks: bool) -> None:
        """End the process, after logging why, if that is possible in _LOG_SECONDS."""
        logging_end = threading.Thread(target=self._log_end, args=(why, stacks), daemon=True)
        logging_end.start()
        logging_end.join(_LOG_SECONDS)
        os._exit(code)

    def _log_end(self, why: str, stacks: bool) -> None:
        self._clean()
        log.warning(why)
        if stacks:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # no such stream
                faulthandler.dump_traceback(sys.stderr)
        logging.shutdown()
