"""SQLite connections: how they are opened, and what their errors mean outside the store.

`connect` opens every file; a test that wants faults passes its own factory. `translate` makes
errors of the package out of those of sqlite3: no other module of crushlite sees the latter.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import sqlite3
import sys
from collections.abc import Callable
from sqlite3 import Connection as Connection  # so that others can name what their work is given
from typing import TYPE_CHECKING

from ..errors import BadRequest, CorruptDatabase, CrushliteError, StoreBusy, StoreFailed, StoreFull
from .checkpoints import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import UnionType

# Opens the database at a path, perhaps read-only. The connection is used in several threads, one at
# a time.
ConnectionFactory = Callable[["Path", bool], Connection]

BUSY_TIMEOUT = 5.0  # seconds: longer than the lock of a backup tool, short enough for a request


def connect(path: Path, read_only: bool) -> sqlite3.Connection:
    """Open a connection without the implicit transactions of Python's module."""
    uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
    conn = sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT,
        cached_statements=256,
        check_same_thread=False,  # an executor uses one thread at a time, not always the same
    )
    distrust(conn)
    return conn


def distrust(conn: sqlite3.Connection) -> None:
    """Switch off what SQLite lets a file decide: it may have come with a clone. Reads no file."""
    conn.execute("PRAGMA trusted_schema = OFF")
    conn.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):  # before that Python has no access to these
        conn.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        conn.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)


def configure(conn: sqlite3.Connection) -> None:
    """Set up a read-write connection, whatever factory opened it."""
    conn.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
    conn.execute("PRAGMA foreign_keys = ON")
    distrust(conn)
    (mode,) = conn.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        # Without it a reader and the writer would lock each other out.
        raise StoreFailed(f"the file system does not support SQLite's WAL mode (got {mode})")
    conn.execute("PRAGMA wal_autocheckpoint = 0")  # the writer makes them: see checkpoints.py
    conn.execute(f"PRAGMA journal_size_limit = {KEEP}")


def check_row(what: str, row: Sequence[object], kinds: Sequence[type | UnionType]) -> None:
    """Raise CorruptDatabase if a value of a row is not of its kind, or no finite number. SQLite
    stores any kind in any column, so a flipped bit can change it; if that were noticed only when
    the value is encoded it would look like a bug. `what` and the first value name the row."""
    fit, floats = _fit(tuple(map(type, row)), tuple(kinds))
    if not fit or not all(math.isfinite(row[at]) for at in floats):  # type: ignore[arg-type]
        raise CorruptDatabase(f"{what} {row[0]!r} is damaged and cannot be read")


@functools.cache  # rows are many, combinations of types are few: SQLite has five
def _fit(
    types: tuple[type, ...], kinds: tuple[type | UnionType, ...]
) -> tuple[bool, tuple[int, ...]]:
    """Whether values of these types are of these kinds, and where the floats are."""
    floats = tuple(at for at, one in enumerate(types) if one is float)
    return all(map(issubclass, types, kinds)), floats


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
    sqlite3.SQLITE_IOERR_SHMSIZE: StoreFull,  # if the index of the log cannot grow
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
}
# The work itself was wrong: it would fail again, and no client can do anything.
_BUGS = (
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(sqlite3.NotSupportedError, StopIteration),  # a future cannot hold the last one
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BREAKING = (
    *(*_DAMAGE, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM),
)
# Damage that SQLite, or its Python module, reports without an error code.
_WORDS = ("Could not decode to UTF-8", "unsupported file format")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def says_damage(error: BaseException) -> bool:
    """Whether SQLite has met pages that make no sense, or Python a text that is none."""
    if isinstance(error, sqlite3.Error):
        return _code(error) & 0xFF in _DAMAGE or any(word in str(error) for word in _WORDS)
    return isinstance(error, UnicodeDecodeError)


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection may go on failing although the cause of this error is gone."""
    return isinstance(error, sqlite3.Error) and _code(error) & 0xFF in _BREAKING


def translate(error: BaseException, path: Path) -> BaseException:
    """The error that callers of the store see for `error`. A new one each time, as raising an
    error adds to it; errors of the package are returned as they are."""
    answer: BaseException
    code = _code(error)
    if says_damage(error):
        answer = CorruptDatabase(f"{path} is damaged: {error}")
    elif isinstance(error, _BUGS) or code == sqlite3.SQLITE_ERROR:  # a statement without sense
        answer = RuntimeError(f"{path}: {error!r}")
    elif isinstance(error, sqlite3.DataError):
        answer = BadRequest("a text is too long to be stored")
    elif isinstance(error, sqlite3.Error):
        kind = _BY_CODE.get(code) or _BY_CODE.get(code & 0xFF, StoreFailed)
        answer = kind(f"{path}: {error}")
    elif isinstance(error, OSError):
        answer = (StoreFull if error.errno in _FULL else StoreFailed)(f"{path}: {error}")
    elif isinstance(error, OverflowError):
        answer = BadRequest("an integer does not fit in 64 bits")
    elif isinstance(error, UnicodeEncodeError):
        answer = BadRequest("a text holds a lone surrogate")
    else:
        return error
    answer.__cause__ = error
    return answer


def _code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0))  # absent on errors of the Python module
