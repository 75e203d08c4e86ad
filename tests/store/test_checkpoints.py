"""The log stays short: under load, beside reads of any length, and it is gone after closing."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import unittest
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.protocol.sessions import Session
from crushlite.store import checkpoints
from crushlite.store.checkpoints import KEEP, WAIT
from crushlite.store.sessions import insert_session
from crushlite.testing import InlineExecutor
from tests.support.store import Gate, StoreCase, add, ids

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.store import Connection, Store

MB = 2**20
ROW = 200_000  # bytes that one call writes


def large(sid: str, conn: Connection) -> None:
    insert_session(conn, "", Session(id=sid, title="x" * ROW))


def log_of(store: Store) -> Path:
    return store.path.with_name("crushlite.db-wal")


async def write(store: Store, amount: int, prefix: str = "") -> int:
    """Write so many bytes; returns how long the log was at most."""
    longest = 0
    for number in range(amount // ROW):
        await store.submit(partial(large, f"{prefix}{number}"))
        longest = max(longest, log_of(store).stat().st_size)
    return longest


class LoadTests(StoreCase):
    async def test_under_load_the_log_is_started_anew_again_and_again(self) -> None:
        async with self.opened() as store:
            self.assertLess(await write(store, 10 * KEEP), 2 * KEEP)
            self.assertGreater(self.count("PRAGMA wal_checkpoint(PASSIVE)"), 5)

    async def test_a_checkpoint_is_made_after_the_answer_and_never_inside_a_commit(self) -> None:
        async with self.opened(self.faulty) as store:
            self.assertEqual(await store.submit(auto_checkpoint), 0)
            gate = self.faults.gates["PRAGMA wal_checkpoint(PASSIVE)"] = Gate()
            number = 0
            while log_of(store).stat().st_size <= KEEP:
                await store.submit(partial(large, str(number := number + 1)))
            await gate.reached()  # the last one was answered, although its thread is held
            gate.open.set()

    async def test_a_checkpoint_that_fails_is_logged_and_tried_again(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("PRAGMA wal_checkpoint", sqlite3.SQLITE_IOERR_WRITE)
            with self.assertLogs("crushlite.store", logging.WARNING):
                await write(store, 2 * KEEP, "a")
            self.assertLess(await write(store, 4 * KEEP, "b"), 4 * KEEP)
            self.assertIsNone(store.trouble)

    async def test_without_threads_it_is_the_same(self) -> None:
        async with self.opened(executor=InlineExecutor) as store:
            self.assertLess(await write(store, 3 * KEEP), 2 * KEEP)


class ReaderTests(StoreCase):
    async def test_a_long_read_delays_no_write_and_the_log_is_shortened_after_it(self) -> None:
        async with self.opened() as store:
            await store.submit(add("before"))
            gate = Gate()
            held = store.read(partial(slow_read, gate))
            await gate.reached()
            behind = store.read(ids)
            self.assertGreater(await write(store, 4 * KEEP), 4 * KEEP)
            self.assertFalse(held.done())
            gate.open.set()
            self.assertEqual(await held, ["before"])  # one moment, whatever was written since
            self.assertGreater(len(await behind), 10)
            await store.submit(add("after"))  # its checkpoint is the first that can be complete
            await store.submit(add("anew"))
            self.assertLessEqual(log_of(store).stat().st_size, KEEP)

    async def test_reads_without_a_pause_do_not_keep_the_log_from_being_shortened(self) -> None:
        """Each read begins before the one in front of it has been answered."""
        reading = True

        async def read_on(store: Store) -> int:
            count = 0
            futures = [store.read(ids), store.read(ids)]
            while reading:
                await futures.pop(0)
                futures.append(store.read(ids))
                count += 1
            await asyncio.gather(*futures)
            return count

        async with self.opened() as store:
            reader = asyncio.create_task(read_on(store))
            longest = await write(store, 12 * KEEP)
            reading = False
            self.assertGreater(await reader, 10)
            self.assertLess(longest, WAIT + 4 * KEEP)

    async def test_a_log_that_a_read_makes_far_too_long_stops_the_writer_until_it_ends(
        self,
    ) -> None:
        with mock.patch.object(checkpoints, "BRAKE", 2 * KEEP):
            async with self.opened() as store:
                gate = Gate()
                held = store.read(partial(slow_read, gate))
                await gate.reached()
                number = 0
                while log_of(store).stat().st_size <= 2 * KEEP:
                    await store.submit(partial(large, str(number := number + 1)))
                late = store.submit(partial(large, "late"))
                done, _ = await asyncio.wait([late], timeout=0.2)
                self.assertEqual(done, set())
                gate.open.set()
                await asyncio.gather(held, late)
                self.assertLessEqual(log_of(store).stat().st_size, KEEP)

    async def test_a_read_that_the_writer_does_not_wait_for_any_longer_is_logged_once(self) -> None:
        with (
            mock.patch.object(checkpoints, "BRAKE", 2 * KEEP),
            mock.patch.object(checkpoints, "_BRAKING", 0),
            self.assertLogs("crushlite.store", logging.WARNING) as logs,
        ):
            async with self.opened() as store:
                gate = Gate()
                held = store.read(partial(slow_read, gate))
                await gate.reached()
                await write(store, 3 * KEEP)
                gate.open.set()
                await held
        self.assertEqual(len(logs.records), 1)
        self.assertIn("a read takes longer", logs.output[0])

    async def test_a_read_waits_for_no_checkpoint_that_nobody_owes(self) -> None:
        """A checkpoint that a read seemed to be in the way of was complete after all, and the next
        commit began the log anew. Without threads a read that waits for the writer then can only
        end by a bound."""
        sizes: list[int] = []

        def write_until_the_log_is_begun_anew(conn: Connection) -> None:
            # Nothing was read yet: SQLite does not know of this read, and copies all of the log.
            while not sizes or sizes[-1] <= KEEP:
                self.write_inline(store, sizes)
            self.write_inline(store, sizes)

        async with self.opened(executor=InlineExecutor) as store:
            with mock.patch("threading.Event.wait", side_effect=AssertionError("a read waits")):
                await store.read(write_until_the_log_is_begun_anew)
                self.assertEqual(len(await store.read(ids)), len(sizes))
            self.assertEqual(self.count("PRAGMA wal_checkpoint(PASSIVE)"), 1)
            self.assertLessEqual(sizes[-1], KEEP)

    def write_inline(self, store: Store, sizes: list[int]) -> None:
        store.submit(partial(large, str(len(sizes))))
        sizes.append(log_of(store).stat().st_size)

    async def test_a_read_does_not_wait_for_a_writer_that_is_held_up(self) -> None:
        async with self.opened() as store:
            gate, other = Gate(), Gate()
            held = store.read(partial(slow_read, gate))
            await gate.reached()
            await write(store, 2 * KEEP)  # a checkpoint is due, and the read is in its way
            writing = store.submit(other)
            await other.reached()
            gate.open.set()
            await held
            await store.read(ids)
            self.assertFalse(writing.done())
            other.open.set()
            self.assertTrue(await writing)

    async def test_a_foreign_reader_makes_it_grow_which_is_told_once_and_passes(self) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
            other = sqlite3.connect(store.path, isolation_level=None)
            self.addCleanup(other.close)
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM sessions").fetchall()
            with (
                mock.patch.object(checkpoints, "BRAKE", 2 * KEEP),
                self.assertLogs("crushlite.store", logging.WARNING) as logs,
            ):
                await write(store, 5 * KEEP, "a")
            self.assertEqual(len(logs.records), 1)
            self.assertIn("crushlite.db-wal", logs.output[0])
            # Not after every write: each costs a flush of the disk.
            self.assertLess(self.count("PRAGMA wal_checkpoint(PASSIVE)"), 8)
            other.execute("ROLLBACK")
            await write(store, 2 * KEEP, "b")
            self.assertLess(log_of(store).stat().st_size, 2 * KEEP)


class ClosingTests(StoreCase):
    async def test_after_closing_there_is_one_file_that_needs_no_recovery(self) -> None:
        async with self.opened() as store:
            await write(store, MB)
            self.assertGreater(log_of(store).stat().st_size, 0)
        names = sorted(path.name for path in self.directory.iterdir() if path.name[0] != ".")
        self.assertEqual(names, ["crushlite.db", "crushlite.lock"])
        closing = [line for line in self.trace if line.startswith("PRAGMA")][-2:]
        self.assertEqual(closing, ["PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)"])

    async def test_closing_that_cannot_shorten_the_log_loses_nothing(self) -> None:
        for statement in ("PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)"):
            with self.subTest(statement):
                self.directory = self.directory.with_name(statement)
                with self.assertLogs("crushlite.store", logging.WARNING):
                    async with self.opened(self.faulty) as store:
                        await store.submit(add("a"))
                        self.faults.fail(statement, sqlite3.SQLITE_FULL)
                note = (self.directory / "crushlite.lock").read_text().splitlines()[1]
                self.assertTrue(note.startswith("open"), note)
                async with self.opened() as store:
                    self.assertEqual(await store.read(ids), ["a"])

    async def test_a_read_that_runs_when_the_store_is_closed_is_finished_first(self) -> None:
        gate = Gate()
        async with self.opened() as store:
            held = store.read(partial(slow_read, gate))
            await gate.reached()
            await write(store, 2 * KEEP)
            gate.open.set()
        self.assertEqual(await held, [])
        self.assertFalse(log_of(store).exists())


def slow_read(gate: Gate, conn: Connection) -> list[str]:
    conn.execute("SELECT count(*) FROM sessions").fetchall()  # from here on it sees one moment
    gate(conn)
    return ids(conn)


def auto_checkpoint(conn: Connection) -> int:
    return int(conn.execute("PRAGMA wal_autocheckpoint").fetchone()[0])


if __name__ == "__main__":
    unittest.main()
