"""The computer that a simulated daemon runs on: its disk, the threads of its stores, its random
numbers. It outlives the daemon, which may crash."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sqlite3
import uuid
from collections import deque
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.store import inspection, stores as stores_module
from crushlite.store.directory import DirectoryLock
from tests.support.disk import WRITES, Disk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.simulation.loop import SeededLoop

_EXPECTED = functools.cache(inspection._expected)
SIDE_FILES = ("", "-wal")  # what of a database a crash leaves; SQLite makes its index anew


class SimulatedDisk(Disk):
    """A disk that can be filled, locked and shaken, and that keeps what was on it when the daemon
    dies: the database and its log as they were, without what SQLite would do on a close."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[tuple[sqlite3.Connection, bool]] = []
        self._locks: set[_HeldLock] = set()
        self._failures = 0  # writes that still fail with an I/O error

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
        conn = super().connect(path, read_only)
        self._open.append((conn, read_only))
        return conn

    def check(self, conn: sqlite3.Connection, sql: str) -> None:
        if self._failures and " ".join(sql.split()).startswith((*WRITES, "COMMIT")):
            self._failures -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        super().check(conn, sql)

    def query(self, sql: str, *values: object) -> list[tuple[object, ...]] | None:
        """Read what is committed, through the newest connection that cannot write; None if no store
        is open."""
        for conn, read_only in reversed(self._open):
            if read_only:
                try:
                    return sqlite3.Connection.execute(conn, sql, values).fetchall()
                except sqlite3.ProgrammingError:
                    continue  # it is closed
        return None

    def locked(self, lock: _HeldLock) -> None:
        self._locks.add(lock)

    def unlocked(self, lock: _HeldLock) -> None:
        self._locks.discard(lock)

    @property
    def in_use(self) -> bool:
        """Whether a data directory is still owned."""
        return bool(self._locks)

    def crash(self, databases: list[Path]) -> None:
        """The process that used the disk is dead."""
        files = [path.with_name(path.name + suffix) for path in databases for suffix in SIDE_FILES]
        kept = {file: file.read_bytes() for file in files if file.exists()}
        for conn, _ in self._open:
            conn.close()
        self._open.clear()
        for lock in list(self._locks):
            lock.release()
        for path in databases:
            path.with_name(path.name + "-shm").unlink(missing_ok=True)
        for file in files:
            file.unlink(missing_ok=True)
        for file, content in kept.items():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, content)
            os.close(descriptor)

    def forget_closed(self) -> None:
        """The daemon has left in order: its connections are closed."""
        self._open.clear()


class _HeldLock(DirectoryLock):
    disk: SimulatedDisk

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.disk.locked(self)

    def release(self) -> None:
        self.disk.unlocked(self)
        super().release()


class SeededExecutor:
    """For `Stores(executor=...)`: runs calls in order, each after a drawn time, on the thread of
    the loop. So calls pile up and are committed together, and anything may happen before that."""

    def __init__(self, loop: SeededLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self._calls: deque[Callable[[], None]] = deque()
        self._running = False

    def submit(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if len(self._calls) == 1 and not self._running:
            self._arm()

    def close(self) -> None:
        while self._calls and not self._loop.dead:
            self._calls.popleft()()

    def _arm(self) -> None:
        self._loop.call_later(self._delay(), self._run)

    def _run(self) -> None:
        if not self._calls:
            return  # closed meanwhile
        call = self._calls.popleft()
        self._running = True
        try:
            call()
        finally:
            self._running = False
        if self._calls:
            self._arm()


class SeededIds:
    """What the product takes from the system's random numbers, drawn from the seed instead."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    def token_hex(self, count: int | None = None) -> str:
        return self._rng.randbytes(count or 32).hex()

    def urandom(self, count: int) -> bytes:
        return self._rng.randbytes(count)


@contextlib.contextmanager
def seeded_machine(disk: SimulatedDisk, ids: SeededIds) -> Iterator[None]:
    """Let the product use this disk's locks and these random numbers."""
    lock = type("HeldLock", (_HeldLock,), {"disk": disk})
    with (
        mock.patch.object(stores_module, "DirectoryLock", lock),
        mock.patch.object(uuid, "uuid4", ids.uuid4),
        mock.patch.object(secrets, "token_hex", ids.token_hex),
        mock.patch.object(os, "urandom", ids.urandom),
        mock.patch.object(inspection, "_expected", _EXPECTED),  # always the same, and slow to make
    ):
        yield
