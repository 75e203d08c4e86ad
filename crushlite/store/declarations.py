"""What a database declares, compared exactly with what our migrations declare.

A database can hold programs: triggers, views, generated columns, checks, expressions in indexes and
defaults, virtual tables. They run when rows are read or written, some already during a check of the
pages, and one that does not end would hang the thread that runs it. A cloned project may come with
a database, so one that declares anything else than ours is refused before any of its rows is read.

Reading the declarations is itself the first thing that a file can make expensive, as SQLite parses
all of them and reads its statistics before the first statement. So this is done with tight limits.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase
from .migrations import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

Declaration = tuple[str, str, str, str | None]  # type, name, table, SQL

# While declarations are read. Ours take less than a tenth of each.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 65_536,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 65_536,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 0,  # its cost grows without bound with the pattern
}
_STEPS = 1_000  # of SQLite's machine, between two looks at how many there were
_LOOKS = 100  # ours take one or two; SQLite takes a minute to parse 300,000 declarations
# What SQLite adds for itself, by PRAGMA optimize.
_STATISTICS: frozenset[Declaration] = frozenset(
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in (
        ("sqlite_stat1", "tbl,idx,stat"),
        ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample"),
    )
)
_READ = "SELECT type, name, tbl_name, sql FROM sqlite_master"


@contextlib.contextmanager
def limited(conn: sqlite3.Connection) -> Iterator[None]:
    """Bound what a statement may cost that reads the declarations: it is interrupted if it takes
    more than 100,000 steps."""
    before = {limit: conn.setlimit(limit, value) for limit, value in _LIMITS.items()}
    left = _LOOKS

    def used_up() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    conn.set_progress_handler(used_up, _STEPS)
    try:
        yield
    finally:
        conn.set_progress_handler(None, 0)
        for limit, value in before.items():
            conn.setlimit(limit, value)


def declared(conn: sqlite3.Connection) -> frozenset[Declaration]:
    """All that a database declares. Raises CorruptDatabase if that is too much to be read."""
    try:
        with limited(conn):
            return frozenset(conn.execute(_READ).fetchall())
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG):
            raise CorruptDatabase("its declarations are too large") from error
        raise


@functools.cache
def expected(version: int) -> frozenset[Declaration]:
    """What a database of a schema version declares, without the statistics."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for migration in MIGRATIONS[:version]:
            migration.apply(conn)
        return frozenset(conn.execute(_READ).fetchall())
    finally:
        conn.close()


def missing(found: frozenset[Declaration], version: int) -> str | None:
    """The name of something that a schema version declares and that was not found as it should be,
    None if all of it is there."""
    return min((name for _, name, *_ in expected(version) - found), default=None)


def foreign(found: frozenset[Declaration], version: int) -> str | None:
    """Type and name of something that was found and that a schema version does not declare, None if
    there is nothing."""
    others = found - expected(version) - _STATISTICS
    return min((f"{kind} {str(name)[:80]!r}" for kind, name, *_ in others), default=None)
