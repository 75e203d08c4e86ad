"""The events of one run among all events of a workspace, from its beginning to its end.

The rule is tested without a daemon, event by event; the stream of one run with a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import unittest
from typing import TYPE_CHECKING, Any

from crushlite.claims import Graces
from crushlite.client import Client, ConnectionFailed, Follower, Lost, Recovered
from crushlite.errors import RunNotFound
from crushlite.protocol.events import Envelope
from crushlite.protocol.messages import FinishPart, Message, TextPart, ToolCallPart
from crushlite.protocol.permissions import PermissionNotification, PermissionRequest
from crushlite.protocol.questions import QuestionBatch, QuestionNotification
from crushlite.protocol.runs import AgentEvent, RunComplete, RunInfo
from crushlite.protocol.sessions import Session
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.cli import Relay
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.client import RemoteWorkspace, RunStream

PATIENCE = 60.0


def said(message_id: str, text: str = "", finish: str = "", **fields: Any) -> Message:
    message = Message(message_id, "assistant", "S", [TextPart(text)], **fields)
    if finish:
        message.parts.append(FinishPart(finish))
    return message


def typed(message_id: str, text: str = "hi", session: str = "S") -> Message:
    return Message(message_id, "user", session, [TextPart(text)])


def ended(run_id: str, message_id: str = "", **fields: Any) -> RunInfo:
    return RunInfo(run_id, "S", state="ended", message_id=message_id, **fields)


def live(run_id: str, state: str = "active", **fields: Any) -> RunInfo:
    return RunInfo(run_id, "S", state=state, **fields)


class RuleTests(unittest.TestCase):
    """A follower of run R in session S."""

    def setUp(self) -> None:
        self.follower = Follower("R", "S")

    def created(self, *payloads: object) -> list[bool]:
        return [self.follower.take(Envelope("", "created", payload)) for payload in payloads]

    def updated(self, *payloads: object) -> list[bool]:
        return [self.follower.take(Envelope("", "updated", payload)) for payload in payloads]

    def test_a_run_that_is_first_in_line_owns_what_is_created_until_its_end(self) -> None:
        self.follower.set_ahead([ended("X", "x"), live("R")], over={"X"})
        mine = (typed("u"), said("a", "one", "tool_use"), said("b", "two", "end_turn"))
        self.assertEqual(self.created(*mine), [True, True, True])
        self.assertEqual(self.updated(said("b", "two")), [True])
        self.assertEqual(self.updated(said("old", "from before")), [False])
        self.assertEqual(self.updated(RunComplete("S", "b", "R")), [True])

    def test_what_runs_ahead_say_is_not_ours_even_with_the_same_prompt(self) -> None:
        self.follower.set_ahead([live("X"), live("Y", "queued"), live("R", "queued")], over=())
        self.assertEqual(self.created(said("x"), typed("y"), said("y2")), [False] * 3)
        self.assertEqual(self.updated(RunComplete("S", "x", "X"), said("y2")), [False] * 2)
        self.assertEqual(self.updated(RunComplete("S", "y2", "Y")), [False])
        self.assertEqual(self.updated(said("y2", "late")), [False])
        self.assertEqual(self.created(typed("u"), said("a")), [True, True])

    def test_a_run_that_ended_while_we_asked_is_still_ahead(self) -> None:
        self.follower.set_ahead([ended("X", "x"), live("R")], over=())
        self.assertEqual(self.created(said("x2")), [False])
        self.updated(RunComplete("S", "x2", "X"))
        self.assertEqual(self.created(typed("u")), [True])

    def test_a_summary_ahead_is_not_waited_for(self) -> None:
        self.follower.set_ahead([live("sum", kind="summarize"), live("R", "queued")], over=())
        self.assertEqual(self.created(typed("u")), [True])

    def test_runs_behind_ours_do_not_matter(self) -> None:
        self.follower.set_ahead([live("R"), live("Z", "queued")], over=())
        self.assertEqual(self.created(typed("u")), [True])

    @scenario(299)
    def test_events_of_other_runs_and_sessions_are_left_out(self) -> None:
        self.follower.set_ahead([live("R")], over=())
        self.created(typed("u"))
        elsewhere = said("o")
        elsewhere.session_id = "T"
        foreign = (
            *(elsewhere, Session("T"), AgentEvent("error", "T"), RunComplete("T", "o", "Q")),
            *(RunComplete("S", "o", "Q"), AgentEvent("error", "S", run_id="Q")),
            *(PermissionRequest("p", "T", "c"), QuestionBatch("b", "T")),
            *(PermissionNotification("c"), QuestionNotification("b"), {"a": "new kind"}),
        )
        self.assertEqual(self.created(*foreign), [False] * len(foreign))
        ours = (AgentEvent("error", "S"), AgentEvent("error", "S", run_id="R"), Session("S"))
        self.assertEqual(self.created(*ours), [True] * len(ours))

    def test_requests_of_our_calls_and_their_answers_are_ours(self) -> None:
        self.follower.set_ahead([live("R")], over=())
        calling = said("a")
        calling.parts.append(ToolCallPart("c", "bash", "{}"))
        self.created(typed("u"), calling)
        self.assertEqual(self.created(PermissionNotification("c")), [True])
        self.assertEqual(self.created(PermissionRequest("p", "S", "d")), [True])
        self.assertEqual(self.created(PermissionNotification("d", granted=True)), [True])
        self.assertEqual(
            self.created(QuestionBatch("b", "S"), QuestionNotification("b")), [True] * 2
        )

    def test_those_who_work_for_us_are_ours(self) -> None:
        self.follower.set_ahead([live("R")], over=())
        child = said("k")
        child.session_id = "kid"
        child.parts.append(ToolCallPart("c", "bash", "{}"))
        mine = (typed("u"), Session("kid", "S"), child, PermissionNotification("c"))
        self.assertEqual(self.created(*mine), [True] * 4)
        self.assertEqual(self.created(Session("foreign", "T")), [False])


class TranscriptTests(unittest.TestCase):
    """Which messages of a transcript belong to run R."""

    X = (typed("x"), said("x2"))
    OURS = (typed("u"), said("a"), Message("t", "tool", "S"), said("b"))
    AFTER = (typed("z"), said("z2"))

    def restored(self, messages: tuple[Message, ...], *runs: RunInfo) -> list[str]:
        self.follower = Follower("R", "S")
        return [message.id for message in self.follower.restore(list(messages), list(runs))]

    def test_of_a_run_that_goes_on_it_is_all_since_the_end_of_the_last_one(self) -> None:
        found = self.restored((*self.X, *self.OURS), ended("X", "x2"), live("R"))
        self.assertEqual((found, self.follower.ahead), (["u", "a", "t", "b"], set()))
        self.assertEqual(self.restored(self.OURS, live("R")), ["u", "a", "t", "b"])

    def test_of_a_run_that_has_ended_it_is_all_up_to_its_last_message(self) -> None:
        whole = (*self.X, *self.OURS, *self.AFTER)
        runs = (ended("X", "x2"), ended("R", "b"), ended("Z", "z2"))
        self.assertEqual(self.restored(whole, *runs), ["u", "a", "t", "b"])

    def test_results_that_came_after_the_last_message_belong_to_its_run(self) -> None:
        torn = (typed("x"), said("x2"), Message("xt", "tool", "S"))
        runs = (ended("X", "x2"), ended("R", "a"))
        whole = (*torn, typed("u"), said("a"), Message("t", "tool", "S"), *self.AFTER)
        self.assertEqual(self.restored(whole, *runs), ["u", "a", "t"])

    def test_of_a_run_that_has_not_begun_it_is_nothing(self) -> None:
        found = self.restored((*self.X,), live("X"), live("R", "queued"))
        self.assertEqual((found, self.follower.ahead), ([], {"X"}))

    def test_a_run_ahead_that_ended_since_is_waited_for_on_the_stream(self) -> None:
        found = self.restored((*self.X,), ended("X", "x9"), live("R"))
        self.assertEqual((found, self.follower.ahead), ([], {"X"}))

    def test_of_a_prompt_that_was_taken_back_there_is_nothing(self) -> None:
        found = self.restored(self.X, ended("X", "x2"), ended("R", outcome="cleared"))
        self.assertEqual(found, [])

    def test_of_a_folded_prompt_it_is_what_its_carrier_said(self) -> None:
        runs = (ended("X", "x2"), ended("C", "b"), ended("R", "b", folded_into="C"))
        self.assertEqual(self.restored((*self.X, *self.OURS), *runs), ["u", "a", "t", "b"])

    def test_events_of_runs_ahead_that_were_not_read_yet_are_not_taken_for_ours(self) -> None:
        self.restored((*self.X, typed("u")), ended("X", "x2"), live("R"))
        late, fresh = (Envelope("", "created", said(name)) for name in ("x2", "a"))
        self.assertFalse(self.follower.take(late))
        self.assertTrue(self.follower.take(fresh))


# With a daemon ------------------------------------------------------------------------------------


class RunCase(BoundedTestCase):
    """A daemon with a scripted agent, and a client behind a relay that can be cut."""

    settings: Settings | None = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(settings=self.settings))
        path = self.daemon.root / "relay.sock"
        self.relay = await self.enterAsyncContext(Relay(path, self.daemon.socket))
        self.client = await self.enterAsyncContext(Client(f"unix://{path}"))
        self.workspace = await self.client.create(self.daemon.root / "project")

    async def second(self) -> RemoteWorkspace:
        """The same workspace for another client."""
        client = await self.enterAsyncContext(Client(f"unix://{self.daemon.socket}"))
        return await client.create(self.daemon.root / "project")

    async def answers(self, number: int, text: str) -> None:
        scripted = await self.daemon.entered(number)
        await scripted.say(text)
        scripted.release()


def kinds(events: list[Envelope]) -> list[str]:
    return [event.kind for event in events]


async def everything(run: RunStream) -> list[Envelope]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in run]


def texts(events: list[Envelope]) -> dict[str, str]:
    """The last text of each assistant message."""
    messages = (event.payload for event in events if isinstance(event.payload, Message))
    return {m.id: m.text for m in messages if m.role == "assistant"}


class AskTests(RunCase):
    async def test_a_question_is_answered(self) -> None:
        asking = asyncio.create_task(self.workspace.ask("hello"))
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.prompt, "hello")
        await self.answers(1, "hi")
        ending = await asking
        self.assertEqual((ending.text, ending.error, ending.cancelled), ("hi", "", False))
        session = await self.workspace.session(ending.session_id)
        self.assertEqual(session.title, "hello")
        asking = asyncio.create_task(self.workspace.ask("and?", ending.session_id))
        await self.answers(2, "so")
        self.assertEqual((await asking).session_id, session.id)

    async def test_failure_and_cancellation_are_returned_and_not_raised(self) -> None:
        asking = asyncio.create_task(self.workspace.ask("hello"))
        (await self.daemon.entered(1)).fail("out of luck")
        self.assertIn("out of luck", (await asking).error)
        asking = asyncio.create_task(self.workspace.ask("hello"))
        scripted = await self.daemon.entered(2)
        await self.workspace.cancel(scripted.turn.session_id, wait=PATIENCE)
        self.assertTrue((await asking).cancelled)

    async def test_the_events_of_one_run_end_with_its_end(self) -> None:
        async with self.workspace.start("hello") as run:
            await self.answers(1, "hi")
            events = await everything(run)
        assert run.accepted is not None
        self.assertEqual(run.accepted.run_id, run.run_id)
        self.assertEqual(kinds(events)[-1], "run_complete")
        self.assertEqual(kinds(events).count("run_complete"), 1)
        self.assertEqual(run.ending, events[-1].payload)
        self.assertEqual(list(texts(events).values()), ["hi"])

    async def test_options_of_the_prompt_are_passed_on(self) -> None:
        async with self.workspace.start("hello", run_id="mine", max_steps=7) as run:
            scripted = await self.daemon.entered(1)
            self.assertEqual((run.run_id, scripted.turn.max_steps), ("mine", 7))
            scripted.release()
            await run.end()

    async def test_two_on_one_busy_session_each_get_their_own_answer(self) -> None:
        session = await self.workspace.create_session()
        other = await self.second()
        async with (
            self.workspace.start("same words", session.id) as first,
            other.start("same words", session.id) as second,
        ):
            self.assertEqual((first.ahead, second.ahead), (0, 1))
            await self.answers(1, "for the first")
            await self.answers(2, "for the second")
            for run, text in ((first, "for the first"), (second, "for the second")):
                self.assertEqual(list(texts(await everything(run)).values()), [text])

    async def test_a_cancel_takes_back_what_waits_and_stops_what_works(self) -> None:
        session = await self.workspace.create_session()
        async with (
            self.workspace.start("first", session.id) as first,
            self.workspace.start("second", session.id) as second,
        ):
            scripted = await self.daemon.entered(1)
            await second.cancel()
            self.assertTrue((await second.end()).cancelled)
            self.assertFalse(scripted.canceled)
            await first.cancel()
            self.assertTrue((await first.end()).cancelled)
            self.assertTrue(scripted.canceled)
            self.assertEqual(len(await self.workspace.runs(session.id)), 2)

    async def test_a_cancel_of_a_run_that_was_folded_ends_the_turn_it_is_in_and_no_other(
        self,
    ) -> None:
        session = await self.workspace.create_session()
        async with (
            self.workspace.start("carrier", session.id) as carrier,
            self.workspace.start("rider", session.id, when_busy="steer") as rider,
            self.workspace.start("behind", session.id) as behind,
        ):
            scripted = await self.daemon.entered(1)
            await scripted.do(lambda turn: turn.followups())
            await rider.cancel()
            for run in (carrier, rider):
                self.assertTrue((await run.end()).cancelled)
            (await self.daemon.entered(2)).release()
            self.assertFalse((await behind.end()).cancelled)

    async def test_a_cancel_of_what_has_ended_unseen_does_not_hit_the_next(self) -> None:
        """Our client has not got its `run_complete` yet, and another client's prompt is active."""
        session = await self.workspace.create_session()
        for seen in (False, True):
            number = len(self.daemon.agent.runs) + 1
            async with self.workspace.start("ours", session.id) as ours:
                scripted = await self.daemon.entered(number)
                if seen:  # that it began
                    await anext(ours)
                scripted.release()
                async with self.workspace.start("theirs", session.id) as theirs:
                    scripted = await self.daemon.entered(number + 1)
                    await ours.cancel()
                    scripted.release()
                    self.assertFalse((await theirs.end()).cancelled)
                self.assertFalse((await ours.end()).cancelled)

    async def test_a_cancel_in_a_session_that_was_deleted_is_no_error(self) -> None:
        session = await self.workspace.create_session()
        async with self.workspace.start("hello", session.id) as run:
            await self.daemon.entered(1)
            await self.workspace.delete(session.id)
            await run.cancel()

    async def test_a_cancel_after_the_end_hits_no_run(self) -> None:
        session = await self.workspace.create_session()
        async with self.workspace.start("first", session.id) as run:
            await self.answers(1, "hi")
            await run.end()
            async with self.workspace.start("second", session.id) as later:
                scripted = await self.daemon.entered(2)
                await run.cancel()
                scripted.release()
                self.assertFalse((await later.end()).cancelled)

    async def test_a_closed_client_is_no_end_of_the_run(self) -> None:
        async with self.workspace.start("hello") as run:
            await self.daemon.entered(1)
            await self.client.aclose()
            with self.assertRaisesRegex(ConnectionFailed, "closed before run .* ended"):
                await run.end()


class FollowTests(RunCase):
    async def followed(self, run_id: str) -> list[Envelope]:
        async with (await self.second()).follow(run_id) as run:
            return await everything(run)

    async def steps(self, turn: Turn) -> None:
        await turn.say("I look. ")
        call = await turn.tool_call("bash", '{"command": "ls"}')
        await turn.tool_result(call, "a file")
        await turn.say("Done")

    @scenario(302)
    async def test_another_client_can_follow_a_run_from_beginning_to_end(self) -> None:
        async with self.workspace.start("hello") as run:
            scripted = await self.daemon.entered(1)
            await scripted.do(self.steps)
            async with (await self.second()).follow(run.run_id) as other:
                await scripted.say(".")
                scripted.release()
                events = await everything(other)
        self.assertEqual(list(texts(events).values()), ["I look. ", "Done."])
        self.assertEqual(kinds(events)[-1], "run_complete")
        self.assertEqual(kinds(events).count("run_complete"), 1)

    async def test_a_run_that_has_ended_can_be_followed(self) -> None:
        session = await self.workspace.create_session()
        runs = []
        for number in (1, 2, 3):
            async with self.workspace.start(f"number {number}", session.id) as run:
                await self.answers(number, f"answer {number}")
                await run.end()
            runs.append(run)
        for number, run in enumerate(runs, 1):
            events = await self.followed(run.run_id)
            self.assertEqual(list(texts(events).values()), [f"answer {number}"])
            self.assertEqual(events[-1].payload, run.ending)

    async def test_a_queued_run_is_followed_from_its_beginning(self) -> None:
        session = await self.workspace.create_session()
        await self.workspace.prompt(session.id, "first")
        first = await self.daemon.entered(1)
        await first.say("not yours")
        waiting = await self.workspace.prompt(session.id, "second", run_id="second")
        async with (await self.second()).follow(waiting.run_id) as run:
            following = asyncio.create_task(everything(run))
            await first.say(", at all")
            first.release()
            await self.answers(2, "yours")
            self.assertEqual(list(texts(await following).values()), ["yours"])

    async def test_a_run_that_begins_and_ends_during_the_catch_up_is_complete(self) -> None:
        """The run begins after the transcript was read, and ends before the runs are read."""
        session = await self.workspace.create_session()
        await self.workspace.prompt(session.id, "first", run_id="first")
        first = await self.daemon.entered(1)
        waiting = await self.workspace.prompt(session.id, "second", run_id="second")
        other = await self.second()
        runs, calls = other.runs, 0

        async def late(session_id: str = "", state: str = "") -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                first.release()
                await self.answers(2, "yours")
                await self.workspace.run(waiting.run_id, wait=10)
            return await runs(session_id, state)

        other.runs = late  # type: ignore[method-assign]
        async with other.follow(waiting.run_id) as run:
            self.assertEqual(list(texts(await everything(run)).values()), ["yours"])

    async def test_a_folded_prompt_has_the_events_of_its_carrier(self) -> None:
        session = await self.workspace.create_session()
        await self.workspace.prompt(session.id, "first")
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        rider = await self.workspace.prompt(session.id, "also", when_busy="steer")
        async with (await self.second()).follow(rider.run_id) as run:
            following = asyncio.create_task(everything(run))
            await scripted.do(lambda turn: turn.followups())
            await scripted.say("two")
            scripted.release()
            events = await following
        self.assertEqual("".join(texts(events).values()), "one two")
        self.assertNotEqual(events[-1].payload.folded_into, "")

    async def test_a_prompt_that_is_folded_while_it_is_followed_has_all_events(self) -> None:
        session = await self.workspace.create_session()
        await self.workspace.prompt(session.id, "first")
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        async with self.workspace.start("also", session.id, when_busy="steer") as run:
            self.assertEqual(run.ahead, 1)
            await scripted.do(lambda turn: turn.followups())
            await scripted.say("two")
            scripted.release()
            events = await everything(run)
        self.assertEqual("".join(texts(events).values()), "one two")
        self.assertEqual(kinds(events)[-1], "run_complete")
        self.assertEqual(kinds(events).count("run_complete"), 1)

    async def test_a_run_that_never_was_is_an_error(self) -> None:
        with self.assertRaises(RunNotFound):
            await self.followed("nobody")


class LostTests(RunCase):
    async def test_a_lost_stream_is_resumed_and_nothing_is_missing_or_doubled(self) -> None:
        async with self.workspace.start("hello") as run:
            scripted = await self.daemon.entered(1)
            await scripted.say("one ")
            self.relay.cut()
            await scripted.say("two ")
            scripted.release()
            events = await everything(run)
        about = [event for event in events if isinstance(event.payload, Lost | Recovered)]
        self.assertEqual(kinds(about), ["lost", "recovered"])
        self.assertEqual(list(texts(events).values()), ["one two "])
        self.assertEqual(kinds(events).count("run_complete"), 1)

    async def test_a_caller_who_does_not_want_to_wait_can_leave(self) -> None:
        async with self.workspace.start("hello") as run:
            await self.daemon.entered(1)
            self.relay.cut()
            async for event in run:
                if isinstance(event.payload, Lost):
                    break
        self.assertIsNone(run.ending)

    async def test_a_promise_whose_sequel_is_lost_is_kept(self) -> None:
        """The connection breaks right after the 202; the run is found again, with its answer."""
        runs, calls = self.workspace.runs, 0

        async def cut_first(session_id: str = "", state: str = "") -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                self.relay.cut()
                raise ConnectionFailed("cut")
            return await runs(session_id, state)

        self.workspace.runs = cut_first  # type: ignore[method-assign]
        async with self.workspace.start("hello") as run:
            await self.answers(1, "hi")
            self.assertEqual((await run.end()).text, "hi")

    async def test_a_catch_up_that_fails_is_tried_again(self) -> None:
        session = await self.workspace.create_session()
        accepted = await self.workspace.prompt(session.id, "hello")
        scripted = await self.daemon.entered(1)
        await scripted.say("one")
        messages, failed, again = self.workspace.messages, asyncio.Event(), asyncio.Event()

        async def fail_first(session_id: str) -> list[Message]:
            if not failed.is_set():
                failed.set()
                raise ConnectionFailed("cut")
            again.set()
            return await messages(session_id)

        self.workspace.messages = fail_first  # type: ignore[method-assign]
        async with self.workspace.follow(accepted.run_id) as run:
            following = asyncio.create_task(everything(run))
            async with asyncio.timeout(PATIENCE):
                await again.wait()
            scripted.release()
            events = await following
        self.assertEqual(list(texts(events).values()), ["one"])
        self.assertEqual(kinds(events)[:2], ["lost", "recovered"])


class TornDownTests(RunCase):
    """Without a grace period: the workspace and its runs end with the connection."""

    settings: Settings | None = Settings(graces=Graces(detach=0.0))

    async def test_what_became_of_the_run_is_read_afresh(self) -> None:
        async with self.workspace.start("hello") as run:
            scripted = await self.daemon.entered(1)
            scripted.begin(lambda turn: turn.say("one"))
            scripted.begin(lambda turn: asyncio.Event().wait())
            async for event in run:
                if isinstance(event.payload, Message) and event.payload.text == "one":
                    break
            before = self.workspace.id
            self.relay.cut()
            events = await everything(run)
        self.assertNotEqual(self.workspace.id, before)
        self.assertEqual(list(texts(events).values()), ["one"])
        assert run.ending is not None
        self.assertTrue(run.ending.cancelled)

    @scenario(296)
    async def test_a_cut_connection_recovers_into_the_workspace_that_was_kept(self) -> None:
        beside = await self.second()
        async with beside.events() as kept, self.workspace.start("hello") as run:
            scripted = await self.daemon.entered(1)
            self.relay.cut()
            await scripted.say("one")
            scripted.release()
            self.assertEqual((await run.end()).text, "one")
            self.assertEqual(self.workspace.id, beside.id)
            async with asyncio.timeout(PATIENCE):
                async for event in kept:
                    if event.kind == "run_complete":
                        break


class ClosingTests(RunCase):
    async def test_a_stream_that_is_left_early_leaves_no_connection(self) -> None:
        async with self.workspace.start("hello") as run:
            await self.daemon.entered(1)
        with self.assertRaises(StopAsyncIteration):
            await run.__anext__()
        async with contextlib.AsyncExitStack() as stack:
            following = await stack.enter_async_context(self.workspace.follow(run.run_id))
            await run.cancel()
            self.assertTrue((await following.end()).cancelled)
