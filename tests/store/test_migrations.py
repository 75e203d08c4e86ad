"""Migrations: a file is at exactly one version at every instant, and the old one is kept."""

from __future__ import annotations

import itertools
import sqlite3
import stat
import tempfile
import unittest
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.errors import StoreFull, StoreUnusable
from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.connection import configure, connect
from crushlite.store.messages import insert_message, list_messages
from crushlite.store.migrations import BACKUPS, MIGRATIONS, VERSION, migrate, version_of
from crushlite.store.sessions import insert_session
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.store import DyingOpener, list_sessions

if TYPE_CHECKING:
    from crushlite.store import Connection


def schema(conn: Connection) -> set[tuple[str, str]]:
    rows = conn.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {(name, sql) for name, sql in rows.fetchall() if not name.startswith("sqlite_")}


def declared(version: int) -> set[tuple[str, str]]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    for statement in itertools.chain(*MIGRATIONS[:version]):
        conn.execute(statement)
    found = schema(conn)
    conn.close()
    return found


OLD = VERSION - BACKUPS  # the oldest version of which a copy is kept


class MigrationCase(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.directory = self.root / "data"
        self.database = self.directory / "crushlite.db"
        self.stores = Stores(clock=FakeClock(), boot_id="boot")

    def make_old(self, version: int = 1) -> None:
        """A file as the crushlite of that version left it."""
        self.directory.mkdir(exist_ok=True)
        self.database.touch()
        conn = connect(self.database, False)
        configure(conn)
        migrate(conn, self.database, MIGRATIONS[:version])
        for number in range(5):
            insert_session(conn, "", Session(id=f"s{number}"))
            message = Message(f"m{number}", "user", f"s{number}")
            message.parts = [TextPart("x" * 5_000), FinishPart("stop")]
            insert_message(conn, "", message)
        conn.close()

    async def check(self, sessions: int = 5) -> None:
        """The file is of this version, and holds what it held."""
        store = await self.stores.open(self.directory)
        self.assertEqual(await store.read(version_of), VERSION)
        self.assertEqual(await store.read(schema), declared(VERSION))
        found = await store.read(lambda conn: list_sessions(conn, ""))
        order = [f"s{number}" for number in reversed(range(sessions))]
        self.assertEqual([session.id for session in found], order)
        for session in found:
            messages = await store.read(partial(list_messages, scope="", sid=session.id))
            self.assertEqual([len(m.text) for m in messages], [5_000])
        await self.stores.release(store)

    def kept(self) -> list[str]:
        """What an old file leaves: itself, and copies of the last versions before this one."""
        return ["crushlite.db", *(f"crushlite.db.v{n}.bak" for n in range(OLD, VERSION))]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("crushlite.db*"))


class OpeningTests(MigrationCase):
    async def test_an_old_file_is_brought_up_to_date_and_kept_as_it_was(self) -> None:
        self.make_old(OLD)
        await self.check()
        self.assertEqual(self.names(), self.kept())
        kept = self.directory / f"crushlite.db.v{OLD}.bak"
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o600)
        conn = connect(kept, True)
        self.addCleanup(conn.close)
        self.assertEqual((version_of(conn), schema(conn)), (OLD, declared(OLD)))
        self.assertEqual(len(list_sessions(conn, "")), 5)

    async def test_the_kept_file_can_be_put_back(self) -> None:
        self.make_old(OLD)
        await self.check()
        (self.directory / f"crushlite.db.v{OLD}.bak").rename(self.database)
        await self.check()

    async def test_a_new_file_has_nothing_to_keep(self) -> None:
        await self.check(sessions=0)
        self.assertEqual(self.names(), ["crushlite.db"])

    async def test_without_room_for_the_copy_the_file_stays_as_it_is(self) -> None:
        def factory(path: Path, read_only: bool) -> Connection:
            if read_only:
                return connect(path, True)
            return sqlite3.connect(
                path, isolation_level=None, factory=NoRoom, check_same_thread=False
            )

        self.make_old()
        before = self.database.read_bytes()
        stores = Stores(clock=FakeClock(), boot_id="boot", connect=factory)
        with self.assertRaises(StoreFull):
            await stores.open(self.directory)
        self.assertEqual((self.names(), self.database.read_bytes()), (["crushlite.db"], before))
        await self.check()

    async def test_what_is_in_the_way_of_the_copy_stops_it_before_anything_is_changed(self) -> None:
        self.make_old()
        before = self.database.read_bytes()
        (self.directory / "crushlite.db.v1.bak.tmp").mkdir()
        with self.assertRaisesRegex(StoreUnusable, r"v1\.bak\.tmp"):
            await self.stores.open(self.directory)
        self.assertEqual(self.database.read_bytes(), before)

    async def test_half_a_copy_of_an_earlier_attempt_is_no_obstacle(self) -> None:
        self.make_old()
        (self.directory / "crushlite.db.v1.bak.tmp").write_bytes(b"half" * 1_000)
        await self.check()
        self.assertEqual(self.names(), self.kept())


class NoRoom(sqlite3.Connection):
    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith("VACUUM INTO"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *values)


class KilledTests(MigrationCase):
    async def kill_at_every_statement(self, found: set[int], sessions: int) -> int:
        """Returns how many deaths there were. `found` are the versions it may be at. Each version
        is stored for itself: from there on it is tried from the first statement again."""
        opener = self.enterContext(DyingOpener())
        number = deaths = before = 0
        while True:
            number += 1
            if not opener.open_and_die(self.directory, number):
                return deaths
            deaths += 1
            conn = connect(self.database, True)
            version = version_of(conn)
            self.assertIn(version, found)
            self.assertEqual(schema(conn), declared(version))
            self.assertEqual(conn.execute("PRAGMA integrity_check").fetchone(), ("ok",))
            if version:
                self.assertEqual(len(list_sessions(conn, "")), sessions)
            conn.close()
            if version > before:
                number, before = 0, version

    async def test_a_process_that_dies_at_any_statement_leaves_the_old_version_or_the_new(
        self,
    ) -> None:
        self.make_old()
        steps = sum(len(statements) for statements in MIGRATIONS[1:])
        # Every death before the commit finds the old version again, so each is reached.
        self.assertGreater(await self.kill_at_every_statement(set(range(1, VERSION + 1)), 5), steps)
        await self.check()

    async def test_nor_does_a_death_while_the_file_is_made_leave_anything_between(self) -> None:
        steps = len(MIGRATIONS[0])
        self.assertGreater(await self.kill_at_every_statement(set(range(VERSION + 1)), 0), steps)
        await self.check(sessions=0)


class StepTests(MigrationCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_old()
        self.conn = connect(self.database, False)
        self.addCleanup(self.conn.close)

    def test_each_step_is_preceded_by_its_own_copy_and_only_the_last_ones_are_kept(self) -> None:
        steps = [(f"CREATE TABLE t{n} (x)",) for n in range(2, 7)]
        migrate(self.conn, self.database, (MIGRATIONS[0], *steps))
        self.assertEqual(version_of(self.conn), 6)
        kept = [name for name in self.names() if name.endswith(".bak")]
        self.assertEqual(kept, [f"crushlite.db.v{n}.bak" for n in range(6 - BACKUPS, 6)])

    def test_a_statement_that_fails_fails_with_the_whole_version(self) -> None:
        changed = "UPDATE sessions SET title = 'changed'"
        step = ("CREATE TABLE extra (x)", changed, "INSERT INTO extra VALUES (1, 2)")
        with self.assertRaises(sqlite3.OperationalError):
            migrate(self.conn, self.database, (MIGRATIONS[0], step))
        self.assertEqual((version_of(self.conn), schema(self.conn)), (1, declared(1)))
        titles = {session.title for session in list_sessions(self.conn, "")}
        self.assertEqual(titles, {""})
        self.assertFalse(self.conn.in_transaction)


if __name__ == "__main__":
    unittest.main()
