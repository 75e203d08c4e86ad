"""Agents that raise, hang, flood, lie or will not stop: the promises to clients hold all the same.

Every agent here breaks one rule. What is checked is never the agent, but what the people around it
see: one ending, a history that providers accept, and a next prompt that runs.
"""

from __future__ import annotations

import asyncio
import math
import resource
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Info, Usage
from crushlite.claims import Graces
from crushlite.errors import BadRequest, TurnOver
from crushlite.settings import Settings
from crushlite.testing import FakeClock, LocalDaemon, Seen
from tests.support.places import ROOT
from tests.support.prompts import PATIENCE, PromptTestCase, reach, shape, until
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.agent.base import Turn
    from crushlite.testing import Participant

MIB = 1 << 20
DELTAS = 100_000
GRACE = 2.0  # of cancel and of detach, below every time limit of HTTP


class Once:
    """Misbehaves in its first turn and answers in the others."""

    def __init__(self, misbehave: Callable[[Any], Awaitable[None]]) -> None:
        self.misbehave = misbehave
        self.turns: list[Turn] = []
        self.inside = asyncio.Event()

    async def run(self, turn: Turn) -> None:
        self.turns.append(turn)
        if len(self.turns) == 1:
            self.inside.set()
            await self.misbehave(turn)
        else:
            await turn.say("fine")


class Terrible(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise Terrible


class Quit(BaseException):
    """Not an Exception: slips through every `except Exception`."""


async def start(daemon: LocalDaemon, **fields: Any) -> tuple[Participant, str]:
    """A client, and its session with one prompt under the run id "r"."""
    anna = await daemon.join()
    session = await anna.session()
    await anna.prompt(session, "hello", run_id="r", **fields)
    return anna, session


class FailureTests(PromptTestCase):
    async def fail_with(self, error: BaseException) -> tuple[Seen, list[Seen]]:
        """Let a turn end with this; returns its run_complete and the session's messages."""

        async def explode(turn: Turn) -> None:
            await turn.say("so far")
            raise error

        async with LocalDaemon(Once(explode)) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            told = [event["run_id"] for event in anna.events.all("agent_event", type="error")]
            self.assertEqual(told, ["r"])
            self.assertEqual(await self.outcome(anna, "r"), "failed")
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            self.assertEqual(shape(messages)[1], ("assistant", "error", "so far"))
            self.assertEqual((done["text"], done["cancelled"]), ("so far", None))
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(len(anna.events.all("run_complete", run_id="r")), 1)
            return done, messages

    def finish_of(self, message: Seen) -> dict[str, Any]:
        finish: dict[str, Any] = message["parts"][-1]["data"]
        return finish

    async def test_an_agent_that_raises_fails_its_run_in_its_own_words(self) -> None:
        done, messages = await self.fail_with(ValueError("the model has gone"))
        self.assertEqual(done["error"], "ValueError: the model has gone")
        finish = self.finish_of(messages[1])
        self.assertEqual(finish["message"], "The agent failed")
        self.assertEqual(finish["details"], "ValueError: the model has gone")

    async def test_an_exception_without_words_is_named_by_its_type(self) -> None:
        done, _ = await self.fail_with(TimeoutError())
        self.assertIn("TimeoutError", done["error"])

    async def test_an_error_that_quotes_undecodable_bytes_is_stored(self) -> None:
        done, _ = await self.fail_with(FileNotFoundError("no file b\udcfcro.txt"))
        self.assertEqual(done["error"], "FileNotFoundError: no file b?ro.txt")

    async def test_an_exception_that_cannot_be_printed_fails_its_run_all_the_same(self) -> None:
        done, _ = await self.fail_with(Terrible())
        self.assertIn("Terrible", done["error"])

    async def test_an_agent_that_tries_to_exit_fails_its_own_run_only(self) -> None:
        for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Quit("enough")):
            with self.subTest(error=error):
                done, _ = await self.fail_with(error)
                self.assertIn(type(error).__name__, done["error"])

    async def test_an_agent_that_returns_nothing_leaves_a_finished_message(self) -> None:
        async def nothing(turn: Turn) -> None:
            pass

        async with LocalDaemon(nothing) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete")
            messages = await anna.messages(session)
            expected = [("user", "stop", "hello"), ("assistant", "end_turn", "")]
            self.assertEqual(shape(messages), expected)
            self.assertEqual(done["message_id"], messages[1]["id"])
            self.assertEqual((done["error"], done["cancelled"]), (None, None))
            finished = anna.events.all("agent_event", type="agent_finished")
            self.assertEqual(len(finished), 1)

    async def test_an_agent_that_cannot_describe_itself_still_ends_its_runs(self) -> None:
        class Nameless:
            broken = False

            def info(self) -> Info:
                if self.broken:
                    raise RuntimeError("who am I?")
                return Info()

            async def run(self, turn: Turn) -> None:
                await turn.say("fine")

        agent = Nameless()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            agent.broken = True
            await anna.prompt(session, "hello", run_id="r")
            await anna.events.wait_for("run_complete", run_id="r")
            self.assertFalse(await anna.busy(session))
            self.assertEqual((await anna.call("GET", "/agent")).status, 200)
            agent.broken = False
            await self.assert_takes_prompts(anna, session)

    async def test_an_agent_that_tries_to_exit_when_let_go_takes_nobody_along(self) -> None:
        class Leaving:
            async def run(self, turn: Turn) -> None:
                await turn.say("fine")

            async def aclose(self) -> None:
                raise SystemExit(1)

        async with LocalDaemon(Leaving()) as daemon:
            anna = await daemon.join()
            other = await daemon.create(daemon.root)
            await other.release()
            await until(lambda: not daemon.backend._closing, "the other workspace has gone")
            await self.assert_takes_prompts(anna, await anna.session())


class ReadinessTests(PromptTestCase):
    class Unready(Once):
        """Fails to get ready with each of these, one per attempt; then it is ready."""

        def __init__(self, *errors: BaseException) -> None:
            async def answer(turn: Turn) -> None:
                await turn.say("fine")

            super().__init__(answer)
            self.errors = list(errors)
            self.attempts = 0
            self.go = asyncio.Event()
            self.go.set()

        async def ready(self) -> None:
            self.attempts += 1
            await self.go.wait()
            if self.errors:
                raise self.errors.pop(0)

    async def test_a_failed_readiness_fails_that_run_only(self) -> None:
        agent = self.Unready(RuntimeError("no network"))
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete")
            self.assertEqual(done["error"], "RuntimeError: no network")
            await self.assert_takes_prompts(anna, session)
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(agent.attempts, 2)

    async def test_runs_that_wait_for_one_readiness_share_its_failure(self) -> None:
        agent = self.Unready(RuntimeError("no network"))
        agent.go.clear()
        async with LocalDaemon(agent) as daemon:
            anna, _ = await start(daemon)
            other = await anna.session()
            await anna.prompt(other, "hello", run_id="second")
            await anna.events.wait_for("message", role="user", session_id=other)
            agent.go.set()
            for run_id in ("r", "second"):
                self.assertEqual(await self.outcome(anna, run_id), "failed")
            await self.assert_takes_prompts(anna, other)
            self.assertEqual(agent.attempts, 2)

    async def test_a_readiness_that_failed_when_nobody_waited_any_more_is_tried_again(self) -> None:
        agent = self.Unready(RuntimeError("no network"))
        agent.go.clear()
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await until(lambda: agent.attempts == 1, "the agent is getting ready")
            await anna.cancel(session, wait=PATIENCE)
            agent.go.set()
            await until(lambda: not agent.errors, "it has failed")
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(agent.attempts, 2)

    async def test_a_readiness_that_tries_to_exit_fails_that_run_only(self) -> None:
        agent = self.Unready(SystemExit(1), KeyboardInterrupt())
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete")
            self.assertIn("SystemExit", done["error"])
            await anna.prompt(session, "hello", run_id="second")
            self.assertEqual(await self.outcome(anna, "second"), "failed")
            await self.assert_takes_prompts(anna, session)

    async def test_a_readiness_that_hangs_can_be_canceled(self) -> None:
        agent = self.Unready()
        agent.go.clear()
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await until(lambda: agent.attempts == 1, "the agent is getting ready")
            await anna.cancel(session)
            await anna.events.wait_for("run_complete", cancelled=True)
            agent.go.set()
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(agent.attempts, 1)


class CancelTests(PromptTestCase):
    async def test_an_agent_that_never_returns_can_be_canceled(self) -> None:
        async def hang(turn: Turn) -> None:
            await asyncio.Event().wait()

        agent = Once(hang)
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await reach(agent.inside)
            self.assertEqual(await anna.cancel(session), [{"run_id": "r", "was": "active"}])
            await anna.events.wait_for("run_complete", cancelled=True)
            await self.assert_takes_prompts(anna, session)

    async def test_an_agent_that_never_waits_between_says_can_be_canceled(self) -> None:
        async def babble(turn: Turn) -> None:
            while True:
                await turn.say("bla ")

        agent = Once(babble)
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            bert = await daemon.join()
            await bert.cancel(session, wait=PATIENCE)
            done = await anna.events.wait_for("run_complete", cancelled=True)
            self.assertEqual(await self.outcome(anna, "r"), "canceled")
            text = (await anna.messages(session))[-1].text
            self.assertEqual(done["text"] or "", text)
            await self.assert_takes_prompts(anna, session)

    async def test_an_agent_that_swallows_its_cancellation_is_abandoned_behind_a_fence(
        self,
    ) -> None:
        late: list[str] = []
        gate = asyncio.Event()
        asleep = asyncio.Event()

        async def swallow(turn: Turn) -> None:
            await turn.say("I will ")
            while not gate.is_set():
                try:
                    asleep.set()
                    await gate.wait()
                except asyncio.CancelledError:
                    asleep.clear()
            try:
                await turn.say("not stop")
            except TurnOver as error:
                late.append(error.code)

        clock = FakeClock()
        agent = Once(swallow)
        settings = Settings(cancel_grace=GRACE)
        async with LocalDaemon(agent, clock=clock, settings=settings) as daemon:
            anna, session = await start(daemon)
            await reach(asleep)
            await anna.cancel(session)
            await until(asleep.is_set, "it went back to sleep")
            await clock.advance(GRACE - 0.1)
            await anna.events.never("run_complete", quiet=0.05)
            self.assertTrue(await anna.busy(session))
            await clock.advance(0.2)
            done = await anna.events.wait_for("run_complete", cancelled=True)
            self.assertEqual(done["text"], "I will ")
            self.assertEqual(daemon.backend.get(anna.workspace["id"]).runs.abandoned, 1)
            await self.assert_takes_prompts(anna, session)
            seen = len(anna.events.seen)
            gate.set()
            await until(lambda: bool(late), "the abandoned agent speaks up")
            await anna.events.never("message", quiet=0.05, text="I will not stop")
            self.assertEqual((late, len(anna.events.seen)), (["turn_over"], seen))
            self.assertEqual((await anna.messages(session))[1].text, "I will ")

    async def test_an_agent_that_answers_a_cancel_with_success_was_canceled(self) -> None:
        async def deny(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await turn.say("nothing happened")

        agent = Once(deny)
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await reach(agent.inside)
            await anna.cancel(session, wait=PATIENCE)
            self.assertEqual(await self.outcome(anna, "r"), "canceled")
            expected = ("assistant", "canceled", "nothing happened")
            self.assertEqual(shape(await anna.messages(session))[1], expected)

    async def test_an_agent_that_answers_a_cancel_with_an_error_was_canceled(self) -> None:
        async def complain(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise RuntimeError("the clean-up failed")

        agent = Once(complain)
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await reach(agent.inside)
            await anna.cancel(session)
            done = await anna.events.wait_for("run_complete", cancelled=True)
            self.assertEqual(done["error"], None)
            self.assertEqual(await self.outcome(anna, "r"), "canceled")
            await anna.events.never("agent_event")

    async def test_a_grant_after_the_cancel_resolves_nothing(self) -> None:
        verdicts: list[bool] = []

        async def ask_stubbornly(turn: Turn) -> None:
            try:
                await turn.permission("bash", "execute", tool_call_id="call")
            except asyncio.CancelledError:
                # It asks again while it is being canceled: nobody will be shown a dead dialog
                # for longer than the turn takes to end.
                verdicts.append(bool(await turn.permission("bash", "execute")))

        clock = FakeClock()
        settings = Settings(cancel_grace=GRACE)
        async with LocalDaemon(Once(ask_stubbornly), clock=clock, settings=settings) as daemon:
            anna, session = await start(daemon)
            first = await anna.events.wait_for("permission_request")
            await anna.cancel(session)
            second = await anna.events.wait_for("permission_request")
            self.assertFalse(await anna.grant(first.payload))
            await clock.advance(GRACE)
            await anna.events.wait_for("run_complete", cancelled=True)
            self.assertFalse(await anna.grant(second.payload))
            self.assertEqual((await anna.call("GET", "/permissions")).json, [])
            await until(lambda: bool(verdicts), "the question was closed with the turn")
            self.assertEqual(verdicts, [False])


class RecordTests(PromptTestCase):
    """Agents that leave the record in disorder."""

    async def test_calls_after_the_end_raise_and_publish_nothing(self) -> None:
        async def nothing(turn: Turn) -> None:
            pass

        agent = Once(nothing)
        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await anna.events.wait_for("run_complete")
            seen = len(anna.events.seen)
            turn = agent.turns[0]
            calls: list[Awaitable[object]] = [
                turn.say("late"), turn.think("late"), turn.tool_call("late", "{}"),
                turn.tool_result("late", ""), turn.step(), turn.erase(), turn.finish("end_turn"),
                turn.permission("late", "late"), turn.ask([]), turn.followups(),
                turn.usage(Usage(1, 1)), turn.todos([]), turn.file_read("late"),
                turn.file_changed("late", "", ""), turn.session(), turn.history(),
            ]  # fmt: skip
            for call in calls:
                with self.assertRaises(TurnOver):
                    await call
            await anna.events.never("permission_request", quiet=0.05)
            self.assertEqual(len(anna.events.seen), seen)
            self.assertEqual(len(await anna.messages(session)), 2)

    async def test_a_task_the_agent_left_behind_adds_nothing_after_it_returned(self) -> None:
        said: list[str] = []
        stopped: list[type[BaseException]] = []

        async def babble(turn: Turn) -> None:
            try:
                while True:
                    await turn.say("x")
                    said.append("x")
                    await asyncio.sleep(0)
            except TurnOver as error:
                stopped.append(type(error))

        async def careless(turn: Turn) -> None:
            self.task = asyncio.create_task(babble(turn))
            while len(said) < 3:  # noqa: ASYNC110 - it is how many steps the other one has made
                await asyncio.sleep(0)
            self.returned = len(said)

        async with LocalDaemon(careless) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["text"], "x" * self.returned)
            self.assertEqual((await anna.messages(session))[-1].text, done["text"])
            async with asyncio.timeout(PATIENCE):
                await self.task
            self.assertEqual(stopped, [TurnOver])

    async def test_a_result_for_an_unknown_call_is_refused(self) -> None:
        refused: list[str] = []

        async def confused(turn: Turn) -> None:
            call = await turn.tool_call("view", "{}")
            await turn.tool_result(call, "once")
            for name in (call, "no such call"):
                try:
                    await turn.tool_result(name, "again")
                except BadRequest as error:
                    refused.append(str(error))

        async with LocalDaemon(confused) as daemon:
            anna, session = await start(daemon)
            await anna.events.wait_for("run_complete")
            self.assertEqual(len(refused), 2)
            self.assertIn("no such call", refused[1])
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            self.assertEqual([m["role"] for m in messages], ["user", "assistant", "tool"])

    async def leave_open(self, then: Callable[[Turn], Awaitable[None]]) -> list[Seen]:
        """Leave one call without a result and one half streamed; returns the history."""

        async def untidy(turn: Turn) -> None:
            await turn.tool_call("view", '{"a":1}', id="done")
            await turn.tool_result("done", "contents")
            await turn.tool_call("bash", "{}", id="open")
            await turn.tool_call("edit", '{"file_pa', id="half", finished=False)
            await then(turn)

        async with LocalDaemon(Once(untidy)) as daemon:
            anna, session = await start(daemon)
            await anna.events.wait_for(lambda event: "half" in str(event.payload))
            if then is _hang:
                await anna.cancel(session)
            await anna.events.wait_for("run_complete", run_id="r")
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            self.assertEqual([m["role"] for m in messages].count("tool"), 3)
            calls = {p["data"]["id"]: p["data"]["input"] for p in messages[3]["parts"][:2]}
            self.assertEqual(calls, {"open": "{}", "half": "{}"})
            results = [m["parts"][0]["data"] for m in messages if m["role"] == "tool"]
            self.assertEqual([r["is_error"] for r in results], [False, True, True])
            for result in results[1:]:
                self.assertIs(result["is_error"], True)
            await self.assert_takes_prompts(anna, session)
            return messages

    async def test_calls_left_open_on_return_get_results(self) -> None:
        messages = await self.leave_open(_return)
        self.assertEqual(messages[3].finish, "end_turn")
        self.assertIn("without a result", messages[4]["parts"][0]["data"]["content"])

    async def test_calls_left_open_by_an_exception_get_results(self) -> None:
        messages = await self.leave_open(_raise)
        finish = messages[3]["parts"][-1]["data"]
        self.assertEqual(finish["reason"], "error")
        self.assertIn("untidy", finish["details"])
        self.assertIn("failed before", messages[4]["parts"][0]["data"]["content"])

    async def test_calls_left_open_by_a_cancel_get_results(self) -> None:
        messages = await self.leave_open(_hang)
        finish = messages[3]["parts"][-1]["data"]
        self.assertEqual(finish["reason"], "canceled")
        self.assertTrue(finish["message"])
        self.assertIn("user cancelled", messages[4]["parts"][0]["data"]["content"])

    async def test_values_of_the_wrong_kind_fail_the_turn_and_leave_the_history_readable(
        self,
    ) -> None:
        async def bytes_as_media(turn: Turn) -> None:
            await turn.tool_call("view", "{}", id="call")
            data: Any = b"not base64 text"
            await turn.tool_result("call", "an image", data=data, mime_type="image/png")

        async def list_as_input(turn: Turn) -> None:
            value: Any = [object()]
            await turn.tool_call("view", value, id="call")

        async def number_as_text(turn: Turn) -> None:
            value: Any = 42
            await turn.say(value)

        async def infinite_cost(turn: Turn) -> None:
            await turn.usage(Usage(1, 1, cost=float("inf")))

        for agent in (bytes_as_media, list_as_input, number_as_text, infinite_cost):
            with self.subTest(agent=agent.__name__):
                async with LocalDaemon(Once(agent)) as daemon:
                    anna, session = await start(daemon)
                    await anna.events.wait_for("run_complete", run_id="r")
                    self.assertEqual(await self.outcome(anna, "r"), "failed")
                    self.assert_valid_history(await anna.messages(session))
                    self.assertEqual((await anna.call("GET", "/sessions")).status, 200)
                    await self.assert_takes_prompts(anna, session)

    async def test_costs_beyond_all_numbers_leave_every_session_readable(self) -> None:
        async def ruinous(turn: Turn) -> None:
            await turn.usage(Usage(1, 1, cost=1e308))
            await turn.usage(Usage(1, 1, cost=1e308))
            await turn.say("spent")

        async with LocalDaemon(Once(ruinous)) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["text"], done["error"]), ("spent", None))
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            for path in ("/sessions", f"/sessions/{session}"):
                answer = await anna.call("GET", path)
                self.assertEqual(answer.status, 200, answer)
            self.assertGreaterEqual(answer.json["cost"], 1e300)
            self.assertTrue(math.isfinite(answer.json["cost"]))
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(len(anna.events.all("run_complete", run_id="r")), 1)

    async def test_a_negative_cost_is_refused_and_lowers_nothing(self) -> None:
        async def generous(turn: Turn) -> None:
            await turn.usage(Usage(1, 1, cost=0.5))
            await turn.usage(Usage(1, 1, cost=-0.25))

        async with LocalDaemon(Once(generous)) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertIn("none negative", done["error"])
            self.assertEqual(await self.outcome(anna, "r"), "failed")
            self.assertEqual((await anna.call("GET", f"/sessions/{session}")).json["cost"], 0.5)

    async def test_a_permission_request_that_no_client_could_be_shown_is_not_open(self) -> None:
        refused = asyncio.Event()
        go = asyncio.Event()

        async def ask_nonsense(turn: Turn) -> None:
            try:
                await turn.permission("bash", "execute", params={"when": object()})
            except Exception:  # noqa: BLE001 - which one is its own affair
                refused.set()
            await go.wait()
            await turn.permission("bash", "execute", tool_call_id="good")

        async with LocalDaemon(Once(ask_nonsense)) as daemon:
            anna, _ = await start(daemon)
            await reach(refused)
            self.assertEqual((await anna.call("GET", "/permissions")).json, [])
            bert = await daemon.join()
            go.set()
            request = await bert.events.wait_for("permission_request", tool_call_id="good")
            self.assertTrue(await bert.grant(request.payload))
            await anna.events.wait_for("run_complete", error=None)

    async def test_lone_surrogates_of_a_model_reach_clients_as_text(self) -> None:
        async def odd(turn: Turn) -> None:
            await turn.think("hm \ud800", "sig\ud800")
            await turn.say("caf\udce9")
            await turn.tool_call("vi\ud800ew", '"\ud800"', id="c\ud800")
            await turn.tool_result("c\ud800", "r\ud800", metadata="m\ud800")

        async with LocalDaemon(odd) as daemon:
            anna, session = await start(daemon)
            await anna.events.wait_for("run_complete", error=None)
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            self.assertEqual(messages[1].text, "caf?")
            for event in (*anna.events.seen, *messages):
                str(event.payload).encode()  # raises for a surrogate

    async def test_a_turn_ends_with_a_clear_error_at_max_steps(self) -> None:
        async def loop(turn: Turn) -> None:
            while True:
                call = await turn.tool_call("view", "{}")
                await turn.tool_result(call, "again")

        async with LocalDaemon(Once(loop)) as daemon:
            anna, session = await start(daemon, max_steps=3)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["error"], "stopped at max_steps = 3")
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            self.assertEqual([m["role"] for m in messages].count("assistant"), 3)
            self.assertEqual(messages[-2].finish, "error")
            await self.assert_takes_prompts(anna, session)

    async def test_a_turn_ends_with_a_clear_error_at_max_cost(self) -> None:
        async def spend(turn: Turn) -> None:
            while True:
                await turn.usage(Usage(10, 1, cost=100.0, estimated=True))
                await turn.usage(Usage(10, 1, cost=0.25))

        async with LocalDaemon(Once(spend)) as daemon:
            anna, session = await start(daemon, max_cost=0.75)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["error"], "stopped at max_cost = 0.75")
            self.assertEqual((await anna.call("GET", f"/sessions/{session}")).json["cost"], 0.75)
            self.assertEqual(await self.outcome(anna, "r"), "failed")
            await self.assert_takes_prompts(anna, session)

    @scenario(257)
    async def test_what_an_agent_erases_is_neither_in_the_history_nor_in_the_ending(self) -> None:
        async def retry(turn: Turn) -> None:
            call = await turn.tool_call("view", "{}")
            await turn.tool_result(call, "contents")
            await turn.think("a wrong thought")
            await turn.say("a wrong ans")
            await turn.tool_call("bash", "{}", id="wrong")
            await turn.erase()
            await turn.say("the right answer")

        async with LocalDaemon(retry) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["text"], "the right answer")
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            roles = [m["role"] for m in messages]
            self.assertEqual(roles, ["user", "assistant", "tool", "assistant"])
            kinds = [part["type"] for part in messages[-1]["parts"]]
            self.assertEqual(kinds, ["text", "finish"])


async def _return(turn: Turn) -> None:
    pass


async def _raise(turn: Turn) -> None:
    raise RuntimeError("untidy")


async def _hang(turn: Turn) -> None:
    await asyncio.Event().wait()


class ThreadTests(PromptTestCase):
    """Plain functions as agents: each in a thread of its own."""

    async def test_a_plain_function_talks_and_asks_like_any_agent(self) -> None:
        def agent(turn: Any) -> None:
            assert threading.current_thread() is not threading.main_thread()
            turn.say(f"{turn.prompt}: ")
            call = turn.tool_call("bash", "{}")
            allowed = turn.permission("bash", "execute", tool_call_id=call)
            turn.tool_result(call, "ran" if allowed else f"denied: {allowed.reason}")
            turn.say("yes" if allowed else "no")

        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            request = await anna.events.wait_for("permission_request")
            self.assertTrue(await anna.grant(request.payload))
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["text"], done["error"]), ("yes", None))
            self.assert_valid_history(await anna.messages(session))

    async def test_a_plain_function_that_raises_fails_its_run_only(self) -> None:
        def agent(turn: Any) -> None:
            if turn.run_id == "r":
                raise SystemExit(1)
            turn.say("fine")

        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertIn("SystemExit", done["error"])
            await self.assert_takes_prompts(anna, session)

    async def test_a_cancel_reaches_a_thread_that_waits_for_a_permission(self) -> None:
        ended: list[type[BaseException]] = []

        def agent(turn: Any) -> None:
            if turn.run_id != "r":
                return
            try:
                turn.permission("bash", "execute")
            except BaseException as error:
                ended.append(type(error))
                raise

        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            request = await anna.events.wait_for("permission_request")
            await anna.cancel(session)
            await anna.events.wait_for("run_complete", cancelled=True)
            self.assertEqual(ended, [TurnOver])
            self.assertFalse(await anna.grant(request.payload))
            await self.assert_takes_prompts(anna, session)

    async def test_a_cancel_reaches_a_computing_thread_at_its_next_call(self) -> None:
        computing, go = threading.Event(), threading.Event()
        ended: list[type[BaseException]] = []

        def agent(turn: Any) -> None:
            if turn.run_id != "r":
                return
            turn.say("thinking")
            computing.set()
            go.wait(PATIENCE)
            try:
                turn.say(" aloud")
            except BaseException as error:
                ended.append(type(error))
                raise

        async with LocalDaemon(agent) as daemon:
            anna, session = await start(daemon)
            await until(computing.is_set, "the thread computes")
            await anna.cancel(session)
            self.assertTrue(await anna.busy(session))
            go.set()
            done = await anna.events.wait_for("run_complete", cancelled=True)
            self.assertEqual((done["text"], ended), ("thinking", [TurnOver]))
            await self.assert_takes_prompts(anna, session)

    async def test_a_thread_that_never_calls_again_is_abandoned_behind_a_fence(self) -> None:
        computing, go = threading.Event(), threading.Event()
        ended: list[type[BaseException]] = []

        def agent(turn: Any) -> None:
            if turn.run_id != "r":
                return
            computing.set()
            go.wait(PATIENCE)
            try:
                turn.say("late")
            except BaseException as error:  # noqa: BLE001 - which one is what the test asks
                ended.append(type(error))

        clock = FakeClock()
        settings = Settings(cancel_grace=GRACE)
        async with LocalDaemon(agent, clock=clock, settings=settings) as daemon:
            anna, session = await start(daemon)
            await until(computing.is_set, "the thread computes")
            await anna.cancel(session)
            await clock.advance(GRACE)
            await anna.events.wait_for("run_complete", cancelled=True)
            await self.assert_takes_prompts(anna, session)
            go.set()
            await until(lambda: bool(ended), "the abandoned thread speaks up")
            self.assertEqual(ended, [TurnOver])
            await anna.events.never("message", quiet=0.05, text="late")


class FloodingDaemon(LocalDaemon):
    """A daemon in a process of its own, so that its memory can be told from the test's. Its agent
    floods when it is told to."""

    script = f"""
import sys
from crushlite import Daemon

async def agent(turn):
    for number in range({DELTAS} if turn.prompt == "flood" else 100):
        await turn.say(f"{{number:09}} ")

Daemon(agent=agent, hosts=["unix://" + sys.argv[1]]).run()
"""

    async def __aenter__(self) -> FloodingDaemon:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self.script, str(self.socket)),
            cwd=ROOT,
        )
        await until(self.socket.exists, "the daemon listens")
        self.http = self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                for reader in self._readers:
                    await reader.close()
                for client in self._clients:
                    await client.aclose()
                self.process.terminate()
                await self.process.wait()
        finally:
            self._folder.cleanup()

    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()


class FloodTests(PromptTestCase):
    async def test_a_flood_of_deltas_breaks_no_promise_and_leaves_no_memory_behind(self) -> None:
        async with FloodingDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "warm up", run_id="first")
            await anna.events.wait_for("run_complete", run_id="first")
            before = daemon.memory()
            await anna.prompt(session, "flood", run_id="r")
            await anna.events.wait_for("message", role="assistant")
            # The daemon answers others meanwhile.
            self.assertTrue(await anna.busy(session))
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["text"], "".join(f"{n:09} " for n in range(DELTAS)))
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            self.assertEqual((await anna.messages(session))[-1].text, done["text"])
            await self.assert_takes_prompts(anna, session)
            self.assertEqual(len(anna.events.all("run_complete", run_id="r")), 1)
            texts = [e.text for e in anna.events.all("message") if e["id"] == done["message_id"]]
            self.assertEqual(texts, sorted(texts, key=len))
            self.assertLess(daemon.memory() - before, 64 * MIB)


class DetachedTests(PromptTestCase):
    settings = Settings(graces=Graces(create=GRACE, detach=GRACE, idle=None))

    async def test_a_detached_run_keeps_its_workspace_after_the_last_client_left(self) -> None:
        clock = FakeClock()
        async with LocalDaemon(clock=clock, settings=self.settings) as daemon:
            anna, session = await start(daemon, detach=True)
            run = await daemon.entered(1)
            await anna.events.close()
            await anna.retire()
            await clock.advance(3 * GRACE)
            self.assertEqual((await anna.call("GET", "")).status, 200)
            await run.say("nobody watches")
            run.release()
            self.assertEqual(await self.outcome(anna, "r"), "completed")
            # Its owner has one more grace to come back and look.
            await clock.advance(GRACE - 0.1)
            self.assertEqual((await anna.call("GET", "")).status, 200)
            await clock.advance(0.2)
            self.assertEqual((await anna.call("GET", "")).status, 404)
            again = await daemon.join()
            record = (await again.call("GET", "/runs/r")).json
            told = (record["state"], record["outcome"], record["text"])
            self.assertEqual(told, ("ended", "completed", "nobody watches"))
            self.assertEqual((await again.messages(session))[-1].finish, "end_turn")

    async def test_a_run_that_is_not_detached_ends_with_the_last_client(self) -> None:
        clock = FakeClock()
        async with LocalDaemon(clock=clock, settings=self.settings) as daemon:
            anna, session = await start(daemon)
            await daemon.entered(1)
            await anna.events.close()
            await anna.retire()
            await until(lambda: not daemon.backend.everything(), "the workspace has gone")
            again = await daemon.join()
            self.assertEqual(await self.outcome(again, "r"), "canceled")
            self.assertEqual((await again.messages(session))[-1].finish, "canceled")

    async def test_a_refused_detached_prompt_holds_nothing(self) -> None:
        clock = FakeClock()
        async with LocalDaemon(clock=clock, settings=self.settings) as daemon:
            anna = await daemon.create()
            refused = await anna.try_prompt("unknown", "hello", detach=True)
            self.assertEqual(refused.status, 404)
            await anna.release()
            await clock.advance(GRACE)
            self.assertEqual((await anna.call("GET", "")).status, 404)
