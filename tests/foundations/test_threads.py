"""Pools of daemon threads: a call that hangs ends for its caller at a time limit,
and holds up no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from crushlite.errors import BadRequest
from crushlite.worktree import threads
from crushlite.worktree.threads import FileThreads
from tests.support.basics import BoundedTestCase

HANGS_AT_EXIT = """
import asyncio, threading
from crushlite.threads import DaemonThreads

async def main():
    asyncio.get_running_loop().set_default_executor(DaemonThreads(2, "test"))
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    work = asyncio.ensure_future(asyncio.to_thread(hang))
    while not begun.is_set():
        await asyncio.sleep(0)
    work.cancel()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
print("left")
"""


class ThreadTests(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.pool = FileThreads(1, self.id())
        self.gate = threading.Event()
        self.addCleanup(self.pool.shutdown)
        self.addCleanup(self.gate.set)

    async def test_results_and_errors_come_back(self) -> None:
        self.assertEqual(await self.pool.run(60, lambda a, b: a + b, 1, 2), 3)
        with self.assertRaises(KeyError):
            await self.pool.run(60, dict[str, str]().__getitem__, "x")
        with self.assertRaises(TimeoutError):  # of the function itself: it is no hanging call
            await self.pool.run(60, self.fail_with, TimeoutError)

    def fail_with(self, error: type[Exception]) -> None:
        raise error

    async def test_a_call_that_hangs_is_given_up_and_its_thread_replaced(self) -> None:
        for _ in range(3):
            with self.assertRaisesRegex(BadRequest, "did not answer within"):
                await self.pool.run(0.01, self.gate.wait)
        self.assertEqual(await self.pool.run(60, lambda: "next"), "next")

    async def test_threads_that_hang_are_bounded(self) -> None:
        for _ in range(threads.LOST + 5):
            with self.assertRaises(BadRequest):
                await self.pool.run(0.001, self.gate.wait)
        self.assertLessEqual(self.alive(), threads.LOST + 1)
        self.gate.set()
        self.assertEqual(await self.pool.run(60, lambda: "after"), "after")

    def alive(self) -> int:
        return sum(thread.name == self.id() for thread in threading.enumerate())

    async def test_one_pool_that_hangs_does_not_hold_another_up(self) -> None:
        other = FileThreads(1, "other")
        self.addCleanup(other.shutdown)
        hanging = [asyncio.ensure_future(self.pool.run(60, self.gate.wait)) for _ in range(5)]
        self.assertEqual(await other.run(60, lambda: "through"), "through")
        self.gate.set()
        await asyncio.gather(*hanging)

    async def test_a_canceled_call_that_has_not_begun_never_begins(self) -> None:
        first = asyncio.ensure_future(self.pool.run(60, self.gate.wait))
        ran: list[int] = []
        second = asyncio.ensure_future(self.pool.run(60, ran.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await second
        self.gate.set()
        await first
        self.assertEqual((await self.pool.run(60, lambda: "done"), ran), ("done", []))

    async def test_a_closed_pool_takes_nothing(self) -> None:
        self.pool.shutdown()
        with self.assertRaises(RuntimeError):
            self.pool.submit(lambda: None)

    def test_a_thread_that_hangs_does_not_keep_the_process(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", HANGS_AT_EXIT], capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stdout), (0, "left\n"), done.stderr)
