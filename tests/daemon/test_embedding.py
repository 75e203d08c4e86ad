"""A daemon inside another program: it takes nothing over and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite import Client, Daemon
from crushlite.api.entry import Entry
from crushlite.bounded_exit import SIGNALS
from crushlite.errors import UsageError
from crushlite.http.messages import Response
from crushlite.settings import Settings
from crushlite.store.directory import DirectoryLock
from crushlite.wing import Wing, WorkspacePart
from tests.support.basics import LIMIT, BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite import Turn
    from crushlite.api.context import Context
    from crushlite.http.router import Route
    from crushlite.wing import OpenWorkspace


async def echo(turn: Turn) -> None:
    await turn.say(f"You said: {turn.prompt}")


class StubbornPart(WorkspacePart):
    """Closes when it is let, whatever is asked of it meanwhile."""

    def __init__(self, released: asyncio.Event) -> None:
        self._released = released

    async def close(self) -> None:
        while not self._released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._released.wait()


class StubbornWing(Wing):
    def __init__(self, released: asyncio.Event) -> None:
        self._released = released

    async def open(self, workspace: OpenWorkspace) -> WorkspacePart:
        return StubbornPart(self._released)


class NotedWing(Wing):
    """Notes what it is told, and may refuse to start."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.told: list[str] = []
        self._failure = failure

    async def started(self, urls: Sequence[str]) -> None:
        self.told.append("started")
        if self._failure is not None:
            raise self._failure

    def stopped(self) -> None:
        self.told.append("stopped")


class EmbeddedCase(BoundedTestCase):
    def setUp(self) -> None:
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-")))
        self.url = f"unix://{self.root}/s"

    def daemon(self, agent: Any = echo) -> Daemon:
        return Daemon(agent=agent, hosts=[self.url])

    async def ask(self, text: str) -> str:
        async with Client(self.url) as client:
            workspace = await client.create(str(self.root))
            answer = await workspace.ask(text)
            await client.retire()
            return answer.error or answer.text


class ContextTests(EmbeddedCase):
    async def test_it_serves_inside_of_async_with_and_not_after(self) -> None:
        async with self.daemon() as daemon:
            self.assertEqual(daemon.urls, [self.url])
            self.assertEqual(await self.ask("hello"), "You said: hello")
        self.assertFalse((self.root / "s").exists())

    async def test_what_the_caller_raises_ends_it_and_is_raised(self) -> None:
        with self.assertRaisesRegex(ValueError, "mine"):
            async with self.daemon():
                raise ValueError("mine")
        self.assertFalse((self.root / "s").exists())

    async def test_a_wing_that_ignores_its_end_keeps_no_store_open(self) -> None:
        released = asyncio.Event()
        wings = [StubbornWing(released)]
        settings = Settings(drain=0.05)
        daemon = Daemon(agent=echo, hosts=[self.url], wings=wings, settings=settings)
        with self.assertLogs("crushlite.hosting", "ERROR") as logs:
            async with daemon:
                self.assertEqual(await self.ask("hello"), "You said: hello")
        DirectoryLock(self.root / ".crushlite").release()  # nobody has it
        self.assertIn("StubbornPart did not close in time", logs.output[0])
        released.set()

    async def test_wings_learn_of_the_end_also_of_a_daemon_that_could_not_start(self) -> None:
        for failure in (None, UsageError("no")):
            first, second = NotedWing(), NotedWing(failure)
            with contextlib.suppress(UsageError):
                async with Daemon(agent=echo, hosts=[self.url], wings=[first, second]):
                    self.assertEqual(first.told, ["started"])
            self.assertEqual((first.told, second.told), (["started", "stopped"],) * 2)

    async def test_a_wing_that_fails_at_the_end_keeps_it_from_no_other(self) -> None:
        class Fails(Wing):
            def stopped(self) -> None:
                raise ValueError("mine")

        noted = NotedWing()
        with self.assertLogs("crushlite.daemon", "ERROR") as logs:
            async with Daemon(agent=echo, hosts=[self.url], wings=[Fails(), noted]):
                pass
        self.assertEqual(noted.told, ["started", "stopped"])
        self.assertIn("Fails failed at the end of the daemon", logs.output[0])

    def test_a_wing_whose_routes_contradict_each_other_is_refused_when_the_daemon_is_made(
        self,
    ) -> None:
        async def nothing(context: Any, request: Any) -> Response:
            return Response(200)

        class Twice(Wing):
            def routes(self) -> Sequence[Entry]:
                return [
                    Entry("GET", "/v1/mine/{a}", nothing),
                    Entry("GET", "/v1/mine/{b}", nothing),
                ]

        with self.assertRaisesRegex(ValueError, "two routes for GET /v1/mine"):
            Daemon(agent=echo, hosts=[self.url], wings=[Twice()])

    async def test_all_routes_are_loaded_soon_after_the_start_without_a_request(self) -> None:
        loaded = asyncio.Event()

        def fail(context: Context) -> list[Route]:
            loaded.set()
            raise ValueError("no")

        with (
            mock.patch("crushlite.daemon.LOAD_SECONDS", 0.0),
            mock.patch("crushlite.api.routes.routes_of", fail),
            self.assertLogs("crushlite.daemon", "ERROR") as logs,
        ):
            async with self.daemon():
                await asyncio.wait_for(loaded.wait(), LIMIT)
        self.assertIn("the routes cannot be loaded", logs.output[0])

    async def test_run_inside_a_running_loop_says_what_to_use(self) -> None:
        with self.assertRaisesRegex(UsageError, r"async with Daemon\(\.\.\.\).*daemon\.start\(\)"):
            self.daemon().run()

    async def test_the_traceback_of_an_agent_s_exception_is_in_the_log(self) -> None:
        async def faulty(turn: Turn) -> None:
            raise ValueError("a mistake of mine")

        with self.assertLogs("crushlite", "WARNING") as logs:
            async with self.daemon(faulty):
                self.assertEqual(await self.ask("hello"), "ValueError: a mistake of mine")
        (record,) = [record for record in logs.records if record.exc_info]
        assert record.exc_info is not None
        traceback = record.exc_info[2]
        names = []
        while traceback is not None:
            names.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        self.assertIn("faulty", names)


class SignalTests(EmbeddedCase):
    """serve() in the thread of the test: the main one."""

    def own_handlers(self) -> dict[int, Any]:
        """Handlers as a program has them, put back when the test is over."""
        mine: dict[int, Any] = {number: (lambda n, frame: None) for number in SIGNALS}
        for number, handler in mine.items():
            self.addCleanup(signal.signal, number, signal.signal(number, handler))
        return mine

    async def test_a_signal_ends_it_and_the_handlers_are_as_before(self) -> None:
        mine = self.own_handlers()
        daemon = self.daemon()
        await daemon.serve(lambda _: signal.raise_signal(signal.SIGTERM))
        self.assertEqual({number: signal.getsignal(number) for number in SIGNALS}, mine)

    async def test_a_handler_of_the_loop_works_again_afterwards(self) -> None:
        loop, caught = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, caught.set)
        self.addCleanup(loop.remove_signal_handler, signal.SIGHUP)
        await self.daemon().serve(lambda _: signal.raise_signal(signal.SIGHUP))
        caught.clear()  # asyncio calls its own handlers as well, whatever is put in their place
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(LIMIT):
            await caught.wait()

    async def test_the_handlers_are_put_back_when_the_start_fails(self) -> None:
        mine = self.own_handlers()
        daemon = Daemon(agent=echo, hosts=[f"unix://{self.root}/no/such/folder/s"])
        with self.assertRaises(UsageError):
            await daemon.serve()
        self.assertEqual({number: signal.getsignal(number) for number in SIGNALS}, mine)

    async def test_in_another_thread_it_serves_without_signals(self) -> None:
        before = {number: signal.getsignal(number) for number in SIGNALS}
        serving, daemon = threading.Event(), self.daemon()
        told = io.StringIO()

        def started(_: Daemon) -> None:
            serving.set()

        thread = threading.Thread(target=lambda: daemon.run(started), daemon=True)
        with mock.patch("sys.stderr", told):
            thread.start()
            await asyncio.to_thread(serving.wait, LIMIT)
            self.assertEqual({number: signal.getsignal(number) for number in SIGNALS}, before)
            self.assertEqual(await self.ask("hello"), "You said: hello")
            async with Client(self.url) as client:
                await client.control("shutdown")
            await asyncio.to_thread(thread.join, LIMIT)
        self.assertFalse(thread.is_alive())
