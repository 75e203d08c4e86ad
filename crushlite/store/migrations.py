"""Bringing a file to this version of the schema, step by step.

Each step is one transaction together with the new `user_version`: whenever the process dies, the
file is at exactly one version. Before it the file is copied to `crushlite.db.v<old>.bak`, which an
older crushlite can use; the last few copies are kept.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from .connection import transaction
from .directory import sync_directory
from .schema import V1, V2, V3, V4, V5, V6

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

BACKUPS = 2  # copies that are kept: each may be as large as the database


MIGRATIONS: tuple[tuple[str, ...], ...] = (V1, V2, V3, V4, V5, V6)  # statements, by version
VERSION = len(MIGRATIONS)


def version_of(conn: sqlite3.Connection) -> int:
    """The schema version of a database, 0 if it has just been created."""
    return int(conn.execute("PRAGMA user_version").fetchone()[0])


def migrate(
    conn: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Apply the migrations that the database at `path` does not have yet."""
    found = version_of(conn)
    for version in range(found, len(migrations)):
        if found > 0:  # a new file holds nothing
            _backup(conn, path, version)
        with transaction(conn):
            for statement in migrations[version]:
                conn.execute(statement)
            conn.execute(f"PRAGMA user_version = {version + 1}")


def _backup(conn: sqlite3.Connection, path: Path, version: int) -> None:
    target = path.with_name(f"{path.name}.v{version}.bak")
    half = path.with_name(f"{target.name}.tmp")
    half.unlink(missing_ok=True)  # of an attempt that was cut short
    descriptor = os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        conn.execute("VACUUM INTO ?", (str(half),))  # takes an empty file as if it were none
        os.fsync(descriptor)  # SQLite does not: it takes the copy for something to throw away
        half.rename(target)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)
    name = re.compile(re.escape(path.name) + r"\.v(\d+)\.bak")
    copies = {
        int(found[1]): file
        for file in path.parent.iterdir()
        if (found := name.fullmatch(file.name))
    }
    for old in sorted(copies)[:-BACKUPS]:
        copies[old].unlink()
