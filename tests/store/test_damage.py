"""Damaged files: refused with a message and unchanged, or opened with all their rows. The whole
sweep is `tools/damage.py`; here a few of each kind, and what the tool cannot know."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import unittest
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.errors import CorruptDatabase, StoreUnusable
from crushlite.filehistory.queries import last_read, list_files, list_read
from crushlite.protocol.messages import Message
from crushlite.repair.salvage import salvage
from crushlite.store import Stores, inspection
from crushlite.store.connection import connect
from crushlite.store.directory import DirectoryLock, lock_lines, opened_note
from crushlite.store.messages import insert_message, list_messages, message_texts, position_of
from crushlite.store.migrations import MIGRATIONS, migrate
from crushlite.store.runs import get_run
from crushlite.store.sessions import get_session
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.undo.queries import changed_runs, run_history
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.places import ROOT
from tests.support.store import list_sessions

if TYPE_CHECKING:
    from crushlite.store import Connection

# Not by a static import: the type checker is run on the package and the tests only.
damage: Any = importlib.import_module("tools.damage")

SEED = 20


class DamageCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.sound = await damage.make(self.root / "sound")
        self.traces: list[str] = []
        self.stores = Stores(clock=FakeClock(), boot_id="next", connect=self.tracing)

    def tracing(self, path: Path, read_only: bool) -> Connection:
        conn = connect(path, read_only)
        conn.set_trace_callback(self.traces.append)
        return conn

    def copy(self, source: Path) -> Path:
        target = self.root / f"copy-{len(list(self.root.iterdir()))}"
        shutil.copytree(source, target)
        damage.restore_time(source, target)
        return target

    def spoilt(self, kind: str, seed: int = SEED) -> Path:
        killed, spoil = damage.KINDS[kind]
        folder = self.copy(self.sound.killed if killed else self.sound.closed)
        spoil(random.Random(seed), folder)
        return folder

    async def refusal(self, folder: Path) -> StoreUnusable:
        with self.assertRaises(StoreUnusable) as caught:
            await self.stores.open(folder)
        return caught.exception

    async def rows(self, folder: Path) -> dict[str, str]:
        store = await self.stores.open(folder)
        found: dict[str, str] = await store.read(damage.everything)
        await self.stores.release(store)
        return found


class SweepTests(DamageCase):
    async def test_damage_of_every_kind_is_told_or_without_effect(self) -> None:
        tallies = await damage.sweep(self.sound, self.root, 2 * len(damage.KINDS), SEED)
        self.assertEqual(set(tallies), set(damage.KINDS))
        for kind, tally in tallies.items():
            with self.subTest(kind):
                self.assertEqual(tally.wrong, [])
                total = tally.refused + tally.whole + tally.partly + tally.altered
                self.assertEqual(total, 2)

    async def test_the_sweep_asks_a_daemon_and_would_notice_an_answer_that_is_none(self) -> None:
        def answer(status: int, body: bytes) -> Any:
            return mock.AsyncMock(return_value=mock.Mock(status=status, body=body))

        for status, body, wrong in (
            (200, b"[]", False),
            (409, b"{}", False),
            (500, b"{}", True),
            (503, b"{}", True),
            (200, b'{"cost":Infinity}', True),
            (200, b'["\xff"]', True),
        ):
            client = mock.Mock(request=answer(status, body))
            with mock.patch.object(damage, "create", return_value=(200, {"id": "w"})):
                found = await damage.ask(client, self.root)
            self.assertEqual(len(found), len(damage.routes()) if wrong else 0, (status, body))
        self.assertEqual(len(await damage.ask(mock.Mock(request=answer(500, b"{}")), ROOT)), 1)

    async def test_the_sweep_would_notice_a_loss(self) -> None:
        rows = dict(self.sound.rows, **{"message/lost": ""})
        tally = damage.Tally()
        await damage.try_one(self.copy(self.sound.closed), rows, tally)
        self.assertRegex(tally.wrong[0], "1 rows are gone")

    async def test_both_sound_directories_open_with_all_their_rows(self) -> None:
        for source in (self.sound.closed, self.sound.killed):
            self.assertEqual(await self.rows(self.copy(source)), self.sound.rows)


class MessageTests(DamageCase):
    async def test_the_message_names_the_file_and_a_command_that_saves_what_can_be_read(
        self,
    ) -> None:
        folder = self.spoilt("a page of garbage")
        before = damage.digests(folder)
        error = await self.refusal(folder)
        self.assertEqual((error.status, error.code, error.exit_code), (409, "corrupt_database", 4))
        self.assertIn(f"{folder}/crushlite.db is damaged", error.message)
        self.assertLess(len(error.message), 1_000)
        (command,) = re.findall(r"To save what can be read: (.*?);", error.message)
        done = await asyncio.to_thread(
            subprocess.run,
            shlex.split(command),
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"sessions: 20 saved", done.stdout)
        self.assertEqual({**damage.digests(folder), **before}, damage.digests(folder))

        # "put the saved one in its place"
        saved = folder / "crushlite.db.recovered"
        saved.rename(folder / "crushlite.db")
        found = await self.rows(folder)
        self.assertLess(len(self.sound.rows) - len(found), 10)
        self.assertEqual(found.keys() - self.sound.rows.keys(), set())

    async def test_moving_the_file_away_starts_a_new_history(self) -> None:
        folder = self.spoilt("log: garbage")
        await self.refusal(folder)
        for path in folder.glob("crushlite.db*"):
            path.rename(self.root / path.name)
        self.assertEqual(await self.rows(folder), {})

    async def test_the_database_of_another_program_is_not_called_damaged(self) -> None:
        folder = self.copy(self.sound.closed)
        conn = connect(folder / "crushlite.db", False)
        for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            if not name.startswith("sqlite_"):
                conn.execute(f"ALTER TABLE {name} RENAME TO their_{name}")
        conn.execute("PRAGMA user_version = 0")
        conn.close()
        self.assertIn("another program", (await self.refusal(folder)).message)


class ContentTests(DamageCase):
    """Damage that no check of the pages finds."""

    def changed(self, *statements: str) -> Path:
        folder = self.copy(self.sound.closed)
        conn = sqlite3.connect(folder / "crushlite.db", isolation_level=None)
        conn.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            conn.execute(statement)
        conn.close()
        return folder

    async def test_a_declaration_that_was_changed_is_refused_by_name(self) -> None:
        folder = self.changed(
            "UPDATE sqlite_master SET sql = replace(sql, '+ 1,', '- 1,') "
            "WHERE name = 'messages_insert'"
        )
        self.assertIn("messages_insert", (await self.refusal(folder)).message)

    async def test_a_declaration_that_is_missing_is_refused(self) -> None:
        folder = self.changed("DROP INDEX messages_user")
        self.assertIn("messages_user", (await self.refusal(folder)).message)

    async def test_a_version_that_was_changed_does_not_repeat_a_migration(self) -> None:
        folder = self.changed("PRAGMA user_version = 1")
        self.assertIn("schema version 1", (await self.refusal(folder)).message)
        folder = self.changed("PRAGMA user_version = -1")
        self.assertIn("schema version -1", (await self.refusal(folder)).message)

    async def test_a_value_that_makes_no_sense_is_refused_where_it_is_read(self) -> None:
        folder = self.changed(
            "UPDATE messages SET model = CAST(x'ff' AS TEXT) WHERE id = 'message-1-1'",
            "UPDATE messages SET parts = '[' WHERE id = 'message-2-1'",
            "UPDATE sessions SET todos = 'x' WHERE id = 'session-3'",
            "UPDATE sessions SET title = x'ff' WHERE id = 'session-5'",
            "UPDATE messages SET provider = x'ff' WHERE id = 'message-6-1'",
            "UPDATE runs SET error = x'ff' WHERE run_id = 'run-7'",
            "UPDATE files SET content = x'ff' WHERE session_id = 'session-8'",
            "UPDATE reads SET read_at = 'soon' WHERE session_id = 'session-9'",
            "UPDATE reads SET read_at = 1e300 WHERE session_id = 'session-10'",
            "UPDATE reads SET read_at = -1.5 WHERE session_id = 'session-11'",
            "UPDATE reads SET path = x'ff' WHERE session_id = 'session-12'",
            "UPDATE files SET version = 'x', run_id = 'run-13' "
            "WHERE session_id = 'session-13' AND version = 1",
            "UPDATE messages SET position = 'x' WHERE id = 'message-14-0'",
            "UPDATE sessions SET cost = 9e999 WHERE id = 'session-15'",
            "UPDATE files SET undoes = x'ff', run_id = 'run-16' WHERE session_id = 'session-16'",
            "UPDATE messages SET parts = x'ff00' WHERE id = 'message-17-0'",
        )
        store = await self.stores.open(folder)
        for read in (
            partial(list_messages, scope="", sid="session-1"),
            partial(list_messages, scope="", sid="session-2"),
            partial(get_session, scope="", sid="session-3"),
            partial(get_session, scope="", sid="session-5"),
            partial(list_messages, scope="", sid="session-6"),
            partial(get_run, scope="", run_id="run-7"),
            partial(list_files, scope="", sid="session-8"),
            partial(last_read, scope="", sid="session-9", path="/src/9.py"),
            partial(last_read, scope="", sid="session-10", path="/src/10.py"),
            partial(last_read, scope="", sid="session-11", path="/src/11.py"),
            partial(list_read, scope="", sid="session-12"),
            partial(list_files, scope="", sid="session-13"),
            partial(run_history, scope="", run_id="run-13"),
            partial(position_of, scope="", mid="message-14-0"),
            partial(get_session, scope="", sid="session-15"),
            partial(list_sessions, scope=""),
            partial(run_history, scope="", run_id="run-16"),
            partial(changed_runs, scope=""),
            partial(message_texts, scope="", sid="session-17", live=()),
        ):
            with self.assertRaises(CorruptDatabase):
                await store.read(read)
        self.assertEqual(
            len(await store.read(partial(list_messages, scope="", sid="session-4"))), 12
        )
        await self.stores.release(store)

    async def test_damage_is_told_to_clients_by_its_status_and_the_rest_is_served(self) -> None:
        statements = {
            "/sessions/session-0": "UPDATE sessions SET cost = 9e999 WHERE id = 'session-0'",
            "/sessions/session-1/messages": "UPDATE messages SET parts = x'ff00' "
            "WHERE id = 'message-1-3'",
            "/sessions/session-2/messages": "UPDATE messages SET created_at = 9e999 "
            "WHERE id = 'message-2-3'",
            "/sessions/session-3/history": "UPDATE files SET version = 'x' "
            "WHERE session_id = 'session-3' AND version = 1",
            "/sessions/session-4/filetracker/files": "UPDATE reads SET path = x'ff' "
            "WHERE session_id = 'session-4'",
            "/filetracker/lastread?session_id=session-5&path=/src/5.py": "UPDATE reads "
            "SET read_at = 1e300 WHERE session_id = 'session-5'",
            "/runs/run-6": "UPDATE runs SET error = x'ff' WHERE run_id = 'run-6'",
        }
        async with LocalDaemon() as daemon:
            shutil.copytree(
                self.changed(*statements.values()), daemon.root / "project" / ".crushlite"
            )
            anna = await daemon.create()
            for route in statements:
                with self.subTest(route):
                    answer = await anna.call("GET", route)
                    found = answer.status, answer.json["code"]
                    self.assertEqual(found, (409, "corrupt_database"), answer.json)
            for route in damage.routes():
                answer = await anna.call("GET", route)
                self.assertIn(answer.status, (200, 409), route)
            self.assertEqual(len(await anna.messages("session-7")), 12)

    async def test_a_verdict_that_is_no_text_is_a_verdict(self) -> None:
        class Mumbling(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql.startswith("PRAGMA integrity_check"):
                    b"\xff".decode()
                return super().execute(sql, *values)

        def factory(path: Path, read_only: bool) -> Connection:
            uri = f"{path.as_uri()}?mode=ro"
            return sqlite3.connect(
                uri, uri=True, isolation_level=None, factory=Mumbling, check_same_thread=False
            )

        stores = Stores(clock=FakeClock(), boot_id="next", connect=factory)
        with self.assertRaisesRegex(CorruptDatabase, "salvage"):
            await stores.open(self.copy(self.sound.closed))

    async def test_without_the_program_that_saves_it_another_one_is_named(self) -> None:
        with mock.patch("importlib.util.find_spec", return_value=None):
            error = await self.refusal(self.spoilt("garbage"))
        self.assertIn("use `.recover` of the program sqlite3 on a copy of", error.message)
        self.assertNotIn("salvage", error.message)

    async def test_something_that_is_no_file_is_refused_as_such(self) -> None:
        error = await self.refusal(self.spoilt("a directory"))
        self.assertEqual((error.exit_code, error.code), (4, "corrupt_database"))
        self.assertIn("is not a file", error.message)


class RecoveryTests(DamageCase):
    """Runs that were left open, in rows of which recovery can make no sense."""

    NAMES = (
        *("an open run without its session", "a prompt at no position"),
        "an answer at no position",
    )

    async def test_a_daemon_refuses_the_file_as_damaged_and_leaves_it_alone(self) -> None:
        async with damage.daemon(self.root) as running:
            for name in self.NAMES:
                with self.subTest(name):
                    folder = self.copy(self.sound.closed)
                    spoil, code, status = damage.FOR_DAEMONS[name]
                    spoil(random.Random(SEED), folder)
                    before = damage.digests(folder)
                    start = (running.command, folder, status)
                    self.assertEqual(await asyncio.to_thread(damage.at_start, *start), [])
                    self.assertEqual(await damage.at_create(running.client, folder, code), [])
                    self.assertEqual((damage.digests(folder), code), (before, "corrupt_database"))
        self.assertEqual(running.complaints, [])

    async def test_neither_is_the_log_of_a_killed_daemon_merged_into_it(self) -> None:
        for name in self.NAMES:
            with self.subTest(name):
                made = self.copy(self.sound.closed)
                reader = connect(made / "crushlite.db", True)
                reader.execute("SELECT 1 FROM runs").fetchall()  # keeps the log from being merged
                damage.FOR_DAEMONS[name][0](random.Random(SEED), made)
                folder = self.copy(made)
                reader.close()
                before = self.kept(folder)
                self.assertGreater(len(before["crushlite.db-wal"]), 0)
                for _ in range(2):
                    self.assertIsInstance(await self.refusal(folder), CorruptDatabase)
                    self.assertEqual(self.kept(folder), before)

    async def test_the_reason_is_told_also_if_nobody_else_can_open_the_file(self) -> None:
        folder = self.copy(self.sound.closed)
        damage.FOR_DAEMONS[self.NAMES[0]][0](random.Random(SEED), folder)
        modes: list[bool] = []

        def without_descriptors(path: Path, read_only: bool) -> Connection:
            modes.append(read_only)
            if read_only and False in modes:
                raise sqlite3.OperationalError("unable to open database file")
            return connect(path, read_only)

        self.stores = Stores(clock=FakeClock(), boot_id="next", connect=without_descriptors)
        self.assertIsInstance(await self.refusal(folder), CorruptDatabase)
        self.assertEqual(modes[-2:], [False, True])

    def kept(self, folder: Path) -> dict[str, bytes]:
        """All but the index of the log, which SQLite makes anew whenever it looks at it."""
        return {tail: (folder / tail).read_bytes() for tail in ("crushlite.db", "crushlite.db-wal")}

    async def test_attachments_that_are_null_cost_neither_the_store_nor_the_prompt(self) -> None:
        folder = self.copy(self.sound.closed)
        spoil = damage.changed(
            damage.QUEUED, "UPDATE runs SET attachments = 'null' WHERE run_id = 'run-3'"
        )
        spoil(random.Random(SEED), folder)
        store = await self.stores.open(folder)
        run = await store.read(partial(get_run, scope="", run_id="run-3"))
        self.assertEqual(run.outcome, "failed")
        messages = await store.read(partial(list_messages, scope="", sid="session-3"))
        self.assertEqual(messages[-2].text, "a prompt " * 3)
        await self.stores.release(store)

    async def test_a_format_that_sqlite_does_not_know_is_damage(self) -> None:
        folder = self.copy(self.sound.closed)
        file = folder / "crushlite.db"
        content = bytearray(file.read_bytes())
        content[47] = 9
        file.write_bytes(content)
        error = await self.refusal(folder)
        self.assertEqual((error.code, error.exit_code), ("corrupt_database", 4))
        self.assertEqual(file.read_bytes(), content)


class LitterTests(DamageCase):
    async def test_a_failed_opening_leaves_nothing_in_the_way_but_never_deletes_a_log(self) -> None:
        for tail, content, stays in (
            ("-shm", b"x", False),
            ("-wal", b"", False),
            ("-wal", b"x", True),
        ):
            with self.subTest(file=tail, content=content):
                folder = self.copy(self.sound.closed)

                def factory(
                    path: Path, read_only: bool, tail: str = tail, content: bytes = content
                ) -> Connection:
                    if read_only:
                        return connect(path, True)
                    path.with_name(path.name + tail).write_bytes(content)
                    raise sqlite3.OperationalError("attempt to write a readonly database")

                stores = Stores(clock=FakeClock(), boot_id="next", connect=factory)
                with self.assertRaisesRegex(StoreUnusable, "readonly"):
                    await stores.open(folder)
                names = [path.name for path in folder.glob("crushlite.db-*")]
                self.assertEqual(names, [f"crushlite.db{tail}"] if stays else [])


class SalvageTests(DamageCase):
    def save(self, folder: Path) -> Path:
        target = self.root / "saved" / "crushlite.db"
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        salvage(folder / "crushlite.db", target)
        return target.parent

    async def test_all_of_a_sound_file_is_saved_log_included(self) -> None:
        for source in (self.sound.closed, self.sound.killed):
            with self.subTest(source=source.name):
                found = await self.rows(self.save(self.copy(source)))
                self.assertEqual(found.keys(), self.sound.rows.keys())
                counted = {k: v for k, v in found.items() if not k.startswith("session/")}
                self.assertEqual(counted, {k: self.sound.rows[k] for k in counted})

    async def test_what_a_cut_off_file_still_holds_is_saved(self) -> None:
        found = await self.rows(self.save(self.spoilt("cut off at a page")))
        self.assertGreater(len(found), 50)
        self.assertLessEqual(found.keys(), self.sound.rows.keys())

    async def test_what_is_between_two_damaged_pages_is_saved(self) -> None:
        folder = self.copy(self.sound.closed)
        file = folder / "crushlite.db"
        content, size = bytearray(file.read_bytes()), 4096
        for name in (b"message-2-0", b"message-7-0"):
            pages = [content[at : at + size] for at in range(0, len(content), size)]
            leaves = [n for n, page in enumerate(pages) if page[0] == 13 and name in page]
            self.assertEqual(len(leaves), 1)
            content[leaves[0] * size : (leaves[0] + 1) * size] = bytes(size)
        file.write_bytes(content)
        found = await self.rows(self.save(folder))
        between = {f"message/message-{n}-{turn}" for n in (4, 5) for turn in range(12)}
        self.assertLessEqual(between, found.keys())
        self.assertLess(len(found), len(self.sound.rows))

    async def test_a_file_of_an_older_version_is_saved_too(self) -> None:
        folder = self.root / "old"
        folder.mkdir()
        path = folder / "crushlite.db"
        conn = sqlite3.connect(path, isolation_level=None)
        migrate(conn, path, MIGRATIONS[:2])
        conn.execute(
            "INSERT INTO sessions (scope, id, title, created_at, updated_at, touched) "
            "VALUES ('', 's', 't', 1, 1, 1)"
        )
        conn.execute(
            "INSERT INTO files (scope, id, session_id, path, content, version, created_at,"
            " updated_at) VALUES ('', 'f', 's', '/a', 'text', 0, 1, 1)"
        )
        conn.close()
        found = await self.rows(self.save(folder))
        self.assertEqual(found.keys(), {"session/s", "file/f"})

    async def test_messages_of_a_lost_session_get_one_and_children_of_one_are_on_their_own(
        self,
    ) -> None:
        folder = self.copy(self.sound.closed)
        conn = connect(folder / "crushlite.db", False)
        conn.execute("PRAGMA foreign_keys = OFF")
        conn.execute("DELETE FROM sessions WHERE id = 'session-3'")
        conn.execute("UPDATE sessions SET parent_session_id = 'lost' WHERE id = 'session-5'")
        conn.execute("UPDATE messages SET parts = '{' WHERE id = 'message-4-0'")
        conn.close()
        found = await self.rows(self.save(folder))
        self.assertEqual(self.sound.rows.keys() - found.keys(), {"message/message-4-0"})
        self.assertIn("Recovered", found["session/session-3"])
        self.assertIn("'message_count': 12", found["session/session-3"])

    async def test_what_is_said_in_a_saved_session_makes_it_the_newest(self) -> None:
        folder = self.copy(self.sound.closed)
        conn = connect(folder / "crushlite.db", False)
        conn.execute("PRAGMA foreign_keys = OFF")
        conn.execute("DELETE FROM sessions")
        conn.close()
        conn = connect(self.save(folder) / "crushlite.db", False)
        self.addCleanup(conn.close)
        for session in list_sessions(conn, "")[::-1]:
            insert_message(conn, "", Message(f"new-{session.id}", "user", session.id))
            self.assertEqual(list_sessions(conn, "")[0].id, session.id)

    async def test_nothing_is_made_of_nothing_and_nothing_is_overwritten(self) -> None:
        target = self.root / "saved.db"
        counts = salvage(self.spoilt("garbage") / "crushlite.db", target)
        self.assertEqual((set(counts.values()), target.exists()), ({(0, 0)}, False))
        target.write_text("precious")
        with self.assertRaises(FileExistsError):
            salvage(self.sound.closed / "crushlite.db", target)
        self.assertEqual(target.read_text(), "precious")


class CheckTests(DamageCase):
    """How much of a file is read at opening."""

    async def is_read_through(self, folder: Path) -> bool:
        self.traces.clear()
        await self.rows(folder)
        checks = [line for line in self.traces if "_check(" in line]
        self.assertIn(checks, ([], ["PRAGMA integrity_check(1)"]))
        return bool(checks)

    async def test_a_small_file_is_read_through_at_every_opening(self) -> None:
        folder = self.copy(self.sound.closed)
        self.assertTrue(await self.is_read_through(folder))
        self.assertTrue(await self.is_read_through(folder))

    async def test_a_large_one_only_after_a_crash_or_a_change_by_others(self) -> None:
        touched = self.copy(self.sound.closed)
        os.utime(touched / "crushlite.db")
        unknown = self.copy(self.sound.closed)
        (unknown / "crushlite.lock").unlink()
        with mock.patch.object(inspection, "SMALL", 1_000):
            self.assertFalse(await self.is_read_through(self.copy(self.sound.closed)))
            for folder in (touched, unknown, self.copy(self.sound.killed)):
                self.assertTrue(await self.is_read_through(folder))
                self.assertFalse(await self.is_read_through(folder))

    async def test_an_index_that_lost_a_row_is_found(self) -> None:
        """SQLite's quick check does not see it, and the row would be missing from a list."""
        folder = self.copy(self.sound.closed)
        conn = sqlite3.connect(folder / "crushlite.db", isolation_level=None)
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute(
            "UPDATE sqlite_master SET sql = sql || ' WHERE 0' WHERE name = 'messages_session'"
        )
        conn.close()
        conn = connect(folder / "crushlite.db", False)
        conn.execute("UPDATE messages SET session_id = 'session-0' WHERE id = 'message-1-1'")
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' WHERE 0', '') "
            "WHERE name = 'messages_session'"
        )
        conn.close()
        self.assertIn("messages_session", (await self.refusal(folder)).message)


class LogTests(DamageCase):
    """Commits that are missing from the log of a killed daemon."""

    async def test_a_log_that_was_cut_at_a_commit_is_refused_though_it_makes_sense(self) -> None:
        folder = self.copy(self.sound.killed)
        log = folder / "crushlite.db-wal"
        whole, frame = log.read_bytes(), 24 + 4096
        commits = [
            place + frame
            for place in range(32, len(whole), frame)
            if int.from_bytes(whole[place + 4 : place + 8], "big")
        ]
        self.assertGreater(len(commits), 2)
        log.write_bytes(whole[: commits[-2]])
        self.assertRegex((await self.refusal(folder)).message, r"-wal held \d+ pages")

    async def test_after_a_restart_of_the_machine_the_log_is_what_can_be_read_of_it(self) -> None:
        """A power cut may lose what was not promised, and leave the index ahead of the log."""
        folder = self.copy(self.sound.killed)
        (folder / "crushlite.lock").write_text("1\nopen another-boot\n")
        log = folder / "crushlite.db-wal"
        os.truncate(log, log.stat().st_size // 2)
        found = await self.rows(folder)
        self.assertLess(len(found), len(self.sound.rows))

    async def test_what_was_copied_into_the_database_is_not_missed_in_the_log(self) -> None:
        folder = self.root / "checkpointed"
        stores = Stores(clock=FakeClock(), boot_id="maker")
        store = await stores.open(folder)
        await store.submit(lambda conn: damage.fill(conn, 1))
        conn = connect(store.path, False)
        conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        conn.close()
        expected = await store.read(damage.everything)
        copy = self.copy(folder)
        await stores.release(store)
        (copy / "crushlite.db-wal").unlink()
        self.assertEqual(await self.rows(copy), expected)

    async def test_a_frame_that_was_being_written_when_the_process_died_is_no_damage(self) -> None:
        folder = self.copy(self.sound.killed)
        log = folder / "crushlite.db-wal"
        head = bytearray(log.read_bytes()[-4120:-4096])
        for content in (head, head + bytes(100), head + bytes(4096)):
            for index in (True, False):
                with self.subTest(length=len(content), index=index):
                    torn = self.copy(self.sound.killed)
                    with (torn / "crushlite.db-wal").open("ab") as file:
                        file.write(content)
                    if not index:
                        (torn / "crushlite.db-shm").unlink()
                    self.assertEqual(await self.rows(torn), self.sound.rows)


class NoteTests(unittest.TestCase):
    def test_an_owner_says_who_it_is_at_once_and_keeps_the_note_until_it_knows_better(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "crushlite.lock"
            file.write_text("1\nclosed 12 34\n")
            lock = DirectoryLock(Path(folder))
            self.assertEqual(file.read_text(), f"{os.getpid()}\nclosed 12 34\n")
            self.assertEqual(lock.note, "closed 12 34")
            lock.write(opened_note())
            self.assertEqual(file.read_text(), f"{os.getpid()}\n{opened_note()}\n")
            lock.release()

    def test_a_note_that_makes_no_sense_says_nothing(self) -> None:
        nonsense = ("", "open-ish", "closed", "closed 1", "closed x y", "closed 1 2 3", "\0")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "crushlite.lock"
            for line in (*nonsense, "open", opened_note(), "closed 12 34"):
                file.write_text(f"1\n{line}\n")
                self.assertEqual(lock_lines(Path(folder)), ("1", "" if line in nonsense else line))


class DaemonTests(DamageCase):
    async def test_a_daemon_that_is_given_a_bad_file_says_so_and_another_one_lives_on(self) -> None:
        kinds = {name: damage.FOR_DAEMONS[name] for name in ("cut off at a page", "newer")}
        with mock.patch.object(damage, "FOR_DAEMONS", kinds):
            self.assertEqual(await damage.real_daemons(self.sound, self.root, SEED), [])

    async def test_a_file_that_may_not_be_opened_is_named(self) -> None:
        folder = self.copy(self.sound.closed)

        def refuse(path: Path, read_only: bool) -> Connection:
            raise PermissionError(13, "Permission denied", str(path))

        stores = Stores(clock=FakeClock(), boot_id="next", connect=refuse)
        with self.assertRaisesRegex(StoreUnusable, "Permission denied") as caught:
            await stores.open(folder)
        self.assertNotIsInstance(caught.exception, CorruptDatabase)
        self.assertIn(str(folder), caught.exception.message)


if __name__ == "__main__":
    unittest.main()
