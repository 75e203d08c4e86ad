"""What the file history says about runs: which changed files, and what each did to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RunNotFound
from ..features.wire import ChangedRun
from ..filehistory.queries import state_from_row
from ..records import dataclass
from ..store.connection import check_row
from ..store.sessions import require_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..filehistory.queries import FileState
    from ..store import Connection


@dataclass(frozen=True, slots=True)
class PathHistory:
    """What a run did to a file. `mixed`: between its changes another one was recorded."""

    path: str
    before: FileState
    after: FileState
    mixed: bool


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What a run did to files. `gaps` are changes that were not recorded: pairs of a path ('' if it
    is not known which files changed) and the reason."""

    session_id: str
    undoes: str  # the run that this one undoes, if it is an undoing
    paths: list[PathHistory]
    gaps: list[tuple[str, str]]


def record_gaps(
    conn: Connection, scope: str, sid: str, run_id: str, gaps: Sequence[tuple[str, str]]
) -> None:
    """Store which changes of a run were not recorded: pairs of a path ('' if it is not known which
    files changed) and the reason. For a path that is stored already nothing is added."""
    require_session(conn, scope, sid)
    conn.executemany(
        "INSERT OR IGNORE INTO gaps (scope, session_id, run_id, path, reason) "
        "VALUES (?, ?, ?, ?, ?)",
        [(scope, sid, run_id, path, reason) for path, reason in gaps],
    )


def changed_runs(conn: Connection, scope: str) -> list[ChangedRun]:
    """The runs and undoings that changed files, in the order of their last changes."""
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
    for run in reversed(ordered):  # the latest first: an undoing that was undone does not count
        if run.undoes in found and not run.undone:
            found[run.undoes][1].undone = True
    return ordered


def run_history(conn: Connection, scope: str, run_id: str) -> RunHistory:
    """What a run, or an undoing, did to files. Raises RunNotFound."""
    spans: dict[str, tuple[int, int]] = {}  # by path, the first and the last version of this run
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
    conn: Connection, scope: str, run_id: str, sid: str, path: str, first: int, last: int
) -> PathHistory:
    """The states of a file before version `first` and at version `last`, both of this run."""
    rows = conn.execute(
        """
        SELECT content, present, mode, run_id FROM files
        WHERE scope = ? AND session_id = ? AND path = ? AND version BETWEEN ? AND ?
        ORDER BY version
        """,
        (scope, sid, path, first - 1, last),
    ).fetchall()
    states = [state_from_row(*row[:3]) for row in rows]
    mixed = any(row[3] != run_id for row in rows[1:])
    return PathHistory(path, states[0], states[-1], mixed)
