"""The threads of stores: shared, bounded, and never waited for without end."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.errors import DataDirectoryInUse, StoreFailed
from crushlite.store import Stores, stores as stores_module
from crushlite.testing.fake_clock import FakeClock
from crushlite.threads import DaemonThreads
from tests.support.basics import LIMIT
from tests.support.store import Gate, StoreCase, add, ids

if TYPE_CHECKING:
    from pathlib import Path

NAME = "stores-under-test"
ENDLESS = """
    WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n
"""


def endless(started: threading.Event) -> object:
    def work(conn: sqlite3.Connection) -> None:
        started.set()
        conn.execute(ENDLESS).fetchall()

    return work


def of_stores() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


class ThreadTests(StoreCase):
    async def test_calls_of_one_store_run_one_at_a_time_and_in_order(self) -> None:
        threads = DaemonThreads(8, NAME, idle_seconds=0.01)
        stores = Stores(clock=FakeClock(), boot_id="boot", executor=lambda _: threads)
        opened = [await stores.open(self.directory.with_name(f"d{n}")) for n in range(20)]
        seen: list[list[int]] = [[] for _ in opened]
        running = [0] * len(opened)
        worst = [0] * len(opened)

        def call(which: int, number: int, _: sqlite3.Connection) -> None:
            running[which] += 1
            worst[which] = max(worst[which], running[which])
            seen[which].append(number)
            running[which] -= 1

        calls = [
            store.submit(partial(call, which, number))
            for number in range(200)
            for which, store in enumerate(opened)
        ]
        self.assertLessEqual(len(of_stores()), 8)
        await asyncio.gather(*calls)
        self.assertEqual(seen, [list(range(200))] * len(opened))
        self.assertEqual(worst, [1] * len(opened))
        await asyncio.gather(*(stores.release(store) for store in opened))
        for thread in of_stores():
            thread.join(LIMIT)
        self.assertEqual(of_stores(), [])

    async def test_a_thread_without_work_ends_and_the_next_call_gets_another(self) -> None:
        executor = DaemonThreads(64, NAME, idle_seconds=0.01)
        for _ in range(3):
            ran = threading.Event()
            executor.start(ran.set)
            self.assertTrue(ran.wait(LIMIT))
            for thread in of_stores():
                thread.join(LIMIT)
            self.assertEqual(of_stores(), [])

    async def test_a_call_that_hangs_keeps_one_thread_and_no_other(self) -> None:
        threads = DaemonThreads(2, NAME, idle_seconds=0.01)
        gate, waited = threading.Event(), list[bool]()
        self.addCleanup(gate.set)
        threads.start(lambda: waited.append(gate.wait(LIMIT)))
        for _ in range(5):
            ran = threading.Event()
            threads.start(ran.set)
            self.assertTrue(ran.wait(LIMIT))

    async def test_hundreds_of_open_stores_share_few_threads(self) -> None:
        threads = DaemonThreads(64, NAME, idle_seconds=0.01)
        stores = Stores(clock=FakeClock(), boot_id="boot", executor=lambda _: threads)
        opened = await asyncio.gather(
            *(stores.open(self.directory.with_name(f"d{n}")) for n in range(100))
        )
        self.assertLessEqual(len(of_stores()), 64)
        found = await asyncio.gather(
            *(store.submit(add(f"s{n}")) for n, store in enumerate(opened))
        )
        self.assertEqual(found, [f"s{n}" for n in range(100)])
        self.assertEqual(await opened[7].read(ids), ["s7"])
        await asyncio.gather(*(stores.release(store) for store in opened))
        for thread in of_stores():
            thread.join(LIMIT)
        self.assertEqual(of_stores(), [])

    async def test_without_any_thread_the_call_is_refused(self) -> None:
        executor = DaemonThreads(64, NAME)
        with (
            mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("no threads")),
            self.assertRaises(RuntimeError),
        ):
            executor.start(lambda: None)


class ClosingTests(StoreCase):
    async def test_closing_interrupts_statements_that_do_not_end(self) -> None:
        for kind in ("read", "submit"):
            with (
                self.subTest(kind),
                mock.patch.multiple(stores_module, READ_SECONDS=0.0, WRITE_SECONDS=0.0),
            ):
                started = threading.Event()
                stores = Stores(clock=FakeClock(), boot_id="boot")
                store = await stores.open(self.directory)
                hung = getattr(store, kind)(endless(started))
                await asyncio.to_thread(started.wait, LIMIT)
                async with asyncio.timeout(LIMIT):
                    await stores.release(store)
                    with self.assertRaises(StoreFailed):
                        await hung
                    # The file is closed and its lock is free.
                    await stores.release(await stores.open(self.directory))

    async def test_in_a_hurry_nothing_is_waited_for_and_the_lock_stays(self) -> None:
        stores = Stores(clock=FakeClock(), boot_id="boot")
        store = await stores.open(self.directory)
        gate = Gate()
        hung = store.submit(gate)
        await gate.reached()
        releasing = asyncio.create_task(stores.release(store))
        await asyncio.sleep(0)
        stores.hurry()
        async with asyncio.timeout(LIMIT):
            await releasing
        with self.assertRaises(DataDirectoryInUse):  # its thread may still write
            await Stores(clock=FakeClock(), boot_id="other").open(self.directory)
        gate.open.set()
        self.assertTrue(await hung)

    async def test_in_a_hurry_an_opening_is_interrupted(self) -> None:
        started = threading.Event()

        class Slow(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql == "PRAGMA foreign_keys = ON":
                    started.set()
                    sql = ENDLESS
                return super().execute(sql, *values)

        def connect(path: Path, read_only: bool) -> sqlite3.Connection:
            return sqlite3.connect(
                path, isolation_level=None, factory=Slow, check_same_thread=False
            )

        stores = Stores(clock=FakeClock(), boot_id="boot", connect=connect)
        opening = asyncio.create_task(stores.open(self.directory))
        await asyncio.to_thread(started.wait, LIMIT)
        async with asyncio.timeout(LIMIT):
            while not opening.done():  # an interrupt ends a statement that is running already
                stores.hurry()
                await asyncio.wait([opening], timeout=0.05)
        with contextlib.suppress(Exception):
            await opening
        self.assertIsNotNone(opening.exception())
