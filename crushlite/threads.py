"""Blocking work in daemon threads, in pools that are independent of each other.

asyncio's default executor has few threads (6 on 2 cores) for everything, and Python waits for each
of them when it exits: a handful of calls that hang in the file system stop every other user of that
executor, and then the exit. The threads of a pool here are daemon threads. Each user of blocking
work has a pool of its own, so that one cannot use up the threads of another.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 10.0  # a thread without work ends after this time
LOST = 16  # threads that hang and are replaced by others


class DaemonThreads(ThreadPoolExecutor):
    """A pool of at most `most` threads, which start when there is work. A subclass of
    ThreadPoolExecutor only because an event loop accepts nothing else as its default executor:
    nothing of that class is used."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(1)
        self._most = most
        self._name = name
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._alive = 0  # threads
        self._free = 0  # threads that wait for work
        self._lost = 0  # threads that hang in a call that was given up
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} take no more work")
            self._jobs.append((future, functools.partial(fn, *args, **kwargs)))
            self._provide()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Never waits for those that run."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for future, _ in self._jobs:
                    future.cancel()
            self._changed.notify_all()

    async def run(self, seconds: float, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises BadRequest if it has not returned after `seconds`:
        its thread is then given up and another one takes its place."""
        future = self.submit(function, *args)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not future.done() or future.cancelled():
                self._give_up(future)
                raise BadRequest(
                    f"the file system did not answer within {seconds:g} seconds: try another path"
                ) from None
            raise  # of the function itself

    def _provide(self) -> None:
        """Wake or start a thread for the newest job, unless all are busy."""
        if self._free >= len(self._jobs):
            self._changed.notify()
        elif self._alive < self._most + self._lost:
            self._alive += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _give_up(self, future: Future[Any]) -> None:
        """Replace the thread of a call that runs and is not waited for any more."""
        with self._changed:
            if future.cancel() or future.done() or self._lost >= LOST:
                return
            self._lost += 1
            if self._jobs:
                self._provide()
        future.add_done_callback(self._found)

    def _found(self, future: Future[Any]) -> None:
        with self._changed:
            self._lost -= 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call, job

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for a job; None if this thread is to end."""
        with self._changed:
            while not self._jobs:
                self._free += 1
                woken = self._changed.wait(IDLE_SECONDS)
                self._free -= 1
                if not self._jobs and (self._closed or not woken):
                    self._alive -= 1
                    return None
            if self._alive > self._most + self._lost:  # a lost thread came back
                self._alive -= 1
                return None
            return self._jobs.popleft()
