"""The tables, as each version made them, and bringing a file to the latest, step by step.

A released version never changes: a later one adds. Order is never taken from a time: `seq` is the
order of insertion in a table, `touched` the order of the last change among sessions with the same
parent, and `position` the order of messages within a session. Recovery gives a message the position
of the one it must follow; `seq` then puts it right behind.

Each step is one transaction together with the new `user_version`: whenever the process dies, the
file is at exactly one version. Before it the file is copied to `crushlite.db.v<old>.bak`, which an
older crushlite can use; the last few copies are kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .connection import transaction
from .directory import sync_directory

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

BACKUPS = 2  # copies that are kept: each may be as large as the database

_TOUCH = "touched = (SELECT max(touched) + 1 FROM sessions AS s WHERE s.scope = {scope})"

V1 = (
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

# One index for every list that is asked for: no query reads rows that it does not return.
V2 = (
    "CREATE INDEX messages_user_session ON messages (scope, session_id, seq) WHERE role = 'user'",
    "CREATE INDEX runs_scope ON runs (scope, seq)",
    "CREATE INDEX runs_live ON runs (scope, seq) WHERE outcome IS NULL",
    "CREATE INDEX files_session ON files (scope, session_id, version, seq)",
    "CREATE INDEX reads_session ON reads (scope, session_id, seq)",
)

# Which run made a version of a file, and which changes are known to be missing. `present` is 0 for
# a version that records that there was no such file. `undoes` is the run that a version undid.
V3 = (
    "ALTER TABLE files ADD COLUMN run_id TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE files ADD COLUMN undoes TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE files ADD COLUMN present INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE files ADD COLUMN mode INTEGER",
    # With all that the lists of changes need: the rows themselves may be large.
    """
    CREATE INDEX files_run ON files
        (scope, run_id, seq, session_id, path, version, undoes, created_at) WHERE run_id <> ''
    """,
    """
    CREATE TABLE gaps (
        seq INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        path TEXT NOT NULL, -- '' for all that a command may have changed
        reason TEXT NOT NULL,
        UNIQUE (scope, run_id, path),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX gaps_session ON gaps (scope, session_id)",
)

# What the agent of a session keeps with it. Not a column of sessions: those rows are rewritten with
# every message.
V4 = (
    """
    CREATE TABLE agent_notes (
        scope TEXT NOT NULL,
        session_id TEXT NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (scope, session_id),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
)

# What ended a run before its agent did, the limit of time that it was given, and what it has used.
V5 = (
    "ALTER TABLE runs ADD COLUMN max_seconds REAL",
    "ALTER TABLE runs ADD COLUMN limit_reached TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN cost REAL NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN completion_tokens INTEGER NOT NULL DEFAULT 0",
)

# Several agents may answer in one session: each keeps notes of its own. `owner` comes before the
# session, because a wing reads all that it keeps when a workspace opens.
V6 = (
    """
    CREATE TABLE session_notes (
        scope TEXT NOT NULL,
        owner TEXT NOT NULL,
        session_id TEXT NOT NULL,
        content TEXT NOT NULL,
        PRIMARY KEY (scope, owner, session_id),
        FOREIGN KEY (scope, session_id) REFERENCES sessions (scope, id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX session_notes_session ON session_notes (scope, session_id)",
    "INSERT INTO session_notes SELECT scope, '', session_id, content FROM agent_notes",
    "DROP TABLE agent_notes",
)

# Prompts and endings wait until every page that they change is in the log. So no index is kept that
# another one can do for: `runs_live` holds what `runs_unfinished` did, the list of all runs is
# sorted when it is asked for, and `touched` orders only sessions with the same parent. A session
# that is listed first keeps its number when it changes, so that the index need not be written.
V7 = (
    "DROP INDEX runs_unfinished",
    "DROP INDEX runs_scope",
    "DROP INDEX sessions_touched",
    "DROP TRIGGER messages_insert",
    """
    CREATE TRIGGER messages_insert AFTER INSERT ON messages BEGIN
        UPDATE sessions SET message_count = message_count + 1,
            updated_at = max(updated_at, NEW.created_at)
        WHERE scope = NEW.scope AND id = NEW.session_id;
        UPDATE sessions SET touched = 1 + (
            SELECT max(touched) FROM sessions AS s
            WHERE s.scope = sessions.scope AND s.parent_session_id IS sessions.parent_session_id
        )
        WHERE scope = NEW.scope AND id = NEW.session_id AND rowid <> (
            SELECT rowid FROM sessions AS s
            WHERE s.scope = sessions.scope AND s.parent_session_id IS sessions.parent_session_id
            ORDER BY touched DESC LIMIT 1
        );
    END
    """,
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (V1, V2, V3, V4, V5, V6, V7)  # statements, by version
VERSION = len(MIGRATIONS)


def version_of(conn: sqlite3.Connection) -> int:
    """The schema version of a database, 0 if it has just been created."""
    return int(conn.execute("PRAGMA user_version").fetchone()[0])


def migrate(
    conn: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Apply the migrations that the database at `path` does not have yet."""
    found = version_of(conn)
    for version in range(found, len(migrations)):
        if found > 0:  # a new file holds nothing
            _backup(conn, path, version)
        with transaction(conn):
            for statement in migrations[version]:
                conn.execute(statement)
            conn.execute(f"PRAGMA user_version = {version + 1}")


def _backup(conn: sqlite3.Connection, path: Path, version: int) -> None:
    target = path.with_name(f"{path.name}.v{version}.bak")
    half = path.with_name(f"{target.name}.tmp")
    half.unlink(missing_ok=True)  # of an attempt that was cut short
    descriptor = os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        conn.execute("VACUUM INTO ?", (str(half),))  # takes an empty file as if it were none
        os.fsync(descriptor)  # SQLite does not: it takes the copy for something to throw away
        half.rename(target)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)
    copies = [path.with_name(f"{path.name}.v{old}.bak") for old in range(version + 1)]
    for old in [copy for copy in copies if copy.exists()][:-BACKUPS]:
        old.unlink()
