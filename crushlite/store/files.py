"""Queries over the versions of files that a session changed, and over what it has read.

A version holds what a file was: its content and mode, or that it did not exist. The versions that a
run made carry its id. One that was found (before the session's first change, or after an edit by
another program) carries none. So the version before the first of a run is what the run began with.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

from ..errors import CorruptDatabase
from ..protocol.sessions import File
from ..records import dataclass
from .connection import check_row
from .sessions import require_session

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

_YEAR_9999 = 253_370_764_800  # seconds: no date is behind it

_COLUMNS = "id, session_id, path, content, version, created_at, updated_at"
_KINDS = (str, str, str, str, int, int, int)
_MARKS = "run_id, undoes, present, mode"


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment. `content` is None if there is no such file; `mode` holds the permission
    bits, None if they are not known."""

    content: str | None
    mode: int | None = None

    def is_like(self, other: FileState) -> bool:
        """Whether the contents are equal, and the modes as far as both are known."""
        unknown = self.mode is None or other.mode is None
        return self.content == other.content and (unknown or self.mode == other.mode)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a version is besides its content. `run_id` is the run that made it, `undoes` the run
    that was undone by it, `mode` None if it is not known."""

    run_id: str = ""
    undoes: str = ""
    present: bool = True
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    path: str
    before: FileState
    after: FileState
    run_id: str = ""
    undoes: str = ""


def insert_file(conn: sqlite3.Connection, scope: str, file: File, mark: Mark | None = None) -> File:
    """Add the next version of a path; version 0 is the state before the session's first change.
    Returns the file with the number it got: that of the argument is ignored."""
    require_session(conn, scope, file.session_id)
    (version,) = conn.execute(
        "SELECT coalesce(max(version) + 1, 0) FROM files "
        "WHERE scope = ? AND session_id = ? AND path = ?",
        (scope, file.session_id, file.path),
    ).fetchone()
    stored = dataclasses.replace(file, version=version)
    conn.execute(
        f"INSERT INTO files (scope, {_COLUMNS}, {_MARKS}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (scope, *dataclasses.astuple(stored), *dataclasses.astuple(mark or Mark())),
    )
    return stored


def record_change(
    conn: sqlite3.Connection, scope: str, sid: str, change: Change, now: float
) -> list[File]:
    """Add the versions that a change makes; return them. The state before it is added too, unless
    it is the last one known: at the session's first change of the path, or if another program has
    edited the file since."""
    require_session(conn, scope, sid)
    row = conn.execute(
        "SELECT content, present, mode FROM files WHERE scope = ? AND session_id = ? AND path = ? "
        "ORDER BY version DESC LIMIT 1",
        (scope, sid, change.path),
    ).fetchone()
    last = None if row is None else state_from_row(*row)
    found, made = Mark(), Mark(change.run_id, change.undoes)
    added: list[File] = []
    for state, mark in ((change.before, found), (change.after, made)):
        learned = last is not None and last.mode is None and state.mode is not None
        if last is None or learned or not state.is_like(last):
            content = state.content or ""
            file = File(str(uuid.uuid4()), sid, change.path, content, 0, int(now), int(now))
            present = state.content is not None
            mark = dataclasses.replace(mark, present=present, mode=state.mode)
            added.append(insert_file(conn, scope, file, mark))
            last = state
    return added


def record_changes(
    conn: sqlite3.Connection, scope: str, sid: str, changes: Sequence[Change], now: float
) -> list[File]:
    """Do `record_change` for several changes; return all versions added."""
    added = (record_change(conn, scope, sid, change, now) for change in changes)
    return [file for files in added for file in files]


def state_from_row(content: str, present: int, mode: int | None) -> FileState:
    check_row("a version of a file with mode", (mode, present, content), (int | None, int, str))
    return FileState(content, mode) if present else FileState(None)


def list_files(conn: sqlite3.Connection, scope: str, sid: str) -> list[File]:
    """All versions of all files of a session: by version, then in the order of creation."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM files WHERE scope = ? AND session_id = ? ORDER BY version, seq",
        (scope, sid),
    )
    return [_file(row) for row in rows]


def mark_read(conn: sqlite3.Connection, scope: str, sid: str, path: str, now: float) -> None:
    """Store when a session last read a path."""
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
    paths = []
    for row in rows:
        check_row("the read mark", row, (str,))
        paths.append(row[0])
    return paths


def last_read(conn: sqlite3.Connection, scope: str, sid: str, path: str) -> float | None:
    """When the session last read the path; None if it never did."""
    row = conn.execute(
        "SELECT read_at FROM reads WHERE scope = ? AND session_id = ? AND path = ?",
        (scope, sid, path),
    ).fetchone()
    if row is None:
        return None
    check_row(f"the read mark of {path}", row, (float,))
    if not 0 <= row[0] < _YEAR_9999:
        raise CorruptDatabase(f"the read mark of {path} is damaged and cannot be read")
    return float(row[0])


def _file(row: tuple[Any, ...]) -> File:
    check_row("file", row, _KINDS)
    return File(*row)
