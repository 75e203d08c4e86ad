"""The tables, their version, and the check of a file that is already there.

`MIGRATIONS[n]` brings a file from version n to n+1, in one transaction together with the new
`user_version`, so a file always is at exactly one version. A step that was released never changes.

Order is never taken from a time: `seq` is the order of insertion in a table, `touched` the order
of the last change of a session, and `position` the order of messages within a session. Recovery
gives a message the position of the one it must follow; `seq` then puts it right behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crushlite.errors import CorruptDatabase, NewerSchema
from crushlite.store.connection import transaction

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from crushlite.store.connection import ConnectionFactory

__all__ = ["MIGRATIONS", "VERSION", "inspect", "migrate"]

_TOUCH = "touched = (SELECT max(touched) + 1 FROM sessions AS s WHERE s.scope = {scope})"

_V1 = (
    """
    CREATE TABLE sessions (
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        parent_session_id TEXT, -- NULL, not '', so that the foreign key lets it be
        title TEXT NOT NULL,
        title_by_user INTEGER NOT NULL DEFAULT 0,
        message_count INTEGER NOT NULL DEFAULT 0,
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        completion_tokens INTEGER NOT NULL DEFAULT 0,
        summary_message_id TEXT NOT NULL DEFAULT '',
        cost REAL NOT NULL DEFAULT 0,
        todos TEXT NOT NULL DEFAULT '[]',
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        touched INTEGER NOT NULL,
        PRIMARY KEY (scope, id),
        FOREIGN KEY (scope, parent_session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX sessions_parent ON sessions (scope, parent_session_id, touched)",
    "CREATE INDEX sessions_touched ON sessions (scope, touched)",
    """
    CREATE TABLE messages (
        seq INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        finished INTEGER NOT NULL, -- whether parts hold a finish: recovery looks for those without
        model TEXT NOT NULL,
        provider TEXT NOT NULL,
        is_summary_message INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        UNIQUE (scope, id),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX messages_session ON messages (scope, session_id, position)",
    "CREATE INDEX messages_user ON messages (scope, seq) WHERE role = 'user'",
    "CREATE INDEX messages_open ON messages (seq) WHERE finished = 0",
    f"""
    CREATE TRIGGER messages_insert AFTER INSERT ON messages BEGIN
        UPDATE sessions SET message_count = message_count + 1,
            updated_at = max(updated_at, NEW.created_at), {_TOUCH.format(scope="NEW.scope")}
        WHERE scope = NEW.scope AND id = NEW.session_id;
    END
    """,
    """
    CREATE TRIGGER messages_delete AFTER DELETE ON messages BEGIN
        UPDATE sessions SET message_count = message_count - 1
        WHERE scope = OLD.scope AND id = OLD.session_id;
    END
    """,
    """
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        run_id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        prompt TEXT NOT NULL,
        attachments TEXT,
        user_message_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        when_busy TEXT NOT NULL,
        detach INTEGER NOT NULL,
        max_cost REAL,
        max_steps INTEGER,
        carrier TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        outcome TEXT, -- NULL until the run has ended
        message_id TEXT NOT NULL,
        error TEXT NOT NULL,
        denied INTEGER NOT NULL,
        accepted_at REAL NOT NULL,
        started_at REAL NOT NULL,
        ended_at REAL NOT NULL,
        UNIQUE (scope, run_id),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX runs_session ON runs (scope, session_id, seq)",
    "CREATE INDEX runs_unfinished ON runs (seq) WHERE outcome IS NULL",
    """
    CREATE TABLE files (
        seq INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        path TEXT NOT NULL,
        content TEXT NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        UNIQUE (scope, id),
        UNIQUE (scope, session_id, path, version),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE reads (
        seq INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        session_id TEXT NOT NULL,
        path TEXT NOT NULL,
        read_at REAL NOT NULL,
        UNIQUE (scope, session_id, path),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_V1,)
VERSION = len(MIGRATIONS)


def migrate(conn: sqlite3.Connection) -> None:
    for version in range(_version(conn), VERSION):
        with transaction(conn):
            for statement in MIGRATIONS[version]:
                conn.execute(statement)
            conn.execute(f"PRAGMA user_version = {version + 1}")


def inspect(path: Path, connect: ConnectionFactory) -> None:
    """Refuse a file that must not be opened for writing. It is looked at through a read-only
    connection: closing a read-write one would merge the log into a file that is not ours."""
    log = path.with_name(path.name + "-wal")
    if path.stat().st_size == 0:
        # SQLite would take the file for a new one and delete the log, which may be all there is.
        if log.exists() and log.stat().st_size > 0:
            raise CorruptDatabase(f"{path} is empty but its log {log.name} is not")
        return
    conn = connect(path, True)
    try:
        version = _version(conn)
        if version > VERSION:
            raise NewerSchema(
                f"{path} has schema version {version}, this crushlite knows up to {VERSION}: "
                "use a newer crushlite"
            )
        (verdict,) = conn.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise CorruptDatabase(f"{path} is damaged: {verdict}")
        if version == 0 and conn.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise CorruptDatabase(f"{path} is not a crushlite database")
    finally:
        conn.close()


def _version(conn: sqlite3.Connection) -> int:
    return int(conn.execute("PRAGMA user_version").fetchone()[0])
