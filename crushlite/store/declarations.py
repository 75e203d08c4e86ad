"""What a database declares, compared exactly with what our migrations declare.

A database can hold programs: triggers, views, generated columns, checks, expressions in indexes and
defaults, virtual tables. They run when rows are read or written, some already during a check of the
pages, and one that does not end would hang its thread. A cloned project may come with a database,
so one that declares anything else than ours is refused before any of its rows is read. SQLite
parses all declarations and reads its statistics before the first statement, so already that is done
with tight limits.
"""

from __future__ import annotations

import functools
import itertools
import sqlite3

from ..errors import CorruptDatabase
from .migrations import MIGRATIONS

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


def declared(conn: sqlite3.Connection) -> frozenset[Declaration]:
    """All that a database declares. Raises CorruptDatabase if that is too much to be read: the
    statement is interrupted if it takes more than 100,000 steps."""
    before = {limit: conn.setlimit(limit, value) for limit, value in _LIMITS.items()}
    looks = itertools.count(1)
    conn.set_progress_handler(lambda: next(looks) > _LOOKS, _STEPS)
    try:
        return frozenset(conn.execute(_READ).fetchall())
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG):
            raise CorruptDatabase("its declarations are too large") from error
        raise
    finally:
        conn.set_progress_handler(None, 0)
        for limit, value in before.items():
            conn.setlimit(limit, value)


@functools.cache
def expected(version: int) -> frozenset[Declaration]:
    """What a database of a schema version declares, without the statistics."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                conn.execute(statement)
        return frozenset(conn.execute(_READ).fetchall())
    finally:
        conn.close()


def compare(found: frozenset[Declaration], version: int) -> tuple[str | None, str | None]:
    """The name of something that a schema version declares and that was not found as it should be,
    and type and name of something that was found besides; None if there is nothing."""
    wanted = expected(version)
    others = found - wanted - _STATISTICS
    return (
        min((name for _, name, *_ in wanted - found), default=None),
        min((f"{kind} {str(name)[:80]!r}" for kind, name, *_ in others), default=None),
    )
