"""Deadline: it passes at the latest time that was set, and needs one timer for many settings."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from crushlite.http.limits import Deadline
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from crushlite.clock import Timer


class CountingClock(FakeClock):
    def __init__(self) -> None:
        super().__init__()
        self.armed = 0

    def call_later(self, *arguments: object) -> Timer:
        self.armed += 1
        return super().call_later(*arguments)  # type: ignore[arg-type]


class Owner:
    def __init__(self, clock: FakeClock) -> None:
        self.passed = 0
        self.deadline = Deadline(clock, self.note)

    def note(self) -> None:
        self.passed += 1


class DeadlineTests(BoundedTestCase):
    def setUp(self) -> None:
        self.clock = CountingClock()
        self.owner = Owner(self.clock)
        self.deadline = self.owner.deadline

    async def passed_after(self, seconds: float) -> int:
        await self.clock.advance(seconds)
        return self.owner.passed

    async def test_it_passes_once_when_its_time_is_up(self) -> None:
        self.deadline.set(5)
        self.assertEqual(await self.passed_after(4.9), 0)
        self.assertEqual(await self.passed_after(0.1), 1)
        self.assertEqual(await self.passed_after(100), 1)
        self.assertEqual(self.clock.pending, 0)

    async def test_a_later_deadline_counts_and_arms_no_timer_of_its_own(self) -> None:
        for _ in range(100):
            self.deadline.set(5)
            self.assertEqual(await self.passed_after(0.04), 0)
        self.assertEqual(self.clock.armed, 1)
        self.assertEqual(await self.passed_after(4.9), 0)
        self.assertEqual(await self.passed_after(0.1), 1)
        self.assertEqual(self.clock.armed, 2, "once more, for what was left at the first")

    async def test_an_earlier_deadline_counts_at_once(self) -> None:
        self.deadline.set(120)
        self.deadline.set(2)
        self.assertEqual(self.clock.pending, 1)
        self.assertEqual(await self.passed_after(2), 1)
        self.assertEqual(await self.passed_after(200), 1)

    async def test_a_cleared_one_never_passes_until_it_is_set_again(self) -> None:
        self.deadline.set(5)
        self.deadline.clear()
        self.assertEqual(await self.passed_after(100), 0)
        self.deadline.set(5)
        self.deadline.clear()
        self.deadline.set(7)
        self.assertEqual(await self.passed_after(6.9), 0)
        self.assertEqual(await self.passed_after(0.1), 1)

    async def test_a_timer_that_fires_a_hair_early_is_in_time(self) -> None:
        self.deadline.set(5)
        self.assertEqual(await self.passed_after(4), 0)
        self.deadline.set(1.0005)
        self.assertEqual(await self.passed_after(1), 1)

    async def test_a_cancelled_one_leaves_no_timer_and_no_circle(self) -> None:
        self.deadline.set(5)
        self.deadline.cancel()
        self.assertEqual(self.clock.pending, 0)
        owner = weakref.ref(self.owner)
        gc.disable()
        self.addCleanup(gc.enable)
        del self.owner, self.deadline
        self.assertIsNone(owner(), "freed without the collector")
