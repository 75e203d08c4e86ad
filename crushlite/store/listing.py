"""Lists of messages as JSON that SQLite writes.

A session may hold a hundred thousand messages. Making objects of them, and JSON of the objects,
would occupy the interpreter for seconds, and every prompt that is being stored would wait. The
parts are stored in the shape of the wire, so SQLite can write the JSON of a message, and while it
works the interpreter is free. The texts are joined in pieces, so that no copy of all is ever made.
"""

from __future__ import annotations

import sqlite3
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..errors import CorruptDatabase
from .connection import check_row
from .messages import MESSAGE_COLUMNS, PARTS_CHARS, message_from_row

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..protocol.messages import Message
    from .connection import Connection

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
