"""Time: the fake clock fires timers as the event loop would, only faster and on demand."""

from __future__ import annotations

import asyncio
import time
import unittest
from typing import TYPE_CHECKING

from crushlite.clock import SystemClock, resolve_once, time_limit, wait_at_most
from crushlite.testing.fake_clock import FakeClock

if TYPE_CHECKING:
    from crushlite.clock import Clock, Timer


class FakeTimeTests(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.clock = FakeClock(start=100.0, wall=5_000.0)
        self.log: list[str] = []

    def note(self, word: str) -> None:
        self.log.append(f"{word}@{self.clock.time() - 100:g}")

    def arm(self, delay: float, word: str) -> Timer:
        return self.clock.call_later(delay, lambda: self.note(word))

    async def test_time_stands_still_until_told(self) -> None:
        await self.clock.settle()
        self.assertEqual((self.clock.time(), self.clock.now()), (100.0, 5_000.0))

    async def test_both_readings_move_together(self) -> None:
        await self.clock.advance(2.5)
        self.assertEqual((self.clock.time(), self.clock.now()), (102.5, 5_002.5))

    async def test_timers_fire_in_order_of_due_time_each_at_its_own_instant(self) -> None:
        for delay, word in ((3, "c"), (1, "a"), (2, "b")):
            self.arm(delay, word)
        await self.clock.advance(10)
        self.assertEqual(self.log, ["a@1", "b@2", "c@3"])
        self.assertEqual(self.clock.time(), 110.0)

    async def test_timers_due_at_the_same_instant_fire_in_the_order_they_were_armed(self) -> None:
        for word in "abc":
            self.arm(1, word)
        await self.clock.advance(1)
        self.assertEqual(self.log, ["a@1", "b@1", "c@1"])

    async def test_a_timer_fires_at_its_instant_and_not_before(self) -> None:
        self.arm(1, "a")
        await self.clock.advance(0.999)
        self.assertEqual(self.log, [])
        await self.clock.advance(0.001)
        self.assertEqual(self.log, ["a@1"])

    async def test_a_timer_fires_once(self) -> None:
        self.arm(1, "a")
        await self.clock.advance(5)
        await self.clock.advance(5)
        self.assertEqual(self.log, ["a@1"])

    async def test_arming_fires_nothing_by_itself_even_when_due(self) -> None:
        self.arm(0, "zero")
        self.arm(-5, "negative")
        self.assertEqual(self.log, [])
        await self.clock.advance(0)
        self.assertEqual(self.log, ["zero@0", "negative@0"])

    async def test_a_timer_armed_by_a_timer_fires_within_the_same_advance(self) -> None:
        def again() -> None:
            self.note("tick")
            self.clock.call_later(1, again)

        self.clock.call_later(1, again)
        await self.clock.advance(3)
        self.assertEqual(self.log, ["tick@1", "tick@2", "tick@3"])
        self.assertEqual(self.clock.pending, 1)

    async def test_a_task_woken_by_a_timer_can_arm_one_within_the_same_advance(self) -> None:
        async def worker() -> None:
            for _ in range(3):
                await self.clock.sleep(1)
                self.note("step")

        task = asyncio.create_task(worker())
        await self.clock.advance(3)
        self.assertEqual(self.log, ["step@1", "step@2", "step@3"])
        self.assertTrue(task.done())

    async def test_a_task_started_just_before_an_advance_takes_part_in_it(self) -> None:
        task = asyncio.create_task(self.clock.sleep(1))
        await self.clock.advance(1)
        self.assertTrue(task.done())

    async def test_a_cancelled_timer_never_fires(self) -> None:
        timer = self.arm(1, "a")
        timer.cancel()
        timer.cancel()
        await self.clock.advance(5)
        self.assertEqual(self.log, [])

    async def test_a_timer_can_cancel_a_later_one_of_the_same_instant(self) -> None:
        timers: list[Timer] = []
        self.clock.call_later(1, lambda: timers[0].cancel())
        timers.append(self.arm(1, "never"))
        await self.clock.advance(1)
        self.assertEqual(self.log, [])

    async def test_cancelling_after_it_fired_is_harmless(self) -> None:
        timer = self.arm(1, "a")
        await self.clock.advance(1)
        timer.cancel()
        self.assertEqual(self.log, ["a@1"])

    async def test_pending_counts_the_armed_timers_only(self) -> None:
        timers = [self.arm(delay, "x") for delay in (1, 2, 3)]
        timers[1].cancel()
        self.assertEqual(self.clock.pending, 2)
        await self.clock.advance(1)
        self.assertEqual(self.clock.pending, 1)
        await self.clock.advance(9)
        self.assertEqual(self.clock.pending, 0)

    async def test_an_error_in_a_timer_reaches_the_test_and_spares_the_others(self) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        self.clock.call_later(1, fail)
        self.arm(2, "b")
        with self.assertRaises(ZeroDivisionError):
            await self.clock.advance(5)
        self.assertEqual(self.clock.time(), 101.0)
        await self.clock.advance(1)
        self.assertEqual(self.log, ["b@2"])

    async def test_overlapping_advances_never_turn_time_back(self) -> None:
        self.arm(1, "a")
        await asyncio.gather(self.clock.advance(5), self.clock.advance(2))
        self.assertEqual(self.clock.time(), 105.0)
        await self.clock.advance(-50)
        self.assertEqual(self.clock.time(), 105.0)
        self.assertEqual(self.log, ["a@1"])


class FakeSleepTests(unittest.IsolatedAsyncioTestCase):
    async def test_sleepers_wake_in_order_of_their_deadlines(self) -> None:
        clock, woken = FakeClock(), []

        async def sleeper(delay: float) -> None:
            await clock.sleep(delay)
            woken.append(delay)

        async with asyncio.TaskGroup() as group:
            for delay in (3.0, 1.0, 2.0):
                group.create_task(sleeper(delay))
            await clock.advance(10)
        self.assertEqual(woken, [1.0, 2.0, 3.0])

    async def test_a_cancelled_sleep_leaves_no_timer_behind(self) -> None:
        clock = FakeClock()
        task = asyncio.create_task(clock.sleep(5))
        await clock.settle()
        self.assertEqual(clock.pending, 1)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(clock.pending, 0)
        await clock.advance(10)

    async def test_a_sleep_cancelled_in_the_instant_it_wakes_is_harmless(self) -> None:
        clock = FakeClock()
        task = asyncio.create_task(clock.sleep(1))
        await clock.settle()
        clock.call_later(0.5, task.cancel)
        await clock.advance(1)
        self.assertTrue(task.cancelled())

    async def test_sleeping_for_nothing_only_gives_the_others_a_turn(self) -> None:
        clock, log = FakeClock(), []
        asyncio.get_running_loop().call_soon(lambda: log.append("other"))
        await clock.sleep(0)
        await clock.sleep(-1)
        self.assertEqual((log, clock.pending), (["other"], 0))


class SystemClockTests(unittest.IsolatedAsyncioTestCase):
    async def test_time_is_monotonic_and_now_is_the_wall_clock(self) -> None:
        clock = SystemClock()
        before = time.monotonic(), time.time()
        self.assertLessEqual(before[0], clock.time())
        self.assertAlmostEqual(before[1], clock.now(), delta=60)

    async def test_a_timer_fires_on_the_running_loop(self) -> None:
        fired = asyncio.Event()
        SystemClock().call_later(0, fired.set)
        async with asyncio.timeout(30):
            await fired.wait()

    async def test_a_cancelled_timer_does_not_fire(self) -> None:
        log: list[str] = []
        clock = SystemClock()
        timer = clock.call_later(0, lambda: log.append("no"))
        timer.cancel()
        timer.cancel()
        later = asyncio.Event()
        clock.call_later(0.001, later.set)
        async with asyncio.timeout(30):
            await later.wait()
        self.assertEqual(log, [])

    async def test_sleep_returns(self) -> None:
        async with asyncio.timeout(30):
            await SystemClock().sleep(0)

    async def test_both_clocks_are_clocks(self) -> None:
        clocks: list[Clock] = [SystemClock(), FakeClock()]  # the type checker is the test
        self.assertEqual(len(clocks), 2)


class WaitAtMostTests(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.clock = FakeClock()

    async def start(self, seconds: float) -> tuple[asyncio.Future[None], asyncio.Task[bool]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(wait_at_most(self.clock, future, seconds))
        await self.clock.settle()
        return future, waiting

    async def test_it_is_true_as_soon_as_the_future_is_done(self) -> None:
        future, waiting = await self.start(5)
        resolve_once(future)
        await self.clock.settle()
        self.assertTrue(waiting.done() and waiting.result())
        self.assertEqual(self.clock.pending, 0)
        self.assertTrue(await wait_at_most(self.clock, future, 5))

    async def test_it_is_false_when_the_time_is_up_and_leaves_the_future_alone(self) -> None:
        future, waiting = await self.start(5)
        await self.clock.advance(5)
        self.assertTrue(waiting.done() and not waiting.result())
        self.assertFalse(future.done())

    async def test_a_cancelled_wait_leaves_neither_a_timer_nor_a_cancelled_future(self) -> None:
        future, waiting = await self.start(5)
        waiting.cancel()
        await self.clock.settle()
        self.assertTrue(waiting.cancelled())
        self.assertEqual((future.done(), self.clock.pending), (False, 0))

    async def test_resolving_twice_is_harmless(self) -> None:
        future, waiting = await self.start(5)
        resolve_once(future)
        resolve_once(future)
        self.assertTrue(await waiting)


class TimeLimitTests(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.clock = FakeClock()

    async def wait(self, seconds: float | None) -> None:
        async with time_limit(self.clock, seconds):
            await asyncio.Event().wait()

    async def test_it_raises_when_the_time_is_up_and_not_before(self) -> None:
        waiting = asyncio.create_task(self.wait(5))
        await self.clock.advance(4.9)
        self.assertFalse(waiting.done())
        await self.clock.advance(0.1)
        self.assertIsInstance(waiting.exception(), TimeoutError)

    async def test_what_is_cancelled_at_the_moment_when_time_is_up_stays_cancelled(self) -> None:
        clock = SystemClock()

        async def wait() -> None:
            async with time_limit(clock, 0):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        clock.call_later(0, waiting.cancel)  # in the tick of the other timer, and after it
        await asyncio.wait([waiting])
        self.assertTrue(waiting.cancelled())

    async def test_the_error_of_a_block_is_its_own_although_time_was_up_meanwhile(self) -> None:
        async def fail() -> None:
            async with time_limit(self.clock, 5):
                try:
                    await asyncio.Event().wait()
                finally:
                    raise KeyError("its own")

        failing = asyncio.create_task(fail())
        await self.clock.advance(5)
        self.assertIsInstance(failing.exception(), KeyError)
        self.assertEqual(failing.cancelling(), 0)

    async def test_a_cancelled_wait_stays_cancelled_and_leaves_no_timer(self) -> None:
        for seconds in (5, None):
            waiting = asyncio.create_task(self.wait(seconds))
            await self.clock.settle()
            self.assertEqual(self.clock.pending, 0 if seconds is None else 1)
            waiting.cancel()
            await self.clock.settle()
            self.assertEqual((waiting.cancelled(), self.clock.pending), (True, 0))
