"""Queries over the versions of files that a session changed, and over what it has read.

A version says what a file was: its content and mode, or that there was none. The versions that a
run made carry its id; one that was merely found (before the first change, or edited by somebody
else meanwhile) carries none. So the version before the first of a run is what the run began with.
"""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CorruptDatabase, RunNotFound
from ..protocol.changes import ChangedRun
from ..protocol.sessions import File
from ..worktree.states import FileState
from .connection import check_row
from .sessions import require_session

if TYPE_CHECKING:
    import sqlite3

_YEAR_9999 = 253_370_764_800  # seconds: no date is behind it

_COLUMNS = "id, session_id, path, content, version, created_at, updated_at"
_KINDS = (str, str, str, str, int, int, int)
_MARKS = "run_id, undoes, present, mode"


@dataclass(frozen=True, slots=True)
class Mark:
    """Who made a version, and what the content alone does not say of it. `undoes` is the run that
    was undone by it; there is no `mode` if nobody knew it."""

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


@dataclass(frozen=True, slots=True)
class PathHistory:
    """What a run did to a file. `mixed`: somebody else changed it too, in between."""

    path: str
    before: FileState
    after: FileState
    mixed: bool


@dataclass(frozen=True, slots=True)
class RunHistory:
    """`gaps` are changes that were not recorded: a path, or '' for all there may be, and why."""

    session_id: str
    undoes: str
    paths: list[PathHistory]
    gaps: list[tuple[str, str]]


def insert_file(conn: sqlite3.Connection, scope: str, file: File, mark: Mark | None = None) -> File:
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
        f"INSERT INTO files (scope, {_COLUMNS}, {_MARKS}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (scope, *dataclasses.astuple(stored), *dataclasses.astuple(mark or Mark())),
    )
    return stored


def record_change(
    conn: sqlite3.Connection, scope: str, sid: str, change: Change, now: float
) -> list[File]:
    """Add the versions that a change makes; return them. What was before is a version too if it is
    not the last one known: the session's first change of the path, or somebody else has edited it
    since."""
    require_session(conn, scope, sid)
    row = conn.execute(
        "SELECT content, present, mode FROM files WHERE scope = ? AND session_id = ? AND path = ? "
        "ORDER BY version DESC LIMIT 1",
        (scope, sid, change.path),
    ).fetchone()
    last = None if row is None else _state(*row)
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


def _state(content: str, present: int, mode: int | None) -> FileState:
    check_row("a version of a file with mode", (mode, present, content), (int | None, int, str))
    return FileState(content, mode) if present else FileState(None)


def record_gap(
    conn: sqlite3.Connection, scope: str, sid: str, run_id: str, path: str, reason: str
) -> None:
    """Remember that a change was not recorded; once for each path of a run."""
    require_session(conn, scope, sid)
    conn.execute(
        "INSERT OR IGNORE INTO gaps (scope, session_id, run_id, path, reason) "
        "VALUES (?, ?, ?, ?, ?)",
        (scope, sid, run_id, path, reason),
    )


# What a run did ---------------------------------------------------------------------------------


def changed_runs(conn: sqlite3.Connection, scope: str) -> list[ChangedRun]:
    """The runs, and undoings of runs, that changed files: the one that changed last is last."""
    found: dict[str, tuple[int, ChangedRun]] = {}
    paths: dict[str, set[str]] = {}
    rows = conn.execute(
        "SELECT run_id, seq, session_id, path, undoes, created_at FROM files "
        "WHERE scope = ? AND run_id <> '' ORDER BY run_id, seq",
        (scope,),
    )
    for row in rows:
        check_row("the change of a file by run", row, (str, int, str, str, str, int))
        run_id, seq, session_id, path, undoes, at = row
        paths.setdefault(run_id, set()).add(path)
        changed = ChangedRun(run_id, session_id, undoes, len(paths[run_id]), at)
        found[run_id] = (seq, changed)
    ordered = [run for _, run in sorted(found.values(), key=lambda entry: entry[0])]
    for run in reversed(ordered):  # an undoing that was undone itself undoes nothing
        if run.undoes in found and not run.undone:
            found[run.undoes][1].undone = True
    return ordered


def run_history(conn: sqlite3.Connection, scope: str, run_id: str) -> RunHistory:
    spans: dict[str, tuple[int, int]] = {}  # versions by path, the first and the last of this run
    session_id = undoes = ""
    for row in conn.execute(
        "SELECT session_id, path, version, undoes FROM files "
        "WHERE scope = ? AND run_id = ? AND run_id <> '' ORDER BY seq",
        (scope, run_id),
    ):
        check_row("the change of a file in session", row, (str, str, int, str))
        session_id, path, version, undoes = row
        first, _ = spans.get(path, (version, version))
        spans[path] = first, version
    gaps = conn.execute(
        "SELECT session_id, path, reason FROM gaps WHERE scope = ? AND run_id = ? ORDER BY path",
        (scope, run_id),
    ).fetchall()
    if gaps and not session_id:
        session_id = gaps[0][0]
    if not session_id:
        row = conn.execute(
            "SELECT session_id FROM runs WHERE scope = ? AND run_id = ?", (scope, run_id)
        ).fetchone()
        if row is None:
            raise RunNotFound(f"run {run_id} not found")
        session_id = row[0]
    paths = [
        _path_history(conn, scope, run_id, session_id, path, *span)
        for path, span in sorted(spans.items())
    ]
    return RunHistory(session_id, undoes, paths, [(path, why) for _, path, why in gaps])


def _path_history(  # noqa: PLR0913 - the columns of a span
    conn: sqlite3.Connection, scope: str, run_id: str, sid: str, path: str, first: int, last: int
) -> PathHistory:
    rows = conn.execute(
        """
        SELECT content, present, mode, run_id FROM files
        WHERE scope = ? AND session_id = ? AND path = ? AND version BETWEEN ? AND ?
        ORDER BY version
        """,
        (scope, sid, path, first - 1, last),
    ).fetchall()
    states = [_state(*row[:3]) for row in rows]
    mixed = any(row[3] != run_id for row in rows[1:])
    return PathHistory(path, states[0], states[-1], mixed)


def list_files(conn: sqlite3.Connection, scope: str, sid: str) -> list[File]:
    """All versions of all files of a session: by version, then in the order of creation."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM files WHERE scope = ? AND session_id = ? ORDER BY version, seq",
        (scope, sid),
    )
    return [_file(row) for row in rows]


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
