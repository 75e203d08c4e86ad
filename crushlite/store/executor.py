"""Where the store's work runs: in threads that the stores of a daemon share (`DaemonThreads`), or
in the caller's.

A thread is used only while there is something to run: hundreds of open databases that are not in
use need none. A call that hangs keeps its thread, but no other: there are enough of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_THREADS = 64


class Executor(Protocol):
    def start(self, call: Callable[[], None]) -> None:
        """Run `call`, now or later, in this thread or in another. `call` never raises."""


class InlineExecutor:
    """Runs each call at once in the calling thread: a store without threads, for tests."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def start(self, call: Callable[[], None]) -> None:
        call()
