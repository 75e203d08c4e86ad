"""What a disk, a lock or a missing file does to a running store, and that it heals."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import sqlite3
import subprocess
import sys
import unittest
from functools import partial
from typing import TYPE_CHECKING

from crushlite.errors import (
    CorruptDatabase,
    CrushliteError,
    SessionNotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreUnusable,
)
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.migrations import VERSION, version_of
from crushlite.store.sessions import insert_session, rename_session
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.inline import InlineExecutor
from tests.support.basics import LIMIT
from tests.support.places import ROOT
from tests.support.store import StoreCase, add, ids, probe

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.store import Connection, Store

IO_ERRORS = {
    "read": sqlite3.SQLITE_IOERR_READ,
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "fsync": sqlite3.SQLITE_IOERR_FSYNC,
    "cannot open": sqlite3.SQLITE_CANTOPEN,
    "read-only": sqlite3.SQLITE_READONLY,
}
# Another process that locks a database for writing until its input ends.
LOCKER = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""
# A process that may write only small files, for a while: the kernel itself makes its writes fail.
LIMITED = """
import asyncio, resource, signal, sys
from pathlib import Path
from crushlite.clock import SystemClock
from crushlite.errors import StoreFailed, StoreFull
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.migrations import VERSION, version_of
from crushlite.store.sessions import insert_session
from tests.support.store import list_sessions, probe

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main(directory):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    stores = Stores(clock=SystemClock(), boot_id="limited")
    store = await stores.open(directory)
    promised, failed, number = set(), 0, 0
    for round in range(5):
        limit((store.path.with_name("crushlite.db-wal")).stat().st_size + 50_000)
        refused = 0
        while refused < 10:
            number += 1
            session = Session(id=f"s{number}", title="x" * 5_000)
            try:
                await store.submit(lambda conn: insert_session(conn, "", session), durably=True)
                promised.add(session.id)
            except (StoreFailed, StoreFull):
                refused += 1
                assert store.trouble
                await store.read(lambda conn: list_sessions(conn, ""))
        failed += refused
        limit(1)
        assert not await probe(store)
        limit(resource.RLIM_INFINITY)
        assert await probe(store) and store.trouble is None
    found = {s.id for s in await store.read(lambda conn: list_sessions(conn, ""))}
    assert found == promised, (found ^ promised)
    await stores.release(store)
    print(len(promised), failed)

asyncio.run(main(Path(sys.argv[1])))
"""


class HealthTests(StoreCase):
    def setUp(self) -> None:
        super().setUp()
        self.healed: list[str | None] = []

    def watch(self, store: Store) -> None:
        store.on_healed(lambda: self.healed.append(store.trouble))

    async def break_once(self, store: Store) -> None:
        self.faults.fail("COMMIT", sqlite3.SQLITE_FULL)
        with self.assertRaises(StoreFull):
            await store.submit(add("lost"))

    async def test_a_failed_write_is_trouble_until_one_works_again(self) -> None:
        async with self.opened(self.faulty) as store:
            self.watch(store)
            self.assertIsNone(store.trouble)
            await self.break_once(store)
            self.assertIn("injected", store.trouble or "")
            await store.read(ids)
            self.assertIsNotNone(store.trouble)
            await store.submit(add("a"))
            self.assertIsNone(store.trouble)
            await asyncio.sleep(0)
            self.assertEqual(self.healed, [None])

    async def test_whoever_is_told_of_a_failure_finds_the_trouble_already_there(self) -> None:
        found: list[str | None] = []
        async with self.opened(self.faulty) as store:
            self.faults.fail("COMMIT", sqlite3.SQLITE_FULL)
            future = store.submit(add("lost"))
            future.add_done_callback(lambda _: found.append(store.trouble))
            await asyncio.wait([future])
            await asyncio.sleep(0)
            self.assertIn("injected", found[0] or "")
            self.assertIsInstance(future.exception(), StoreFull)

    async def test_a_refused_write_is_no_trouble_and_heals_none(self) -> None:
        async with self.opened(self.faulty) as store:
            for failing in (False, True):
                if failing:
                    await self.break_once(store)
                with self.assertRaises(SessionNotFound):
                    await store.submit(lambda conn: rename_session(conn, "", "unknown", "t", 1.0))
                self.assertEqual(store.trouble is not None, failing)

    async def test_a_commit_that_wrote_nothing_proves_nothing(self) -> None:
        async with self.opened(self.faulty) as store:
            await self.break_once(store)
            await store.submit(lambda conn: conn.execute("SELECT 1").close())
            self.assertIsNotNone(store.trouble)

    async def test_a_probe_finds_trouble_and_its_end_and_changes_no_row(self) -> None:
        async with self.opened(self.faulty) as store:
            self.watch(store)
            self.faults.fail("COMMIT", sqlite3.SQLITE_FULL, times=2)
            self.assertEqual((await probe(store), await probe(store)), (False, False))
            self.assertIn("injected", store.trouble or "")
            self.assertTrue(await probe(store))
            self.assertIsNone(store.trouble)
            await asyncio.sleep(0)
            self.assertEqual((self.healed, await store.read(ids)), ([None], []))

    async def test_a_callback_that_raises_or_was_removed_silences_no_other(self) -> None:
        def raises() -> None:
            raise KeyError("trouble of its own")

        loop = asyncio.get_running_loop()
        seen: list[object] = []
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        async with self.opened(self.faulty) as store:
            gone = partial(self.healed.append, "gone")
            store.on_healed(raises)
            store.on_healed(gone)
            store.off_healed(gone)
            self.watch(store)
            await self.break_once(store)
            self.assertTrue(await probe(store))
            await asyncio.sleep(0)
        self.assertEqual(self.healed, [None])
        self.assertEqual([type(error) for error in seen], [KeyError])

    async def test_in_a_batch_the_last_call_that_says_anything_decides(self) -> None:
        def huge(conn: Connection) -> None:
            conn.execute("PRAGMA max_page_count = 1")
            insert_session(conn, "", Session(id="huge", title="x" * 1_000_000))

        async with self.opened(self.faulty) as store:
            results = await self.batch(store, add("a"), huge)
            self.assertIsInstance(results[1], StoreFull)
            self.assertIsNotNone(store.trouble)
            self.assertIsInstance((await self.batch(store, huge, add("b")))[0], StoreFull)
            self.assertIsNone(store.trouble)


class BrokenDiskTests(StoreCase):
    async def test_after_an_input_output_error_the_connection_is_replaced(self) -> None:
        for name, code in IO_ERRORS.items():
            for statement in ("BEGIN IMMEDIATE", "INSERT", "COMMIT"):
                with self.subTest(error=name, at=statement):
                    self.directory = self.directory.with_name(f"{name}-{statement}")
                    await self.break_and_heal(statement, code)

    async def break_and_heal(self, statement: str, code: int) -> None:
        async with self.opened(self.faulty) as store:
            await store.submit(add("before"))
            self.faults.opened.clear()
            self.faults.fail(statement, code)
            with self.assertRaises(StoreFailed) as caught:
                await store.submit(add("lost"), durably=True)
            error = caught.exception
            self.assertEqual((error.status, error.code), (503, "store_failed"))
            self.trace.clear()
            self.assertEqual(await store.submit(add("after"), durably=True), "after")
            self.assertEqual(self.faults.opened, [False])
            # The new connection is set up like the first one.
            for pragma in ("foreign_keys = ON", "synchronous = FULL", "wal_autocheckpoint = 0"):
                self.assertIn(f"PRAGMA {pragma}", self.trace)
            self.assertEqual(await store.read(ids), ["after", "before"])

    async def test_while_no_connection_can_be_made_writes_say_why_and_then_it_heals(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("COMMIT", sqlite3.SQLITE_IOERR_WRITE)
            self.faults.fail("PRAGMA journal_mode", sqlite3.SQLITE_CANTOPEN, times=3)
            for reason in ("COMMIT", "PRAGMA", "PRAGMA", "PRAGMA"):
                with self.assertRaisesRegex(StoreFailed, f"injected into {reason}"):
                    await store.submit(add("lost"))
            self.assertEqual(await store.submit(add("a")), "a")
            self.assertEqual(await store.read(ids), ["a"])

    async def test_a_batch_that_cannot_be_kept_apart_is_done_call_by_call(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("SAVEPOINT", sqlite3.SQLITE_IOERR_WRITE)
            self.assertEqual(await self.batch(store, *map(add, "abc")), ["a", "b", "c"])
            self.assertEqual(await store.read(ids), ["a", "b", "c"])

    async def test_a_batch_hit_by_an_error_loses_only_what_fails_again(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("INSERT", sqlite3.SQLITE_IOERR_WRITE)
            first, *rest = await self.batch(store, add("a"), add("b"), add("c"))
            self.assertIsInstance(first, StoreFailed)
            self.assertEqual((rest, await store.read(ids)), (["b", "c"], ["b", "c"]))

    async def test_a_reader_that_fails_is_replaced_and_hurts_no_write(self) -> None:
        async with self.opened(self.faulty) as store:
            await store.submit(add("a"))
            self.faults.opened.clear()
            for statement in ("BEGIN", "SELECT", "COMMIT"):
                self.faults.fail(statement, sqlite3.SQLITE_IOERR_READ, reading=True)
                with self.assertRaises(StoreFailed):
                    await store.read(ids)
                self.assertEqual(await store.read(ids), ["a"])
            self.assertEqual(self.faults.opened, [True] * 3)
            self.assertIsNone(store.trouble)

    async def test_a_reader_that_cannot_even_end_its_read_is_replaced(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("COMMIT", reading=True)
            self.faults.fail("ROLLBACK", reading=True)
            with self.assertRaises(StoreFailed):
                await store.read(ids)
            self.assertEqual(await store.read(ids), [])

    async def test_writes_that_the_kernel_refuses_lose_nothing_and_heal(self) -> None:
        child = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", LIMITED, str(self.directory)],
            cwd=ROOT,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        self.assertEqual((child.returncode, child.stderr.decode()), (0, ""))
        promised, failed = map(int, child.stdout.split())
        self.assertGreater(promised, 5)
        self.assertEqual(failed, 50)


class LockedTests(StoreCase):
    def lock(self) -> subprocess.Popen[str]:
        """Another process that holds the write lock."""
        process = subprocess.Popen(
            [sys.executable, "-c", LOCKER, str(self.directory / "crushlite.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.unlock, process)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "locked\n")
        return process

    def unlock(self, process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            process.communicate("", LIMIT)

    async def test_a_lock_of_another_process_refuses_writes_serves_reads_and_passes(self) -> None:
        async with self.opened(self.faulty) as store:
            await store.submit(add("before"))
            process = await asyncio.to_thread(self.lock)
            for durably in (True, False):
                with self.assertRaises(StoreBusy) as caught:
                    await store.submit(add("lost"), durably=durably)
            self.assertEqual((caught.exception.status, caught.exception.code), (503, "store_busy"))
            self.assertFalse(await probe(store))
            self.assertIn("locked", store.trouble or "")
            self.assertEqual(await store.read(ids), ["before"])
            await asyncio.to_thread(self.unlock, process)
            self.assertTrue(await probe(store))
            self.assertEqual(await store.submit(add("after")), "after")
            self.assertEqual(await store.read(ids), ["after", "before"])

    async def test_a_file_that_is_locked_at_opening_is_refused_with_409_and_named(self) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
        process = await asyncio.to_thread(self.lock)
        stores = Stores(clock=FakeClock(), boot_id="boot", connect=self.faulty)
        with self.assertRaisesRegex(StoreUnusable, "locked") as caught:
            await stores.open(self.directory)
        self.assertEqual(caught.exception.status, 409)
        self.assertIn(str(self.directory), caught.exception.message)
        self.assertIn("end the program that uses it", caught.exception.message)
        await asyncio.to_thread(self.unlock, process)
        async with self.opened() as store:
            self.assertEqual(await store.read(ids), ["a"])

    async def test_a_daemon_that_finds_its_file_locked_says_what_to_do(self) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
        await asyncio.to_thread(self.lock)
        command = [sys.executable, "-m", "crushlite", "serve", "--agent", "offline"]
        places = ["--host", f"unix://{self.directory}/sock", "--data-dir", str(self.directory)]
        serve = await asyncio.to_thread(
            subprocess.run,
            [*command, *places],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        self.assertEqual((serve.returncode, serve.stdout), (1, ""), serve.stderr)
        self.assertIn(f"{self.directory} cannot be a data directory", serve.stderr)
        self.assertIn("database is locked; end the program that uses it", serve.stderr)
        self.assertNotIn("Traceback", serve.stderr)


class MissingFileTests(StoreCase):
    async def test_a_directory_that_is_gone_is_let_go_of(self) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
            shutil.rmtree(self.directory)
        async with self.opened() as store:  # nothing in this process holds the old one
            self.assertEqual(await store.read(ids), [])

    async def test_nothing_is_promised_in_a_file_that_is_gone(self) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
            away = store.path.with_name("away")
            store.path.rename(away)
            for _ in range(2):
                with self.assertRaisesRegex(StoreFailed, "removed or replaced"):
                    await store.submit(add("lost"), durably=True)
            self.assertIsNotNone(store.trouble)
            away.rename(store.path)
            self.assertEqual(await store.submit(add("b"), durably=True), "b")
            self.assertEqual(await store.read(ids), ["a", "b"])

    async def test_what_is_committed_to_a_deleted_log_is_in_the_database_before_it_is_told(
        self,
    ) -> None:
        copy = self.directory.with_name("copy")
        async with self.opened() as store:
            await store.submit(add("a"))
            for tail in ("-wal", "-shm"):
                store.path.with_name(store.path.name + tail).unlink()
            with self.assertLogs("crushlite.store", logging.WARNING) as logs:
                for sid in ("b", "c"):
                    await store.submit(add(sid), durably=True)
            self.assertEqual(len(logs.records), 1)
            # As if the process were killed now: nothing but the file is left.
            copy.mkdir()
            shutil.copyfile(store.path, copy / store.path.name)
            self.assertEqual(await store.read(ids), ["a", "b", "c"])
        self.directory = copy
        async with self.opened() as store:
            self.assertEqual(await store.read(ids), ["a", "b", "c"])


class DamageWhileOpenTests(StoreCase):
    async def test_a_false_alarm_is_checked_and_forgotten(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("INSERT", sqlite3.SQLITE_CORRUPT)
            with self.assertRaises(CorruptDatabase):
                await store.submit(add("lost"))
            self.assertEqual(await store.submit(add("a")), "a")
            self.assertIn("PRAGMA integrity_check(1)", self.trace)

    async def test_a_damaged_file_is_read_but_not_written_to_any_more(self) -> None:
        async with self.opened() as store:
            await store.submit(lambda conn: [add(f"s{n}")(conn) for n in range(2_000)])
        with self.assertRaises(StoreUnusable):
            async with self.opened() as store:
                await store.submit(add("in the log"))
                # By another process: closing the file here would drop SQLite's own locks on it.
                await asyncio.to_thread(self.overwrite, store.path)
                await self.write_until_noticed(store)
                before = self.digests()
                for _ in range(3):
                    with self.assertRaisesRegex(CorruptDatabase, "damaged") as caught:
                        await store.submit(add("more"), durably=True)
                self.assertIn("salvage", caught.exception.message)
                self.assertIsNotNone(store.trouble)
                self.assertEqual(await store.read(version_of), VERSION)
            self.assertEqual(self.digests(), before)
            async with self.opened() as store:
                self.fail("a damaged file was opened")

    def overwrite(self, path: Path) -> None:
        script = (
            "import sys; f = open(sys.argv[1], 'r+b'); f.seek(8192); f.write(b'\\xff' * 200000)"
        )
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=LIMIT)

    async def write_until_noticed(self, store: Store) -> None:
        async with asyncio.timeout(LIMIT):
            for number in range(100_000):
                try:
                    await store.submit(add(f"x{number}"))
                except CrushliteError as error:
                    self.assertIsInstance(error, CorruptDatabase)
                    return

    def digests(self) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.directory.glob("crushlite.db*")
            if not path.name.endswith("-shm")
        }


class InlineTests(StoreCase):
    async def test_all_of_it_works_without_threads(self) -> None:
        async with self.opened(self.faulty, InlineExecutor) as store:
            self.faults.fail("COMMIT", sqlite3.SQLITE_IOERR_WRITE)
            with self.assertRaises(StoreFailed):
                await store.submit(add("lost"))
            self.assertTrue(await probe(store))
            await store.submit(add("a"))
            self.assertEqual(await store.read(ids), ["a"])


if __name__ == "__main__":
    unittest.main()
