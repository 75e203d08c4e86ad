"""A disk that a test fills, locks and frees, under stores that are otherwise real."""

from __future__ import annotations

import sqlite3
import uuid
from typing import TYPE_CHECKING, Any

from crushlite.testing import InlineExecutor, Stores

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.clock import Clock

__all__ = ["Disk"]

WRITES = ("INSERT", "UPDATE", "DELETE")


class Disk:
    """Refuses what is written, as SQLite would say it. Stores run in the test's own thread."""

    def __init__(self) -> None:
        self.refused: list[str] = []  # statements, in order
        self._error = 0
        self._only = ""

    def stores(self, clock: Clock, boot_id: str = "") -> Stores:
        boot = boot_id or str(uuid.uuid4())
        return Stores(
            clock=clock,
            boot_id=boot,
            executor=InlineExecutor,
            connect=self.connect,
            sharing_seconds=0,
        )

    def fill(self, only: str = "") -> None:
        """No room: for anything, or for the statements that hold these words."""
        self._error, self._only = sqlite3.SQLITE_FULL, only

    def lock(self) -> None:
        """Another process holds the write lock and does not yield."""
        self._error, self._only = sqlite3.SQLITE_BUSY, ""

    def free(self) -> None:
        self._error = 0

    def connect(self, path: Path, read_only: bool) -> sqlite3.Connection:
        mode = "ro" if read_only else "rw"
        uri = f"{path.as_uri()}?mode={mode}"
        conn = sqlite3.connect(
            uri, uri=True, isolation_level=None, factory=_Connection, check_same_thread=False
        )
        conn.disk = self
        return conn

    def check(self, conn: sqlite3.Connection, sql: str) -> None:
        statement = " ".join(sql.split())
        if self._error == sqlite3.SQLITE_FULL:
            if not statement.startswith(WRITES) or self._only not in statement:
                return
            conn.rollback()  # as SQLite does by itself
        elif self._error != sqlite3.SQLITE_BUSY or statement != "BEGIN IMMEDIATE":
            return
        self.refused.append(statement)
        full = self._error == sqlite3.SQLITE_FULL
        error = sqlite3.OperationalError(f"{'disk is full' if full else 'database is locked'}")
        error.sqlite_errorcode = self._error
        raise error


class _Connection(sqlite3.Connection):
    disk: Disk

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if not hasattr(self, "disk"):
            return super().execute(sql, *args)
        self.disk.check(self, sql)
        return super().execute(sql, *args)
