"""A lane into the database: a queue of calls, an executor, and the one connection that only that
executor uses. There are two, the writer and the reader.

Calls are queued in the event loop, in the order they are made, and their futures are resolved in
the event loop again; a cancelled waiter does not undo its call. The queue is bounded.

A connection that has failed in a way that may have spoilt it (an I/O error, damage) is replaced
before the next call: what was wrong may be over, and a connection does not always notice.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StoreFailed, StoreOverloaded
from .connection import spoils, translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .executor import Executor

T = TypeVar("T")

MAX_WAITING = 10_000  # calls per lane: seconds of backlog at any speed, megabytes of memory


@dataclass(slots=True, eq=False)
class StoreCall:
    work: Callable[..., Any]
    promise: bool
    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None
    wrote: bool = False  # rows: a commit without any proves nothing about the disk

    def resolve(self) -> None:
        if self.future.done():  # the waiter was cancelled; the work is done all the same
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def run_in(executor: Executor, path: Path, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in an executor that has no lane yet, or none any more."""
    loop = asyncio.get_running_loop()
    call = StoreCall(work, False, loop.create_future())

    def perform() -> None:
        try:
            call.value = call.work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiter gets it
            call.error = translate(error, path)
        deliver(loop, [call])

    executor.submit(perform)
    return call.future


def deliver(
    loop: asyncio.AbstractEventLoop, calls: list[StoreCall], first: Callable[[], None] | None = None
) -> None:
    """Resolve the futures of calls in the event loop, after `first` has run there."""

    def resolve() -> None:
        if first is not None:
            first()
        for call in calls:
            call.resolve()

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        pass  # the loop is closed: nobody is left to hear it


class Lane:
    """The queue. `_run` performs a batch in the executor's thread and delivers it."""

    def __init__(
        self,
        executor: Executor,
        conn: sqlite3.Connection,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
    ) -> None:
        self._executor = executor
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._closed = False

        # Used in the executor's thread only:
        self._conn = conn
        self._connect = connect
        self._spoilt = False  # the connection is to be replaced before it is used again

        self._lock = threading.Lock()  # guards the two below
        self._waiting: list[StoreCall] = []
        self._draining = False  # a drain is submitted or running, and will see what is added

    def submit(self, work: Callable[[sqlite3.Connection], T], promise: bool) -> asyncio.Future[T]:
        call = StoreCall(work, promise, self._loop.create_future())
        if self._closed:
            call.error = StoreFailed("the store is closed")
        elif not self._enqueue(call):
            call.error = StoreOverloaded(
                f"{MAX_WAITING} calls wait for the database already; try again"
            )
        if call.error is not None:
            call.resolve()
        return call.future

    def _enqueue(self, call: StoreCall) -> bool:
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting.append(call)
            idle, self._draining = not self._draining, True
        if idle:
            self._executor.submit(self._drain)
        return True

    def _drain(self) -> None:
        while True:
            with self._lock:
                batch, self._waiting = self._waiting, []
                if not batch:
                    self._draining = False
                    return
            self._run(batch)

    def _run(self, batch: list[StoreCall]) -> None:
        raise NotImplementedError

    def _fail(self, call: StoreCall, error: BaseException) -> None:
        call.value, call.error = None, translate(error, self._path)
        self._spoilt = self._spoilt or spoils(error)

    def _renew(self) -> None:
        """Replace a spoilt connection. While that fails the old one stays closed, and whoever
        wants to use it gets the reason."""
        if self._spoilt:
            try:
                self._conn.close()  # first: it may hold locks
            except sqlite3.Error:
                pass  # there is nothing else to do with it
            self._conn = self._connect()
            self._spoilt = False

    def _shut(self) -> None:
        self._conn.close()

    async def close(self) -> None:
        """Finish what waits, close the connection, end the thread."""
        self._closed = True
        try:
            await run_in(self._executor, self._path, self._shut)
        finally:
            self._executor.close()
