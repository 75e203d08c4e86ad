"""Queries over sessions.

Triggers count messages in `message_count`, and set `updated_at` and `touched` on a new message.
`updated_at` never goes back, whatever the clock does. A child is a session with a parent; it is not
in the list of sessions, and is deleted with its parent.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, CorruptDatabase, SessionNotFound
from ..protocol.codec import decode, dumps, encode
from ..protocol.sessions import Session, Todo
from .connection import check_row

if TYPE_CHECKING:
    from collections.abc import Collection

    from .connection import Connection

Counts = tuple[int, int, float]  # usage: prompt tokens, completion tokens, cost

_COLUMNS = (
    "id, coalesce(parent_session_id, ''), title, message_count, prompt_tokens, completion_tokens, "
    "summary_message_id, cost, todos, created_at, updated_at"
)
_KINDS = (str, str, str, int, int, int, str, float | int, str, int, int)
_SIBLINGS = "FROM sessions AS s WHERE s.scope = :scope AND s.parent_session_id IS"  # this parent
_FIRST_TOUCH = f"(SELECT coalesce(max(touched), 0) + 1 {_SIBLINGS} :parent_session_id)"
# Makes a session the last changed of its siblings, unless it is: see V7 in migrations.py.
_TOUCH = f"""
    UPDATE sessions
    SET touched = 1 + (SELECT max(touched) {_SIBLINGS} sessions.parent_session_id)
    WHERE scope = :scope AND id = :id AND rowid <> (
        SELECT rowid {_SIBLINGS} sessions.parent_session_id ORDER BY touched DESC LIMIT 1
    )
"""
_MAX = 2**63 - 1  # SQLite turns a sum past it into a fraction, which is no token count
# Characters of the texts of one session, and of a list: no request is as long, but a file from
# elsewhere may hold any text, and the JSON of sessions is written in the event loop.
_SESSION_CHARS, _LIST_CHARS = 16 << 20, 32 << 20
# A session that SQLite may write as JSON. What else there is, damage above all, `_session` reads.
_PLAIN = " AND ".join(
    (
        *(f"typeof({name}) = 'text'" for name in ("id", "title", "summary_message_id")),
        *(f"typeof({name}) = 'integer'" for name in ("message_count", "created_at", "updated_at")),
        *(f"typeof({name}) = 'integer'" for name in ("prompt_tokens", "completion_tokens")),
        "typeof(cost) = 'real' AND abs(cost) <= 1e300 AND todos = '[]'",
        # In bytes: of a text SQLite counts the characters up to the first NUL only.
        "length(CAST(id AS BLOB)) + length(CAST(title AS BLOB)) "
        f"+ length(CAST(summary_message_id AS BLOB)) <= {_SESSION_CHARS}",
    )
)
_COST = "CASE cost WHEN 0 THEN '0.0' ELSE printf('%!.17g', cost) END"  # all of its digits
_TEXT = f"""CASE WHEN {_PLAIN} THEN CAST(json_object(
    'id', id, 'parent_session_id', '', 'title', title, 'message_count', message_count,
    'prompt_tokens', prompt_tokens, 'completion_tokens', completion_tokens,
    'summary_message_id', summary_message_id, 'cost', json({_COST}), 'created_at', created_at,
    'updated_at', updated_at, 'is_busy', json('false'), 'attached_clients', 0) AS BLOB) END
"""
NOTES_CHARS = 1 << 20
MOST_COST = 1e300  # past the largest number there is infinity, which no JSON can hold
_ADD_COST = f"cost = min(cost + :cost, {MOST_COST})"
_DESCENDANTS = """
    WITH RECURSIVE family (id) AS (
        SELECT :id
        UNION -- not UNION ALL: in a file from elsewhere a session may descend from itself
        SELECT sessions.id FROM family CROSS JOIN sessions -- in this order, always
        ON sessions.scope = :scope AND sessions.parent_session_id = family.id
    )
    SELECT id FROM family WHERE id <> :id
"""


def require_session(conn: Connection, scope: str, sid: str) -> None:
    """Raise SessionNotFound if there is no such session: a foreign key that fails names none."""
    found = conn.execute("SELECT 1 FROM sessions WHERE scope = ? AND id = ?", (scope, sid))
    if found.fetchone() is None:
        raise SessionNotFound(f"session {sid} not found")


def insert_session(conn: Connection, scope: str, session: Session) -> None:
    """Insert a session. `message_count` of the argument is ignored: a new session has no messages.
    Raises SessionNotFound if its parent is missing, and BadRequest as `check_usage` does."""
    if session.parent_session_id:
        require_session(conn, scope, session.parent_session_id)
    values = check_usage(session.prompt_tokens, session.completion_tokens, session.cost) | {
        "scope": scope,
        "id": session.id,
        "parent_session_id": session.parent_session_id or None,
        "title": session.title,
        "summary_message_id": session.summary_message_id,
        "todos": _todos(session.todos),
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    }
    columns, marks = ", ".join(values), ", :".join(values)
    conn.execute(
        f"INSERT INTO sessions ({columns}, touched) VALUES (:{marks}, {_FIRST_TOUCH})", values
    )


def get_session(conn: Connection, scope: str, sid: str) -> Session:
    row = conn.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE scope = ? AND id = ?", (scope, sid)
    ).fetchone()
    if row is None:
        raise SessionNotFound(f"session {sid} not found")
    return _session(row)


def session_texts(
    conn: Connection, scope: str, apart: Collection[str] = ()
) -> list[bytes | Session]:
    """Top-level sessions, the one changed last first, as JSON that SQLite writes: with a thousand
    of them that takes a third of the time. Those whose ids are in `apart`, and those with todos,
    are objects. Raises CorruptDatabase if one is damaged, or if all are too long together."""
    rows = conn.execute(
        f"SELECT id, {_TEXT} FROM sessions WHERE scope = ? AND parent_session_id IS NULL "
        "ORDER BY touched DESC",
        (scope,),
    )
    listed: list[bytes | Session] = []
    chars = 0
    for sid, text in rows:
        if text is None or sid in apart:
            found = get_session(conn, scope, sid)
            chars += len(found.title)
            chars += sum(len(todo.content) + len(todo.active_form) for todo in found.todos)
            listed.append(found)
        else:
            if not text.isascii():
                text.decode()  # SQLite hands on bytes that are no text: `translate` calls it damage
            chars += len(text)
            listed.append(text)
        if chars > _LIST_CHARS:
            raise CorruptDatabase("the sessions are longer together than any that were made here")
    return listed


def rename_session(conn: Connection, scope: str, sid: str, title: str, now: float) -> Session:
    """Set a title that a user has chosen. No generated title replaces it."""
    values = {"title": title}
    return _update(conn, scope, sid, now, "title = :title, title_by_user = 1", values)


def set_title(
    conn: Connection, scope: str, sid: str, title: str, now: float, counts: Counts = (0, 0, 0.0)
) -> Session | None:
    """Set a generated title, unless a user has chosen one, and add what it cost. Returns None if
    the session is gone. The usage is added in SQL, as a running turn saves its own meanwhile."""
    values = check_usage(*counts) | {"title": title}
    assignments = (
        "title = CASE WHEN title_by_user OR :title = '' THEN title ELSE :title END, "
        f"prompt_tokens = min(prompt_tokens + :prompt_tokens, {_MAX}), "
        f"completion_tokens = min(completion_tokens + :completion_tokens, {_MAX}), {_ADD_COST}"
    )
    try:
        return _update(conn, scope, sid, now, assignments, values)
    except SessionNotFound:
        return None


def save_usage(conn: Connection, scope: str, sid: str, counts: Counts, now: float) -> Session:
    """Save the usage of a step: the token counts replace those of the step before, as they show
    how full the context is, unless they are zero, which means unknown; the cost is added."""
    assignments = (
        "prompt_tokens = coalesce(nullif(:prompt_tokens, 0), prompt_tokens), "
        "completion_tokens = coalesce(nullif(:completion_tokens, 0), completion_tokens)"
    )
    values = check_usage(*counts)
    return _update(conn, scope, sid, now, f"{assignments}, {_ADD_COST}", values)


def set_todos(conn: Connection, scope: str, sid: str, todos: list[Todo], now: float) -> Session:
    return _update(conn, scope, sid, now, "todos = :todos", {"todos": _todos(todos)})


def child_ids(conn: Connection, scope: str, sid: str) -> list[str]:
    """The ids of a session's children, their children and so on, each once."""
    rows = conn.execute(_DESCENDANTS, {"scope": scope, "id": sid})
    return [child for (child,) in rows]


def delete_session(conn: Connection, scope: str, sid: str) -> list[str]:
    """Delete a session with its children, messages, files, read marks and runs (they cascade).
    Returns the ids of the deleted sessions, the given one first. Raises SessionNotFound."""
    require_session(conn, scope, sid)
    gone = [sid, *child_ids(conn, scope, sid)]
    conn.execute("DELETE FROM sessions WHERE scope = ? AND id = ?", (scope, sid))
    return gone


# What agents and wings keep with a session: for each owner one text of its own making, which no
# client sees. The owner '' is the agent of the workspace.


def get_notes(conn: Connection, scope: str, sid: str, owner: str = "") -> str:
    """What was kept last; empty if nothing was. A database that came with a project may hold
    anything: what `set_notes` would not have stored counts as nothing."""
    row = conn.execute(
        "SELECT content FROM session_notes WHERE scope = ? AND owner = ? AND session_id = ? "
        "AND typeof(content) = 'text' AND length(content) <= ?",
        (scope, owner, sid, NOTES_CHARS),
    ).fetchone()
    return str(row[0]) if row is not None else ""


def set_notes(conn: Connection, scope: str, sid: str, content: str, owner: str = "") -> None:
    """Replace what is kept. Raises SessionNotFound, and BadRequest for more than NOTES_CHARS."""
    if len(content) > NOTES_CHARS:
        raise BadRequest(f"an agent keeps at most {NOTES_CHARS} characters with a session")
    require_session(conn, scope, sid)
    conn.execute(
        "INSERT INTO session_notes (scope, owner, session_id, content) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (scope, owner, session_id) DO UPDATE SET content = excluded.content",
        (scope, owner, sid, content),
    )


def _update(
    conn: Connection, scope: str, sid: str, now: float, assignments: str, values: dict[str, Any]
) -> Session:
    """Carry out SQL assignments, with their `values`, on a session. Raises SessionNotFound."""
    named = {"scope": scope, "id": sid, "now": int(now), **values}
    conn.execute(
        f"UPDATE sessions SET {assignments}, updated_at = max(updated_at, :now) "
        "WHERE scope = :scope AND id = :id",
        named,
    )
    conn.execute(_TOUCH, named)
    return get_session(conn, scope, sid)


def _session(row: tuple[object, ...]) -> Session:
    check_row("session", row, _KINDS)
    if sum(len(str(row[at])) for at in (0, 1, 2, 6, 8)) > _SESSION_CHARS:  # all of its texts
        raise CorruptDatabase(f"session {str(row[0])[:80]!r} is longer than any that was made here")
    session = Session(*row)  # type: ignore[arg-type]  # _COLUMNS is in the order of the fields
    if row[8] == "[]":  # as most are: parsing it would take half of the time
        session.todos = []
        return session
    try:
        session.todos = [decode(Todo, item) for item in json.loads(str(row[8]))]
    except (BadRequest, ValueError, TypeError, RecursionError) as error:
        raise CorruptDatabase(
            f"session {session.id} is damaged and cannot be read: {error}"
        ) from None
    return session


def _todos(todos: list[Todo]) -> str:
    return dumps(encode(todos)).decode("ascii")


def check_usage(prompt_tokens: int, completion_tokens: int, cost: float) -> dict[str, Any]:
    """Return these as values of a statement. Raises BadRequest for what must not be stored: SQLite
    would store a fraction as a count, and clients that read an integer would refuse the session."""
    tokens = (prompt_tokens, completion_tokens)
    whole = all(isinstance(count, int) and 0 <= count <= _MAX for count in tokens)
    if not whole or not isinstance(cost, float | int) or not 0 <= cost < math.inf:
        raise BadRequest("token counts must be whole and 64-bit, a cost finite, none negative")
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "cost": cost}
