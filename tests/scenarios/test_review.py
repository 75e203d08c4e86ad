"""What a review of the core against its contract found, each as the invariant that was broken."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Usage
from crushlite.claims import Graces
from crushlite.clock import SystemClock
from crushlite.errors import BadRequest
from crushlite.protocol.messages import BinaryPart
from crushlite.protocol.sessions import Session
from crushlite.settings import Settings
from crushlite.store import RunRow, Stores, messages, runs, sessions
from crushlite.testing import LocalDaemon
from tests.support.prompts import PromptTestCase, gated, reach, until

if TYPE_CHECKING:
    from crushlite.agent.base import Turn


class EndingTests(PromptTestCase):
    async def test_a_session_is_not_busy_when_its_turn_with_riders_is_said_to_have_finished(
        self,
    ) -> None:
        """The Crush UI asks once, at `agent_finished`: a spinner seen then would stay."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "carrier", run_id="carrier")
            run = await daemon.entered(1)
            for text in ("one", "two"):
                await anna.prompt(session, text, run_id=text, when_busy="steer")
            self.assertEqual(len(await run.do(lambda turn: turn.followups())), 2)
            gate.shut()
            run.release()
            await gate.reached()
            gate.let()
            await anna.events.wait_for("agent_event", type="agent_finished")
            self.assertFalse((await anna.call("GET", "/agent")).json["is_busy"])
            self.assertFalse(await anna.busy(session))
            for run_id in ("carrier", "one", "two"):  # all in that one commit
                ended = await anna.events.wait_for("run_complete")
                self.assertEqual(ended["run_id"], run_id)
            self.assertFalse(gate.held)

    async def test_every_event_of_a_run_carries_its_id(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            run_id = (await anna.prompt(session, "hello")).json["run_id"]
            (await daemon.entered(1)).release()
            await anna.events.wait_for("agent_event", type="agent_finished", run_id=run_id)
            await anna.events.wait_for("run_complete", run_id=run_id)

    async def test_a_run_that_was_canceled_before_it_began_is_never_shown_as_active(self) -> None:
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "first", run_id="first")
            await daemon.entered(1)
            await anna.prompt(session, "second", run_id="second")
            gate.shut()
            await anna.cancel(session)
            await gate.reached()
            gate.let()
            await anna.events.wait_for("run_complete", run_id="first")
            await gate.reached()  # the canceled pair of the second
            shown = (await anna.call("GET", "/runs/second")).json
            self.assertEqual((shown["state"], shown["started_at"]), ("accepted", 0))
            gate.open()
            self.assertEqual(await self.outcome(anna, "second"), "canceled")


class _Untiring:
    """An agent whose title cannot be canceled, only let go."""

    def __init__(self) -> None:
        self.titling, self.let_go = asyncio.Event(), asyncio.Event()

    async def run(self, turn: Turn) -> None:
        await turn.say("hello")

    async def title(self, text: str) -> str:
        self.titling.set()
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        return ""


class TeardownTests(PromptTestCase):
    async def test_a_create_waits_for_the_teardown_at_its_path_only_as_long_as_the_drain(
        self,
    ) -> None:
        agent = _Untiring()
        settings = Settings(drain=0.1, graces=Graces(detach=0))
        async with LocalDaemon(agent, settings=settings) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            await anna.events.wait_for("run_complete")
            await reach(agent.titling)
            await anna.retire()
            ben = await daemon.join()
            self.assertTrue(daemon.backend._closing)  # the first one is still at it
            self.assertNotEqual(ben.base, anna.base)
            self.assertEqual(await self.outcome(ben, "one"), "completed")
            await ben.prompt(session, "hello again", run_id="two")
            self.assertEqual(await self.outcome(ben, "two"), "completed")
            agent.let_go.set()
            await until(lambda: not daemon.backend._closing, "the first one has gone")
            self.assertEqual((await ben.call("GET", "/runs/two")).status, 200)


class AnswerTests(PromptTestCase):
    async def test_an_answer_always_says_who_won_also_if_nobody_gave_a_name(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            await anna.prompt(await anna.session(), "hello")
            run = await daemon.entered(1)
            asked = run.begin(lambda turn: turn.permission("bash", "execute"))
            request = await anna.events.wait_for("permission_request")
            body = {"permission": request.payload, "action": "allow"}
            answer = await anna.call("POST", "/permissions/grant", body)
            self.assertEqual(answer.json, {"resolved": True, "by": ""})
            self.assertTrue(await asked)
            late = await anna.call("POST", f"/permissions/{request['id']}", {"action": "deny"})
            self.assertEqual(late.json, {"resolved": False, "by": ""})
            none = await anna.call("POST", "/questions/cancel")
            self.assertEqual(none.json, {"resolved": False, "by": ""})


class AgentValueTests(PromptTestCase):
    """Python takes 1 for true and 1.5 for a count; the wire and the rows do not."""

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.anna = await self.daemon.join()
        self.session = await self.anna.session()
        self.run_id = str((await self.anna.prompt(self.session, "hello")).json["run_id"])
        self.script = await self.daemon.entered(1)

    async def test_flags_that_are_merely_true_leave_the_history_readable(self) -> None:
        truthy: Any = 1

        async def tool(turn: Turn) -> None:
            call = await turn.tool_call("ls", "{}", finished=truthy)
            await turn.tool_result(call, "no such folder", is_error=truthy)

        await self.script.do(tool)
        self.script.release()
        self.assertEqual(await self.outcome(self.anna, self.run_id), "completed")
        history = await self.anna.messages(self.session)
        self.assert_valid_history(history)
        self.assertIs(history[1]["parts"][0]["data"]["finished"], True)
        self.assertIs(history[2]["parts"][0]["data"]["is_error"], True)

    async def test_a_fraction_of_a_token_is_refused_and_counters_stay_integers(self) -> None:
        part: Any = 1.5
        with self.assertRaises(BadRequest):
            await self.script.do(lambda turn: turn.usage(Usage(part, 2)))
        with self.assertRaises(BadRequest):
            await self.script.do(lambda turn: turn.usage(Usage(1, part)))
        await self.script.do(lambda turn: turn.usage(Usage(10, 20, 0.5)))
        shown = (await self.anna.call("GET", f"/sessions/{self.session}")).json
        counters = (shown["prompt_tokens"], shown["completion_tokens"])
        self.assertEqual(repr(counters), "(10, 20)")


class RecoveryTests(PromptTestCase):
    async def test_a_recovered_attachment_keeps_the_name_that_it_would_have_had(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-")))
        clock = SystemClock()
        attachments = '[{"content":"Zm9v","file_name":"a.txt","mime_type":"text/plain"}]'
        row = RunRow("run", "session", "digest", "hello", attachments, boot_id="first")
        stores = Stores(clock=clock, boot_id="first")
        store = await stores.open(folder)
        await store.submit(lambda c: sessions.insert_session(c, "", Session(id="session")))
        await store.submit(lambda c: runs.insert_run(c, "", row))
        await stores.release(store)
        stores = Stores(clock=clock, boot_id="second")
        store = await stores.open(folder)
        self.addAsyncCleanup(stores.release, store)
        user = (await store.read(lambda c: messages.list_messages(c, "", "session")))[0]
        self.assertIn(BinaryPart("a.txt", "text/plain", "Zm9v"), user.parts)


class RenameTests(unittest.IsolatedAsyncioTestCase):
    async def test_a_put_without_a_title_keeps_the_one_there_is(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session("kept")
            bodies: tuple[dict[str, Any], ...] = ({}, {"title": ""}, {"cost": 3.0})
            for body in bodies:
                answer = await anna.call("PUT", f"/sessions/{session}", body)
                self.assertEqual((answer.status, answer.json["title"]), (200, "kept"))
            answer = await anna.call("PUT", f"/sessions/{session}", {"title": "new"})
            self.assertEqual(answer.json["title"], "new")
            self.assertEqual((await anna.call("PUT", "/sessions/none", {})).status, 404)
