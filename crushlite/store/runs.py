"""Queries over runs: which prompts were accepted, and how each ended.

A row is inserted before the prompt is acknowledged, and its outcome is set once, in the transaction
that writes the ending's messages. Attachments are held only until they are part of the stored user
message. Rows live as long as their session, so a repeated run id is recognised that long.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import RunIdReused, RunNotFound, SessionNotFound
from ..records import dataclass
from .connection import check_row
from .messages import insert_message, position_of

if TYPE_CHECKING:
    from ..protocol.messages import Message
    from ..protocol.runs import RunInfo
    from .connection import Connection


@dataclass(slots=True)
class RunRow:
    """`attachments` is a JSON array; `outcome` is None until the run has ended; `carrier` is the
    run that this one was folded into, if any; `limit_reached` is the limit that ended it."""

    run_id: str
    session_id: str
    digest: str
    prompt: str
    attachments: str | None = None
    user_message_id: str = ""
    kind: str = "prompt"
    when_busy: str = ""
    detach: bool = False
    max_cost: float | None = None
    max_steps: int | None = None
    carrier: str = ""
    boot_id: str = ""
    outcome: str | None = None
    message_id: str = ""
    error: str = ""
    denied: int = 0
    accepted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    max_seconds: float | None = None
    limit_reached: str = ""
    cost: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


_FIELDS = tuple(field.name for field in dataclasses.fields(RunRow))
_KINDS = tuple(int if kind is bool else kind for kind in get_type_hints(RunRow).values())
RUN_COLUMNS = ", ".join(_FIELDS)
_INSERT = (
    f"INSERT INTO runs (scope, {RUN_COLUMNS}) SELECT ?{', ?' * len(_FIELDS)} "  # one for scope
    "WHERE EXISTS (SELECT 1 FROM sessions WHERE scope = ? AND id = ?) ON CONFLICT DO NOTHING"
)
_values = operator.attrgetter(*_FIELDS)
_ending = operator.attrgetter(
    *("outcome", "message_id", "error", "denied", "ended_at"),
    *("limit", "cost", "prompt_tokens", "completion_tokens", "folded_into"),
)
_ENDED = {None: "", True: "AND outcome IS NOT NULL", False: "AND outcome IS NULL"}


def insert_run(conn: Connection, scope: str, row: RunRow) -> RunRow | None:
    """Insert a run. Returns None if it was inserted, and its row if the same prompt was accepted
    before under this id. Raises RunIdReused if the id was given with another prompt, and
    SessionNotFound. One statement in the good case: every 202 waits for it."""
    inserted = conn.execute(_INSERT, (scope, *_values(row), scope, row.session_id))
    if inserted.rowcount:
        return None
    known = find_run(conn, scope, row.run_id)
    if known is None:
        raise SessionNotFound(f"session {row.session_id} not found")
    if known.digest != row.digest:
        raise RunIdReused(f"run {row.run_id} was given with another prompt")
    return known


def start_run(
    conn: Connection, scope: str, run_id: str, user_message: Message, now: float, carrier: str = ""
) -> None:
    """Store the run's user message, and with it the carrier if the run is being folded. Changes
    nothing if the message is stored already. Raises RunNotFound."""
    found = conn.execute(
        "SELECT user_message_id FROM runs WHERE scope = ? AND run_id = ?", (scope, run_id)
    ).fetchone()
    if found is None:
        raise RunNotFound(f"run {run_id} not found")
    if found[0] and position_of(conn, scope, found[0]) is not None:
        return
    insert_message(conn, scope, user_message)
    conn.execute(
        """
        UPDATE runs SET user_message_id = ?, attachments = NULL, started_at = ?,
            carrier = CASE WHEN ? = '' THEN carrier ELSE ? END
        WHERE scope = ? AND run_id = ?
        """,
        (user_message.id, now, carrier, carrier, scope, run_id),
    )


def end_run(conn: Connection, scope: str, run: RunInfo) -> bool:
    """Set how a run ended, unless that is set; returns whether it was not."""
    done = conn.execute(
        """
        UPDATE runs SET outcome = ?, message_id = ?, error = ?, denied = ?, ended_at = ?,
            limit_reached = ?, cost = ?, prompt_tokens = ?, completion_tokens = ?,
            carrier = coalesce(nullif(?, ''), carrier), attachments = NULL
        WHERE scope = ? AND run_id = ? AND outcome IS NULL
        """,
        (*_ending(run), scope, run.run_id),
    )
    return done.rowcount > 0


def find_run(conn: Connection, scope: str, run_id: str) -> RunRow | None:
    row = conn.execute(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE scope = ? AND run_id = ?", (scope, run_id)
    ).fetchone()
    return None if row is None else run_from_row(row)


def get_run(conn: Connection, scope: str, run_id: str) -> RunRow:
    row = find_run(conn, scope, run_id)
    if row is None:
        raise RunNotFound(f"run {run_id} not found")
    return row


def list_runs(
    conn: Connection, scope: str, session_id: str | None, ended: bool | None
) -> list[RunRow]:
    """Runs in the order of their acceptance: of one session or (None) of all, and those that have
    ended, those that have not, or (None) both."""
    of_session = "" if session_id is None else "AND session_id = :session_id"
    rows = conn.execute(
        f"SELECT seq, {RUN_COLUMNS} FROM runs WHERE scope = :scope {of_session} {_ENDED[ended]}",
        {"scope": scope, "session_id": session_id},
    )
    # Sorted here: SQLite would write long prompts to a file, to sort them there.
    return [run_from_row(row[1:]) for row in sorted(rows, key=operator.itemgetter(0))]


def ended_among(conn: Connection, scope: str, run_ids: list[str]) -> list[RunRow]:
    """Those of the named runs that have ended."""
    found = (find_run(conn, scope, run_id) for run_id in run_ids)
    return [row for row in found if row is not None and row.outcome is not None]


def run_from_row(row: tuple[Any, ...]) -> RunRow:
    """Build a row from the values of RUN_COLUMNS. Raises CorruptDatabase."""
    check_row("run", row, _KINDS)
    answer = RunRow(*row)
    answer.detach = bool(answer.detach)
    return answer
