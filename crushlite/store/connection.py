"""SQLite connections: how they are opened, and what their errors mean outside the store.

`connect` is the only call of `sqlite3.connect`; a test that wants faults passes its own factory.
`translate` is the edge: past it no error of sqlite3 is seen.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from sqlite3 import Connection  # so that others can name what their work is given
from typing import TYPE_CHECKING, Protocol

from crushlite.errors import (
    BadRequest,
    CorruptDatabase,
    CrushliteError,
    StoreBusy,
    StoreFailed,
    StoreFull,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "BUSY_TIMEOUT",
    "Connection",
    "ConnectionFactory",
    "configure",
    "connect",
    "transaction",
    "translate",
    "translated",
]

BUSY_TIMEOUT = 5.0  # seconds: longer than any backup tool's lock, shorter than a person's patience


class ConnectionFactory(Protocol):
    """Opens the database at `path`; called in the thread that will use the connection."""

    def __call__(self, path: Path, read_only: bool) -> sqlite3.Connection: ...


def connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """A connection without the module's implicit transactions: every BEGIN here is explicit."""
    uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT, cached_statements=256
    )


def configure(conn: sqlite3.Connection) -> None:
    """What the read-write connection relies on, whatever factory opened it."""
    conn.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
    conn.execute("PRAGMA foreign_keys = ON")
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        # Without it a reader and the writer would lock each other out.
        raise StoreFailed(f"the file system does not support SQLite's WAL mode (got {mode})")


@contextlib.contextmanager
def transaction(conn: sqlite3.Connection) -> Iterator[None]:
    """One write transaction for the steps of opening; the writer has its own, with savepoints."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:  # SQLite may have dropped it already
            conn.execute("ROLLBACK")
        raise


# Errors -----------------------------------------------------------------------------------------

_BY_CODE: dict[int, type[CrushliteError]] = {
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_CORRUPT: CorruptDatabase,
    sqlite3.SQLITE_NOTADB: CorruptDatabase,
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def translate(error: BaseException, path: Path) -> BaseException:
    """What the outside sees of `error`: a new error for each call, as raising one adds to it."""
    answer: BaseException
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)  # absent on errors of the Python module
        cls = _BY_CODE.get(code & 0xFF, StoreFailed)
        # The shared-memory file is grown apart from the others and reports a full disk its own way.
        answer = (StoreFull if code == sqlite3.SQLITE_IOERR_SHMSIZE else cls)(f"{path}: {error}")
    elif isinstance(error, OSError):
        answer = (StoreFull if error.errno in _FULL else StoreFailed)(f"{path}: {error}")
    elif isinstance(error, OverflowError):
        answer = BadRequest("an integer does not fit in 64 bits")
    elif isinstance(error, UnicodeEncodeError):
        answer = BadRequest("a text holds a lone surrogate")
    elif isinstance(error, StopIteration):
        answer = RuntimeError("a store call raised StopIteration")  # a future cannot hold one
    else:
        return error
    answer.__cause__ = error
    return answer


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate(error, path) from error
