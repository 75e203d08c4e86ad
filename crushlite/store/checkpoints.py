"""Keeping the log of a running store short.

A commit appends to the log (`crushlite.db-wal`); a checkpoint copies the log into the database, and
the commit after it starts the file anew. SQLite would do that inside a commit, while somebody waits
for it. Here it is done between batches, after the answers have gone out.

The file keeps the size KEEP when it starts anew, as writing over old blocks is cheaper than growing
the file. So a file that is larger than KEEP holds that much, and it is time.

A checkpoint cannot go past the moment that a read still sees, and without a complete one the file
only grows. The writer does not wait for a read, so it is the reader that gives way: it sees one
moment per call, and before the next call it lets a checkpoint through that is due. So the log is
bounded by what is written during one read. Only if that is more than BRAKE does the writer wait for
the end of the read after all. A foreign program with an open read can make the log grow further;
that is logged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEEP = 4 * 2**20  # bytes: about a thousand pages, some milliseconds of copying
BRAKE = 48 * 2**20  # bytes: at that pace the disk is what everybody waits for anyway
TOO_LONG = 64 * 2**20  # bytes: past it somebody must be told
_BRAKING = 5.0  # seconds: a read that takes longer must not stop the store
_GAP = 1.0  # seconds that a read waits at most for a checkpoint: the writer may be locked out

log = logging.getLogger(__name__)


class Checkpoints:
    """`settle` and `trim` are for the writer's thread, `read` for the reader's."""

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(path.name + "-wal")
        self._size = 0  # after the last commit
        self._next = KEEP  # the size at which a checkpoint is tried again
        self._warned: set[str] = set()

        self._reading = threading.Lock()  # held during a read
        self._due = threading.Event()  # a checkpoint could not be completed because of a read
        self._done = threading.Event()

    @staticmethod
    def configure(conn: sqlite3.Connection) -> None:
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute(f"PRAGMA journal_size_limit = {KEEP}")

    def settle(self, conn: sqlite3.Connection) -> None:
        """Before a commit is acknowledged. A log that was deleted under the store still works, but
        would be gone with the process: what is in it goes into the database at once."""
        try:
            self._size = self._file.stat().st_size
        except FileNotFoundError:
            self._size = 0
            self._warn("%s was deleted while in use: every write goes through it", self._file)
            with self._reading:
                conn.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def trim(self, conn: sqlite3.Connection) -> None:
        """After a commit was acknowledged."""
        if self._size <= KEEP:
            self._next = KEEP
        elif self._reading.acquire(timeout=_BRAKING if self._size > BRAKE else 0):
            try:
                if self._size > self._next or self._due.is_set():
                    self._checkpoint(conn)
                    if self._size > TOO_LONG:
                        self._warn("%s grows: another program reads it for long", self._file)
            finally:
                self._reading.release()
                self._due.clear()
                self._done.set()
        else:
            self._done.clear()
            self._due.set()
            if self._size > self._next:
                self._checkpoint(conn)  # as far as it can: less is left for later

    def _checkpoint(self, conn: sqlite3.Connection) -> None:
        self._next = self._size + KEEP
        conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def empty(self, conn: sqlite3.Connection) -> None:
        """Copy all of the log into the database and cut it off, while nobody reads."""
        with self._reading:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def read(self, poke: Callable[[], None]) -> Iterator[None]:
        """Around a read. `poke` makes the writer trim soon if it is idle."""
        with self._reading:
            yield
        if self._due.is_set():
            poke()
            if not self._done.wait(_GAP):
                self._due.clear()  # no further read shall wait until the writer asks again

    def _warn(self, message: str, *args: object) -> None:
        if message not in self._warned:  # once is enough, and it may go on for hours
            self._warned.add(message)
            log.warning(message, *args)
