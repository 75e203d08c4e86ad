"""Writing and reading: what shares a transaction, what a failure costs, what is promised."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import unittest
from functools import partial
from unittest import mock

from crushlite.errors import (
    BadRequest,
    SessionNotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreOverloaded,
)
from crushlite.protocol.sessions import Session
from crushlite.store.callqueue import MAX_WAITING
from crushlite.store.sessions import get_session, insert_session, rename_session
from crushlite.testing import InlineExecutor
from tests.support.store import Gate, StoreCase, add, ids, list_sessions


class GroupCommitTests(StoreCase):
    async def test_calls_that_wait_share_one_transaction(self) -> None:
        async with self.opened() as store:
            results = await self.batch(store, *(add(f"s{n:02}") for n in range(50)))
            self.assertEqual(results, [f"s{n:02}" for n in range(50)])
            # The gate's own commit is the other one.
            self.assertEqual((self.count("BEGIN IMMEDIATE"), self.count("COMMIT")), (1, 2))

    async def test_shared_calls_wait_for_the_next_one_and_share_its_transaction(self) -> None:
        async with self.opened(sharing_seconds=3600) as store:
            shared = [store.submit(add(sid), shared=True) for sid in ("a", "b", "c")]
            self.assertEqual(await store.submit(ids), ["a", "b", "c"])
            self.assertTrue(all(call.done() for call in shared))
            self.assertEqual(self.count("COMMIT"), 1)

    async def test_a_shared_call_that_no_other_follows_is_committed_by_itself(self) -> None:
        async with self.opened(sharing_seconds=0.001) as store:
            for n in range(2):
                await store.submit(add(f"s{n}"), shared=True)
                self.assertEqual(self.count("COMMIT"), n + 1)

    async def test_release_finishes_shared_calls_too(self) -> None:
        async with self.opened(sharing_seconds=3600) as store:
            shared = store.submit(add("s"), shared=True)
        self.assertEqual(await shared, "s")

    async def test_a_batch_wakes_the_event_loop_once(self) -> None:
        async with self.opened() as store:
            gate = Gate()
            futures = [store.submit(gate)]
            await gate.reached()
            loop = asyncio.get_running_loop()
            with mock.patch.object(
                loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe
            ) as wake:
                futures += [store.submit(lambda _: True) for _ in range(30)]
                gate.open.set()
                await asyncio.gather(*futures)
            # The gate's batch, and that of the thirty.
            self.assertEqual(wake.call_count, 2)

    async def test_calls_run_and_resolve_in_the_order_they_were_made(self) -> None:
        ran: list[int] = []
        done: list[int] = []

        def note(log: list[int], n: int, _: object) -> None:
            log.append(n)

        async with self.opened() as store:
            futures = []
            for n in range(200):
                future = store.submit(partial(note, ran, n), durably=n % 3 == 0)
                future.add_done_callback(partial(note, done, n))
                futures.append(future)
            await asyncio.gather(*futures)
        self.assertEqual((ran, done), (list(range(200)), list(range(200))))

    async def test_a_failing_call_is_undone_alone(self) -> None:
        def half(conn: sqlite3.Connection) -> None:
            insert_session(conn, "", Session(id="half"))
            raise KeyError("half-way")

        async with self.opened() as store:
            first, failed, last = await self.batch(store, add("a"), half, add("z"))
            self.assertEqual((first, last), ("a", "z"))
            self.assertIsInstance(failed, KeyError)
            self.assertEqual(await store.read(ids), ["a", "z"])
            self.assertEqual(self.count("BEGIN IMMEDIATE"), 1)

    async def test_a_cancelled_waiter_neither_undoes_its_call_nor_hurts_the_others(self) -> None:
        async with self.opened() as store:
            gate = Gate()
            held = store.submit(gate)
            await gate.reached()
            left, stayed = store.submit(add("left")), store.submit(add("stayed"))
            left.cancel()
            gate.open.set()
            self.assertEqual((await held, await stayed), (True, "stayed"))
            self.assertEqual(await store.read(ids), ["left", "stayed"])

    async def test_a_batch_with_a_promise_is_flushed_to_disk_and_one_without_is_not(self) -> None:
        async with self.opened() as store:
            for sid, promise, level in (("a", 1, "FULL"), ("b", 0, "NORMAL"), ("c", 1, "FULL")):
                await store.submit(add(sid), durably=bool(promise))
                pragma = self.trace.index(f"PRAGMA synchronous = {level}")
                self.assertLess(pragma, self.trace.index("BEGIN IMMEDIATE"))
                self.trace.clear()
            await self.batch(store, add("x"), add("y"), durably=True)
            self.assertEqual(self.count("PRAGMA synchronous = FULL"), 1)

    async def test_any_exception_reaches_its_waiter_even_one_a_future_cannot_hold(self) -> None:
        def stop(conn: sqlite3.Connection) -> str:
            return next(iter(()))

        async with self.opened() as store:
            before, stopped, after = await self.batch(store, add("a"), stop, add("b"))
            self.assertEqual((before, after), ("a", "b"))
            self.assertIsInstance(stopped, RuntimeError)
            with self.assertRaises(RuntimeError):
                await store.read(stop)

    async def test_past_the_bound_calls_are_refused_and_those_that_wait_are_not_hurt(self) -> None:
        async with self.opened() as store:
            gate = Gate()
            held = store.submit(gate)
            await gate.reached()
            waiting = [store.submit(lambda _: 1) for _ in range(MAX_WAITING)]
            refused = store.submit(lambda _: 1)
            with self.assertRaises(StoreOverloaded):
                await refused
            gate.open.set()
            self.assertTrue(await held)
            self.assertEqual(sum(await asyncio.gather(*waiting)), MAX_WAITING)
            self.assertEqual(await store.submit(lambda _: 2), 2)

    async def test_release_finishes_what_waits_and_later_calls_are_refused(self) -> None:
        async with self.opened() as store:
            waiting = [store.submit(add(f"s{n}")) for n in range(20)]
        self.assertTrue(all(future.done() for future in waiting))
        for late in (store.submit(add("late")), store.read(ids)):
            with self.assertRaisesRegex(StoreFailed, "closed"):
                await late
        async with self.opened() as store:
            self.assertEqual(len(await store.read(ids)), 20)


class LostTransactionTests(StoreCase):
    async def test_a_full_disk_fails_only_the_call_that_does_not_fit(self) -> None:
        def limit(conn: sqlite3.Connection) -> None:
            (pages,) = conn.execute("PRAGMA page_count").fetchone()
            conn.execute(f"PRAGMA max_page_count = {pages}")

        def huge(conn: sqlite3.Connection) -> None:
            insert_session(conn, "", Session(id="huge", title="x" * 1_000_000))

        async with self.opened() as store:
            await store.submit(limit)
            first, failed, last = await self.batch(store, add("a"), huge, add("z"))
            self.assertEqual((first, last), ("a", "z"))
            self.assertIsInstance(failed, StoreFull)
            self.assertEqual(await store.read(ids), ["a", "z"])
            # One for the batch that was lost, and one for each of its calls.
            self.assertEqual(self.count("BEGIN IMMEDIATE"), 4)

            await store.submit(lambda conn: conn.execute("PRAGMA max_page_count = 100000").close())
            await store.submit(huge)
            self.assertEqual(await store.read(ids), ["a", "huge", "z"])

    async def test_a_single_call_on_a_full_disk_is_not_tried_twice(self) -> None:
        runs: list[int] = []

        def huge(conn: sqlite3.Connection) -> None:
            runs.append(1)
            conn.execute("PRAGMA max_page_count = 1")
            insert_session(conn, "", Session(id="huge", title="x" * 1_000_000))

        async with self.opened() as store:
            with self.assertRaises(StoreFull):
                await store.submit(huge)
            self.assertEqual((len(runs), await store.read(ids)), (1, []))

    async def test_work_that_hides_the_loss_of_its_transaction_does_not_run_outside_one(
        self,
    ) -> None:
        def hide(conn: sqlite3.Connection) -> None:
            try:
                conn.execute("PRAGMA max_page_count = 1")
                insert_session(conn, "", Session(id="huge", title="x" * 1_000_000))
            except sqlite3.Error:
                pass

        async with self.opened() as store:
            first, hidden, last = await self.batch(store, add("a"), hide, add("z"))
            self.assertIsInstance(hidden, StoreFailed)
            self.assertEqual((first, last), ("a", "z"))
            self.assertEqual(await store.read(ids), ["a", "z"])

    async def test_a_commit_that_fails_once_is_made_good_call_by_call(self) -> None:
        async with self.opened(self.faulty) as store:
            gate = Gate()
            held = store.submit(gate)
            await gate.reached()
            futures = [store.submit(add(sid), durably=True) for sid in ("a", "b")]
            self.trace.clear()
            self.faults.fail("COMMIT", times=2)  # the gate's own, then the batch's
            gate.open.set()
            with self.assertRaises(StoreFailed):
                await held
            self.assertEqual(await asyncio.gather(*futures), ["a", "b"])
            self.assertEqual((self.count("ROLLBACK"), self.count("COMMIT")), (2, 2))
            self.assertEqual(await store.read(ids), ["a", "b"])

    async def test_a_commit_that_keeps_failing_leaves_nothing_and_heals(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("COMMIT", times=1_000)
            results = await asyncio.gather(
                *(store.submit(add(f"s{n}")) for n in range(5)), return_exceptions=True
            )
            self.assertTrue(all(isinstance(result, StoreFailed) for result in results), results)
            self.assertEqual(await store.read(ids), [])
            self.faults.clear()
            self.assertEqual(await store.submit(add("a")), "a")

    async def test_a_rollback_that_fails_is_made_up_for_before_the_next_transaction(self) -> None:
        async with self.opened(self.faulty) as store:
            self.faults.fail("COMMIT")
            self.faults.fail("ROLLBACK")
            with self.assertRaises(StoreFailed):
                await store.submit(add("lost"))
            self.assertEqual(await store.submit(add("kept")), "kept")
            self.assertEqual(await store.read(ids), ["kept"])

    async def test_a_locked_file_fails_the_batch_unrun_while_reads_go_on_and_it_heals(self) -> None:
        ran: list[int] = []
        async with self.opened(self.faulty) as store:
            other = sqlite3.connect(store.path, isolation_level=None)
            self.addCleanup(other.close)
            other.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(store.submit(lambda _: ran.append(1)) for _ in range(5)), return_exceptions=True
            )
            self.assertTrue(all(isinstance(result, StoreBusy) for result in results), results)
            self.assertEqual((ran, await store.read(ids)), ([], []))
            other.execute("ROLLBACK")
            self.assertEqual(await store.submit(add("a")), "a")


class ReaderTests(StoreCase):
    async def test_a_held_write_does_not_delay_a_read(self) -> None:
        gate = Gate()

        def slow(conn: sqlite3.Connection) -> None:
            add("during")(conn)
            gate(conn)

        async with self.opened() as store:
            await store.submit(add("before"))
            held = store.submit(slow)
            await gate.reached()
            self.assertEqual(await store.read(ids), ["before"])
            gate.open.set()
            await held
            self.assertEqual(await store.read(ids), ["before", "during"])

    async def test_a_held_read_does_not_delay_a_write_and_sees_one_moment(self) -> None:
        gate = Gate()

        def twice(conn: sqlite3.Connection) -> tuple[list[str], list[str]]:
            before = ids(conn)
            gate(conn)
            return before, ids(conn)

        async with self.opened() as store:
            reading = store.read(twice)
            await gate.reached()
            self.assertEqual(await store.submit(add("a")), "a")
            gate.open.set()
            self.assertEqual(await reading, ([], []))
            self.assertEqual(await store.read(ids), ["a"])

    async def test_a_long_read_pauses_while_others_work_and_a_short_one_does_not(self) -> None:
        async with self.opened() as store:
            await store.submit(lambda conn: [add(f"s{n}")(conn) for n in range(1_000)])

            async def pauses() -> int:
                time.sleep.reset_mock()
                self.assertEqual(len(await store.read(lambda conn: list_sessions(conn, ""))), 1_000)
                return int(time.sleep.call_count)

            with mock.patch("crushlite.store.callqueue.time") as time:
                time.monotonic.return_value = 0
                time.thread_time.return_value = 1
                time.process_time.side_effect = itertools.count(2)  # other threads use the rest
                self.assertEqual(await pauses(), 0)
                time.monotonic.side_effect = itertools.count()  # a slow machine
                self.assertGreater(await pauses(), 10)
                time.thread_time.side_effect = itertools.count()  # only this one works
                self.assertLessEqual(await pauses(), 1)  # which it learns when it first looks

    async def test_others_count_as_at_work_until_they_were_idle_for_a_millisecond(self) -> None:
        async with self.opened() as store:
            await store.submit(lambda conn: [add(f"s{n}")(conn) for n in range(1_000)])
            with mock.patch("crushlite.store.callqueue.time") as time:
                time.thread_time.return_value = 1
                time.process_time.return_value = 2
                time.monotonic.side_effect = itertools.count(0, 0.0001)
                await store.read(lambda conn: list_sessions(conn, ""))
                self.assertIn(time.sleep.call_count, range(9, 12))

    async def test_a_read_cannot_write_and_does_not_spoil_the_next(self) -> None:
        async with self.opened() as store:
            with self.assertRaises(StoreFailed):
                await store.read(add("x"))
            with self.assertRaises(SessionNotFound):
                await store.read(lambda conn: get_session(conn, "", "x"))
            self.assertEqual(await store.read(ids), [])


class EdgeTests(StoreCase):
    async def test_a_statement_that_makes_no_sense_is_a_bug_and_no_trouble_of_the_store(
        self,
    ) -> None:
        async with self.opened() as store:
            await store.submit(add("a"))
            for work in (
                add("a"),
                lambda conn: conn.execute("SELECT nonsense").close(),
                lambda conn: conn.execute("SELECT ?", (object(),)).close(),
            ):
                with self.assertRaises(RuntimeError) as caught:
                    await store.submit(work)
                self.assertIsInstance(caught.exception.__cause__, sqlite3.Error)
                self.assertIsNone(store.trouble)

    async def test_values_that_sqlite_cannot_hold_are_the_callers_fault(self) -> None:
        async with self.opened() as store:
            for session in (
                Session(id="a", created_at=2**63),
                Session(id="a", title="\ud800"),
                Session(id="a", prompt_tokens=2**63),
                Session(id="a", cost=float("nan")),
            ):
                with self.assertRaises(BadRequest):
                    await store.submit(partial(insert_session, scope="", session=session))
            self.assertEqual(await store.read(ids), [])

    async def test_the_store_runs_inline_without_a_thread(self) -> None:
        before = set(threading.enumerate())
        async with self.opened(executor=InlineExecutor) as store:
            future = store.submit(add("a"), durably=True)
            self.assertLessEqual(set(threading.enumerate()), before)
            # The work is done at once; only the waiter hears of it a tick later.
            self.assertFalse(future.done())
            self.assertEqual(await future, "a")
            with self.assertRaises(SessionNotFound):
                await store.submit(lambda conn: rename_session(conn, "", "b", "title", 1.0))
            self.assertEqual(await store.read(ids), ["a"])


if __name__ == "__main__":
    unittest.main()
