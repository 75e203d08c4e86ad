"""The queue, folding, run ids, and the one ending of every prompt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.settings import Settings
from crushlite.store import messages as message_rows
from crushlite.testing import LocalDaemon, Participant, ScriptedRun, Seen
from tests.support.basics import BoundedTestCase
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.protocol.messages import Message
    from crushlite.store import Connection, Store

Told = list[tuple[str, str, str]]


class QueueTestCase(BoundedTestCase):
    async def start(self, agent: Any = None, settings: Settings | None = None) -> None:
        daemon = LocalDaemon(agent, settings=settings)
        self.daemon = await self.enterAsyncContext(daemon)
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    async def post(self, text: str, **fields: Any) -> str:
        """Post a prompt; returns the id of its run."""
        return str((await self.anna.prompt(self.session, text, **fields)).json["run_id"])

    async def complete(self, run_id: str) -> Seen:
        return await self.anna.events.wait_for("run_complete", run_id=run_id)

    def endings(self) -> list[str]:
        """The run ids of all run_complete events so far, in order."""
        return [event["run_id"] for event in self.anna.events.all("run_complete")]

    async def told(self) -> Told:
        """Role, text and finish reason of the session's messages."""
        messages = await self.anna.messages(self.session)
        return [(message["role"], message.text, message.finish) for message in messages]

    async def queue(self, what: str) -> Any:
        answer = await self.anna.call("GET", f"/agent/sessions/{self.session}/prompts{what}")
        self.assertEqual(answer.status, 200)
        return answer.json

    @staticmethod
    async def use_tool(run: ScriptedRun, result: str = "a.txt") -> None:
        call = await run.do(lambda turn: turn.tool_call("ls", "{}"))
        await run.do(lambda turn: turn.tool_result(call, result))

    @staticmethod
    async def fold(run: ScriptedRun) -> list[str]:
        riders: list[Message] = await run.do(lambda turn: turn.followups())
        return [rider.text for rider in riders]


class FoldingTests(QueueTestCase):
    async def asyncSetUp(self) -> None:
        await self.start()

    @scenario(55)
    async def test_waiting_prompts_are_counted_and_listed_in_the_order_of_arrival(self) -> None:
        """While a session is busy its waiting prompts are counted and listed in post order."""
        await self.post("main", run_id="r1")
        run = await self.daemon.entered(1)
        self.assertEqual([await self.queue("/queued"), await self.queue("/list")], [0, []])
        await self.post("second", run_id="r2")
        await self.post("third", run_id="r3")
        self.assertEqual(await self.queue("/queued"), 2)
        self.assertEqual(await self.queue("/list"), ["second", "third"])
        run.release()
        (await self.daemon.entered(2)).release()
        third = await self.daemon.entered(3)
        self.assertEqual([await self.queue("/queued"), await self.queue("/list")], [0, []])
        third.release()
        await self.complete("r3")

    @scenario(56)
    async def test_a_prompt_sent_while_a_tool_runs_joins_the_turn_at_its_next_step(self) -> None:
        """A prompt typed during a tool loop reaches the agent at the next step of that turn."""
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        await self.use_tool(run)
        rider = await self.post("also this")
        self.assertEqual(await self.fold(run), ["also this"])
        self.assertEqual(await self.queue("/queued"), 0)
        history = await run.do(lambda turn: turn.history())
        self.assertEqual([m.role for m in history], ["user", "assistant", "tool", "user"])
        await run.say("both done")
        run.release()
        first, second = await self.complete("main"), await self.complete(rider)
        self.assertEqual(
            await self.told(),
            [
                ("user", "main", "stop"),
                ("assistant", "", "tool_use"),
                ("tool", "", "stop"),
                ("user", "also this", "stop"),
                ("assistant", "both done", "end_turn"),
            ],
        )
        self.assertEqual(second["folded_into"], "main")
        self.assertEqual(
            (second["text"], second["message_id"]), (first["text"], first["message_id"])
        )
        self.assertEqual(len(self.daemon.agent.runs), 1)

    @scenario(58)
    async def test_a_prompt_sent_during_the_last_step_gets_a_turn_of_its_own(self) -> None:
        """A steering prompt that the turn takes no further step for starts a turn of its own."""
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        later = await self.post("and then?")
        await run.say("plain text")
        run.release()
        second = await self.daemon.entered(2)
        self.assertEqual(second.prompt, "and then?")
        await second.say("more")
        second.release()
        await self.complete("main")
        done = await self.complete(later)
        self.assertEqual((done["text"], done["folded_into"]), ("more", None))
        self.assertEqual(
            await self.told(),
            [
                ("user", "main", "stop"),
                ("assistant", "plain text", "end_turn"),
                ("user", "and then?", "stop"),
                ("assistant", "more", "end_turn"),
            ],
        )

    @scenario(59)
    async def test_several_prompts_join_a_turn_in_the_order_of_arrival(self) -> None:
        """Several steering prompts fold in the order they were posted, here, stored and ended."""
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        riders = [await self.post(text) for text in ("f1", "f2", "f3")]
        self.assertEqual(await self.fold(run), ["f1", "f2", "f3"])
        self.assertEqual(await self.fold(run), [])
        await run.say("all")
        run.release()
        await self.complete(riders[-1])
        users = [text for role, text, _ in await self.told() if role == "user"]
        self.assertEqual(users, ["main", "f1", "f2", "f3"])
        self.assertEqual(self.endings(), ["main", *riders])

    @scenario(60)
    async def test_a_prompt_with_a_run_id_never_joins_another_turn(self) -> None:
        """A prompt with a run id waits for a turn of its own, though one behind it folds."""
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        await self.use_tool(run)
        await self.post("mine", run_id="own")
        rider = await self.post("steer")
        self.assertEqual(await self.fold(run), ["steer"])
        self.assertEqual(await self.queue("/list"), ["mine"])
        history = await run.do(lambda turn: turn.history())
        self.assertNotIn("mine", [message.text for message in history])
        await run.say("the first")
        run.release()
        second = await self.daemon.entered(2)
        self.assertEqual(second.prompt, "mine")
        await second.say("the second")
        second.release()
        done = await self.complete("own")
        self.assertEqual((done["text"], done["folded_into"]), ("the second", None))
        self.assertEqual(self.endings(), ["main", rider, "own"])

    @scenario(63)
    async def test_each_prompt_that_a_cancel_takes_from_the_queue_has_one_ending(self) -> None:
        """Each prompt that a cancel takes from the queue leaves a canceled pair and one ending."""
        await self.post("main", run_id="main")
        await self.daemon.entered(1)
        ids = ["main", await self.post("one"), await self.post("two", run_id="two")]
        ids.append(await self.post("three"))
        receipt = await self.anna.cancel(self.session, wait=20)
        self.assertEqual([entry["run_id"] for entry in receipt], ids)
        self.assertEqual([entry["was"] for entry in receipt], ["active", *["queued"] * 3])
        expected: Told = []
        for text in ("main", "one", "two", "three"):
            expected += [("user", text, "stop"), ("assistant", "", "canceled")]
        self.assertEqual(await self.told(), expected)
        await self.complete(ids[-1])
        self.assertEqual(self.endings(), ids)
        answers = [m for m in await self.anna.messages(self.session) if m["role"] == "assistant"]
        for event, answer in zip(self.anna.events.all("run_complete"), answers, strict=True):
            self.assertEqual((event["cancelled"], event["error"]), (True, None))
            self.assertEqual(event["message_id"], answer["id"])
        await self.anna.events.never("agent_event")

    @scenario(65)
    async def test_a_cancel_empties_the_queue_and_ends_each_prompt_once(self) -> None:
        """A cancel empties the queue; each prompt in it, with or without id, ends exactly once."""
        await self.post("main", run_id="main")
        await self.daemon.entered(1)
        nameless = await self.post("no id")
        await self.post("with id", run_id="r")
        await self.anna.cancel(self.session)
        self.assertEqual(await self.queue("/queued"), 0)
        done = await self.complete("r")
        self.assertTrue(done["cancelled"])
        await self.anna.events.never("run_complete", run_id="none")  # a quiet time: nothing more
        self.assertEqual(self.endings(), ["main", nameless, "r"])
        self.assertEqual(len(self.daemon.agent.runs), 1)

    @scenario(68)
    async def test_a_turn_and_the_one_behind_it_each_complete_with_their_own_text(self) -> None:
        """A turn and the one queued behind it each end with their own text, the first at once."""
        await self.post("one", run_id="r1")
        run = await self.daemon.entered(1)
        await self.post("two", run_id="r2")
        await run.say("first answer")
        run.release()
        second = await self.daemon.entered(2)
        first = await self.complete("r1")  # not held back until the queue is empty
        await second.say("second answer")
        second.release()
        last = await self.complete("r2")
        self.assertEqual([first["text"], last["text"]], ["first answer", "second answer"])
        self.assertEqual([first["error"], last["error"]], [None, None])
        self.assertNotEqual(first["message_id"], last["message_id"])

    @scenario(74)
    async def test_a_queued_prompt_outlives_the_connection_that_posted_it(self) -> None:
        """A queued prompt outlives the connection that posted it: its ending goes to everybody."""
        await self.post("main", run_id="main")
        run = await self.daemon.entered(1)
        poster = self.daemon.connect()
        body = {"session_id": self.session, "prompt": "keep me", "run_id": "kept"}
        answer = await self.daemon.call("POST", f"{self.anna.base}/agent", body, http=poster)
        self.assertEqual(answer.status, 202)
        await poster.aclose()
        (waiting,) = await self.queue("")
        self.assertEqual((waiting["run_id"], waiting["text"]), ("kept", "keep me"))
        run.release()
        second = await self.daemon.entered(2)
        self.assertEqual((second.prompt, second.turn.run_id), ("keep me", "kept"))
        await second.say("kept")
        second.release()
        self.assertEqual((await self.complete("kept"))["text"], "kept")

    @scenario(77)
    async def test_a_repeated_run_id_is_the_same_run_and_with_another_body_refused(self) -> None:
        """A repeated prompt is the same run, live or ended; its id with another body is refused."""
        await self.post("once", run_id="r")
        run = await self.daemon.entered(1)
        again = await self.anna.prompt(self.session, "once", run_id="r")
        self.assertEqual((again.json["run_id"], again.json["state"]), ("r", "active"))
        other = await self.anna.try_prompt(self.session, "twice", run_id="r")
        self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
        run.release()
        await self.complete("r")
        again = await self.anna.prompt(self.session, "once", run_id="r")
        self.assertEqual(again.json["state"], "ended")
        for fields in (
            {"session": self.session, "text": "twice"},
            {"session": await self.anna.session(), "text": "once"},
        ):
            other = await self.anna.try_prompt(**fields, run_id="r")
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))
        await self.anna.events.never("run_complete", run_id="none")
        self.assertEqual(self.endings(), ["r"])
        self.assertEqual(len(self.daemon.agent.runs), 1)


class Unwinding:
    """An agent whose first run takes its time to leave when it is canceled; others echo."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.unwinding = asyncio.Event()
        self.gate = asyncio.Event()
        self.folded: list[Message] | None = None

    async def run(self, turn: Turn) -> None:
        if self.inside.is_set():
            await turn.say(turn.prompt)
            return
        self.inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.unwinding.set()
            await self.gate.wait()
            self.folded = await turn.followups()
            raise


class CancelCoverageTests(QueueTestCase):
    async def asyncSetUp(self) -> None:
        self.agent = Unwinding()
        await self.start(self.agent)
        await self.post("main", run_id="main")
        await self.agent.inside.wait()

    @scenario(62)
    async def test_a_cancel_ends_what_was_posted_before_it_and_nothing_later(self) -> None:
        """A cancel takes what was posted before it; what is posted while it unwinds survives."""
        before = [await self.post("a"), await self.post("b", run_id="b")]
        await self.anna.cancel(self.session)
        await self.agent.unwinding.wait()
        after = [await self.post("c"), await self.post("d", run_id="d")]
        self.assertEqual(await self.queue("/list"), ["c", "d"])
        self.agent.gate.set()
        await self.complete("d")
        self.assertEqual(self.endings(), ["main", *before, *after])
        cancelled = [event["cancelled"] for event in self.anna.events.all("run_complete")]
        self.assertEqual(cancelled, [True, True, True, None, None])
        survivors = (await self.told())[6:]
        self.assertEqual(
            survivors,
            [
                ("user", "c", "stop"),
                ("assistant", "c", "end_turn"),
                ("user", "d", "stop"),
                ("assistant", "d", "end_turn"),
            ],
        )

    @scenario(64)
    async def test_a_canceled_prompt_does_not_join_the_turn_that_is_still_ending(self) -> None:
        """A canceled waiter is not folded by the turn that unwinds; its pair follows that turn."""
        await self.post("steer")
        await self.anna.cancel(self.session)
        await self.agent.unwinding.wait()
        self.assertEqual(await self.told(), [("user", "main", "stop")])
        self.agent.gate.set()
        await self.complete("main")
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual((done["cancelled"], done["folded_into"]), (True, None))
        self.assertEqual(self.agent.folded, [])
        self.assertEqual(
            await self.told(),
            [
                ("user", "main", "stop"),
                ("assistant", "", "canceled"),
                ("user", "steer", "stop"),
                ("assistant", "", "canceled"),
            ],
        )


class FoldFailureTests(QueueTestCase):
    async def execute(self, statement: str) -> None:
        def run(conn: Connection) -> None:
            conn.execute(statement)

        await self.store.submit(run)

    @property
    def store(self) -> Store:
        return self.daemon.backend.get(self.anna.workspace["id"]).store.store

    @scenario(76)
    async def test_a_prompt_that_cannot_be_stored_when_it_joins_a_turn_is_not_lost(self) -> None:
        """If a follow-up cannot be stored the turn fails, and its ending stores it after all."""
        inside, go, failed, mended = (asyncio.Event() for _ in range(4))

        async def agent(turn: Turn) -> None:
            inside.set()
            await go.wait()
            try:
                await turn.followups()
            except Exception:
                failed.set()
                await mended.wait()
                raise

        await self.start(agent)
        await self.post("main", run_id="main")
        await inside.wait()
        rider = await self.post("precious words")
        await self.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON messages WHEN NEW.parts LIKE '%precious%' "
            "BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        go.set()
        await failed.wait()
        await self.execute("DROP TRIGGER broken")
        mended.set()
        for run_id in ("main", rider):
            done = await self.complete(run_id)
            self.assertIn("no room", done["error"])
        self.assertEqual(done["folded_into"], "main")
        # From the rows, not over HTTP: reads are overlaid with what could not be written.
        rows = await self.store.read(lambda c: message_rows.list_messages(c, "", self.session))
        users = [row.text for row in rows if row.role == "user"]
        self.assertEqual(users, ["main", "precious words"])
        runs = (await self.anna.call("GET", "/runs")).json
        self.assertEqual([run["outcome"] for run in runs], ["failed", "failed"])


class TerminalEventTests(QueueTestCase):
    async def asyncSetUp(self) -> None:
        await self.start()

    async def begin(self, run_id: str = "r") -> ScriptedRun:
        number = len(self.daemon.agent.runs) + 1
        await self.post("go", run_id=run_id)
        return await self.daemon.entered(number)

    async def last_answer(self) -> Seen:
        messages = await self.anna.messages(self.session)
        return [message for message in messages if message["role"] == "assistant"][-1]

    @scenario(79)
    async def test_the_run_complete_of_a_success_holds_message_and_text_and_no_more(self) -> None:
        """The ending of a good turn holds its session, run, last message and text, and no more."""
        run = await self.begin()
        await run.say("the whole ")
        await run.say("answer")
        run.release()
        done = await self.complete("r")
        self.assertEqual(
            done.payload,
            {
                "session_id": self.session,
                "run_id": "r",
                "message_id": (await self.last_answer())["id"],
                "text": "the whole answer",
            },
        )
        self.assertEqual(done.action, "updated")

    @scenario(80)
    async def test_after_several_steps_run_complete_holds_the_last_text_only(self) -> None:
        """After a tool loop the ending holds only the text of the last step."""
        run = await self.begin()
        await run.say("Let me look.")
        await self.use_tool(run)
        await run.say("It is a.txt.")
        run.release()
        done = await self.complete("r")
        self.assertEqual(done["text"], "It is a.txt.")
        self.assertEqual(done["message_id"], (await self.last_answer())["id"])

    @scenario(81)
    async def test_the_run_complete_of_a_cancel_names_the_message_that_is_left(self) -> None:
        """A turn that is canceled while it streams ends as cancelled, with the text so far."""
        run = await self.begin()
        await run.say("half an ")
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

    @scenario(85)
    async def test_the_error_event_of_a_failed_run_names_its_session_and_run(self) -> None:
        """The error event of a failed turn names its session and its run, and precedes the end."""
        run = await self.begin()
        run.fail("status 400")
        done = await self.complete("r")
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["session_id"]), ("error", self.session))
        self.assertEqual((event["run_id"], event["error"]), ("r", done["error"]))
        self.assertIn("status 400", done["error"])
        self.assertLess(self.anna.events.seen.index(event), self.anna.events.seen.index(done))

    @scenario(86)
    async def test_a_failed_run_keeps_its_partial_text_and_stores_the_error(self) -> None:
        """A failed turn keeps its partial text and ends in a finish with title and detail."""
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

    @scenario(96)
    async def test_an_answer_cut_by_limit_or_filter_is_a_success_with_that_reason(self) -> None:
        """A turn that the provider cut short ends with that reason, and is a success."""
        for reason in ("max_tokens", "content_filter"):
            run = await self.begin(reason)
            await run.say("cut sho")
            await run.do(lambda turn, reason=reason: turn.finish(reason))  # type: ignore[misc]
            run.release()
            done = await self.complete(reason)
            self.assertEqual((done["error"], done["cancelled"]), (None, None))
            self.assertEqual((await self.last_answer()).finish, reason)


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


class NoSecondEndingTests(QueueTestCase):
    @scenario(82)
    async def test_an_agent_that_fails_to_get_ready_ends_the_run_once_as_failed(self) -> None:
        """A failure before the agent's first word ends the run once, as an error, and only it."""
        await self.start(FailingStart())
        await self.post("go", run_id="r")
        done = await self.complete("r")
        self.assertIn("no tool server", done["error"])
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["run_id"]), ("error", "r"))
        self.assertEqual(await self.told(), [("user", "go", "stop"), ("assistant", "", "error")])
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

        await self.start(agent, Settings(cancel_grace=0.01))
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
        self.assertEqual(await self.told(), [("user", "go", "stop"), ("assistant", "", "canceled")])


NOT_APPLICABLE: tuple[tuple[int, str, str], ...] = ()
