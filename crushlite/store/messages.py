"""Queries over messages.

The parts are one JSON column in the shape of the wire. `finished` repeats whether they hold a
finish part, so that recovery finds the open messages without reading all of them.

Long lists are JSON that SQLite writes. A session may hold a hundred thousand messages: making
objects of them, and JSON of the objects, would occupy the interpreter for seconds, and every prompt
that is being stored would wait. The parts are stored in the shape of the wire, so SQLite can write
the JSON of a message, and while it works the interpreter is free. The texts are joined in pieces,
so that no copy of all is ever made.
"""

from __future__ import annotations

import json
import sqlite3
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, CorruptDatabase, NotFound, SessionNotFound
from ..protocol.codec import decode_tagged, dumps, encode
from ..protocol.messages import PARTS, Message
from .connection import check_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .connection import Connection

MESSAGE_COLUMNS = (
    "id, role, session_id, parts, model, provider, created_at, updated_at, is_summary_message"
)
# Twice the longest request. A file from elsewhere may hold a text of any length, and while it is
# parsed nothing else runs in this process.
PARTS_CHARS = 64 << 20
_KINDS = (str, str, str, str, str, str, int, int, int)
_NEXT_POSITION = (
    "(SELECT coalesce(max(position), 0) + 1 FROM messages "
    "WHERE scope = :scope AND session_id = :session_id)"
)
_INSERT = f"""
    INSERT INTO messages ({MESSAGE_COLUMNS}, scope, finished, position)
    SELECT :{MESSAGE_COLUMNS.replace(", ", ", :")}, :scope, :finished,
        coalesce(:position, {_NEXT_POSITION})
    WHERE EXISTS (SELECT 1 FROM sessions WHERE scope = :scope AND id = :session_id)
"""

PIECE = 250  # messages: joining so many delays no other thread for long
BEYOND = 2**62  # any position and sequence number
RECENT = 1000  # messages: for `recent`; more than can begin during one read

_OBJECT = """json_object('id', id, 'role', role, 'session_id', session_id, 'parts', json(parts),
    'model', model, 'provider', provider, 'created_at', created_at, 'updated_at', updated_at{more})
"""
# NULL if a number is no integer: SQLite would write `Inf`, or a text where clients read an integer.
# A blob in place of a text it refuses by itself. NULL also for a message that is far too long.
_SOUND = f"length(parts) <= {PARTS_CHARS} AND " + " AND ".join(
    f"typeof({column}) = 'integer'" for column in ("created_at", "updated_at", "is_summary_message")
)
_TEXT = (
    f"CASE WHEN {_SOUND} THEN "
    f"CAST(CASE is_summary_message WHEN 0 THEN {_OBJECT.format(more='')} ELSE "
    + _OBJECT.format(more=", 'is_summary_message', json('true')")
    + " END AS BLOB) END"
)


def insert_message(
    conn: Connection, scope: str, message: Message, position: int | None = None
) -> None:
    """Add a message at the end of its session, or behind `position`. Raises SessionNotFound."""
    values = _values(scope, message) | {
        "session_id": message.session_id,
        "role": message.role,
        "created_at": message.created_at,
        "is_summary_message": message.is_summary_message,
        "position": position,
    }
    if not conn.execute(_INSERT, values).rowcount:
        raise SessionNotFound(f"session {message.session_id} not found")


def save_message(conn: Connection, scope: str, message: Message) -> None:
    """Update the parts, model, provider and time of a message. Does nothing if it has no row: its
    session may be deleted while a turn still streams."""
    conn.execute(
        """
        UPDATE messages SET parts = :parts, finished = :finished, model = :model,
            provider = :provider, updated_at = :updated_at
        WHERE scope = :scope AND id = :id
        """,
        _values(scope, message),
    )


def get_message(conn: Connection, scope: str, mid: str) -> Message:
    row = conn.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE scope = ? AND id = ?", (scope, mid)
    ).fetchone()
    if row is None:
        raise NotFound(f"message {mid} not found")
    return message_from_row(row)


def position_of(conn: Connection, scope: str, mid: str) -> int | None:
    """The position of a message in its session; None if there is no such message."""
    row = conn.execute(
        "SELECT position FROM messages WHERE scope = ? AND id = ?", (scope, mid)
    ).fetchone()
    if row is None:
        return None
    check_row("the position of a message", row, (int,))
    return int(row[0])


def list_messages(conn: Connection, scope: str, sid: str) -> list[Message]:
    """The messages of a session in their order."""
    return [message for _, message in placed_messages(conn, scope, sid)]


def placed_messages(
    conn: Connection, scope: str, sid: str, first: int = -BEYOND, end: int = BEYOND
) -> list[tuple[int, Message]]:
    """The messages of a session in their order, each with its position, from position `first` up
    to, and without, position `end`. Raises CorruptDatabase."""
    rows = conn.execute(
        f"""
        SELECT position, {MESSAGE_COLUMNS} FROM messages
        WHERE scope = ? AND session_id = ? AND position >= ?
            AND (position < ? OR typeof(position) <> 'integer')
        ORDER BY position, seq
        """,
        (scope, sid, first, end),
    )
    placed = []
    for position, *values in rows:  # SQLite puts a text behind every number: it would be missed
        check_row("the position of a message", (position,), (int,))
        placed.append((position, message_from_row(tuple(values))))
    return placed


def delete_message(conn: Connection, scope: str, mid: str) -> None:
    conn.execute("DELETE FROM messages WHERE scope = ? AND id = ?", (scope, mid))


def message_from_row(row: tuple[Any, ...]) -> Message:
    """Build a message from the values of MESSAGE_COLUMNS. Raises CorruptDatabase."""
    check_row("message", row, _KINDS)
    mid, role, sid, parts, model, provider, created_at, updated_at, is_summary = row
    if len(parts) > PARTS_CHARS:
        raise CorruptDatabase(f"message {mid[:80]!r} is longer than any that was made here")
    try:
        made = decode_tagged(PARTS, json.loads(parts), "parts")
    except (BadRequest, ValueError, RecursionError) as error:
        raise CorruptDatabase(f"message {mid} is damaged and cannot be read: {error}") from None
    return Message(mid, role, sid, made, model, provider, created_at, updated_at, bool(is_summary))


def _values(scope: str, message: Message) -> dict[str, object]:
    parts = [{"type": part.tag, "data": encode(part)} for part in message.parts]
    return {
        "scope": scope,
        "id": message.id,
        "parts": dumps(parts).decode("ascii"),
        "finished": message.finish is not None,
        "model": message.model,
        "provider": message.provider,
        "updated_at": message.updated_at,
    }


# Lists as JSON ------------------------------------------------------------------------------------


def message_texts(
    conn: Connection, scope: str, sid: str, live: Collection[str], recent: int = 0
) -> tuple[list[bytes], list[Message]]:
    """A session's messages, oldest first: as pieces of JSON up to the first of those whose ids are
    in `live`, as objects from there on. At least the `recent` newest are objects. Raises
    CorruptDatabase if a message is damaged."""
    of_session = "FROM messages WHERE scope = ? AND session_id = ? AND position"
    order = "ORDER BY position, seq"
    first = _first(conn, "position", scope, live)
    if recent:
        (last,) = conn.execute(f"SELECT max(position) {of_session} > 0", (scope, sid)).fetchone()
        first = min(first, _place(last, 0) - recent)
    bounds = scope, sid, first
    pieces = list(_joined(conn, f"{of_session} < ? {order}", bounds))
    rows = conn.execute(f"SELECT {MESSAGE_COLUMNS} {of_session} >= ? {order}", bounds)
    return pieces, [message_from_row(row) for row in rows]


def user_message_texts(
    conn: Connection, scope: str, sid: str | None, live: Collection[str], recent: int = 0
) -> tuple[list[Message], list[bytes]]:
    """What users wrote, in one session or in all, newest first: as objects down to the oldest of
    those whose ids are in `live`, and below that as pieces of JSON. The rows of the `recent` newest
    messages are objects, too. Raises CorruptDatabase if a message is damaged."""
    by_users = "FROM messages WHERE scope = :scope AND role = 'user'"
    if sid is not None:
        by_users += " AND session_id = :sid"
    first = _first(conn, "seq", scope, live)
    if recent:
        (last,) = conn.execute("SELECT max(seq) FROM messages").fetchone()
        first = min(first, (last or 0) - recent)
    bounds = {"scope": scope, "sid": sid, "first": first}
    order = "ORDER BY seq DESC"
    rows = conn.execute(f"SELECT {MESSAGE_COLUMNS} {by_users} AND seq >= :first {order}", bounds)
    messages = [message_from_row(row) for row in rows]
    return messages, list(_joined(conn, f"{by_users} AND seq < :first {order}", bounds))


def _first(conn: Connection, column: str, scope: str, live: Collection[str]) -> int:
    """The lowest value of `column` among the live messages that have a row, BEYOND if none has."""
    if not live:
        return BEYOND
    marks = ", ".join("?" * len(live))
    (found,) = conn.execute(
        f"SELECT min({column}) FROM messages WHERE scope = ? AND id IN ({marks})", (scope, *live)
    ).fetchone()
    return _place(found, BEYOND)


def _place(found: Any, otherwise: int) -> int:
    if found is None:
        return otherwise
    check_row("the position of a message", (found,), (int,))
    return int(found)


def _joined(conn: Connection, of_these: str, bounds: Any) -> Iterator[bytes]:
    """The JSON of the selected messages, up to PIECE of them joined by commas."""
    damage = CorruptDatabase("a message is damaged and cannot be read: see `doctor`")
    try:
        texts = conn.execute(f"SELECT {_TEXT} {of_these}", bounds)
        while found := [text for (text,) in islice(texts, PIECE)]:
            if None in found:
                raise damage
            piece = b",".join(found)
            if not piece.isascii():
                piece.decode()  # SQLite hands on bytes that are no text
            yield piece
    except UnicodeDecodeError:
        raise damage from None
    except sqlite3.OperationalError as error:
        if "JSON" not in str(error):  # malformed, or "cannot hold BLOB values"
            raise
        raise damage from None
