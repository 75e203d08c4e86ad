"""How a run ends: exactly once, and its run_complete, its record and its messages agree."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.agents import ForEveryAgent, ScriptedTestCase, assistant
from tests.support.prompts import PromptTestCase, gated
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import ScriptedRun, Seen


class FailingStart:
    """An agent that is not ready the first time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def ready(self) -> None:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("no tool server")

    async def run(self, turn: Turn) -> None:
        await turn.say("ready now")


class EndingScenarios(ForEveryAgent):
    @scenario(79)
    async def test_the_run_complete_of_a_success_holds_message_and_text_and_no_more(self) -> None:
        """It names session, run and last message and holds the text of that, and has neither an
        error nor a cancel."""
        await self.start()
        await self.post("hello", run_id="r")
        turn = await self.turn(1)
        await turn.say("the whole ")
        await turn.say("answer")
        await turn.end()
        done = await self.complete("r")
        used = {"cost", "prompt_tokens", "completion_tokens"}  # if the agent has told that
        self.assertEqual(
            {key: value for key, value in done.payload.items() if key not in used},
            {
                "session_id": self.session,
                "run_id": "r",
                "message_id": (await self.last_answer())["id"],
                "text": "the whole answer",
            },
        )
        self.assertEqual(done.action, "updated")
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["session_id"]), ("agent_finished", self.session))

    @scenario(80)
    async def test_after_several_steps_run_complete_holds_the_last_text_only(self) -> None:
        await self.start_at_a_tool()
        turn = await self.next_step()
        await turn.say("seen")
        await turn.end()
        done = await self.complete("main")
        *_, last = await self.anna.messages(self.session)
        self.assertEqual(last["role"], "assistant")
        self.assertEqual((done["text"], done["message_id"]), ("seen", last["id"]))

    @scenario(81)
    async def test_the_run_complete_of_a_cancel_names_the_message_that_is_left(self) -> None:
        """A turn that is canceled while it streams ends as cancelled, with the text so far."""
        await self.start()
        await self.post("hello", run_id="r")
        turn = await self.turn(1)
        await turn.say("half an ")
        await self.anna.events.wait_for(assistant, text="half an ")
        await self.anna.cancel(self.session)
        done = await self.complete("r")
        self.assertEqual(
            done.payload,
            {
                "session_id": self.session,
                "run_id": "r",
                "message_id": (await self.last_answer())["id"],
                "text": "half an ",
                "cancelled": True,
            },
        )

    async def failed(self, run_id: str) -> Seen:
        """The last message of a failed run, after checking that its run_complete, its record and
        its message agree."""
        done = await self.complete(run_id)
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["session_id"]), ("error", self.session))
        self.assertEqual((event["run_id"], event["error"]), (run_id, done["error"]))
        self.assertLess(self.anna.events.seen.index(event), self.anna.events.seen.index(done))
        info = (await self.anna.call("GET", f"/runs/{run_id}")).json
        self.assertEqual((info["outcome"], info["error"]), ("failed", done["error"]))
        *_, last = await self.anna.messages(self.session)
        self.assertEqual((last.finish, last["id"]), ("error", done["message_id"]))
        details = last["parts"][-1]["data"]
        self.assertEqual(details["details"], done["error"])
        self.assertTrue(details["message"])
        return last

    @scenario(85)
    async def test_the_error_event_of_a_failed_run_names_its_session_and_run(self) -> None:
        """It quotes the error, which is not retried, and comes before the run_complete."""
        await self.start()
        await self.post("hello", run_id="r")
        await (await self.turn(1)).fail("too many words")
        last = await self.failed("r")
        self.assertIn("too many words", last["parts"][-1]["data"]["details"])
        self.assert_asked(turns=1)

    @scenario(96)
    async def test_an_answer_cut_by_limit_or_filter_is_a_success_with_that_reason(self) -> None:
        await self.start()
        for number, reason in enumerate(("max_tokens", "content_filter"), 1):
            with self.subTest(reason):
                await self.post("hello", run_id=reason)
                turn = await self.turn(number)
                await turn.say("cut")
                await turn.end(reason)
                done = await self.complete(reason)
                ending = (done["text"], done["error"], done["cancelled"])
                self.assertEqual(ending, ("cut", None, None))
                self.assertEqual((await self.shape())[-1], ("assistant", reason, "cut"))


class ScriptedEndingTests(EndingScenarios, ScriptedTestCase):
    async def begin(self, run_id: str = "r") -> ScriptedRun:
        number = len(self.daemon.agent.runs) + 1
        await self.post("go", run_id=run_id)
        return await self.daemon.entered(number)

    @scenario(82)
    async def test_an_agent_that_fails_to_get_ready_ends_the_run_once_as_failed(self) -> None:
        """A failure before the agent's first word ends the run once, as an error, and only it."""
        await self.start(FailingStart())
        await self.post("go", run_id="r")
        done = await self.complete("r")
        self.assertIn("no tool server", done["error"])
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["run_id"]), ("error", "r"))
        self.assertEqual(await self.shape(), [("user", "stop", "go"), ("assistant", "error", "")])
        await self.post("again", run_id="r2")
        self.assertEqual((await self.complete("r2"))["text"], "ready now")
        self.assertEqual(self.endings(), ["r", "r2"])

    @scenario(83)
    async def test_an_agent_that_fails_after_its_ending_causes_no_second_one(self) -> None:
        """An agent that fails after its run was reported ended causes no second ending."""
        inside, let_go, gone = (asyncio.Event() for _ in range(3))

        async def agent(turn: Turn) -> None:
            inside.set()
            try:
                while not let_go.is_set():
                    try:
                        await let_go.wait()
                    except asyncio.CancelledError:
                        pass  # what no agent should do
                raise RuntimeError("too late")
            finally:
                gone.set()

        await self.start(agent, settings=Settings(cancel_grace=0.01))
        await self.post("go", run_id="r")
        await inside.wait()
        await self.anna.cancel(self.session)
        self.assertTrue((await self.complete("r"))["cancelled"])
        runs = self.daemon.backend.get(self.anna.workspace["id"]).runs
        self.assertEqual(runs.abandoned, 1)
        with self.assertLogs("crushlite.hosting.runner", "WARNING") as logs:
            let_go.set()
            await gone.wait()
            await self.anna.events.never("agent_event")
        self.assertIn("too late", logs.output[0])
        self.assertEqual(self.endings(), ["r"])
        self.assertEqual(
            await self.shape(), [("user", "stop", "go"), ("assistant", "canceled", "")]
        )

    @scenario(86)
    async def test_a_failed_run_keeps_its_partial_text_and_stores_the_error(self) -> None:
        """A failed turn keeps its partial text and ends in a finish with title and detail."""
        await self.start()
        run = await self.begin()
        await run.say("so far")
        run.fail("status 500")
        await self.complete("r")
        answer = await self.last_answer()
        finish = answer["parts"][-1]["data"]
        self.assertEqual((answer.text, finish["reason"]), ("so far", "error"))
        self.assertEqual(finish["message"], "The agent failed")
        self.assertIn("status 500", finish["details"])

    @scenario(88)
    async def test_an_attempt_that_is_repeated_ends_the_run_only_once(self) -> None:
        """An agent that erases a failed attempt and retries ends once, with the retry's text."""
        await self.start()
        run = await self.begin()
        await run.say("half of the first att")
        await run.do(lambda turn: turn.erase())
        await run.say("second attempt")
        run.release()
        done = await self.complete("r")
        self.assertEqual((done["text"], done["error"]), ("second attempt", None))
        self.assertEqual((await self.last_answer()).text, "second attempt")
        await self.anna.events.never("run_complete", run_id="none")
        self.assertEqual(self.endings(), ["r"])

    @scenario(91)
    async def test_a_call_without_a_result_gets_an_error_result_right_behind_it(self) -> None:
        """The next turn finds a result for every call: its own, or an error right behind it."""
        await self.start()
        run = await self.begin("r1")
        done = await run.do(lambda turn: turn.tool_call("ls", "{}"))
        orphan = await run.do(lambda turn: turn.tool_call("rm", '{"pa', finished=False))
        await run.do(lambda turn: turn.tool_result(done, "fine"))
        run.fail("lost the connection")
        await self.complete("r1")
        run = await self.begin("r2")
        history = await run.do(lambda turn: turn.history())
        self.assertEqual([m.role for m in history], ["user", "assistant", "tool", "tool", "user"])
        calls = [(call.id, call.input, call.finished) for call in history[1].tool_calls]
        self.assertEqual(calls, [(done, "{}", True), (orphan, "{}", True)])
        results = [message.tool_results[0] for message in history[2:4]]
        ids = [(result.tool_call_id, result.is_error) for result in results]
        self.assertEqual(ids, [(done, False), (orphan, True)])
        run.release()
        await self.complete("r2")


class EndOfTurnTests(PromptTestCase):
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
