"""Storing a turn that has no run of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import CrushliteError
from ..store import sessions as session_rows

if TYPE_CHECKING:
    from ..hosting.turn import LiveTurn
    from ..protocol.sessions import Session
    from ..store import Connection

log = logging.getLogger(__name__)


async def store_or_flush(turn: LiveTurn) -> None:
    """Store a turn that is closed. If that fails, it is stored as soon as anything can be."""
    try:
        await store(turn)
    except CrushliteError as error:
        log.warning("session %s: its messages are not stored yet: %s", turn.session_id, error)
        for message in turn.messages:
            turn.workspace.transcript.flush(message)


async def store(turn: LiveTurn, summary_id: str = "") -> None:
    """Write the messages of a turn that is closed, and publish its session. With `summary_id`, this
    message stands for all before it from now on. Raises CrushliteError."""
    workspace, session_id = turn.workspace, turn.session_id
    save, now = workspace.transcript.saving(turn.messages), workspace.clock.now()
    tokens = turn.spent.completion_tokens

    def work(conn: Connection, scope: str) -> Session:
        session_rows.require_session(conn, scope, session_id)
        save(conn)
        if summary_id:
            return set_summary(conn, scope, session_id, summary_id, tokens, now)
        return session_rows.get_session(conn, scope, session_id)

    write = workspace.store.write_durably if summary_id else workspace.store.write
    session = await write(work)
    workspace.transcript.saved(turn.messages)
    workspace.hub.publish("updated", session)


def set_summary(
    conn: Connection, scope: str, sid: str, message_id: str, completion_tokens: int, now: float
) -> Session:
    """Set the summary that stands for all messages before it, and how full the context is now."""
    conn.execute(
        "UPDATE sessions SET summary_message_id = ?, prompt_tokens = 0, completion_tokens = 0 "
        "WHERE scope = ? AND id = ?",
        (message_id, scope, sid),
    )
    return session_rows.save_usage(conn, scope, sid, (0, completion_tokens, 0.0), now)
