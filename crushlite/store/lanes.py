"""The two lanes into a database: the writer with group commit, and the reader.

A lane is a queue of calls, an executor, and the one connection that only that executor uses.
Calls are queued in the event loop, in the order they are made, and their futures are resolved in
the event loop again; a cancelled waiter does not undo its call.

The writer takes all calls that wait and runs each under a savepoint in one transaction: a commit
costs a disk flush, however many calls share it. A call that fails is rolled back alone. But SQLite
may drop the whole transaction (a full disk, an I/O error), and what ran next would then run outside
any; so `in_transaction` is checked after every exception, and a lost batch is repeated call by
call, each in its own transaction. Hence work may run twice, and must touch nothing but its
connection and return plain data.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from crushlite.errors import StoreFailed, StoreOverloaded
from crushlite.store.connection import translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crushlite.store.executor import Executor

__all__ = ["MAX_WAITING", "Reader", "Writer", "run_in"]

T = TypeVar("T")

MAX_WAITING = 10_000  # calls per lane: seconds of backlog at any speed, megabytes of memory

_SAFE, _FAST = "FULL", "NORMAL"  # survives a power cut; survives the death of the process


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[..., Any]
    promise: bool
    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None

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
    call = _Call(work, False, loop.create_future())

    def perform() -> None:
        try:
            call.value = call.work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiter gets it
            call.error = translate(error, path)
        _deliver(loop, [call])

    executor.submit(perform)
    return call.future


def _deliver(loop: asyncio.AbstractEventLoop, calls: list[_Call]) -> None:
    def resolve() -> None:
        for call in calls:
            call.resolve()

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        pass  # the loop is closed: nobody is left to hear it


class _Lane:
    """The queue. `_run` performs a batch in the executor's thread and delivers it."""

    def __init__(self, executor: Executor, conn: sqlite3.Connection, path: Path) -> None:
        self._executor = executor
        self._conn = conn  # used in the executor's thread only
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._closed = False

        self._lock = threading.Lock()  # guards the two below
        self._waiting: list[_Call] = []
        self._draining = False  # a drain is submitted or running, and will see what is added

    def submit(self, work: Callable[[sqlite3.Connection], T], promise: bool) -> asyncio.Future[T]:
        call = _Call(work, promise, self._loop.create_future())
        if self._closed:
            call.error = StoreFailed("the store is closed")
        elif not self._enqueue(call):
            call.error = StoreOverloaded(f"{MAX_WAITING} calls wait for the database already")
        if call.error is not None:
            call.resolve()
        return call.future

    def _enqueue(self, call: _Call) -> bool:
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

    def _run(self, batch: list[_Call]) -> None:
        raise NotImplementedError

    def _fail(self, call: _Call, error: BaseException) -> None:
        call.value, call.error = None, translate(error, self._path)

    async def close(self) -> None:
        """Finish what waits, close the connection, end the thread."""
        self._closed = True
        try:
            await run_in(self._executor, self._path, self._conn.close)
        finally:
            self._executor.close()


class _Dropped(Exception):
    """SQLite has dropped the transaction; the cause says why."""


class Writer(_Lane):
    def __init__(self, executor: Executor, conn: sqlite3.Connection, path: Path) -> None:
        super().__init__(executor, conn, path)
        self._synchronous = ""  # as last set on the connection

    def _run(self, batch: list[_Call]) -> None:
        self._commit(batch)
        _deliver(self._loop, batch)

    def _commit(self, batch: list[_Call]) -> None:
        try:
            self._begin(_SAFE if any(call.promise for call in batch) else _FAST)
        except sqlite3.Error as error:
            # A lock that did not yield: nothing ran, and trying again would wait as long again.
            for call in batch:
                self._fail(call, error)
            return
        try:
            for call in batch:
                self._perform(call)
            self._conn.execute("COMMIT")
        except (sqlite3.Error, _Dropped) as lost:
            self._rollback()
            if len(batch) == 1:
                self._fail(batch[0], lost.__cause__ or lost)
                return
            for call in batch:
                self._commit([call])

    def _begin(self, synchronous: str) -> None:
        if self._conn.in_transaction:  # a rollback failed earlier
            self._conn.execute("ROLLBACK")
        if synchronous != self._synchronous:  # has no effect inside a transaction
            self._conn.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        self._conn.execute("BEGIN IMMEDIATE")

    def _perform(self, call: _Call) -> None:
        conn = self._conn
        call.error = None
        conn.execute("SAVEPOINT call")
        try:
            call.value = call.work(conn)
            conn.execute("RELEASE call")
        except BaseException as error:
            if not conn.in_transaction:
                raise _Dropped from error
            self._fail(call, error)
            conn.execute("ROLLBACK TO call")
            conn.execute("RELEASE call")

    def _rollback(self) -> None:
        if self._conn.in_transaction:
            try:
                self._conn.execute("ROLLBACK")
            except sqlite3.Error:
                pass  # `_begin` tries again, and fails its calls if it still cannot


class Reader(_Lane):
    """Each call sees one moment of the database. Calls are delivered one by one: a short read is
    not held back by a long one behind it."""

    def _run(self, batch: list[_Call]) -> None:
        for call in batch:
            self._read(call)
            _deliver(self._loop, [call])

    def _read(self, call: _Call) -> None:
        try:
            self._conn.execute("BEGIN")
            call.value = call.work(self._conn)
            self._conn.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiter gets it
            self._fail(call, error)
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
