"""The watchdog of the event loop: what is late, and what only waits."""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
import unittest.mock

from crushlite.reports.watchdog import Watchdog
from tests.support.basics import LIMIT, BoundedTestCase


class LagTests(BoundedTestCase):
    def setUp(self) -> None:
        self.watchdog = Watchdog(limit=0.3)
        self.addCleanup(self.watchdog.stop)

    async def test_a_loop_that_waits_for_events_is_not_late(self) -> None:
        self.watchdog.start()

        def look() -> bool:
            deadline = time.monotonic() + LIMIT / 2
            while not self.watchdog._is_waiting() and time.monotonic() < deadline:
                pass  # the loop is still on its way to wait for this thread
            return self.watchdog._is_waiting()

        self.assertTrue(await asyncio.to_thread(look))
        self.assertEqual((self.watchdog.lag < 0.3, self.watchdog.stalls), (True, 0))

    async def test_a_blocked_loop_is_late_is_named_once_and_was_late(self) -> None:
        self.watchdog.start()
        with self.assertLogs("crushlite.reports.watchdog", "WARNING") as logs:
            deadline = time.monotonic() + LIMIT / 2
            while not self.watchdog.stalls and time.monotonic() < deadline:
                pass  # this is what it is about
            late = self.watchdog.lag
            self.assertGreaterEqual(late, 0.3)
        self.assertEqual((len(logs.records), self.watchdog.stalls), (1, 1))
        self.assertIn("test_a_blocked_loop", logs.output[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.assertGreaterEqual(self.watchdog.worst, late)

    async def test_a_loop_that_answers_between_two_looks_is_watched_on(self) -> None:
        watchdog = self.watchdog
        watchdog._asked = 0.0

        def monotonic() -> float:  # where another thread may get its turn
            watchdog._asked = None
            return 0.1

        pauses: list[float] = []

        def wait(seconds: float) -> bool:
            pauses.append(seconds)
            watchdog._stopped = len(pauses) == 2
            return False

        with (
            unittest.mock.patch("crushlite.reports.watchdog.time", monotonic=monotonic),
            unittest.mock.patch.object(watchdog, "_wake", unittest.mock.Mock(wait=wait)),
        ):
            watchdog._watch()
        self.assertEqual((len(pauses), watchdog.stalls), (2, 0))

    async def test_a_loop_that_has_waited_long_is_watched_as_soon_as_an_agent_begins(self) -> None:
        self.watchdog._pause = 3_600.0
        self.watchdog.start()
        self.watchdog.agent_begins()
        with self.assertLogs("crushlite.reports.watchdog", "WARNING"):
            deadline = time.monotonic() + LIMIT / 2
            while not self.watchdog.stalls and time.monotonic() < deadline:
                pass  # an agent that blocks the loop
        self.assertEqual(self.watchdog.stalls, 1)

    async def test_a_loop_that_waits_for_the_selector_of_an_agent_is_blocked(self) -> None:
        self.watchdog.start()
        blocked, seen = threading.get_ident(), []
        end, way_out = os.pipe()
        self.addCleanup(os.close, end)

        def look() -> None:
            with open(way_out, "wb"):  # closed: the selector is done
                deadline = time.monotonic() + LIMIT / 2
                while time.monotonic() < deadline:
                    frame = sys._current_frames()[blocked]
                    if frame.f_code is selectors.DefaultSelector.select.__code__:
                        break
                seen.append(self.watchdog._is_waiting())

        with selectors.DefaultSelector() as own:
            own.register(end, selectors.EVENT_READ)
            looking = threading.Thread(target=look)
            looking.start()
            own.select(LIMIT / 2)
            looking.join()
        self.assertEqual(seen, [False])

    async def test_a_loop_that_is_closed_is_not_late(self) -> None:
        self.watchdog._loop = asyncio.new_event_loop()
        self.watchdog._loop.close()
        self.assertFalse(self.watchdog._is_waiting())
        self.assertEqual(self.watchdog.lag, 0.0)
