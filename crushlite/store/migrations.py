"""Bringing a file to this version of the schema, step by step.

Each migration is one transaction together with the new `user_version`: whenever the process dies,
the file is at exactly one version. Before it the file is copied to `crushlite.db.v<old>.bak`, which
an older crushlite can use; the last few copies are kept.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ..records import dataclass
from .connection import transaction
from .directory import sync_directory
from .schema import V1, V2, V3, V4, V5, V6

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

BACKUPS = 2  # copies that are kept: each may be as large as the database


@dataclass(frozen=True, slots=True)
class Migration:
    """From `version` - 1 to `version`. A step is a statement, or a function where SQL is not
    enough; it must not touch anything but the connection."""

    version: int
    steps: tuple[str | Callable[[sqlite3.Connection], None], ...]

    def apply(self, conn: sqlite3.Connection) -> None:
        for step in self.steps:
            if isinstance(step, str):
                conn.execute(step)
            else:
                step(conn)
        conn.execute(f"PRAGMA user_version = {self.version}")


MIGRATIONS: tuple[Migration, ...] = tuple(
    Migration(number, steps) for number, steps in enumerate((V1, V2, V3, V4, V5, V6), start=1)
)
VERSION = MIGRATIONS[-1].version


def version_of(conn: sqlite3.Connection) -> int:
    """The schema version of a database, 0 if it has just been created."""
    return int(conn.execute("PRAGMA user_version").fetchone()[0])


def migrate(
    conn: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Apply the migrations that the database at `path` does not have yet."""
    found = version_of(conn)
    for migration in migrations[found:]:
        if found > 0:  # a new file holds nothing
            _backup(conn, path, migration.version - 1)
        with transaction(conn):
            migration.apply(conn)


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
    for old in _backups(path)[:-BACKUPS]:
        old.unlink()


def _backups(path: Path) -> list[Path]:
    """The copies beside a database, of the oldest version first."""
    found = {}
    for file in path.parent.iterdir():
        match = re.fullmatch(re.escape(path.name) + r"\.v(\d+)\.bak", file.name)
        if match:
            found[int(match[1])] = file
    return [found[version] for version in sorted(found)]
