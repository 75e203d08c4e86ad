"""The event loop that all tests run on."""

from __future__ import annotations

import asyncio

from tests.support.basics import BoundedTestCase
from tests.support.loop import QuickLoop


class QuickLoopTests(BoundedTestCase):
    async def test_only_the_thread_of_the_loop_schedules_callbacks(self) -> None:
        loop = asyncio.get_running_loop()
        self.assertIsInstance(loop, QuickLoop)
        for schedule in (lambda: loop.call_soon(print), lambda: loop.call_later(0, print)):
            with self.assertRaisesRegex(RuntimeError, "call_soon_threadsafe"):
                await asyncio.to_thread(schedule)
