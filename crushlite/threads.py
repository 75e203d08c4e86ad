"""Blocking work in daemon threads, in pools that are independent of each other.

asyncio's default executor has few threads (6 on 2 cores) for everything, and Python waits for each
of them when it exits: a handful of calls that hang in the file system stop every other user of that
executor, and then the exit. The threads of a pool here are daemon threads. Each user of blocking
work has a pool of its own, so that one cannot use up the threads of another.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 10.0  # a thread without work ends after this time


class DaemonThreads(ThreadPoolExecutor):
    """A pool of at most `most` threads, which start when there is work and end after `idle_seconds`
    without any. A subclass of ThreadPoolExecutor only because an event loop accepts nothing else as
    its default executor: nothing of that class is used."""

    def __init__(self, most: int, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        super().__init__(1)
        self._most = most
        self._name = name
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()  # guards the rest
        self._calls: deque[Callable[[], None]] = deque()
        self._idle: list[threading.Lock] = []  # of threads that wait, which a release wakes
        self._alive = 0  # threads
        self._closed = False

    def start(self, call: Callable[[], None]) -> None:
        """Queue a call that never raises: `submit` without the cost of a future. Raises
        RuntimeError after `shutdown`, or if there is no thread and the system does not give one."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} take no more work")
            self._calls.append(call)
            is_needed = self._is_thread_needed()
        if is_needed:
            self._add_thread()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. Raises RuntimeError as `start` does."""
        future: Future[T] = Future()
        self.start(functools.partial(perform, future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that were taken are run: none is cancelled or waited for."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().release()

    def _is_thread_needed(self) -> bool:
        """Wake an idle thread for a call; else return whether to start one more, and count it."""
        if self._idle:
            self._idle.pop().release()
        elif self._alive < self._most:
            self._alive += 1
            return True
        return False

    def _add_thread(self) -> None:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no more threads
            with self._lock:
                self._alive -= 1
                if self._alive:
                    return  # one of them gets to it
            raise

    def _work(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        while (call := self._next(wake)) is not None:
            call()
            del call  # what it holds may be large

    def _next(self, wake: threading.Lock) -> Callable[[], None] | None:
        """Wait for a call; None if this thread is to end."""
        while True:
            with self._lock:
                is_surplus = self._alive > self._most
                if self._calls and not is_surplus:
                    return self._calls.popleft()
                if self._closed or is_surplus:
                    self._alive -= 1
                    return None
                self._idle.append(wake)
            if not wake.acquire(timeout=self._idle_seconds):
                with self._lock:
                    if wake in self._idle:
                        self._idle.remove(wake)
                        self._alive -= 1
                        return None
                wake.acquire()  # it was woken at the last moment


def perform(future: Future[T], call: Callable[[], T]) -> None:
    """Call, and resolve the future with what it returns or raises."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
