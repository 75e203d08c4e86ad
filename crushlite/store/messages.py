"""Queries over messages.

The parts are one JSON column in the shape of the wire. `finished` repeats whether they hold a
finish part, so that recovery finds the open messages without reading all of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, CorruptDatabase, NotFound
from ..protocol.codec import decode, dumps, encode
from ..protocol.messages import Message
from .connection import check_row
from .sessions import require_session

if TYPE_CHECKING:
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


def insert_message(
    conn: Connection, scope: str, message: Message, position: int | None = None
) -> None:
    """Add a message at the end of its session, or behind those at `position`. Raises
    SessionNotFound."""
    require_session(conn, scope, message.session_id)
    values = {
        **_values(scope, message),
        "session_id": message.session_id,
        "role": message.role,
        "created_at": message.created_at,
        "is_summary_message": message.is_summary_message,
    }
    columns, marks = ", ".join(values), ", :".join(values)
    conn.execute(
        f"INSERT INTO messages ({columns}, position) "
        f"VALUES (:{marks}, coalesce(:position, {_NEXT_POSITION}))",
        values | {"position": position},
    )


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
    rows = conn.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE scope = ? AND session_id = ? "
        "ORDER BY position, seq",
        (scope, sid),
    )
    return [message_from_row(row) for row in rows]


def delete_message(conn: Connection, scope: str, mid: str) -> None:
    conn.execute("DELETE FROM messages WHERE scope = ? AND id = ?", (scope, mid))


def message_from_row(row: tuple[Any, ...]) -> Message:
    """Build a message from the values of MESSAGE_COLUMNS. Raises CorruptDatabase."""
    check_row("message", row, _KINDS)
    mid, role, sid, parts, model, provider, created_at, updated_at, is_summary = row
    if len(parts) > PARTS_CHARS:
        raise CorruptDatabase(f"message {mid[:80]!r} is longer than any that was made here")
    try:
        message = decode(
            Message, {"id": mid, "role": role, "session_id": sid, "parts": json.loads(parts)}
        )
    except (BadRequest, ValueError, RecursionError) as error:
        raise CorruptDatabase(f"message {mid} is damaged and cannot be read: {error}") from None
    message.model, message.provider = model, provider
    message.created_at, message.updated_at = created_at, updated_at
    message.is_summary_message = bool(is_summary)
    return message


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
