"""Queries over the versions of files that a session changed, and over what it has read."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

from crushlite.protocol.sessions import File
from crushlite.store.sessions import require_session

if TYPE_CHECKING:
    import sqlite3

__all__ = ["insert_file", "last_read", "list_files", "list_read", "mark_read", "record_change"]

_COLUMNS = "id, session_id, path, content, version, created_at, updated_at"


def insert_file(conn: sqlite3.Connection, scope: str, file: File) -> File:
    """Add the next version of a path; version 0 is the state before the session's first change.
    Returns the file with the version it got: the one in the argument is not believed."""
    require_session(conn, scope, file.session_id)
    (version,) = conn.execute(
        "SELECT coalesce(max(version) + 1, 0) FROM files "
        "WHERE scope = ? AND session_id = ? AND path = ?",
        (scope, file.session_id, file.path),
    ).fetchone()
    stored = dataclasses.replace(file, version=version)
    conn.execute(
        f"INSERT INTO files (scope, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (scope, *dataclasses.astuple(stored)),
    )
    return stored


def record_change(
    conn: sqlite3.Connection, scope: str, sid: str, path: str, change: tuple[str, str], now: float
) -> list[File]:
    """Add the versions that a change from one content to another makes; return them. The content
    before is a version too if it is not the last one known: the session's first change of the
    path, or somebody else has edited it since."""
    require_session(conn, scope, sid)
    row = conn.execute(
        "SELECT content FROM files WHERE scope = ? AND session_id = ? AND path = ? "
        "ORDER BY version DESC LIMIT 1",
        (scope, sid, path),
    ).fetchone()
    last = None if row is None else row[0]
    added: list[File] = []
    for content in change:
        if content != last:
            file = File(str(uuid.uuid4()), sid, path, content, 0, int(now), int(now))
            added.append(insert_file(conn, scope, file))
            last = content
    return added


def list_files(conn: sqlite3.Connection, scope: str, sid: str) -> list[File]:
    """All versions of all files of a session: by version, then in the order of creation."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM files WHERE scope = ? AND session_id = ? ORDER BY version, seq",
        (scope, sid),
    )
    return [File(*row) for row in rows]


def mark_read(conn: sqlite3.Connection, scope: str, sid: str, path: str, now: float) -> None:
    require_session(conn, scope, sid)
    # REPLACE gives the row a new seq: the list is ordered by that, not by the time.
    conn.execute(
        "REPLACE INTO reads (seq, scope, session_id, path, read_at) "
        "VALUES ((SELECT coalesce(max(seq), 0) + 1 FROM reads), ?, ?, ?, ?)",
        (scope, sid, path, now),
    )


def list_read(conn: sqlite3.Connection, scope: str, sid: str) -> list[str]:
    """The paths a session has read, the last read first."""
    rows = conn.execute(
        "SELECT path FROM reads WHERE scope = ? AND session_id = ? ORDER BY seq DESC", (scope, sid)
    )
    return [path for (path,) in rows]


def last_read(conn: sqlite3.Connection, scope: str, sid: str, path: str) -> float | None:
    """When the session last read the path; None if it never did."""
    row = conn.execute(
        "SELECT read_at FROM reads WHERE scope = ? AND session_id = ? AND path = ?",
        (scope, sid, path),
    ).fetchone()
    return None if row is None else float(row[0])
