"""Opening a store: who owns the directory, which files are refused, what a failure leaves."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from crushlite.errors import (
    CorruptDatabase,
    DataDirectoryInUse,
    IllegalCall,
    NewerSchema,
    StoreUnusable,
)
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.connection import connect
from crushlite.store.migrations import VERSION, migrate
from crushlite.store.sessions import insert_session
from crushlite.testing.fake_clock import FakeClock
from crushlite.threads import DaemonThreads
from tests.support.places import ROOT
from tests.support.store import list_sessions

if TYPE_CHECKING:
    from crushlite.store import Store
    from crushlite.store.connection import ConnectionFactory

LIMIT = 60

# Another process: opens the store, says so, and works until it is killed or its input ends.
OTHER = """
import asyncio, sys
from functools import partial
from pathlib import Path
from crushlite.clock import SystemClock
from crushlite.protocol.sessions import Session
from crushlite.store import Stores
from crushlite.store.sessions import insert_session

async def main(directory, count):
    stores = Stores(clock=SystemClock(), boot_id="other")
    store = await stores.open(directory)
    print("open", flush=True)

    async def writer(name):
        for n in range(count):
            sid = f"{name}-{n}"
            await store.submit(
                partial(insert_session, scope="", session=Session(id=sid)), durably=True
            )
            print(sid, flush=True)

    await asyncio.gather(*(writer(name) for name in "abcd"))
    await asyncio.to_thread(sys.stdin.read)
    await stores.release(store)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


def digests(directory: Path) -> dict[str, str]:
    """Every file of the database: what is refused leaves neither a change nor litter."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("crushlite.db*"))
    }


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def threads_of_stores() -> list[threading.Thread]:
    """Those of `make_stores`."""
    return [thread for thread in threading.enumerate() if thread.name == "stores-under-test"]


def store_threads_ended() -> None:
    """Wait for the threads of stores that are closed."""
    for thread in threads_of_stores():
        thread.join(LIMIT)


class OpenCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.directory = self.root / "project" / "data"
        self.database = self.directory / "crushlite.db"
        self.stores = self.make_stores()

    def make_stores(self, connect: ConnectionFactory = connect) -> Stores:
        """Stores whose threads end soon when they have nothing to do."""
        threads = DaemonThreads(64, "stores-under-test", idle_seconds=0.01)
        return Stores(
            clock=FakeClock(), boot_id="boot", executor=lambda _: threads, connect=connect
        )

    def make(self) -> sqlite3.Connection:
        """A database of this version, with a little in it."""
        self.directory.mkdir(parents=True)
        self.database.touch()
        conn = connect(self.database, False)
        self.addCleanup(conn.close)
        conn.execute("PRAGMA journal_mode = WAL")
        migrate(conn, self.database)
        for n in range(100):
            insert_session(conn, "", Session(id=f"s{n}", title="x" * 200))
        return conn

    def take_as_if_killed(self, conn: sqlite3.Connection) -> None:
        """Move to a copy of the files as they are now: closing the connection merges the log."""
        copy = self.root / "copy"
        shutil.copytree(self.directory, copy)
        conn.close()
        self.directory, self.database = copy, copy / "crushlite.db"

    def start_other(self, count: int = 0) -> tuple[subprocess.Popen[str], IO[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(self.directory), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.addCleanup(self.stop_other, process)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "open\n")
        return process, process.stdout

    def stop_other(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate(timeout=LIMIT)


class DirectoryTests(OpenCase):
    async def test_a_directory_is_made_private_and_kept_out_of_git(self) -> None:
        async with asyncio.timeout(LIMIT):
            store = await self.stores.open(self.directory)
            self.assertEqual(stat.S_IMODE(self.directory.stat().st_mode), 0o700)
            self.assertEqual((self.directory / ".gitignore").read_text(), "*\n")
            for name in ("crushlite.db", "crushlite.db-wal", "crushlite.lock"):
                mode = stat.S_IMODE((self.directory / name).stat().st_mode)
                self.assertEqual(mode, 0o600, name)
            await self.stores.release(store)

    async def test_a_directory_that_exists_keeps_its_mode_and_gets_no_gitignore(self) -> None:
        self.directory.mkdir(parents=True, mode=0o755)
        mode = self.directory.stat().st_mode
        async with asyncio.timeout(LIMIT):
            await self.stores.release(await self.stores.open(self.directory))
        self.assertEqual(self.directory.stat().st_mode, mode)
        names = sorted(path.name for path in self.directory.iterdir())
        # The log was merged into the file; the lock file stays.
        self.assertEqual(names, ["crushlite.db", "crushlite.lock"])

    async def test_a_path_that_is_no_directory_is_refused(self) -> None:
        self.directory.parent.mkdir()
        self.directory.write_text("a file")
        async with asyncio.timeout(LIMIT):
            with self.assertRaises(StoreUnusable):
                await self.stores.open(self.directory)
        self.assertEqual(self.directory.read_text(), "a file")

    async def test_what_was_written_is_there_after_opening_again(self) -> None:
        async with asyncio.timeout(LIMIT):
            store = await self.stores.open(self.directory)
            await store.submit(lambda conn: insert_session(conn, "", Session(id="s\0", title="a")))
            await self.stores.release(store)
            store = await self.stores.open(self.directory)
            found = await store.read(lambda conn: list_sessions(conn, ""))
            self.assertEqual([session.id for session in found], ["s\0"])
            await self.stores.release(store)


class SharingTests(OpenCase):
    async def test_concurrent_opens_of_one_real_path_share_one_store(self) -> None:
        self.directory.mkdir(parents=True)
        link = self.root / "link"
        link.symlink_to(self.directory.parent)
        async with asyncio.timeout(LIMIT):
            stores = await asyncio.gather(
                self.stores.open(self.directory),
                self.stores.open(link / "data"),
                self.stores.open(self.directory / ".." / "data"),
            )
            self.assertEqual(len(set(map(id, stores))), 1)
            self.assertEqual(stores[0].data_dir, self.directory)
            for store in stores:
                self.assertEqual(await store.submit(lambda _: 1), 1)
                await self.stores.release(store)
            with self.assertRaises(IllegalCall):
                await self.stores.release(stores[0])

    async def test_the_last_release_closes_threads_files_and_lock(self) -> None:
        store_threads_ended()  # of earlier stores
        threads, files = len(threads_of_stores()), descriptors()
        async with asyncio.timeout(LIMIT):
            first = await self.stores.open(self.directory)
            second = await self.stores.open(self.directory)
            used = await first.submit(lambda _: threading.current_thread())
            self.assertEqual(used.name, "stores-under-test")
            await self.stores.release(first)
            self.assertEqual(await second.submit(lambda _: 1), 1)
            await self.stores.release(second)
            store_threads_ended()
            self.assertEqual((len(threads_of_stores()), descriptors()), (threads, files))
            await self.open_elsewhere()

    async def test_an_open_during_the_close_waits_for_it_and_gets_a_new_store(self) -> None:
        async with asyncio.timeout(LIMIT):
            old = await self.stores.open(self.directory)
            closing = asyncio.create_task(self.stores.release(old))
            await asyncio.sleep(0)
            new = await self.stores.open(self.directory)
            await closing
            self.assertIsNot(new, old)
            self.assertEqual(await new.submit(lambda _: 1), 1)
            with self.assertRaises(IllegalCall):
                await self.stores.release(old)
            await self.stores.release(new)

    async def test_an_open_that_is_cancelled_leaves_nothing_and_does_not_hurt_another(self) -> None:
        async with asyncio.timeout(LIMIT):
            impatient = asyncio.create_task(self.stores.open(self.directory))
            patient = asyncio.create_task(self.stores.open(self.directory))
            await asyncio.sleep(0)
            impatient.cancel()
            store = await patient
            self.assertTrue(impatient.cancelled())
            await self.stores.release(store)

            alone = asyncio.create_task(self.stores.open(self.directory))
            await asyncio.sleep(0)
            alone.cancel()
            await asyncio.wait([alone])
            await self.stores.release(await self.stores.open(self.directory))
            await self.open_elsewhere()

    async def open_elsewhere(self) -> None:
        """Proof that the lock is free."""
        others = self.make_stores()
        await others.release(await others.open(self.directory))


class RefusalTests(OpenCase):
    async def refused(self, error: type[StoreUnusable], exit_code: int) -> str:
        """Opening fails with this error, changes no byte, and leaks nothing."""
        store_threads_ended()  # of earlier stores
        before, threads, files = digests(self.directory), len(threads_of_stores()), descriptors()
        async with asyncio.timeout(LIMIT):
            for _ in range(2):
                with self.assertRaises(error) as caught:
                    await self.stores.open(self.directory)
        self.assertEqual(digests(self.directory), before)
        store_threads_ended()
        self.assertEqual((len(threads_of_stores()), descriptors()), (threads, files))
        self.assertEqual(caught.exception.exit_code, exit_code)
        return caught.exception.message

    async def test_a_newer_schema_is_refused_untouched(self) -> None:
        conn = self.make()
        conn.execute(f"PRAGMA user_version = {VERSION + 1}")
        conn.close()
        message = await self.refused(NewerSchema, 5)
        self.assertIn(str(VERSION + 1), message)

    async def test_a_newer_schema_that_is_only_in_the_log_is_refused_untouched(self) -> None:
        conn = self.make()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        conn.execute(f"PRAGMA user_version = {VERSION + 1}")
        self.take_as_if_killed(conn)
        self.assertIn("crushlite.db-wal", digests(self.directory))
        await self.refused(NewerSchema, 5)

    async def test_a_file_that_is_no_database_is_refused_untouched(self) -> None:
        self.directory.mkdir(parents=True)
        self.database.write_bytes(b"these are somebody's notes\n" * 1_000)
        await self.refused(CorruptDatabase, 4)

    async def test_a_damaged_database_is_refused_untouched(self) -> None:
        self.make().close()
        whole = self.database.read_bytes()
        half = len(whole) // 2
        damages: dict[str, bytes] = {
            "header": b"\0" * 100 + whole[100:],
            "truncated": whole[: half - half % 4096],
            "middle": whole[:4096] + b"\xff" * (len(whole) - 8192) + whole[-4096:],
        }
        for name, content in damages.items():
            with self.subTest(name):
                self.database.write_bytes(content)
                self.assertIn("crushlite.db", await self.refused(CorruptDatabase, 4))

    async def test_the_database_of_another_program_is_refused_untouched(self) -> None:
        self.directory.mkdir(parents=True)
        conn = sqlite3.connect(self.database)
        conn.execute("CREATE TABLE theirs (x)")
        conn.close()
        await self.refused(CorruptDatabase, 4)

    async def test_an_empty_file_beside_a_log_is_refused_untouched(self) -> None:
        self.take_as_if_killed(self.make())
        os.truncate(self.database, 0)
        await self.refused(CorruptDatabase, 4)

    async def test_a_failure_at_any_connection_gives_everything_back(self) -> None:
        self.make().close()
        for failing in (1, 2, 3):
            with self.subTest(connection=failing):
                stores = self.make_stores(failing_at(failing))
                store_threads_ended()  # of earlier stores
                threads, files = len(threads_of_stores()), descriptors()
                async with asyncio.timeout(LIMIT):
                    with self.assertRaises(StoreUnusable):
                        await stores.open(self.directory)
                    store_threads_ended()
                    self.assertEqual((len(threads_of_stores()), descriptors()), (threads, files))
                    store = await self.stores.open(self.directory)
                    await self.stores.release(store)

    async def test_a_failure_at_any_statement_gives_everything_back_and_spoils_nothing(
        self,
    ) -> None:
        failures = 0
        async with asyncio.timeout(LIMIT):
            while True:
                breaking = Breaking(failures + 1)
                stores = self.make_stores(breaking.connect)
                store_threads_ended()  # of earlier stores
                threads, files = len(threads_of_stores()), descriptors()
                try:
                    await stores.release(await stores.open(self.directory))
                except StoreUnusable:
                    failures += 1
                    store_threads_ended()
                    self.assertEqual((len(threads_of_stores()), descriptors()), (threads, files))
                else:
                    break
            # Pragmas, the schema statement by statement, recovery.
            self.assertGreater(failures, 20)
            store = await self.stores.open(self.directory)
            await store.submit(lambda conn: insert_session(conn, "", Session(id="s")))
            await self.stores.release(store)

    async def test_every_waiter_of_a_failed_open_gets_the_error(self) -> None:
        self.directory.mkdir(parents=True)
        self.database.write_bytes(b"nonsense" * 1_000)
        async with asyncio.timeout(LIMIT):
            results = await asyncio.gather(
                *(self.stores.open(self.directory) for _ in range(3)), return_exceptions=True
            )
            self.assertTrue(all(isinstance(result, CorruptDatabase) for result in results))
            self.database.unlink()
            await self.stores.release(await self.stores.open(self.directory))


def failing_at(number: int) -> ConnectionFactory:
    """A factory whose n-th connection cannot be opened: inspection, writer, reader."""
    opened: list[bool] = []

    def factory(path: Path, read_only: bool) -> sqlite3.Connection:
        opened.append(read_only)
        if len(opened) == number:
            raise sqlite3.OperationalError("unable to open")
        return connect(path, read_only)

    return factory


class Breaking:
    """A factory of writers whose n-th statement fails."""

    def __init__(self, left: int) -> None:
        self.left = left

    def connect(self, path: Path, read_only: bool) -> sqlite3.Connection:
        if read_only:
            return connect(path, True)
        conn = sqlite3.connect(
            path, isolation_level=None, factory=BreakingConnection, check_same_thread=False
        )
        conn.breaking = self
        return conn


class BreakingConnection(sqlite3.Connection):
    breaking: Breaking

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        self.breaking.left -= 1
        if self.breaking.left == 0:
            raise sqlite3.OperationalError(f"injected into {sql}")
        return super().execute(sql, *args)


class LockTests(OpenCase):
    async def test_a_directory_in_use_is_refused_with_the_owners_pid_until_it_exits(self) -> None:
        process, _ = self.start_other()
        async with asyncio.timeout(LIMIT):
            with self.assertRaisesRegex(DataDirectoryInUse, rf"process {process.pid}\b") as caught:
                await self.stores.open(self.directory)
            self.assertEqual(caught.exception.exit_code, 6)
            await asyncio.to_thread(process.communicate, "", LIMIT)
            self.assertEqual(process.returncode, 0)
            await self.stores.release(await self.stores.open(self.directory))
        first, *_ = (self.directory / "crushlite.lock").read_text().splitlines()
        self.assertEqual(first, str(os.getpid()))

    async def test_an_owner_that_has_not_said_who_it_is_yet_is_unknown(self) -> None:
        self.directory.mkdir(parents=True)
        with (self.directory / "crushlite.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with self.assertRaisesRegex(DataDirectoryInUse, "process unknown"):
                await self.stores.open(self.directory)

    async def test_two_owners_in_one_process_are_refused_too(self) -> None:
        async with asyncio.timeout(LIMIT):
            store = await self.stores.open(self.directory)
            others = self.make_stores()
            with self.assertRaisesRegex(DataDirectoryInUse, rf"process {os.getpid()}\b"):
                await others.open(self.directory)
            await self.stores.release(store)

    async def test_a_killed_owner_loses_the_lock_and_nothing_it_acknowledged(self) -> None:
        acknowledged: set[str] = set()
        for round_, lines in enumerate((1, 37, 150)):
            with self.subTest(lines=lines):
                self.directory = self.root / f"data{round_}"
                acknowledged = await asyncio.to_thread(self.kill_after, lines)
                async with asyncio.timeout(LIMIT):
                    store = await self.stores.open(self.directory)
                    found = await self.session_ids(store)
                    check = await store.read(
                        lambda conn: conn.execute("PRAGMA integrity_check").fetchall()
                    )
                    await self.stores.release(store)
                self.assertGreaterEqual(len(acknowledged), lines)
                self.assertLessEqual(acknowledged, found)
                self.assertEqual(check, [("ok",)])

    async def session_ids(self, store: Store) -> set[str]:
        return {s.id for s in await store.read(lambda conn: list_sessions(conn, ""))}

    def kill_after(self, lines: int) -> set[str]:
        """Let the other process acknowledge some writes, kill it, return all it acknowledged."""
        process, output = self.start_other(1_000_000)
        seen = [output.readline() for _ in range(lines)]
        process.kill()
        rest, _ = process.communicate(timeout=LIMIT)
        # The last line may have been cut off by the kill.
        whole = "".join(seen) + rest
        return set(whole[: whole.rfind("\n")].split())


if __name__ == "__main__":
    unittest.main()
