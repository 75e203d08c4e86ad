"""What agents and wings keep with a session: for each owner one text of its own making, which no
client sees. The owner '' is the agent of the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BadRequest
from .sessions import require_session

if TYPE_CHECKING:
    from .connection import Connection

NOTES_CHARS = 1 << 20


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
