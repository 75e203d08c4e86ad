"""A database that came with a project: nothing that it declares is run, nothing that lies beside it
is opened if it is no file, and nothing is deleted."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sqlite3
import struct
import unittest
from functools import partial
from typing import TYPE_CHECKING

from crushlite.errors import CorruptDatabase, StoreUnusable
from crushlite.protocol.messages import FinishPart, Message, Part, ToolCallPart
from crushlite.protocol.sessions import Session
from crushlite.repair.salvage import salvage
from crushlite.store import Stores
from crushlite.store.connection import connect
from crushlite.store.messages import get_message, insert_message
from crushlite.store.migrations import MIGRATIONS
from crushlite.store.recovery import recover
from crushlite.store.runs import RunRow, end_run, insert_run, start_run
from crushlite.store.sessions import (
    child_ids,
    delete_session,
    get_session,
    insert_session,
)
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.inline import InlineExecutor
from tests.store.test_damage import DamageCase, damage
from tests.support.store import StoreCase, ending, list_sessions

if TYPE_CHECKING:
    from pathlib import Path

ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
BURNING = "hex(zeroblob(1000000)) LIKE '%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%1'"
SCHEMA = "UPDATE sqlite_master SET sql = replace(sql, {!r}, {!r}) WHERE name = {!r}"
REAL = "cost REAL NOT NULL DEFAULT 0"

# What a file may bring along, as statements that put it there. Each is named in the refusal.
FOREIGN = {
    "trigger 'hang'": (
        "CREATE TRIGGER hang AFTER INSERT ON runs BEGIN "
        f"INSERT INTO gaps {ENDLESS} SELECT '', x, '', '', '', '' FROM n; END",
    ),
    "trigger 'hang2'": (
        f"CREATE TRIGGER hang2 BEFORE UPDATE ON sessions WHEN {BURNING} BEGIN SELECT 1; END",
    ),
    "view 'v'": (f"CREATE VIEW v AS {ENDLESS} SELECT x FROM n",),
    "table 'own'": ("CREATE TABLE own (x)",),
    "index 'others'": (f"CREATE INDEX others ON messages (model, ({BURNING}))",),
    "table 'words'": ("CREATE VIRTUAL TABLE words USING fts5(x)",),
    "table 'numbers'": (
        "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES "
        "('table', 'numbers', 'numbers', 0, 'CREATE VIRTUAL TABLE numbers USING unheard_of(x)')",
    ),
    "table 'sqlite_stat9'": (
        "CREATE TABLE own (x)",
        "UPDATE sqlite_master SET name = 'sqlite_stat9', tbl_name = 'sqlite_stat9', "
        "sql = 'CREATE TABLE sqlite_stat9(x)' WHERE name = 'own'",
    ),
    "sessions is not": (
        SCHEMA.format(REAL, REAL + f" CHECK ({BURNING.replace(chr(39), chr(34))})", "sessions"),
    ),
    "messages is not": (
        SCHEMA.format("model TEXT NOT NULL", "model TEXT AS (hex(zeroblob(9)))", "messages"),
    ),
    "runs is not": (SCHEMA.format("kind TEXT NOT NULL", "kind TEXT DEFAULT (1+1)", "runs"),),
}


class ForeignTests(DamageCase):
    def brought(self, *statements: str) -> Path:
        folder = self.copy(self.sound.closed)
        conn = sqlite3.connect(folder / "crushlite.db", isolation_level=None)
        conn.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            conn.execute(statement)
        conn.close()
        return folder

    async def test_a_file_that_declares_anything_else_is_refused_by_name_and_not_changed(
        self,
    ) -> None:
        for what, statements in FOREIGN.items():
            with self.subTest(what):
                folder = self.brought(*statements)
                before = damage.digests(folder)
                error = await self.refusal(folder)
                self.assertIsInstance(error, CorruptDatabase)
                self.assertIn(what, error.message)
                self.assertIn("move the file away", error.message)
                self.assertEqual(before, {**damage.digests(folder), **before})

    async def test_what_such_a_file_holds_is_salvaged_without_running_what_it_declares(
        self,
    ) -> None:
        for what, statements in FOREIGN.items():
            if what == "messages is not":
                continue  # a column that is missing
            with self.subTest(what):
                saved = self.root / f"saved {what}" / "crushlite.db"
                saved.parent.mkdir()
                salvage(self.brought(*statements) / "crushlite.db", saved)
                found = await self.rows(saved.parent)
                self.assertEqual(found.keys(), self.sound.rows.keys())

    async def test_salvage_reads_no_view_and_no_generated_column(self) -> None:
        folder = self.brought(
            "DROP TABLE gaps",
            f"CREATE VIEW gaps AS {ENDLESS} SELECT x AS scope, x AS run_id FROM n",
            "DROP TABLE reads",
            f"CREATE TABLE reads (seq INTEGER PRIMARY KEY, scope TEXT AS ({BURNING}))",
            "INSERT INTO reads (seq) VALUES (1)",
        )
        await self.refusal(folder)
        counts = salvage(folder / "crushlite.db", self.root / "saved.db")
        self.assertEqual((counts["gaps"], counts["reads"]), ((0, 0), (0, 1)))
        self.assertEqual(counts["sessions"][0], 20)

    async def test_reading_the_declarations_is_bounded(self) -> None:
        """SQLite reads its statistics before the first statement, and they may be computed."""
        burning = f"CREATE TABLE sqlite_stat1(tbl,idx,stat AS ({BURNING}))".replace("'", "''")
        folder = self.brought(
            f"UPDATE sqlite_master SET sql = '{burning}' WHERE name = 'sqlite_stat1'"
        )
        self.assertIn("sqlite_stat1", (await self.refusal(folder)).message)
        salvage(folder / "crushlite.db", self.root / "one.db")

        many = (
            "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) "
            f"{ENDLESS} SELECT 'view', 'v' || x, 'v' || x, 0, "
            "'CREATE VIEW v' || x || ' AS SELECT 1' FROM n LIMIT 30000"
        )
        self.assertIn("too large", (await self.refusal(self.brought(many))).message)

        long = SCHEMA.format(REAL, REAL + " /*" + "x" * 100_000 + "*/", "sessions")
        self.assertIn("crushlite.db", (await self.refusal(self.brought(long))).message)

    async def test_statistics_of_sqlite_are_no_foreign_declaration(self) -> None:
        folder = self.brought("ANALYZE")
        self.assertEqual(await self.rows(folder), self.sound.rows)


class JournalTests(DamageCase):
    """SQLite deletes the file that a hot journal names as that of a larger transaction."""

    MAGIC = bytes.fromhex("d9d505f920a163d7")

    def journal(self, database: Path, *, pages: int, names: Path | None = None) -> None:
        head = (self.MAGIC + struct.pack(">IIIII", 0, 0, pages, 512, 4096)).ljust(512, b"\0")
        tail = b""
        if names is not None:
            name = os.fsencode(names)
            tail = struct.pack(">I", 2**30 // 4096 + 1) + name
            tail += struct.pack(">II", len(name), sum(name)) + self.MAGIC
        database.with_name(database.name + "-journal").write_bytes(head + tail)

    async def test_a_journal_deletes_no_file_that_it_names(self) -> None:
        victim = self.root / "victim"
        victim.write_text("precious")
        for small in (False, True):
            folder = self.copy(self.sound.closed)
            database = folder / "crushlite.db"
            if small:
                os.truncate(database, 4096)
            pages = 0 if small else database.stat().st_size // 4096
            self.journal(database, pages=pages, names=victim)
            message = (await self.refusal(folder)).message
            self.assertIn("crushlite.db-journal", message)
            salvage(database, self.root / f"saved-{small}.db")
            self.assertEqual(victim.read_text(), "precious")

    async def test_a_creation_that_was_cut_short_is_begun_again(self) -> None:
        folder = self.root / "young"
        folder.mkdir()
        database = folder / "crushlite.db"
        conn = sqlite3.connect(database, isolation_level=None)
        conn.execute("PRAGMA page_size = 4096")
        conn.execute("PRAGMA user_version = 0")
        conn.close()
        self.assertEqual(database.stat().st_size, 4096)
        self.journal(database, pages=0)
        self.assertEqual(await self.rows(folder), {})


class NeighbourTests(StoreCase):
    async def test_nothing_beside_the_database_is_opened_that_is_no_file(self) -> None:
        for name in ("crushlite.lock", *(f"crushlite.db{tail}" for tail in ("", "-wal", "-shm"))):
            with self.subTest(name):
                shutil.rmtree(self.directory, ignore_errors=True)
                self.directory.mkdir()
                os.mkfifo(self.directory / name)
                stores = Stores(clock=FakeClock(), boot_id="boot")
                async with asyncio.timeout(60):
                    with self.assertRaises(StoreUnusable) as caught:
                        await stores.open(self.directory)
                self.assertIn(f"{name} is not a file", caught.exception.message)
                self.assertIn("move it away", caught.exception.message)


class DescentTests(StoreCase):
    async def test_sessions_that_descend_from_each_other_hang_neither_opening_nor_deleting(
        self,
    ) -> None:
        async with self.opened(executor=InlineExecutor) as store:
            for name in ("a", "b"):
                await store.submit(partial(insert_session, scope="", session=Session(id=name)))
            row = RunRow(run_id="run", session_id="a", digest="d", prompt="p", boot_id="another")
            await store.submit(partial(insert_run, scope="", row=row))
            await store.submit(
                lambda conn: conn.execute(
                    "UPDATE sessions SET parent_session_id = CASE id WHEN 'a' THEN 'b' ELSE 'a' END"
                ).close()
            )
        async with asyncio.timeout(60):
            async with self.opened() as store:  # recovery asks for the children of 'a'
                self.assertEqual(await store.read(partial(child_ids, scope="", sid="a")), ["b"])
                gone = await store.submit(partial(delete_session, scope="", sid="a"))
                self.assertEqual(gone, ["a", "b"])


class NestedTests(StoreCase):
    async def test_what_is_nested_deeper_than_can_be_read_is_damage_and_no_failure(self) -> None:
        deep = "[" * 100_000
        async with self.opened(executor=InlineExecutor) as store:
            for name in ("a", "b"):
                await store.submit(partial(insert_session, scope="", session=Session(id=name)))
            message = Message("m", "assistant", "b", [FinishPart("stop")])
            await store.submit(partial(insert_message, scope="", message=message))
            row = RunRow(run_id="run", session_id="b", digest="d", prompt="p", boot_id="another")
            await store.submit(partial(insert_run, scope="", row=row))
            for change in (
                "UPDATE sessions SET todos = ? WHERE id = 'a'",
                "UPDATE runs SET attachments = ?",
            ):
                await store.submit(partial(execute, sql=change, values=(deep,)))
        async with self.opened() as store:  # recovery reads the attachments
            for read in (partial(get_session, sid="a"), list_sessions):
                with self.assertRaises(CorruptDatabase):
                    await store.read(partial(read, scope=""))
            change = "UPDATE messages SET parts = ?"
            await store.submit(partial(execute, sql=change, values=(deep,)))
            with self.assertRaises(CorruptDatabase):
                await store.read(partial(get_message, scope="", mid="m"))


class LongTests(StoreCase):
    async def test_sessions_that_no_request_could_make_so_long_are_refused(self) -> None:
        async with self.opened() as store:
            for number in range(40):
                session = Session(id=f"s{number}")
                await store.submit(partial(insert_session, scope="", session=session))
            change = "UPDATE sessions SET title = hex(zeroblob(500000))"
            await store.submit(partial(execute, sql=change, values=()))
            found = await store.read(partial(get_session, scope="", sid="s0"))
            self.assertEqual(len(found.title), 1_000_000)
            with self.assertRaises(CorruptDatabase):
                await store.read(partial(list_sessions, scope=""))
            for long in ("hex(zeroblob(9000000))", "'a' || char(0) || hex(zeroblob(9000000))"):
                change = f"UPDATE sessions SET title = {long} WHERE id = 's0'"
                await store.submit(partial(execute, sql=change, values=()))
                for read in (partial(get_session, sid="s0"), list_sessions):
                    with self.assertRaises(CorruptDatabase):
                        await store.read(partial(read, scope=""))
            change = "UPDATE sessions SET title = '', todos = ?"
            todo = json.dumps([{"content": "", "status": "", "active_form": "x" * 1_000_000}])
            await store.submit(partial(execute, sql=change, values=(todo,)))
            with self.assertRaises(CorruptDatabase):
                await store.read(partial(list_sessions, scope=""))


class CostTests(unittest.TestCase):
    """Recovery of a file with many open runs: a project may bring one, a long session makes one."""

    def cost(self, size: int) -> int:
        """Steps of SQLite's machine, in tens, to recover so many open runs behind as many ended
        ones, with as many open tool calls in the last turn."""
        conn = sqlite3.connect(":memory:", isolation_level=None)
        for statement in itertools.chain(*MIGRATIONS):
            conn.execute(statement)
        insert_session(conn, "", Session(id="s"))
        for number in range(2 * size):
            run, user = f"r{number}", f"u{number}"
            row = RunRow(run, "s", "d", "p", user_message_id=user, boot_id="another")
            insert_run(conn, "", row)
            if number <= size:
                start_run(conn, "", run, Message(user, "user", "s", [FinishPart("stop")]), 1.0)
            if number < size:
                end_run(conn, "", ending(run, "completed", "", "", 0, "", 1.0))
        calls: list[Part] = [ToolCallPart(f"c{n}", "bash", "{}") for n in range(size)]
        insert_message(conn, "", Message("a", "assistant", "s", calls))
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1

        conn.set_progress_handler(count, 10)
        self.assertEqual(len(recover(conn, "boot", 5.0)), size)
        conn.close()
        return steps

    def test_it_grows_with_the_file_and_not_with_its_square(self) -> None:
        self.assertLess(self.cost(400), 3 * self.cost(200))


class ConnectionTests(StoreCase):
    async def test_every_connection_distrusts_the_file(self) -> None:
        async with self.opened() as store:
            for run in (store.submit, store.read):
                self.assertEqual(await run(settings), (0, 1))
            conn = connect(store.path, True)
            self.assertEqual(settings(conn), (0, 1))
            conn.close()


def execute(conn: sqlite3.Connection, sql: str, values: tuple[str, ...]) -> None:
    conn.execute(sql, values).close()


def settings(conn: sqlite3.Connection) -> tuple[int, int]:
    (trusted,) = conn.execute("PRAGMA trusted_schema").fetchone()
    (checked,) = conn.execute("PRAGMA cell_size_check").fetchone()
    return trusted, checked
