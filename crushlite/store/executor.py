"""Where the store's work runs: a thread of its own, or the caller's.

An executor runs calls one at a time, in the order they were submitted. A SQLite connection belongs
to one executor for its whole life, so the store needs no lock around a connection.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Executor(Protocol):
    def submit(self, call: Callable[[], None]) -> None:
        """Run `call`, now or later, after everything submitted before it. `call` never raises."""

    def close(self) -> None:
        """Let what was submitted finish and free the thread; nothing may be submitted after."""


class ThreadExecutor:
    """One thread. It is a daemon thread, so that a store that was never closed does not keep the
    process alive: what is committed is safe."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class InlineExecutor:
    """Runs each call at once in the calling thread: a store without threads, for tests."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def submit(self, call: Callable[[], None]) -> None:
        call()

    def close(self) -> None:
        pass
