"""A copy of a database, taken beside whoever uses it.

The copy is made by SQLite from one moment of the database: everything that was committed before is
in it, nothing that came later is half in it, and writers are not held up. It is checked before it
gets its name, and is a whole database in one file: put into a data directory as `crushlite.db` it
is opened like any other.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crushlite.errors import Conflict, CorruptDatabase, NotFound
from crushlite.store.connection import connect, translated
from crushlite.store.directory import sync_directory
from crushlite.store.inspection import check_pages
from crushlite.store.migrations import version_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

__all__ = ["Copied", "backup"]


@dataclass(frozen=True, slots=True)
class Copied:
    """`version` is that of the schema."""

    path: Path
    bytes: int
    sessions: int
    messages: int
    version: int


def backup(source: Path, target: Path, *, force: bool = False) -> Copied:
    """Copy the database `source` to a new file that only its owner may read. An existing one is
    replaced only with `force`, and only by a copy that is good."""
    if not source.exists():
        raise NotFound(f"there is no database {source}: name another data directory")
    if target.exists() and not force:
        raise Conflict(f"{target} exists already; use --force to replace it")
    half = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with translated(source):
        try:
            os.close(os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            _copy(source, half)
            copied = _checked(half, target)
            _named(half, target, force=force)
        finally:
            for tail in ("", "-journal", "-wal", "-shm"):
                half.with_name(half.name + tail).unlink(missing_ok=True)
    return copied


def _copy(source: Path, half: Path) -> None:
    old, new = connect(source, True), connect(half, False)
    try:
        # All pages in one step: in several, each write in between would start it anew.
        old.backup(new)
        (mode,) = new.execute("PRAGMA journal_mode = DELETE").fetchone()  # one file, no log
        if mode != "delete":
            raise CorruptDatabase(f"the copy {half} cannot be closed ({mode})")
    finally:
        new.close()
        old.close()


def _checked(half: Path, target: Path) -> Copied:
    conn = connect(half, True)
    try:
        verdict = check_pages(conn, "integrity_check")
        if verdict is not None or conn.execute("PRAGMA foreign_key_check").fetchone():
            raise CorruptDatabase(f"the copy is damaged, as the database must be: {verdict}")
        sessions, messages = (_count(conn, table) for table in ("sessions", "messages"))
        size = half.stat().st_size
        return Copied(target, size, sessions, messages, version_of(conn))
    finally:
        conn.close()


def _count(conn: sqlite3.Connection, table: str) -> int:
    return int(conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _named(half: Path, target: Path, *, force: bool) -> None:
    descriptor = os.open(half, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if force:
        half.replace(target)
    else:
        try:
            os.link(half, target)  # unlike a rename it does not replace what has come meanwhile
        except FileExistsError:
            raise Conflict(f"{target} exists already; use --force to replace it") from None
    sync_directory(target.parent)
