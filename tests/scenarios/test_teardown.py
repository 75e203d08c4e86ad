"""What the teardown of a workspace waits for, and what it does to its runs and to new prompts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.claims import Graces
from crushlite.errors import WorkspaceClosing
from crushlite.hosting.workspace import Workspace
from crushlite.protocol.messages import Prompt
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.prompts import PAIR, PromptTestCase, shape, stubborn, until
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn


async def hello(turn: Turn) -> None:
    await turn.say("hello")


class TeardownTests(PromptTestCase):
    @scenario(8)
    async def test_a_workspace_that_closes_refuses_prompts_and_loses_no_session(self) -> None:
        """A workspace that is being torn down refuses prompts, and its session is not poisoned."""
        unwound = asyncio.Event()
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            workspace = daemon.backend.get(anna.workspace["id"])
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(stubborn(unwound))
            await anna.release()
            self.assertEqual((await anna.try_prompt(session, "late")).status, 404)
            with self.assertRaises(WorkspaceClosing) as refused:
                await workspace.runs.prompt(Prompt(session, "late"))
            self.assertEqual(refused.exception.status, 409)
            unwound.set()
            again = await daemon.join()
            self.assertEqual(shape(await again.messages(session)), PAIR)
            done = await self.complete(daemon, again, session, 2)
            self.assertEqual(done["cancelled"], None)

    @scenario(11)
    async def test_a_teardown_lasts_until_its_last_run_has_ended(self) -> None:
        """A teardown is not over while a run of it still unwinds, and is over right after."""
        unwound = asyncio.Event()
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            posted = await anna.prompt(session, "hello")
            run = await daemon.entered(1)
            run.begin(stubborn(unwound))
            await anna.release()
            returning = asyncio.create_task(daemon.join())
            await until(lambda: run.canceled or bool(daemon.backend._joining), "a create waits")
            for _ in range(50):
                await asyncio.sleep(0)
            self.assertFalse(returning.done())
            self.assertFalse(run.canceled)
            unwound.set()
            again = await returning
            self.assertTrue(run.canceled)
            self.assertEqual(await self.outcome(again, posted.json["run_id"]), "canceled")

    @scenario(35)
    async def test_a_teardown_stores_the_canceled_pair_of_a_prompt_that_never_started(self) -> None:
        """A teardown ends a prompt that never started, and its pair is written all the same."""
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            await daemon.entered(1)
            await anna.prompt(session, "hello", run_id="two")
            await anna.release()
            again = await daemon.join()
            self.assertEqual(shape(await again.messages(session)), PAIR * 2)
            for run_id in ("one", "two"):
                self.assertEqual(await self.outcome(again, run_id), "canceled")

    @scenario(98)
    async def test_a_teardown_waits_for_what_a_canceled_run_still_writes(self) -> None:
        """What a run writes while it is being stopped by a teardown still reaches the database."""
        stopping = asyncio.Event()

        async def slow_to_stop(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await stopping.wait()
                await turn.say("cleaned up")
                raise

        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(slow_to_stop)
            with self.assertNoLogs("crushlite", "WARNING"):
                await anna.release()
                self.assertEqual((await anna.call("GET", "")).status, 404)
                returning = asyncio.create_task(daemon.join())
                stopping.set()
                again = await returning
            expected = [PAIR[0], ("assistant", "canceled", "cleaned up")]
            self.assertEqual(shape(await again.messages(session)), expected)

    @scenario(103)
    async def test_a_prompt_sent_during_a_teardown_is_refused_or_ends_as_canceled(self) -> None:
        """Around a teardown a prompt is promised and ends, or is refused: nothing in between."""
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            posts = [
                asyncio.create_task(anna.try_prompt(session, "hello", run_id=f"r{number}"))
                for number in range(5)
            ]
            await posts[0]
            leaving = asyncio.create_task(anna.release())
            posts += [
                asyncio.create_task(anna.try_prompt(session, "hello", run_id=f"r{number}"))
                for number in range(5, 10)
            ]
            await leaving
            posts.append(asyncio.create_task(anna.try_prompt(session, "hello", run_id="r10")))
            statuses = [(await post).status for post in posts]
            self.assertLessEqual(set(statuses), {202, 404, 409})
            self.assertEqual((statuses[0], statuses[-1]), (202, 404))
            again = await daemon.join()
            for number, status in enumerate(statuses):
                if status == 202:
                    self.assertEqual(await self.outcome(again, f"r{number}"), "canceled")
                else:
                    self.assertEqual((await again.call("GET", f"/runs/r{number}")).status, 404)
            promised = statuses.count(202)
            self.assertEqual(shape(await again.messages(session)), PAIR * promised)

    async def test_a_create_waits_for_the_teardown_at_its_path_only_as_long_as_the_drain(
        self,
    ) -> None:
        let_go, close = asyncio.Event(), Workspace.close

        async def close_late(workspace: Workspace) -> None:
            await let_go.wait()
            await close(workspace)

        self.enterContext(mock.patch.object(Workspace, "close", close_late))
        self.addCleanup(let_go.set)
        settings = Settings(drain=0.1, graces=Graces(detach=0))
        async with LocalDaemon(hello, settings=settings) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            await anna.events.wait_for("run_complete")
            await anna.retire()
            ben = await daemon.join()
            self.assertTrue(daemon.backend._closing)  # the first one is still at it
            self.assertNotEqual(ben.base, anna.base)
            self.assertEqual(await self.outcome(ben, "one"), "completed")
            await ben.prompt(session, "hello again", run_id="two")
            self.assertEqual(await self.outcome(ben, "two"), "completed")
            let_go.set()
            await until(lambda: not daemon.backend._closing, "the first one has gone")
            self.assertEqual((await ben.call("GET", "/runs/two")).status, 200)
