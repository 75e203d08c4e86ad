"""The computer that a simulated daemon runs on: its disk, the threads of its stores, its random
numbers. It outlives the daemon, which may crash, and it may itself lose its power."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import struct
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.reports.watchdog import Watchdog
from crushlite.store import stores as stores_module
from crushlite.store.directory import DirectoryLock
from tests.support.disk import WRITES, Disk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.simulation.loop import SeededLoop

_FRAME = 24  # bytes of the header of a frame in SQLite's log; the log's own header has 32


class SimulatedDisk(Disk):
    """The disk of one database: it can be filled, locked and shaken, and keeps what was on it when
    the daemon dies. If the power fails it may lose what was written to the log since the last
    flush, from any frame on."""

    def __init__(self, database: Path, rng: random.Random) -> None:
        super().__init__()
        self.database = database
        self.locks: set[DirectoryLock] = set()  # of data directories that are owned
        self.dies_at: int | None = None  # the number of statements until the daemon dies
        self.dying: Callable[[], None] = lambda: None  # called then
        self.power_fails = False  # when the daemon dies
        self._rng = rng
        self._failures = 0  # writes that still fail with an I/O error
        self._open: list[_SimulatedConnection] = []
        self._flushed: tuple[bytes, int] = (b"", 0)  # which log, and how many frames of it
        # The files that are left when the daemon has died, and what was flushed of the log then.
        self._image: tuple[dict[Path, bytes], tuple[bytes, int]] | None = None

    @property
    def troubled(self) -> bool:
        return bool(self._error or self._failures)

    def shake(self, times: int) -> None:
        """The next writes fail with an I/O error: each spoils its connection."""
        self._failures = times

    def free(self) -> None:
        super().free()
        self._failures = 0

    def connect(self, path: Path, read_only: bool) -> sqlite3.Connection:
        uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
        conn = sqlite3.connect(uri, uri=True, isolation_level=None, factory=_SimulatedConnection)
        conn.disk, conn.read_only = self, read_only
        self._open.append(conn)
        return conn

    def check(self, conn: sqlite3.Connection, sql: str) -> None:
        """Called before each statement: raises what the disk's state makes of it."""
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0 and self._image is None:
                self._image = self._what_is_left(), self._flushed
                self.dying()
        if self._failures and " ".join(sql.split()).startswith((*WRITES, "COMMIT")):
            self._failures -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        super().check(conn, sql)

    def flushed(self) -> None:
        """Everything in the log is safe from a power cut now."""
        self._flushed = self._log()[:2]

    def _log(self) -> tuple[bytes, int, int, int]:
        """The log in use: its salts, its frames, those copied into the database, its page size.
        Taken from the index that SQLite keeps beside it."""
        try:
            index = self._file("-shm").read_bytes()[:100]
        except FileNotFoundError:
            index = b""
        if len(index) < 100:
            return b"", 0, 0, 0
        page, frames = struct.unpack_from("=HI", index, 14)
        return index[32:40], frames, struct.unpack_from("=I", index, 96)[0], page

    def _file(self, suffix: str) -> Path:
        return self.database.with_name(self.database.name + suffix)

    def _what_is_left(self) -> dict[Path, bytes]:
        files = (self.database, self._file("-wal"), self.database.with_name("crushlite.lock"))
        left = {file: file.read_bytes() for file in files if file.exists()}
        salts, frames, copied, page = self._log()
        if self.power_fails and frames and files[1] in left:
            known, flushed = self._flushed
            safe = max(flushed if known == salts else 0, copied)
            kept = self._rng.randint(safe, frames)
            left[files[1]] = left[files[1]][: 32 + kept * (_FRAME + page)]
        return left

    def crash(self) -> None:
        """The process that used the disk is dead."""
        left, self._flushed = self._image or (self._what_is_left(), self._flushed)
        self._image = self.dies_at = None
        for conn in self._open:
            conn.close()
        self._open.clear()
        for lock in list(self.locks):
            lock.release()
        for suffix in ("", "-wal", "-shm"):
            self._file(suffix).unlink(missing_ok=True)
        for file, content in left.items():
            file.touch(0o600)
            file.write_bytes(content)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]] | None:
        """Read what is committed; None if no store is open."""
        for conn in reversed(self._open):
            if conn.read_only:
                with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
                    return sqlite3.Connection.execute(conn, sql, values).fetchall()
        return None

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        """Let `query` work after a crash."""
        if self.database.exists():
            self.connect(self.database, True)
        yield
        for conn in self._open:
            conn.close()
        self._open.clear()
        self._file("-shm").unlink(missing_ok=True)


class _SimulatedConnection(sqlite3.Connection):
    disk: SimulatedDisk | None = None
    read_only = False
    flushes = True  # at every commit, as a new connection does

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.disk is None:
            return super().execute(sql, *args)
        self.disk.check(self, sql)
        cursor = super().execute(sql, *args)
        if sql.startswith("PRAGMA synchronous"):
            self.flushes = sql.endswith("FULL")
        elif sql == "COMMIT" and self.flushes and not self.read_only:
            self.disk.flushed()
        return cursor


class SeededExecutor:
    """For `Stores(executor=...)`: runs calls in order, each after a drawn time, on the thread of
    the loop. So calls pile up and are committed together, and anything may happen before that."""

    def __init__(self, loop: SeededLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self._calls: deque[Callable[[], None]] = deque()
        self._running = False

    def start(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if len(self._calls) == 1 and not self._running:
            self._loop.call_later(self._delay(), self._run)

    def _run(self) -> None:
        call = self._calls.popleft()
        self._running = True
        try:
            call()
        finally:
            self._running = False
        if self._calls:
            self._loop.call_later(self._delay(), self._run)


@contextlib.contextmanager
def seeded_machine(disk: SimulatedDisk, rng: random.Random) -> Iterator[None]:
    """Let the product use this disk's locks, and take its random numbers from `rng`."""

    class HeldLock(DirectoryLock):
        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            disk.locks.add(self)

        def release(self) -> None:
            disk.locks.discard(self)
            super().release()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    def token_hex(count: int | None = None) -> str:
        return rng.randbytes(count or 32).hex()

    with (
        mock.patch.object(stores_module, "DirectoryLock", HeldLock),
        mock.patch.object(uuid, "uuid4", uuid4),
        mock.patch.object(secrets, "token_hex", token_hex),
        mock.patch.object(os, "urandom", rng.randbytes),
        mock.patch.object(Watchdog, "start"),  # it watches real time from a thread
    ):
        yield
