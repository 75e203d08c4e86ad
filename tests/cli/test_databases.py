"""Databases that a daemon may be using: looked at, measured, and copied. A backup is whole,
checked, private, taken beside a daemon under load, and good for a restore."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.cli import databases as module
from crushlite.cli.databases import backup, inspected_copy, session_sizes
from crushlite.cli.owners import is_owned, last_note
from crushlite.clock import SystemClock
from crushlite.errors import Conflict, CorruptDatabase, NotFound, StoreFailed
from crushlite.protocol.messages import FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.messages import insert_message, list_messages
from crushlite.store.runs import list_runs
from crushlite.store.sessions import insert_session
from crushlite.testing import LocalDaemon
from crushlite.testing.scripted import ScriptedAgent
from tests.store.test_damage import DamageCase, damage
from tests.support.basics import BoundedTestCase
from tests.support.store import list_sessions

if TYPE_CHECKING:
    from crushlite.store import Connection, Store
    from crushlite.testing import Participant


class OwnerTests(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))

    async def test_a_lock_that_is_a_pipe_or_huge_is_not_read_for_ever(self) -> None:
        lock = self.root / "crushlite.lock"
        os.mkfifo(lock)
        async with asyncio.timeout(60):
            self.assertFalse(await asyncio.to_thread(is_owned, self.root))
            self.assertEqual(await asyncio.to_thread(last_note, self.root), "")
        lock.unlink()
        lock.touch()
        os.truncate(lock, 2**40)
        self.assertEqual(last_note(self.root), "")


class BackupCase(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = Path(os.path.realpath(self.enterContext(tempfile.TemporaryDirectory())))
        self.target = self.root / "copy.db"

    async def open(self, folder: Path) -> Store:
        stores = Stores(clock=SystemClock(), boot_id="boot")
        store = await stores.open(folder)
        self.addAsyncCleanup(self.release, stores, store)
        self.stores = stores
        return store

    async def release(self, stores: Stores, store: Store) -> None:
        if store.data_dir in stores._entries:
            await stores.release(store)

    async def restored(self) -> Store:
        """The copy, in the place of a database."""
        folder = self.root / "restored"
        folder.mkdir()
        shutil.copyfile(self.target, folder / "crushlite.db")
        return await self.open(folder)

    def add(self, sid: str, text: str = "hello") -> None:
        def work(conn: Connection) -> None:
            insert_session(conn, "", Session(id=sid, title=sid))
            parts = [TextPart(text), FinishPart("stop")]
            insert_message(conn, "", Message(f"m-{sid}", "user", sid, parts))

        self.work = work


class CopyTests(BackupCase):
    async def filled(self) -> Store:
        store = await self.open(self.root / "data")
        for sid in ("s1", "s2"):
            self.add(sid)
            await store.submit(self.work)
        return store

    async def test_a_database_in_use_is_not_replaced_by_its_copy(self) -> None:
        store = await self.filled()
        before = store.path.stat().st_ino
        link = self.root / "link.db"
        link.symlink_to(store.path)
        for target in (store.path, link):
            with self.assertRaisesRegex(Conflict, "the database itself"):
                backup(store.path, target, force=True)
        other = await self.open(self.root / "another")
        with self.assertRaisesRegex(Conflict, "of a daemon that is running"):
            backup(store.path, other.path, force=True)
        self.assertEqual(store.path.stat().st_ino, before)

    async def test_it_holds_everything_in_one_private_file(self) -> None:
        store = await self.filled()
        copied = backup(store.path, self.target)
        self.assertEqual((copied.sessions, copied.messages), (2, 2))
        self.assertEqual(copied.bytes, self.target.stat().st_size)
        self.assertEqual(stat.S_IMODE(self.target.stat().st_mode), 0o600)
        names = {path.name for path in self.root.iterdir()}
        self.assertEqual(names, {"data", "copy.db"})
        again = await self.restored()
        found = await again.read(lambda conn: list_sessions(conn, ""))
        self.assertEqual({session.id for session in found}, {"s1", "s2"})

    async def test_no_daemon_is_needed_and_the_database_stays_as_it_is(self) -> None:
        store = await self.filled()
        await self.stores.release(store)
        before = self.files(store.path.parent)
        self.assertEqual(backup(store.path, self.target).sessions, 2)
        self.assertEqual(self.files(store.path.parent), before)
        again = await self.open(self.root / "data")
        self.assertEqual(len(await again.read(lambda conn: list_sessions(conn, ""))), 2)

    def files(self, folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    async def test_what_a_killed_daemon_left_is_in_it_and_stays_as_it_was(self) -> None:
        store = await self.filled()
        left = self.root / "left"
        left.mkdir()
        for path in store.path.parent.iterdir():  # the lock is not copied with its file
            shutil.copyfile(path, left / path.name)
        self.assertIn("crushlite.db-wal", self.files(left))
        before = self.files(left)
        self.assertEqual(backup(left / "crushlite.db", self.target).sessions, 2)
        self.assertEqual(self.files(left), before)

    async def test_lost_commits_are_noticed_and_still_are_afterwards(self) -> None:
        store = await self.filled()
        left = self.root / "left"
        left.mkdir()
        for path in store.path.parent.iterdir():
            shutil.copyfile(path, left / path.name)
        os.truncate(left / "crushlite.db-wal", 4096)
        for _ in range(2):
            with self.assertRaisesRegex(CorruptDatabase, "pages that were committed"):
                backup(left / "crushlite.db", self.target)
        self.assertFalse(self.target.exists())

    async def test_a_daemon_that_starts_meanwhile_is_noticed(self) -> None:
        store = await self.filled()
        await self.stores.release(store)
        copy = mock.patch.object(module, "_copy", wraps=module._copy)
        with mock.patch.object(module, "is_owned", side_effect=[False, True]), copy as copying:
            self.assertEqual(backup(store.path, self.target).sessions, 2)
        self.assertEqual(copying.call_args.args[0], store.path)
        self.assertEqual({path.name for path in self.root.iterdir()}, {"data", "copy.db"})

    async def test_a_file_that_exists_is_replaced_only_by_force(self) -> None:
        store = await self.filled()
        self.target.write_text("precious")
        with self.assertRaisesRegex(Conflict, "exists already"):
            backup(store.path, self.target)
        self.assertEqual(self.target.read_text(), "precious")
        backup(store.path, self.target, force=True)
        self.assertEqual(self.target.read_bytes()[:6], b"SQLite")

    async def test_a_file_that_appears_meanwhile_is_not_replaced(self) -> None:
        store = await self.filled()
        real = module._checked

        def checked(half: Path, target: Path) -> module.Copied:
            target.write_text("precious")
            return real(half, target)

        with mock.patch.object(module, "_checked", checked), self.assertRaises(Conflict):
            backup(store.path, self.target)
        self.assertEqual(self.target.read_text(), "precious")
        self.assertEqual({path.name for path in self.root.iterdir()}, {"data", "copy.db"})

    async def test_a_damaged_database_gives_no_backup(self) -> None:
        store = await self.filled()
        self.add("large", "x" * 200_000)
        await store.submit(self.work)
        await self.stores.release(store)
        data = bytearray(store.path.read_bytes())
        data[8192:40960] = os.urandom(40960 - 8192)
        store.path.write_bytes(data)
        with self.assertRaises(CorruptDatabase):
            backup(store.path, self.target)
        self.assertEqual({path.name for path in self.root.iterdir()}, {"data"})

    async def test_damage_that_only_a_check_finds_gives_no_backup_either(self) -> None:
        for used in (True, False):
            store = await self.filled() if used else await self.open(self.root / "other")
            conn = sqlite3.connect(store.path)
            conn.execute("PRAGMA writable_schema = ON")
            conn.execute("DELETE FROM sqlite_master WHERE name = 'files_session'")
            conn.commit()
            conn.close()
            if not used:
                await self.stores.release(store)
            words = "the copy is damaged" if used else "is damaged"
            with self.subTest(used=used), self.assertRaisesRegex(CorruptDatabase, words):
                backup(store.path, self.target)
            self.assertFalse(self.target.exists())

    async def test_without_a_database_it_says_so(self) -> None:
        with self.assertRaisesRegex(NotFound, "there is no database"):
            backup(self.root / "crushlite.db", self.target)
        self.assertEqual(list(self.root.iterdir()), [])

    async def test_a_failure_leaves_neither_half_a_file_nor_a_lost_one(self) -> None:
        store = await self.filled()
        self.target.write_text("precious")
        full = sqlite3.OperationalError("disk I/O error")
        with mock.patch.object(module, "_copy", side_effect=full), self.assertRaises(StoreFailed):
            backup(store.path, self.target, force=True)
        self.assertEqual(self.target.read_text(), "precious")
        self.assertEqual({path.name for path in self.root.iterdir()}, {"data", "copy.db"})


class LoadTests(BackupCase):
    async def test_under_load_every_promised_prompt_up_to_the_start_is_in_it(self) -> None:
        async with LocalDaemon(ScriptedAgent(auto=True)) as daemon:
            anna = await daemon.join()
            sessions = [await anna.session() for _ in range(4)]
            promised: list[str] = []
            stop = asyncio.Event()
            posters = [asyncio.create_task(self.post(anna, s, promised, stop)) for s in sessions]
            counts = []
            try:
                for number in range(5):
                    while len(promised) < 20 * (number + 1):
                        await anna.events.wait_for("run_complete")
                    before = set(promised)
                    source = daemon.root / "project/.crushlite/crushlite.db"
                    copied = await asyncio.to_thread(backup, source, self.target, force=True)
                    counts.append(copied.messages)
                    conn = sqlite3.connect(self.target)
                    held = {row[0] for row in conn.execute("SELECT run_id FROM runs")}
                    conn.close()
                    self.assertLessEqual(before, held)
            finally:
                stop.set()
                await asyncio.gather(*posters)
            self.assertEqual(counts, sorted(counts))
        store = await self.restored()
        runs = await store.read(lambda conn: list_runs(conn, "", None, None))
        self.assertLessEqual(before, {run.run_id for run in runs})
        self.assertTrue(all(run.outcome for run in runs), "what was running has ended now")
        for session in await store.read(lambda conn: list_sessions(conn, "")):
            messages = await store.read(partial(list_messages, scope="", sid=session.id))
            self.assertTrue(all(m.parts for m in messages))

    async def post(
        self, anna: Participant, session: str, promised: list[str], stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            answer = await anna.prompt(session, "hello " * 50)
            self.assertEqual(answer.status, 202)
            promised.append(answer.json["run_id"])


class SizeTests(BackupCase):
    async def test_a_session_takes_about_what_its_texts_are_long(self) -> None:
        store = await self.open(self.root / "data")
        for sid in ("short", "large"):
            self.add(sid, "x" * (3_000_000 if sid == "large" else 10))
            await store.submit(self.work)
        sizes = session_sizes(store.path, "")
        self.assertGreater(sizes["large"], 3_000_000)
        self.assertLess(sizes["short"], 1000)


class RefusalTests(DamageCase):
    async def test_a_process_that_does_not_own_a_file_looks_at_a_copy_and_names_the_file(
        self,
    ) -> None:
        for kind in ("log: cut off", "a page of garbage", "a directory", "index: garbage"):
            with self.subTest(kind):
                folder = self.spoilt(kind)
                before, times = damage.digests(folder), self.times(folder)
                try:
                    with inspected_copy(folder / "crushlite.db"):
                        pass
                except CorruptDatabase as error:
                    self.assertIn(str(folder / "crushlite.db"), error.message)
                    self.assertNotIn("/.crushlite-", error.message)
                else:
                    self.assertEqual(kind, "index: garbage")
                self.assertEqual((damage.digests(folder), self.times(folder)), (before, times))

    def times(self, folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    async def test_a_database_with_foreign_declarations_gives_no_backup(self) -> None:
        folder = self.copy(self.sound.closed)
        with contextlib.closing(sqlite3.connect(folder / "crushlite.db")) as conn:
            conn.execute("CREATE TRIGGER t AFTER INSERT ON runs BEGIN SELECT 1; END")
        with self.assertRaisesRegex(CorruptDatabase, "trigger 't'"):
            await asyncio.to_thread(backup, folder / "crushlite.db", folder / "copy.db")
        self.assertFalse((folder / "copy.db").exists())
