"""Where the store's work runs: in threads that the stores of a daemon share, or in the caller's.

An executor runs calls one at a time, in the order they were submitted. A SQLite connection belongs
to one executor for its whole life, so the store needs no lock around a connection.

A thread belongs to an executor only while there is something to run: hundreds of open databases
that are not in use need none. Threads wait some seconds for the next work before they end, as to
start one takes 0.1 ms. A call that hangs keeps its thread, but no other: there are enough of them.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_THREADS = 64
IDLE_SECONDS = 5.0  # before a thread that has nothing to do ends


class Executor(Protocol):
    def submit(self, call: Callable[[], None]) -> None:
        """Run `call`, now or later, after everything submitted before it. `call` never raises."""

    def close(self) -> None:
        """Let what was submitted finish, without waiting for it; nothing may be submitted after."""


class StoreThreads:
    """At most `most` threads that run the executors which have work, in the order in which they got
    it. They are daemon threads, so that a store that was never closed does not keep the process
    alive: what is committed is safe."""

    def __init__(self, most: int = MOST_THREADS, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the three below
        self._threads = 0
        self._free = 0  # threads that wait for work, less the work that waits for them
        self._users = 0  # executors that are open

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` in one of the threads; it never raises."""
        with self._lock:
            self._free -= 1
            self._work.put(work)
            is_needed = self._free < 0 and self._threads < self._most
            if is_needed:
                self._threads += 1
                self._free += 1
        if is_needed:
            self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._serve, name="crushlite-store", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            with self._lock:
                self._threads -= 1
                self._free -= 1
                if self._threads:
                    return  # one of them gets to it
            raise

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """The last executor that leaves ends the threads that wait."""
        with self._lock:
            self._users -= 1
            for _ in range(self._threads if not self._users else 0):
                self._work.put(None)

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=self._idle_seconds)
            except queue.Empty:
                work = None
            if work is not None:
                work()
                with self._lock:
                    self._free += 1
            elif self._ended():
                return

    def _ended(self) -> bool:
        """Count this thread as gone, unless it is needed: work may have come meanwhile."""
        with self._lock:
            if self._free <= 0:
                return False
            self._threads -= 1
            self._free -= 1
            return True


class ThreadExecutor:
    """Runs its calls in one of the threads at a time; they are its own if none are given."""

    def __init__(self, name: str = "", threads: StoreThreads | None = None) -> None:
        self.name = name
        self._threads = threads = threads or StoreThreads()
        self._lock = threading.Lock()  # guards the three below
        self._calls: deque[Callable[[], None]] = deque()
        self._is_running = False  # a thread runs the calls, or is about to
        self._is_open = True
        threads.enter()

    def submit(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            is_idle, self._is_running = not self._is_running, True
        if is_idle:
            self._threads.run(self._drain)

    def close(self) -> None:
        with self._lock:
            was_open, self._is_open = self._is_open, False
            if not was_open or self._is_running:
                return
        self._threads.leave()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_running = False
                    is_over = not self._is_open
                    break
                call = self._calls.popleft()
            call()
        if is_over:
            self._threads.leave()


class InlineExecutor:
    """Runs each call at once in the calling thread: a store without threads, for tests."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def submit(self, call: Callable[[], None]) -> None:
        call()

    def close(self) -> None:
        pass
