"""What a cancel ends, what it leaves, and what its receipt says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from crushlite.testing import LocalDaemon, ScriptedAgent
from tests.support.agents import ForEveryAgent, ScriptedTestCase, assistant
from tests.support.prompts import (
    PAIR,
    PATIENCE,
    PromptTestCase,
    gated,
    is_assistant,
    pair,
    reach,
    shape,
    until,
)
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from crushlite.agent.base import Turn
    from crushlite.protocol.messages import Message
    from crushlite.testing import Participant, Seen


@contextlib.asynccontextmanager
async def canceled_before_its_turn() -> AsyncIterator[tuple[LocalDaemon, Participant, str]]:
    """A daemon, a client, and a session whose prompt `r` was canceled while it was being stored."""
    async with gated() as (daemon, gate):
        anna = await daemon.join()
        session = await anna.session()
        gate.shut()
        posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
        await gate.reached()
        await anna.cancel(session)
        gate.open()
        await posting
        yield daemon, anna, session


class ReadyAgent(ScriptedAgent):
    """Its runs are parked before they enter, until it is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.getting_ready = asyncio.Event()
        self.is_ready = asyncio.Event()

    async def ready(self) -> None:
        self.getting_ready.set()
        await self.is_ready.wait()


def is_error(event: Seen) -> bool:
    return event.kind == "agent_event" and event["type"] == "error"


class CancelScenarios(ForEveryAgent):
    @scenario(19)
    async def test_a_cancel_by_another_client_is_no_error_for_either(self) -> None:
        """Another client's cancel stops the agent; both see a canceled message, and neither an
        error."""
        await self.start()
        bert = await self.join()
        run_id = await self.post("hello")
        turn = await self.turn(1)
        await turn.say("wor")
        self.assertEqual(await bert.cancel(self.session), [{"run_id": run_id, "was": "active"}])
        await turn.stopped()
        for client in (self.anna, bert):
            seen = await client.events.wait_for(assistant, finish="canceled")
            self.assertEqual(seen["session_id"], self.session)
            await client.events.wait_for("run_complete", cancelled=True)
        await self.anna.events.never("agent_event")
        await bert.events.never("agent_event", quiet=0)

    @scenario(21)
    async def test_a_cancel_of_an_idle_session_does_not_affect_the_next_prompt(self) -> None:
        await self.start()
        self.assertEqual(await self.anna.cancel(self.session), [])
        run_id = await self.post("hello")
        await self.answer(1, "hi")
        done = await self.complete(run_id)
        self.assertEqual((done["text"], done["cancelled"], done["error"]), ("hi", None, None))
        self.assertEqual((await self.shape())[-1], ("assistant", "end_turn", "hi"))
        await self.anna.events.never(is_assistant("canceled"))

    @scenario(23)
    async def test_one_cancel_ends_the_active_run_and_the_one_queued_behind_it(self) -> None:
        """The agent is never asked for the second, and what it says too late is not kept."""
        await self.start()
        await self.post("first", run_id="r1")
        turn = await self.turn(1)
        await self.post("second", run_id="r2")
        receipt = await self.anna.cancel(self.session)
        self.assertEqual([entry["run_id"] for entry in receipt], ["r1", "r2"])
        await turn.end_late("too late")
        for run_id in ("r1", "r2"):
            self.assertEqual((await self.complete(run_id))["cancelled"], True)
        self.assertEqual(await self.shape(), [*pair("first"), *pair("second")])
        self.assert_asked(turns=1)
        await self.anna.events.never(is_assistant("end_turn"))

    @scenario(36)
    async def test_a_cancel_does_not_write_the_user_message_again(self) -> None:
        """A cancel after the user message was written adds that of the assistant only."""
        await self.start()
        run_id = await self.post("hello")
        await self.turn(1)
        await self.anna.events.wait_for("message", role="user")
        self.assertEqual(await self.shape(), [("user", "stop", "hello")])
        await self.anna.cancel(self.session, wait=PATIENCE)
        self.assertEqual(await self.shape(), PAIR)
        await self.complete(run_id)
        created = self.anna.events.all("message", action="created")
        self.assertEqual([event["role"] for event in created], ["user", "assistant"])

    @scenario(37)
    async def test_what_was_streamed_before_a_cancel_is_kept(self) -> None:
        """In the message, and in the run_complete."""
        await self.start()
        run_id = await self.post("hello")
        turn = await self.turn(1)
        await turn.say("hel")
        await self.anna.events.wait_for(assistant, text="hel")
        await self.anna.cancel(self.session)
        done = await self.complete(run_id)
        self.assertEqual((done["cancelled"], done["text"]), (True, "hel"))
        self.assertEqual(await self.shape(), [PAIR[0], ("assistant", "canceled", "hel")])

    @scenario(47)
    async def test_a_cancel_in_one_session_does_not_affect_another(self) -> None:
        await self.start()
        other = await self.anna.session()
        first = await self.post("one")
        one = await self.turn(1)
        second = await self.post("two", other)
        two = await self.turn(2)
        receipt = await self.anna.cancel(self.session, wait=PATIENCE)
        self.assertEqual([hit["run_id"] for hit in receipt], [first])
        await one.stopped()
        self.assertTrue((await self.complete(first))["cancelled"])
        await two.say("unharmed")
        await two.end()
        done = await self.complete(second)
        self.assertEqual((done["text"], done["cancelled"]), ("unharmed", None))
        self.assertEqual((await self.shape(other))[-1], ("assistant", "end_turn", "unharmed"))

    @scenario(50)
    async def test_a_cancel_after_the_end_of_a_run_changes_nothing(self) -> None:
        """Neither that end nor the next prompt, and the agent sees both in order."""
        await self.start()
        first = await self.post("one")
        await self.answer(1, "first")
        done = await self.complete(first)
        self.assertEqual(await self.anna.cancel(self.session), [])
        self.assertEqual((done["cancelled"], await self.outcome(first)), (None, "completed"))
        second = await self.post("two")
        turn = await self.turn(2)
        conversation = [("user", "one"), ("assistant", "first"), ("user", "two")]
        self.assertEqual(await turn.heard(), conversation)
        await turn.say("second")
        await turn.end()
        done = await self.complete(second)
        self.assertEqual((done["text"], done["cancelled"]), ("second", None))
        self.assertEqual(self.endings(), [first, second])

    @scenario(65)
    async def test_a_cancel_empties_the_queue_and_ends_each_prompt_once(self) -> None:
        """Each waiting prompt, with or without a run id of its own, and in their order."""
        await self.start()
        await self.post("main", run_id="main")
        await self.turn(1)
        unnamed = await self.post("no id")
        await self.post("with id", run_id="r")
        self.assertEqual(await self.queue("queued"), 2)
        await self.anna.cancel(self.session)
        self.assertEqual(await self.queue("queued"), 0)
        for run_id in ("main", unnamed, "r"):
            self.assertTrue((await self.complete(run_id))["cancelled"])
        await self.anna.events.never(is_assistant("end_turn"))
        self.assertEqual(self.endings(), ["main", unnamed, "r"])
        self.assert_asked(turns=1)


class ScriptedCancelTests(CancelScenarios, ScriptedTestCase):
    @scenario(63)
    async def test_each_prompt_that_a_cancel_takes_from_the_queue_has_one_ending(self) -> None:
        """Each leaves a canceled pair, and its run_complete names the message in that."""
        await self.start()
        await self.post("main", run_id="main")
        await self.daemon.entered(1)
        ids = ["main", await self.post("one"), await self.post("two", run_id="two")]
        ids.append(await self.post("three"))
        receipt = await self.anna.cancel(self.session, wait=20)
        self.assertEqual([entry["run_id"] for entry in receipt], ids)
        self.assertEqual([entry["was"] for entry in receipt], ["active", *["queued"] * 3])
        expected = [entry for text in ("main", "one", "two", "three") for entry in pair(text)]
        self.assertEqual(await self.shape(), expected)
        await self.complete(ids[-1])
        self.assertEqual(self.endings(), ids)
        answers = [m for m in await self.anna.messages(self.session) if m["role"] == "assistant"]
        for event, answer in zip(self.anna.events.all("run_complete"), answers, strict=True):
            self.assertEqual((event["cancelled"], event["error"]), (True, None))
            self.assertEqual(event["message_id"], answer["id"])
        await self.anna.events.never("agent_event")


class BeforeTheStartTests(PromptTestCase):
    """A cancel of prompts that are not committed, or whose turn has not begun."""

    @scenario(20)
    async def test_a_cancel_before_the_agent_is_ready_ends_the_run_as_canceled(self) -> None:
        """A cancel that finds the run parked before its agent is not lost when it is let in."""
        agent = ReadyAgent()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            await reach(agent.getting_ready)
            self.assertEqual(await anna.cancel(session), [{"run_id": "r", "was": "active"}])
            agent.is_ready.set()
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["cancelled"], done["text"]), (True, None))
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            self.assertEqual(agent.runs, [])

    @scenario(24)
    async def test_a_cancel_during_the_commit_of_a_prompt_ends_it_before_it_starts(self) -> None:
        """A cancel while the prompt's own row is being committed: one pair, and nothing waits."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            self.assertEqual(await anna.cancel(session), [{"run_id": "r", "was": "accepted"}])
            gate.open()
            await posting
            self.assertEqual(await self.outcome(anna, "r"), "canceled")
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            self.assertFalse(await anna.busy(session))
            self.assertEqual(daemon.agent.runs, [])

    @scenario(25)
    async def test_a_prompt_canceled_before_its_turn_is_stored_and_the_next_one_runs(self) -> None:
        """A prompt canceled before its turn keeps its words, and nothing of the cancel is left."""
        async with canceled_before_its_turn() as (daemon, anna, session):
            await anna.events.wait_for("run_complete", run_id="r", cancelled=True)
            self.assertEqual(await anna.cancel(session), [])
            done = await self.complete(daemon, anna, session, 1)
            self.assertEqual(done["cancelled"], None)
            self.assertEqual(shape(await anna.messages(session))[:2], PAIR)
            listed = (await anna.call("GET", "/runs")).json
            self.assertEqual([run["outcome"] for run in listed], ["canceled", "completed"])

    @scenario(26)
    async def test_a_prompt_canceled_before_its_turn_has_exactly_one_run_complete(self) -> None:
        """Such a prompt ends with exactly one run_complete, which names the message it left."""
        async with canceled_before_its_turn() as (_, anna, session):
            done = await anna.events.wait_for("run_complete")
            messages = await anna.messages(session)
            self.assertEqual(done["message_id"], messages[1]["id"])
            self.assertEqual((done["cancelled"], done["error"]), (True, None))
            await anna.events.never("agent_event")
            self.assert_ended_once(anna.events, "r")

    @scenario(28)
    async def test_one_cancel_ends_two_prompts_that_are_not_committed_yet(self) -> None:
        """Two prompts accepted and not yet promised, one cancel: two pairs, in order, no queue."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            first = asyncio.create_task(anna.prompt(session, "hello", run_id="one"))
            await gate.reached()
            second = asyncio.create_task(anna.prompt(session, "hello", run_id="two"))
            runs = daemon.backend.get(anna.workspace["id"]).runs
            await until(lambda: len(runs.queue(session)) == 1, "both are in line")
            receipt = await anna.cancel(session)
            self.assertEqual([(hit["run_id"], hit["was"]) for hit in receipt],
                             [("one", "accepted"), ("two", "queued")])  # fmt: skip
            gate.open()
            await asyncio.gather(first, second)
            for run_id in ("one", "two"):
                await anna.events.wait_for("run_complete", run_id=run_id, cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)
            queued = await anna.call("GET", f"/agent/sessions/{session}/prompts/queued")
            self.assertEqual(queued.json, 0)
            self.assertEqual(daemon.agent.runs, [])

    @scenario(30)
    async def test_a_second_cancel_changes_nothing_and_the_next_prompt_runs(self) -> None:
        """A second cancel of the same prompt lists it again and changes nothing."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            self.assertEqual(await anna.cancel(session), await anna.cancel(session))
            gate.open()
            await posting
            await anna.events.wait_for("run_complete", run_id="r", cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            done = await self.complete(daemon, anna, session, 1)
            self.assertEqual(done["cancelled"], None)
            self.assert_ended_once(anna.events, "r", done["run_id"])

    @scenario(34)
    async def test_one_cancel_ends_the_active_run_and_one_that_is_not_committed_yet(self) -> None:
        """One cancel reaches the active run and one whose row is not committed yet."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            run = await daemon.entered(1)
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="two"))
            await gate.reached()
            receipt = await anna.cancel(session)
            self.assertEqual([(hit["run_id"], hit["was"]) for hit in receipt],
                             [("one", "active"), ("two", "queued")])  # fmt: skip
            await until(
                lambda: run.canceled, "the agent is canceled at once, whatever the store does"
            )
            gate.open()
            await posting
            for run_id in ("one", "two"):
                self.assertEqual(await self.outcome(anna, run_id), "canceled")
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)
            self.assertEqual(len(daemon.agent.runs), 1)

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


class ActiveRunTests(PromptTestCase):
    @scenario(22)
    async def test_a_cancel_before_the_first_word_leaves_one_pair_and_no_error(self) -> None:
        """A cancel inside the turn, before it said anything, leaves one canceled pair, no error."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            await daemon.entered(1)
            self.assertEqual(len(await anna.messages(session)), 1)
            await anna.cancel(session, wait=PATIENCE)
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            await anna.events.never(is_error)

    @scenario(32)
    async def test_a_cancel_does_not_reach_prompts_that_are_accepted_after_it(self) -> None:
        """A cancel leaves no mark: prompts after it, and after a normal end, are not touched."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            await daemon.entered(1)
            await anna.cancel(session)
            # Posted while the canceled turn may still unwind: accepted after, so not covered.
            for number in (2, 3):
                done = await self.complete(daemon, anna, session, number)
                self.assertEqual(done["cancelled"], None)
            self.assertEqual(await self.outcome(anna, "r"), "canceled")

    @scenario(40)
    async def test_a_cancel_stops_the_running_tool_and_closes_its_call(self) -> None:
        """A running tool is stopped by the cancel and its call gets an error result."""
        stopped = asyncio.Event()

        async def tool(turn: Turn) -> None:
            await turn.tool_call("bash", '{"command":"sleep"}', id="call")
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(tool)
            await anna.events.wait_for("message", role="assistant", action="updated")
            await anna.cancel(session, wait=PATIENCE)
            self.assertTrue(stopped.is_set())
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            result = messages[-1]["parts"][0]["data"]
            self.assertEqual((result["tool_call_id"], result["is_error"]), ("call", True))
            self.assertIn("user cancelled", result["content"])
            self.assertFalse(await anna.busy(session))

    @scenario(46)
    async def test_a_cancel_of_an_unknown_session_is_200_of_a_workspace_404(self) -> None:
        """Canceling what does not exist is 200 for a session and 404 for a workspace."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            for wait in (None, PATIENCE):
                self.assertEqual(await anna.cancel("unknown", wait=wait), [])
            answer = await daemon.call("POST", "/v1/workspaces/nowhere/agent/sessions/s/cancel")
            self.assertEqual((answer.status, answer.json["code"]), (404, "workspace_not_found"))
            await anna.events.never(lambda event: True)
            session = await anna.session()
            for wait in (None, PATIENCE):
                self.assertEqual(await anna.cancel(session, wait=wait), [])

    @scenario(53)
    async def test_a_run_that_finishes_while_it_is_canceled_has_been_canceled(self) -> None:
        """A run that is both released and canceled has been canceled, in either order."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            runs = daemon.backend.get(anna.workspace["id"]).runs
            for number, order in enumerate(("release", "cancel"), 1):
                await anna.prompt(session, "hello", run_id=order)
                run = await daemon.entered(number)
                if order == "release":
                    run.release()
                receipt, _ = runs.cancel(session)
                run.release()
                self.assertEqual([hit.run_id for hit in receipt.canceled], [order])
                await anna.events.wait_for("run_complete", run_id=order, cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)


class OneRunTests(PromptTestCase):
    """The cancel of a single run, beyond the base protocol, and what receipts say."""

    async def test_a_receipt_says_what_the_list_of_runs_says(self) -> None:
        """While the ending ahead of it is being written, the next run has not begun."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "one", run_id="one")
            run = await daemon.entered(1)
            await anna.prompt(session, "two", run_id="two")
            gate.shut()
            run.release()
            await gate.reached()
            shown = (await anna.call("GET", "/runs/two")).json["state"]
            receipt = await anna.cancel(session)
            self.assertIn({"run_id": "two", "was": shown}, receipt)
            gate.open()
            self.assertEqual(await self.outcome(anna, "two"), "canceled")

    async def test_one_run_can_be_canceled_without_those_behind_it(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            for text in ("one", "two", "three"):
                await anna.prompt(session, text, run_id=text)
            await daemon.entered(1)
            for run_id, was in (("two", "queued"), ("one", "active")):
                hit = await anna.call("POST", f"/runs/{run_id}/cancel?wait=20")
                self.assertEqual(hit.json, {"canceled": [{"run_id": run_id, "was": was}]})
                self.assertNotEqual(await self.outcome(anna, run_id), "completed")
            third = await daemon.entered(2)
            self.assertEqual(third.prompt, "three")
            third.release()
            ended = [await self.outcome(anna, run_id) for run_id in ("one", "two", "three")]
            self.assertEqual(ended, ["canceled", "cleared", "completed"])
            again = await anna.call("POST", "/runs/one/cancel?wait=20")
            self.assertEqual((again.status, again.json), (200, {"canceled": []}))
            unknown = await anna.call("POST", "/runs/nobody/cancel")
            self.assertEqual((unknown.status, unknown.json["code"]), (404, "run_not_found"))
            self.assert_ended_once(anna.events, "one", "two", "three")

    async def test_a_run_that_was_folded_has_no_turn_of_its_own_to_cancel(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "carrier", run_id="carrier")
            run = await daemon.entered(1)
            await anna.prompt(session, "rider", run_id="rider", when_busy="steer")
            self.assertEqual(len(await run.do(lambda turn: turn.followups())), 1)
            refused = await anna.call("POST", "/runs/rider/cancel")
            self.assertEqual((refused.status, refused.json["code"]), (409, "not_queued"))
            self.assertIn("carrier", refused.json["message"])
            hit = await anna.call("POST", "/runs/carrier/cancel?wait=20")
            self.assertEqual(len(hit.json["canceled"]), 1)
            for run_id in ("carrier", "rider"):
                self.assertEqual(await self.outcome(anna, run_id), "canceled")


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


class CoverageTests(ScriptedTestCase):
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
        self.assertEqual(await self.queue("list"), ["c", "d"])
        self.agent.gate.set()
        await self.complete("d")
        self.assertEqual(self.endings(), ["main", *before, *after])
        cancelled = [event["cancelled"] for event in self.anna.events.all("run_complete")]
        self.assertEqual(cancelled, [True, True, True, None, None])
        survivors = (await self.shape())[6:]
        self.assertEqual(
            survivors,
            [
                ("user", "stop", "c"),
                ("assistant", "end_turn", "c"),
                ("user", "stop", "d"),
                ("assistant", "end_turn", "d"),
            ],
        )

    @scenario(64)
    async def test_a_canceled_prompt_does_not_join_the_turn_that_is_still_ending(self) -> None:
        """A canceled waiter is not folded by the turn that unwinds; its pair follows that turn."""
        steer = await self.post("steer")
        await self.anna.cancel(self.session)
        await self.agent.unwinding.wait()
        self.assertEqual(await self.shape(), [("user", "stop", "main")])
        self.agent.gate.set()
        await self.complete("main")
        done = await self.complete(steer)
        self.assertEqual((done["cancelled"], done["folded_into"]), (True, None))
        self.assertEqual(self.agent.folded, [])
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "main"),
                ("assistant", "canceled", ""),
                ("user", "stop", "steer"),
                ("assistant", "canceled", ""),
            ],
        )
