"""Queries over the versions of files that a session changed, and over what it has read.

A version holds what a file was: its content and mode, or that it did not exist, and the id of the
run that made it; one that was found has none. So the version before the first of a run is what the
run began with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase
from ..protocol.sessions import File
from ..records import dataclass
from ..store.connection import check_row
from ..store.sessions import require_session
from ..unique import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import Connection

_YEAR_9999 = 253_370_764_800  # seconds: no date is behind it

_COLUMNS = "id, session_id, path, content, version, created_at, updated_at"
_KINDS = (str, str, str, str, int, int, int)


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
class Change:
    """`run_id` is the run that made it, `undoes` the run that it undid."""

    path: str
    before: FileState
    after: FileState
    run_id: str = ""
    undoes: str = ""


def record_changes(
    conn: Connection, scope: str, sid: str, changes: Sequence[Change], now: float
) -> list[File]:
    """Add the versions that changes make; return them. The state before a change is added too,
    unless it is the last one known: at the session's first change of the path, as version 0, or if
    another program has edited the file since. Raises SessionNotFound."""
    require_session(conn, scope, sid)
    added: list[File] = []
    for change in changes:
        row = conn.execute(
            "SELECT version, content, present, mode FROM files "
            "WHERE scope = ? AND session_id = ? AND path = ? ORDER BY version DESC LIMIT 1",
            (scope, sid, change.path),
        ).fetchone()
        last, version = None, -1
        if row is not None:
            check_row("a version of a file with number", row[:1], (int,))
            last, version = state_from_row(*row[1:]), row[0]
        found, made = (change.before, "", ""), (change.after, change.run_id, change.undoes)
        for state, run_id, undoes in (found, made):
            learned = last is not None and last.mode is None and state.mode is not None
            if last is not None and not learned and state.is_like(last):
                continue
            last, version = state, version + 1
            times = int(now), int(now)
            file = File(new_id(), sid, change.path, state.content or "", version, *times)
            present = state.content is not None
            conn.execute(
                f"INSERT INTO files (scope, {_COLUMNS}, run_id, undoes, present, mode) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (scope, *dataclasses.astuple(file), run_id, undoes, present, state.mode),
            )
            added.append(file)
    return added


def state_from_row(content: str, present: int, mode: int | None) -> FileState:
    check_row("a version of a file with mode", (mode, present, content), (int | None, int, str))
    return FileState(content, mode) if present else FileState(None)


def list_files(conn: Connection, scope: str, sid: str) -> list[File]:
    """All versions of all files of a session: by version, then in the order of creation."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM files WHERE scope = ? AND session_id = ? ORDER BY version, seq",
        (scope, sid),
    )
    files = []
    for row in rows:
        check_row("file", row, _KINDS)
        files.append(File(*row))
    return files


def mark_read(conn: Connection, scope: str, sid: str, path: str, now: float) -> None:
    """Store when a session last read a path."""
    require_session(conn, scope, sid)
    # REPLACE gives the row a new seq: the list is ordered by that, not by the time.
    conn.execute(
        "REPLACE INTO reads (seq, scope, session_id, path, read_at) "
        "VALUES ((SELECT coalesce(max(seq), 0) + 1 FROM reads), ?, ?, ?, ?)",
        (scope, sid, path, now),
    )


def list_read(conn: Connection, scope: str, sid: str) -> list[str]:
    """The paths a session has read, the last read first."""
    rows = conn.execute(
        "SELECT path FROM reads WHERE scope = ? AND session_id = ? ORDER BY seq DESC", (scope, sid)
    ).fetchall()
    for row in rows:
        check_row("the read mark", row, (str,))
    return [path for (path,) in rows]


def last_read(conn: Connection, scope: str, sid: str, path: str) -> float | None:
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
