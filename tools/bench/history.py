"""A history for a database of crushlite, written behind the daemon's back: a million messages that
are posted take an hour.

The database is one that the daemon has made, so the tables are those of the package. Messages come
by four, as turns leave them: a prompt, a tool call, its result, an answer; each prompt has its run.
"""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds that the daemon may hold the lock
TURN = 4  # messages of one turn


def fill(file: Path, messages: int, session: str | None = None) -> None:
    """Put messages into one session, or as many into each of all sessions as make this number."""
    with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN IMMEDIATE")
        # It is called for each message and takes as long as all the rest: the count is set below.
        name = "messages_insert"
        (trigger,) = database.execute(
            "SELECT sql FROM sqlite_master WHERE name = ?", (name,)
        ).fetchone()
        database.execute(f"DROP TRIGGER {name}")
        chosen = "" if session is None else "WHERE id = :session"
        every = database.execute(f"SELECT scope, id FROM sessions {chosen}", {"session": session})
        places = every.fetchall()
        (first,) = database.execute("SELECT coalesce(max(seq), 0) FROM messages").fetchone()
        for number, place in enumerate(places):
            count = messages * (number + 1) // len(places) - messages * number // len(places)
            _fill_session(database, *place, f"{first + number:08x}", count)
        database.execute(trigger)
        database.execute(
            "UPDATE sessions SET message_count = (SELECT count(*) FROM messages WHERE"
            " messages.scope = sessions.scope AND messages.session_id = sessions.id)"
        )
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # its log is not the daemon's


def _fill_session(
    database: sqlite3.Connection, scope: str, session: str, prefix: str, count: int
) -> None:
    values = {"scope": scope, "session": session, "count": count, "prefix": prefix, **_parts()}
    database.execute(
        f"""
        WITH RECURSIVE numbers (n) AS (
            SELECT 0 WHERE :count > 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :count
        )
        INSERT INTO messages (scope, id, session_id, position, role, parts, finished, model,
            provider, created_at, updated_at)
        SELECT :scope, printf('%s-0000-4000-8000-%012x', :prefix, n), :session, n + 1,
            CASE n % {TURN} WHEN 0 THEN 'user' WHEN 2 THEN 'tool' ELSE 'assistant' END,
            CASE n % {TURN} WHEN 0 THEN :prompt WHEN 1 THEN replace(:call, '#', n + 1)
                WHEN 2 THEN replace(:result, '#', n) ELSE :answer END,
            1, 'fake', 'fake', 0, 0
        FROM numbers
        """,
        values,
    )
    database.execute(
        """
        INSERT INTO runs (scope, run_id, session_id, digest, prompt, user_message_id, kind,
            when_busy, detach, carrier, boot_id, outcome, message_id, error, denied, accepted_at,
            started_at, ended_at)
        SELECT scope, 'run-' || id, session_id, '', 'hello', id, 'prompt', '', 0, '', '',
            'completed', '', '', 0, 0, 0, 0
        FROM messages WHERE scope = :scope AND session_id = :session AND role = 'user'
        """,
        values,
    )


def _parts() -> dict[str, str]:
    """The parts of the messages of a turn; `#` stands for what is different in each."""
    words = "some words of an ordinary message, "
    asked, called = {"path": "src/some/file.py"}, {"id": "call-#", "name": "view"}
    call = {**called, "input": json.dumps(asked), "finished": True}
    seen = {"tool_call_id": "call-#", "name": "view", "content": words * 12, "metadata": ""}
    return {
        "prompt": _dumped(("text", {"text": words * 4}), ("finish", _finish("stop"))),
        "call": _dumped(("tool_call", call), ("finish", _finish("tool_use"))),
        "result": _dumped(("tool_result", seen | {"is_error": False}), ("finish", _finish("stop"))),
        "answer": _dumped(("text", {"text": words * 8}), ("finish", _finish("end_turn"))),
    }


def _finish(reason: str) -> dict[str, Any]:
    return {"reason": reason, "time": 0}


def _dumped(*parts: tuple[str, dict[str, Any]]) -> str:
    return json.dumps([{"type": kind, "data": data} for kind, data in parts])
