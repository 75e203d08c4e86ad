"""No query of the store reads or sorts rows that it does not return: each has its index."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.acp_agents import choices
from crushlite.delegation import storing
from crushlite.errors import NotFound
from crushlite.filehistory import queries as files
from crushlite.filehistory.queries import Change, FileState
from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session, Todo
from crushlite.store import messages, recovery, runs, sessions
from crushlite.store.connection import configure, transaction
from crushlite.store.migrations import migrate
from crushlite.store.runs import RunRow
from crushlite.titles import part as titles
from crushlite.undo import queries
from crushlite.undo.states import MISSING
from tests.support.store import ending

if TYPE_CHECKING:
    from types import ModuleType

CHANGE = Change("/path", MISSING, FileState("b", 0o644), "r1")

# What may be read from end to end, or sorted, and why.
REASONS = {
    r"SCAN CONSTANT ROW": "a VALUES list",
    r"SCAN family": "the sessions below one: as many as are returned",
    r"USE TEMP B-TREE FOR ORDER BY \(family\)": "the same, sorted by level",
    r"SCAN runs USING (COVERING )?INDEX runs_live": "holds only what recovery is to end",
    r"SCAN runs \(of one scope\)": "all of them are returned: statistics say that it has no other",
    r"SCAN messages USING (COVERING )?INDEX messages_open": "holds only what recovery is to close",
}


class Recording(sqlite3.Connection):
    """Keeps every statement with its values, as it is prepared: a value that is bound can use
    fewer indexes than one that is written out."""

    seen: dict[str, Any]

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if re.match(r"\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE|WITH)\b", sql):
            self.seen.setdefault(sql, parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        rows = list(rows)
        self.seen.setdefault(sql, rows[0])
        return super().executemany(sql, rows)


def message(mid: str, sid: str, role: str = "user", *, open_: bool = False) -> Message:
    found = Message(mid, role, sid, created_at=1, updated_at=1)
    found.parts = [TextPart("text"), *([] if open_ else [FinishPart("stop")])]
    return found


class PlanTests(unittest.TestCase):
    def setUp(self) -> None:
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "crushlite.db"
        self.conn = sqlite3.connect(path, isolation_level=None, factory=Recording)
        self.conn.seen = {}
        self.addCleanup(self.conn.close)
        configure(self.conn)
        migrate(self.conn, path)
        self.conn.seen = {}  # migrations read whole tables, once, and drop some
        with transaction(self.conn):
            for number in range(30):  # enough for the statistics to say something
                self.fill(f"s{number}")
            self.drive()

    def fill(self, sid: str) -> None:
        conn = self.conn
        sessions.insert_session(conn, "", Session(id=sid))
        for owner in "abc":
            sessions.set_notes(conn, "", sid, "kept", owner)
        for number in range(20):
            role = "assistant" if number % 2 else "user"
            messages.insert_message(conn, "", message(f"{sid}-{number}", sid, role))
            runs.insert_run(conn, "", RunRow(f"{sid}-r{number}", sid, "d", "p", boot_id="old"))
            runs.end_run(conn, "", ending(f"{sid}-r{number}", "completed", "", ended_at=1.0))
            files.mark_read(conn, "", sid, f"/{number}", 1.0)
            states = FileState("a"), FileState("b")
            files.record_changes(conn, "", sid, [Change(f"/{number}", *states)], 1.0)

    def drive(self) -> None:
        """Call everything that takes a connection; `called` remembers what was."""
        self.called: set[str] = set()
        for name, *arguments in CALLS:
            module, _, function = name.partition(".")
            self.called.add(name)
            with contextlib.suppress(NotFound):
                getattr(MODULES[module], function)(self.conn, *arguments)

    def plans(self) -> dict[str, str]:
        """For each statement the lines of its plan that read or sort too much."""
        found = {}
        for sql, parameters in [*self.conn.seen.items(), *self.trigger_statements()]:
            rows = self.conn.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
            bad = [detail for *_, detail in rows if not allowed(detail, sql)]
            if bad:
                found[" ".join(sql.split())] = "; ".join(bad)
        return found

    def trigger_statements(self) -> list[tuple[str, Any]]:
        found = []
        triggers = self.conn.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")
        for (sql,) in triggers.fetchall():
            body = sql[sql.index("BEGIN") + 5 : sql.rindex("END")].strip().rstrip(";")
            for part in body.split(";"):
                statement = re.sub(r"\b(NEW|OLD)\.\w+", "?", part)
                found.append((statement, ("",) * statement.count("?")))
        self.assertEqual(len(found), 3)
        return found

    def test_every_function_that_takes_a_connection_is_driven(self) -> None:
        offered = {
            f"{name}.{function}"
            for name, module in MODULES.items()
            for function, value in vars(module).items()
            if not function.startswith("_")
            and getattr(value, "__module__", "") == module.__name__
            and "conn" in getattr(value, "__annotations__", {})
        }
        self.assertEqual(offered, self.called)

    def test_no_query_reads_or_sorts_what_it_does_not_return(self) -> None:
        self.assertGreater(len(self.conn.seen), 30)
        self.assertEqual(self.plans(), {})

    def test_nor_does_any_once_there_are_statistics(self) -> None:
        self.conn.execute("ANALYZE")
        self.assertEqual(self.plans(), {})

    def test_a_query_without_an_index_would_be_noticed(self) -> None:
        self.conn.execute("SELECT id FROM messages WHERE model = ?", ("m",))
        self.conn.execute("SELECT id FROM runs, messages ORDER BY digest LIMIT 1")
        self.assertEqual(len(self.plans()), 2)

    def test_what_goes_with_a_session_is_found_by_an_index(self) -> None:
        for table in ("sessions", "messages", "runs", "files", "reads"):
            for _, _, parent, column, *_ in self.conn.execute(
                f"SELECT * FROM pragma_foreign_key_list('{table}') WHERE seq = 1"
            ).fetchall():
                with self.subTest(table=table):
                    self.assertEqual(parent, "sessions")
                    self.assertIn(["scope", column], self.index_heads(table))

    def index_heads(self, table: str) -> list[list[str]]:
        indexes = self.conn.execute(
            f"SELECT name FROM pragma_index_list('{table}') WHERE NOT partial"
        ).fetchall()
        return [
            [row[2] for row in self.conn.execute(f"PRAGMA index_info({name})").fetchall()[:2]]
            for (name,) in indexes
        ]


def allowed(detail: str, sql: str) -> bool:
    if "USE TEMP B-TREE" in detail and "family" in sql:
        detail += " (family)"
    if detail == "SCAN runs" and re.search(
        r"FROM runs WHERE scope = :scope *(AND outcome IS NOT NULL)?$", sql
    ):
        detail += " (of one scope)"
    if not detail.startswith("SCAN ") and "USE TEMP B-TREE" not in detail:
        return True
    return any(re.fullmatch(pattern, detail) for pattern in REASONS)


MODULES: dict[str, ModuleType] = {
    "sessions": sessions,
    "messages": messages,
    "runs": runs,
    "files": files,
    "queries": queries,
    "choices": choices,
    "titles": titles,
    "storing": storing,
    "recovery": recovery,
}
CALLS: list[tuple[Any, ...]] = [
    ("sessions.insert_session", "", Session(id="child", parent_session_id="s1")),
    ("sessions.insert_session", "", Session(id="doomed")),
    ("sessions.require_session", "", "s1"),
    ("sessions.get_session", "", "s1"),
    ("sessions.session_texts", ""),
    ("sessions.rename_session", "", "s1", "title", 1.0),
    ("sessions.set_title", "", "s1", "title", 1.0, (1, 1, 0.5)),
    ("sessions.save_usage", "", "s1", (1, 1, 0.5), 1.0),
    ("sessions.set_todos", "", "s1", [Todo("x")], 1.0),
    ("storing.set_summary", "", "s1", "s1-1", 1, 1.0),
    ("sessions.child_ids", "", "s1"),
    ("sessions.delete_session", "", "doomed"),
    ("messages.insert_message", "", message("m", "s1")),
    ("messages.insert_message", "", message("n", "s1"), 3),
    ("messages.save_message", "", message("m", "s1")),
    ("messages.get_message", "", "m"),
    ("messages.position_of", "", "m"),
    ("messages.list_messages", "", "s1"),
    ("messages.placed_messages", "", "s1", 1),
    *(("messages.message_texts", "", "s1", live) for live in ((), ("m", "x"))),
    *(("messages.user_message_texts", "", sid, ("m", "x")) for sid in ("s1", None)),
    *(("messages.user_message_texts", "", sid, ()) for sid in ("s1", None)),
    ("messages.delete_message", "", "n"),
    *(("messages.message_texts", "", "s1", live) for live in ((), ("m", "s1-3"))),
    *(("messages.user_message_texts", "", sid, ("m",)) for sid in ("s1", None)),
    ("runs.insert_run", "", RunRow("r", "s1", "d", "p", boot_id="old")),
    ("runs.insert_run", "", RunRow("rider", "s1", "d", "p", carrier="r", boot_id="old")),
    ("runs.start_run", "", "r", message("rm", "s1"), 1.0),
    ("runs.find_run", "", "r"),
    ("runs.get_run", "", "r"),
    *(("runs.list_runs", "", sid, ended) for sid in ("s1", None) for ended in (True, False, None)),
    ("runs.ended_among", "", ["r", "nobody"]),
    ("titles.is_first_prompt", "", "s1", "r"),
    ("messages.insert_message", "", message("open", "s2", "assistant", open_=True)),
    ("recovery.recover", "new", 1.0),
    ("recovery.recover", "new", 1.0),
    ("runs.end_run", "", ending("r", "completed")),
    ("files.record_changes", "", "s1", [CHANGE], 1.0),
    ("queries.record_gaps", "", "s1", "r1", [("/path", "too large")]),
    ("queries.changed_runs", ""),
    ("queries.run_history", "", "r1"),
    ("files.list_files", "", "s1"),
    ("files.mark_read", "", "s1", "/path", 1.0),
    ("files.list_read", "", "s1"),
    ("files.last_read", "", "s1", "/path"),
    ("sessions.set_notes", "", "s1", "kept"),
    ("sessions.get_notes", "", "s1"),
    ("choices.all_notes", "", "agent", 100),
]


if __name__ == "__main__":
    unittest.main()
