"""A queue of calls into the database, with the connection that they use: the writer, which has a
module of its own, and the reader.

Calls are queued in the event loop, run one at a time in the order they are made, in whatever thread
the executor has, and their futures are resolved in the event loop again. So a connection needs no
lock. Cancelling a future does not undo its call. The queue is bounded.

A connection that may not recover from a failure (an I/O error, damage) is replaced before the next
call: what was wrong may be over without the connection noticing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import StoreFailed, StoreOverloaded
from ..records import dataclass
from .connection import breaks_connection, translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .checkpoints import Checkpoints

log = logging.getLogger(__name__)

T = TypeVar("T")

_SHORT = 0.004  # seconds of a read without a pause
_STEPS = 500  # of SQLite's machine: some 30 rows, a tenth of a millisecond and more
_PAUSE = 0.0001  # seconds: long enough for a thread that waits
_WORK = 0.00001  # seconds of processor time: two clocks, read one after the other, differ by less
_IDLE = 0.001  # seconds that other threads must be idle before a read goes on without pauses
MAX_WAITING = 10_000  # calls per queue: seconds of backlog at any speed, megabytes of memory


class Executor(Protocol):
    def start(self, call: Callable[[], None]) -> None:
        """Run `call`, now or later, in this thread or in another. `call` never raises."""


@dataclass(slots=True, eq=False)
class StoreCall:
    """One call: what to run, and the future that gets its value or its error. The thread that runs
    it writes `value`, `error` and `wrote`; `resolve` is for the event loop."""

    work: Callable[..., Any]
    future: asyncio.Future[Any]
    durably: bool = False
    apart: bool = False  # it takes no connection, and runs outside any transaction
    value: Any = None
    error: BaseException | None = None
    wrote: bool = False  # whether it changed rows

    def resolve(self) -> None:
        if self.future.done():  # it was cancelled; the work is done all the same
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def run_in(executor: Executor, path: Path, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in an executor; its errors are translated."""
    loop = asyncio.get_running_loop()
    call = StoreCall(work, loop.create_future())
    executor.start(lambda: _perform(call, path, loop))
    return call.future


def _perform(call: StoreCall, path: Path, loop: asyncio.AbstractEventLoop) -> None:
    try:
        call.value = call.work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the future gets it
        call.error = translate(error, path)
    with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits for it any more
        loop.call_soon_threadsafe(call.resolve)


def identity(path: Path) -> tuple[int, int] | None:
    """What distinguishes a file from one that has taken its place; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class CallQueue:
    """A subclass runs the calls: `_run` gets all that wait."""

    def __init__(
        self,
        executor: Executor,
        conn: sqlite3.Connection,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        checkpoints: Checkpoints,
        sharing_seconds: float = 0.0,
    ) -> None:
        self._executor = executor
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._sharing_seconds = sharing_seconds
        self._timer: asyncio.TimerHandle | None = None  # for calls that wait for another one

        # Used in `_drain` only:
        self._conn = conn
        self._file = identity(path)  # that `conn` is a connection to
        self._connect = connect
        self._checkpoints = checkpoints
        self._broken = False  # the connection is to be replaced before it is used again

        self._lock = threading.Lock()  # guards the two below
        self._waiting: list[StoreCall] = []
        self._draining = False  # `_drain` is submitted or running, and will see what is added

    def submit(
        self, work: Callable[[sqlite3.Connection], T], durably: bool, *, shared: bool = False
    ) -> asyncio.Future[T]:
        """Queue a call; the errors of a full or closed queue are in its future, too. A `shared`
        call does not start the queue: it runs with the next call that is not shared, or after
        `sharing_seconds`, so that both have one commit."""
        call = StoreCall(work, self._loop.create_future(), durably)
        if self._closed:
            call.future.set_exception(StoreFailed("the store is closed"))
        elif len(self._waiting) >= MAX_WAITING:
            full = f"{MAX_WAITING} calls wait for the database already; try again"
            call.future.set_exception(StoreOverloaded(full))
        else:
            self._enqueue(call, shared=shared and self._sharing_seconds > 0)
        return call.future

    def _run_apart(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` after the calls that wait now, outside any transaction."""
        call = StoreCall(work, self._loop.create_future(), apart=True)
        self._enqueue(call)
        return call.future

    def _enqueue(self, call: StoreCall, *, shared: bool = False) -> None:
        with self._lock:
            self._waiting.append(call)
        if not shared:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._sharing_seconds, self._start)

    def _start(self) -> None:
        """Run the calls that wait, in a thread, unless one does that already."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            idle, self._draining = not self._draining, True
        if idle:
            self._executor.start(self._drain)

    def _drain(self) -> None:
        while True:
            with self._lock:
                calls, self._waiting = self._waiting, []
                if not calls:
                    self._draining = False
                    return
            if batch := [call for call in calls if not call.apart]:
                self._run_safely(batch)
            for call in calls:
                if call.apart:
                    _perform(call, self._path, self._loop)

    def _run_safely(self, batch: list[StoreCall]) -> None:
        try:
            self._run(batch)
        except BaseException as error:  # a bug: no task may wait for ever
            log.exception("%s: a batch of calls failed", self._path)
            self._rollback()
            for call in batch:
                self._fail(call, error)
            self._deliver(batch)

    def _run(self, batch: list[StoreCall]) -> None:
        """Perform and deliver the calls."""
        raise NotImplementedError

    def _deliver(self, calls: list[StoreCall]) -> None:
        with contextlib.suppress(RuntimeError):  # as in `_perform`
            self._loop.call_soon_threadsafe(self._resolve, calls)

    def _resolve(self, calls: list[StoreCall]) -> None:
        """Resolve the futures of calls, in the event loop."""
        for call in calls:
            call.resolve()

    def _fail(self, call: StoreCall, error: BaseException) -> None:
        call.value, call.error = None, translate(error, self._path)
        self._broken = self._broken or breaks_connection(error)

    def _replace_broken(self) -> None:
        """Replace the connection if it is broken. If that raises, the old one stays closed, and
        this is tried again before the next call."""
        if self._broken:
            with contextlib.suppress(sqlite3.Error):
                self._conn.close()  # first: it may hold locks
            self._conn = self._connect()
            self._broken = False

    def _rollback(self) -> None:
        """After a failure: end the transaction, if SQLite has not done so already."""
        try:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
        except sqlite3.Error:
            self._broken = True

    def _disconnect(self) -> None:
        self._conn.close()

    def close(self) -> asyncio.Future[None]:
        """Accept no more calls; the future is done when the others are and the file is closed."""
        self._closed = True
        return self._run_apart(self._disconnect)


class Reader(CallQueue):
    """Lists and histories, on a connection that cannot write. Each call sees one moment of the
    database, and is answered before the next one runs. No transaction is open between calls, as an
    open read keeps the log from being shortened.

    Making objects of many rows keeps the interpreter busy: a prompt that is being stored would lose
    some milliseconds at each of its statements. So a longer read pauses every few rows, while other
    threads of the process work."""

    # Of the read under way:
    _began = 0.0
    _others = 0.0  # processor time of the other threads, when they were last found at work
    _pause_until = 0.0  # _IDLE seconds after that

    def _run(self, batch: list[StoreCall]) -> None:
        for call in batch:
            with self._checkpoints.reading():
                self._read(call)
            self._deliver([call])

    def _read(self, call: StoreCall) -> None:
        try:
            self._replace_broken()
            self._began, self._others = time.monotonic(), 0.0
            self._conn.set_progress_handler(self._pause_if_long, _STEPS)
            self._conn.execute("BEGIN")
            call.value = call.work(self._conn)
            self._conn.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the future gets it
            self._fail(call, error)
            self._rollback()

    def _pause_if_long(self) -> None:
        """Called by SQLite every few rows: pause if the read is long and other threads work."""
        now = time.monotonic()
        if now - self._began <= _SHORT:
            return
        others = time.process_time() - time.thread_time()
        if others - self._others > _WORK:
            self._others, self._pause_until = others, now + _IDLE
        if now < self._pause_until:
            time.sleep(_PAUSE)
