"""Keeping the log of a running store short.

A commit appends to the log (`crushlite.db-wal`). A checkpoint copies the log into the database, and
the next commit writes the log from its start again. SQLite would make checkpoints inside a commit,
while a client waits for it; here the writer makes them after the answers have gone out. A log that
starts anew is cut to KEEP and not to nothing, as writing over old blocks is cheaper than growing a
file: so one that is larger holds that much, and a checkpoint is due.

A checkpoint cannot copy what was committed after the moment that a read still sees, and until one
is complete the file only grows. So reads and checkpoints take turns: the writer holds off the next
read and, once the log is longer than WAIT, waits a moment for the one under way. If that takes
longer it copies what it can, and tries again after each batch; past BRAKE it waits for the read,
for a bounded time. A log that another program's long read makes grow further is reported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

KEEP = 4 * 2**20  # bytes: about a thousand pages, some milliseconds of copying
WAIT = 3 * KEEP  # bytes: a shorter log is no reason to let a write wait for a read
BRAKE = 48 * 2**20  # bytes: at that pace every write waits for the disk anyway
_PATIENCE = 0.02  # seconds: longer than most reads, once per KEEP bytes of log
_BRAKING = 5.0  # seconds: a read that takes longer must not stop the store

log = logging.getLogger(__name__)


class Checkpoints:
    """`reading` is for the reader's thread, the other methods are for the writer's."""

    def __init__(self, path: Path) -> None:
        self._file = path.with_name(path.name + "-wal")
        self._size = 0  # of the log after the last commit
        self._next = KEEP  # the size past which a checkpoint is due
        self._postponed = False  # a read was in the way of the last one
        self._warned: set[str] = set()

        self._entry = threading.Lock()  # taken to begin a read, and to hold off the next one
        self._read = threading.Lock()  # held during a read

    def measure(self, conn: sqlite3.Connection) -> None:
        """Measure the log after a commit, before that is acknowledged. A log deleted in use
        still works but would be gone with the process, so copy it into the database now."""
        try:
            self._size = os.stat(self._file).st_size
        except FileNotFoundError:
            self._size = 0
            self._warn("%s was deleted while in use: every write goes through it", self._file)
            with self._between_reads():
                conn.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def trim(self, conn: sqlite3.Connection) -> None:
        """Make a checkpoint if one is due or was postponed."""
        if self._size <= KEEP:
            self._next, self._postponed = KEEP, False
            return
        due = self._size > self._next
        if not due and not self._postponed:
            return
        braking = self._size > BRAKE
        patience = _BRAKING if braking else _PATIENCE if due and self._size > WAIT else 0.0
        with self._between_reads(patience) as alone:
            self._postponed = not alone
            if alone or due:
                self._next = self._size + KEEP
                _, pages, copied = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if braking and alone and copied < pages:
                    self._warn("%s grows: another program reads it for long", self._file)
            if braking and not alone:
                self._warn("%s grows: a read takes longer than %g s", self._file, _BRAKING)

    def empty(self, conn: sqlite3.Connection) -> None:
        """Copy all of the log into the database and cut it off, after the read under way."""
        with self._between_reads():
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Around each read: wait for a checkpoint under way, then keep the next one off."""
        with self._entry:
            self._read.acquire()
        try:
            yield
        finally:
            self._read.release()

    @contextlib.contextmanager
    def _between_reads(self, patience: float = -1) -> Iterator[bool]:
        """Hold off the next read and wait for the one under way, at most `patience` seconds if that
        is not negative. Yields whether no read is under way."""
        with self._entry:
            alone = self._read.acquire(timeout=patience)
            try:
                yield alone
            finally:
                if alone:
                    self._read.release()

    def _warn(self, message: str, *args: object) -> None:
        if message not in self._warned:  # once is enough, and it may go on for hours
            self._warned.add(message)
            log.warning(message, *args)
