"""Opening, sharing and closing stores.

One Store per database file, whoever asks: opens of the same real path share it and count. Opening
runs entirely in the new store's writer thread: own the directory, inspect the file, bring the
schema up to date, recover. An open that fails gives back all it took. While a store is being
closed, an open of the same path waits: this process must not meet its own lock.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crushlite.errors import IllegalCall
from crushlite.store.connection import (
    configure,
    connect as default_connect,
    transaction,
    translated,
)
from crushlite.store.directory import DirectoryLock, create_database_file, make_directory
from crushlite.store.executor import Executor, ThreadExecutor
from crushlite.store.lanes import Reader, Writer, run_in
from crushlite.store.recovery import recover
from crushlite.store.schema import inspect, migrate

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from crushlite.clock import Clock
    from crushlite.store.connection import ConnectionFactory

__all__ = ["Store", "Stores"]

T = TypeVar("T")


def _real_path(path: Path) -> Path:
    # In the event loop on purpose: an await here would let the opens of one path pass each other.
    return Path(os.path.realpath(path))


@dataclass(slots=True)
class _Opened:
    """What opening took, to be given back in this order."""

    conn: sqlite3.Connection
    lock: DirectoryLock
    recovered: list[str]


class Store:
    """A database file that this process owns. Made by `Stores.open`."""

    def __init__(
        self, path: Path, boot_id: str, opened: _Opened, writer: Writer, reader: Reader
    ) -> None:
        self.path = path
        self.data_dir = path.parent
        self.boot_id = boot_id
        self.recovered = opened.recovered  # ids of the runs that recovery ended
        self._lock = opened.lock
        self._writer = writer
        self._reader = reader

    def submit(
        self, work: Callable[[sqlite3.Connection], T], *, promise: bool = False
    ) -> asyncio.Future[T]:
        """Queue a write, in the order of the calls; the future is done after its COMMIT.

        With `promise` the commit also survives a power cut. `work` may run twice (the first time
        undone): it must touch nothing but the connection, and return plain data.
        """
        return self._writer.submit(work, promise)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a query on a read-only connection; it sees every write whose future is done."""
        return self._reader.submit(work, False)

    async def close(self) -> None:
        """For `Stores`, which alone knows when nobody uses the store any more."""
        try:
            await self._reader.close()
            # The connection that closes last merges the log into the file: this one can.
            await self._writer.close()
        finally:
            self._lock.release()


@dataclass(slots=True, eq=False)
class _Entry:
    opening: asyncio.Task[Store]
    users: int = 0
    closing: asyncio.Task[None] | None = None


class Stores:
    """The open stores of a backend, by the real path of their data directory."""

    def __init__(
        self,
        *,
        clock: Clock,
        boot_id: str,
        executor: Callable[[str], Executor] = ThreadExecutor,
        connect: ConnectionFactory = default_connect,
    ) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._executor = executor
        self._connect = connect
        self._entries: dict[Path, _Entry] = {}

    async def open(self, data_dir: Path) -> Store:
        path = _real_path(data_dir)
        while (entry := self._entries.get(path)) is not None and entry.closing is not None:
            await asyncio.shield(entry.closing)
        if entry is None:
            entry = _Entry(asyncio.create_task(self._open(path)))
            self._entries[path] = entry
        entry.users += 1
        try:
            return await asyncio.shield(entry.opening)
        except BaseException:
            self._leave(path, entry)
            raise

    async def release(self, store: Store) -> None:
        """Give back one `open`; the last one closes the file and drops the lock."""
        entry = self._entries.get(store.data_dir)
        if entry is None or not entry.opening.done() or entry.opening.result() is not store:
            raise IllegalCall("the store is not open")
        closing = self._leave(store.data_dir, entry)
        if closing is not None:
            await asyncio.shield(closing)

    def _leave(self, path: Path, entry: _Entry) -> asyncio.Task[None] | None:
        entry.users -= 1
        if entry.users == 0:
            entry.closing = asyncio.create_task(self._close(path, entry))
        return entry.closing

    async def _close(self, path: Path, entry: _Entry) -> None:
        try:
            await asyncio.wait([entry.opening])
            if not entry.opening.cancelled() and entry.opening.exception() is None:
                await entry.opening.result().close()
        finally:
            del self._entries[path]

    async def _open(self, data_dir: Path) -> Store:
        path = data_dir / "crushlite.db"
        executor = self._executor("crushlite-writer")
        try:
            opened = await run_in(executor, path, lambda: self._prepare(path))
        except BaseException:
            executor.close()
            raise
        writer = Writer(executor, opened.conn, path)
        try:
            reader = await self._open_reader(path)
        except BaseException:
            await writer.close()
            opened.lock.release()
            raise
        return Store(path, self._boot_id, opened, writer, reader)

    async def _open_reader(self, path: Path) -> Reader:
        executor = self._executor("crushlite-reader")
        try:
            conn = await run_in(executor, path, lambda: self._connect(path, True))
        except BaseException:
            executor.close()
            raise
        return Reader(executor, conn, path)

    def _prepare(self, path: Path) -> _Opened:
        with translated(path):
            make_directory(path.parent)
            lock = DirectoryLock(path.parent)
            try:
                create_database_file(path)
                inspect(path, self._connect)
                return self._open_writer(path, lock)
            except BaseException:
                lock.release()
                raise

    def _open_writer(self, path: Path, lock: DirectoryLock) -> _Opened:
        conn = self._connect(path, False)
        try:
            configure(conn)
            migrate(conn)
            with transaction(conn):
                recovered = recover(conn, self._boot_id, self._clock.now())
        except BaseException:
            conn.close()
            raise
        return _Opened(conn, lock, recovered)
