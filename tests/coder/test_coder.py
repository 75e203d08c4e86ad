"""The coder on its own: attempts, limits, tools, usage, histories, summaries, titles and the system
message."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import unittest
from typing import TYPE_CHECKING, Any

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.history import Images, chat_messages, estimated_tokens, valid_input
from crushlite.coder.loop import CoderOptions
from crushlite.coder.prompts import SUMMARY, TITLE
from crushlite.coder.providers.base import (
    CallPiece,
    ChatMessage,
    Image,
    ModelStop,
    ProviderError,
    Text,
    Thought,
    Tokens,
    ToolCall,
)
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.repeats import STOPPED, WARNING
from crushlite.coder.tools.base import ToolOutcome as Result, denied
from crushlite.coder.wing import CoderWing
from crushlite.errors import Conflict, LimitReached, ProviderFailed, TurnOver
from crushlite.fake_model import End, Fail, FakeModel, Say, Use, obedient
from crushlite.hosting.prompts import Failure
from crushlite.protocol.config import Model
from crushlite.protocol.messages import (
    BinaryPart,
    FinishPart,
    Message,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crushlite.protocol.sessions import Todo
from crushlite.runs import Outcome
from crushlite.store import sessions
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.model import (
    CoderBench,
    CoderTestCase,
    EchoTool,
    GateTool,
    PlannedProvider,
    chat,
    said,
)
from tests.support.scenarios import scenario
from tests.support.turns import SCOPE, SESSION

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from crushlite.coder.providers.base import ModelRequest, Piece
    from crushlite.fake_model import Step
    from crushlite.protocol.messages import Part
    from crushlite.protocol.sessions import Session

    Answer = list[Piece | BaseException]


def use(*calls: tuple[str, str, str], tokens: Tokens | None = None) -> Answer:
    """An answer that calls tools, each given as id, name and arguments."""
    pieces: Answer = [CallPiece(n, *call) for n, call in enumerate(calls)]
    return [*pieces, *([tokens] if tokens else []), ModelStop("tool_use")]


def echo(number: int, text: str = "", tokens: Tokens | None = None) -> Answer:
    return use((f"c{number}", "echo", json.dumps({"text": text})), tokens=tokens)


def broken(retry_after: float = 0.0) -> ProviderError:
    return ProviderError("the line broke", retryable=True, retry_after=retry_after)


class AttemptTests(CoderBench):
    async def test_a_failed_attempt_leaves_nothing_in_the_message_of_the_next(self) -> None:
        provider = PlannedProvider(
            [Thought("one "), Text("one "), CallPiece(0, "c1", "echo", '{"te'), broken()],
            [Text("two "), broken()],
            said("three"),
        )
        turn = await self.converse(self.coder(provider, tools=[EchoTool()]))
        turn.close(Outcome.COMPLETED, None)
        _, answer = await self.stored(turn)
        self.assertEqual([part.tag for part in answer.parts], ["text", "finish"])
        self.assertEqual(answer.text, "three")
        self.assertEqual(self.naps.slept, [1.0, 2.0])

    async def test_every_attempt_asks_the_same(self) -> None:
        provider = PlannedProvider([Text("half"), broken()], said("whole"))
        await self.converse(self.coder(provider))
        first, second = provider.requests
        self.assertEqual(first, second)

    async def test_a_call_of_a_failed_attempt_does_not_run_and_may_come_again(self) -> None:
        tool = EchoTool()
        provider = PlannedProvider([*echo(1, "x")[:-1], broken()], echo(1, "x"), said("done"))
        turn = await self.converse(self.coder(provider, tools=[tool]))
        turn.close(Outcome.COMPLETED, None)
        self.assertEqual(tool.ran, [{"text": "x"}])
        roles = [message.role for message in await self.stored(turn)]
        self.assertEqual(roles, ["user", "assistant", "tool", "assistant"])

    async def test_after_four_attempts_the_words_of_the_last_error_are_raised(self) -> None:
        last: Answer = [Text("part"), *echo(9)[:-1], ProviderError("out of GPUs", retryable=True)]
        first: Answer = [Text("gone"), broken()]
        provider = PlannedProvider(first, first, first, last, said("never asked"))
        with self.assertRaisesRegex(ProviderError, "out of GPUs"):
            await self.converse(self.coder(provider))
        self.assertEqual((len(provider.requests), self.naps.slept), (4, [1.0, 2.0, 4.0]))
        self.live.close(Outcome.FAILED, Failure("Provider failed", "out of GPUs"))
        _, answer, result = await self.stored(self.live)
        self.assertEqual(answer.text, "part")
        (call,) = answer.tool_calls
        self.assertEqual((call.input, call.finished), ("{}", True))
        self.assertTrue(result.tool_results[0].is_error)

    async def test_retry_after_is_respected(self) -> None:
        provider = PlannedProvider([broken(7.5)], [broken()], said("hi"))
        await self.converse(self.coder(provider))
        self.assertEqual(self.naps.slept, [7.5, 2.0])

    async def test_all_pauses_together_last_three_minutes_at_most(self) -> None:
        for waits, slept in (([181.0], []), ([100.0, 81.0], [100.0]), ([100.0, 80.0], [100, 80])):
            with self.subTest(waits):
                provider = PlannedProvider(*([broken(wait)] for wait in waits), said("hi"))
                agent = self.coder(provider)
                if sum(waits) > 180:
                    with self.assertRaises(ProviderError):
                        await self.converse(agent)
                else:
                    await self.converse(agent)
                self.assertEqual(self.naps.slept, slept)

    async def test_an_error_that_no_retry_helps_is_tried_once(self) -> None:
        for status in (400, 401, 403, 404):
            with self.subTest(status):
                script = [Fail(status, f"no: {status}")]
                async with FakeModel(script=lambda _, script=script: script) as model:  # type: ignore[misc]
                    provider = OpenAIProvider(model.base_url, "key", clock=SystemClock())
                    with self.assertRaisesRegex(ProviderError, f"no: {status}"):
                        await self.converse(self.coder(provider))
                    await provider.aclose()
                self.assertEqual((len(model.calls), self.naps.slept), (1, []))

    async def test_an_error_that_is_not_the_provider_s_is_not_retried(self) -> None:
        provider = PlannedProvider([Text("half"), KeyError("oops")], said("never asked"))
        with self.assertRaises(KeyError):
            await self.converse(self.coder(provider))
        self.assertEqual(len(provider.requests), 1)

    async def test_the_stream_of_a_turn_that_is_over_is_closed_at_once(self) -> None:
        """Else it would stay open until the garbage collector finds it, and the model would go on
        at the user's cost."""
        provider = PlannedProvider([Text("one"), *echo(1), Text("never read")])

        def end(_: str) -> None:
            self.live.fence()

        agent = self.coder(provider)
        self.transcript.say = lambda live, text: end(text)  # type: ignore[method-assign]
        try:
            await self.converse(agent)
        except TurnOver:
            self.assertEqual((len(provider.requests), provider.open), (1, 0))
        else:
            self.fail("the turn was over, and the agent went on")

    async def test_closing_the_agent_closes_both_providers(self) -> None:
        large, small = PlannedProvider(), PlannedProvider()
        await self.coder(large, small=small).aclose()
        self.assertEqual((large.closed, small.closed), (1, 1))

    async def test_a_cancel_during_the_wait_ends_it(self) -> None:
        provider = PlannedProvider([broken(100.0)], said("never asked"))
        agent = self.coder(provider)
        waiting = asyncio.Event()

        async def sleep(delay: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        self.naps.sleep = sleep  # type: ignore[method-assign]
        task = asyncio.create_task(self.converse(agent))
        await waiting.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(len(provider.requests), 1)


class LimitTests(CoderBench):
    async def steps(self, texts: list[str], **order: Any) -> tuple[int, str]:
        """How many of these calls of echo are run before the turn ends, and its last text."""
        tool = EchoTool()
        answers = [echo(number, text) for number, text in enumerate(texts)]
        turn = await self.converse(
            self.coder(PlannedProvider(*answers, said("done")), tools=[tool]), **order
        )
        turn.close(Outcome.COMPLETED, None)
        return len(tool.ran), turn.last.message.text

    def told(self) -> list[str]:
        """The results that the model read, of all turns."""
        found = [c.payload for c in self.hub.log if self.is_result(c.payload)]
        return [message.tool_results[0].content for message in found]

    async def test_a_model_that_repeats_itself_is_warned_once_and_then_stopped(self) -> None:
        ran, last = await self.steps(["same"] * 20)
        self.assertEqual(ran, 9)
        self.assertEqual(last, STOPPED)
        warned = [WARNING in text for text in self.told()]
        self.assertEqual(warned, [False] * 5 + [True] + [False] * 3)
        self.assertTrue(self.told()[5].startswith("echo same\n"))

    async def test_a_model_that_heeds_the_warning_goes_on(self) -> None:
        texts = [*["same"] * 6, "new", *["same"] * 3]
        self.assertEqual(await self.steps(texts), (10, "done"))

    async def test_only_steps_that_bring_nothing_new_are_counted(self) -> None:
        """As of a model that runs the same test after each of its changes."""
        texts = [f"other {n}" if n % 2 else "same" for n in range(60)]
        self.assertEqual(await self.steps(texts), (60, "done"))
        self.assertFalse(any(WARNING in text for text in self.told()))

    async def test_a_circle_of_several_calls_is_one_too(self) -> None:
        ran, last = await self.steps(["a", "b", "c"] * 10)
        self.assertEqual((ran, last), (11, STOPPED))

    async def test_an_equal_call_with_another_result_is_something_new(self) -> None:
        results = iter(range(100))
        tool = EchoTool(answer=lambda _: Result(f"{next(results)}"))
        answers = [echo(number, "same") for number in range(30)]
        await self.converse(self.coder(PlannedProvider(*answers, said("done")), tools=[tool]))
        self.assertEqual(len(tool.ran), 30)

    async def test_waiting_is_not_counted(self) -> None:
        for name, waits, looks in (
            ("job_output", {"job_id": "1", "wait": 30}, {"job_id": "1"}),
            ("bash", {"command": "sleep 5; cat log"}, {"command": "cat log sleep"}),
            ("bash", {"command": "make || (sleep 0.5 && make)"}, {"command": "echo asleep 5"}),
        ):
            for arguments, expected in ((waits, 30), (looks, 9)):
                with self.subTest(name, arguments=arguments):
                    tool = EchoTool(name=name)
                    answers = [
                        use((f"{name}{expected}-{n}", name, json.dumps(arguments)))
                        for n in range(30)
                    ]
                    provider = PlannedProvider(*answers, said("done"))
                    await self.converse(self.coder(provider, tools=[tool]))
                    self.assertEqual(len(tool.ran), expected)

    async def test_a_call_that_cannot_wait_is_counted_whatever_it_says(self) -> None:
        for wait, failed in ((True, True), ("false", False), (-1, False)):
            with self.subTest(wait=wait):

                def answer(_: dict[str, Any], failed: bool = failed) -> Result:
                    return Result("the same", is_error=failed)

                tool = EchoTool(name="job_output", answer=answer)
                arguments = json.dumps({"shell_id": "1", "wait": wait})
                answers = [use((f"{wait}-{n}", tool.name, arguments)) for n in range(30)]
                provider = PlannedProvider(*answers, said("done"))
                await self.converse(self.coder(provider, tools=[tool]))
                self.assertEqual(len(tool.ran), 9)

    async def test_a_turn_that_repeats_itself_completes_with_a_message_that_says_so(self) -> None:
        await self.steps(["same"] * 9)
        rows = await self.stored(self.live)
        finishes = [row.finish.reason for row in rows if row.finish and row.role == "assistant"]
        self.assertEqual(finishes, ["tool_use"] * 9 + ["end_turn"])

    async def test_a_turn_may_take_any_number_of_steps(self) -> None:
        self.assertEqual(await self.steps([f"{n}" for n in range(150)]), (150, "done"))

    async def test_a_turn_ends_when_its_budget_of_tokens_is_used_up(self) -> None:
        tool = EchoTool()
        answers = [echo(n, f"{n}", Tokens(300, 50, cache_read=50)) for n in range(9)]
        agent = self.coder(
            PlannedProvider(*answers), tools=[tool], options=CoderOptions(budget=1000)
        )
        with self.assertRaisesRegex(LimitReached, "1200 tokens, the budget"):
            await self.converse(agent)
        self.assertEqual(len(tool.ran), 3)

    @staticmethod
    def is_result(payload: object) -> bool:
        return isinstance(payload, Message) and payload.role == "tool"

    async def test_max_steps_of_the_prompt_counts_and_may_be_used_up(self) -> None:
        self.assertEqual(await self.steps(["a", "b"], max_steps=3), (2, "done"))
        with self.assertRaisesRegex(LimitReached, "max_steps = 2"):
            await self.steps(["a", "b"], max_steps=2)
        with self.assertRaisesRegex(LimitReached, "max_steps = 101"):
            await self.steps([f"{n}" for n in range(102)], max_steps=101)

    async def test_max_cost_ends_the_turn_before_the_tools_run(self) -> None:
        self.leave()
        tool = EchoTool()
        model = Model(id="m", cost_per_1m_in=1.0)
        answers = [echo(n, f"{n}", Tokens(400_000)) for n in range(5)]
        with self.assertRaisesRegex(LimitReached, "max_cost = 1"):
            await self.converse(
                self.coder(PlannedProvider(*answers), tools=[tool], model=model), max_cost=1.0
            )
        self.assertEqual(len(tool.ran), 2)


class ToolTests(CoderBench):
    async def results(
        self, *calls: tuple[str, str, str], tools: Any, last: str = "done"
    ) -> list[ToolResultPart]:
        """The results that a turn stores for these calls of one answer, in the order of storing."""
        self.provider = PlannedProvider(use(*calls), said(last))
        self.turned = await self.converse(self.coder(self.provider, tools=tools))
        self.turned.close(Outcome.COMPLETED, None)
        return [r for live in self.turned.messages for r in live.message.tool_results]

    async def test_a_call_streams_unfinished_and_is_finished_with_its_input(self) -> None:
        provider = PlannedProvider(
            [
                CallPiece(0, "c1", "echo", '{"te'),
                CallPiece(1, "c2", "echo", "{"),
                CallPiece(0, arguments='xt": "a"}'),
                CallPiece(1, arguments="}"),
                ModelStop("tool_use"),
            ],
            said("done"),
        )
        tool = EchoTool()
        await self.converse(self.coder(provider, tools=[tool]))
        self.assertEqual(tool.ran, [{"text": "a"}, {}])
        seen = [m.payload.tool_calls for m in self.updates() if m.payload.tool_calls]
        self.assertEqual([call.finished for call in seen[0]], [False])
        self.assertEqual([call.input for call in seen[-1]], ['{"text": "a"}', "{}"])

    async def test_an_unknown_tool_is_an_error_for_the_model_that_names_the_known(self) -> None:
        (result,) = await self.results(("c1", "rm_rf", "{}"), tools=[EchoTool()])
        self.assertTrue(result.is_error)
        self.assertIn("rm_rf", result.content)
        self.assertIn("echo", result.content)
        self.assertEqual(self.turned.last.message.text, "done")

    async def test_arguments_that_are_no_object_are_an_error_for_the_model(self) -> None:
        deep = '{"a":' * 5_000
        for arguments in ("[1]", '"text"', "3", "null", "{", '{"a": NaN}', deep):
            with self.subTest(arguments[:20]):
                tool = EchoTool()
                (result,) = await self.results((arguments[:20], "echo", arguments), tools=[tool])
                self.assertEqual((result.is_error, tool.ran), (True, []))
                self.assertIn("JSON", result.content)
                request = self.provider.requests[-1]
                self.assertEqual(request.messages[-2].tool_calls[0].input, "{}")

    async def test_no_arguments_at_all_are_an_empty_object(self) -> None:
        tool = EchoTool()
        await self.results(("c1", "echo", ""), tools=[tool])
        self.assertEqual(tool.ran, [{}])

    async def test_what_a_tool_raises_is_a_result_and_never_the_end_of_the_turn(self) -> None:
        cases: list[tuple[Exception, str]] = [
            (Conflict("the file has changed"), "the file has changed"),
            (FileNotFoundError(2, "No such file", "x"), "No such file"),
            (ZeroDivisionError("secret detail"), "fault of crushlite"),
        ]
        for number, (error, words) in enumerate(cases):
            with self.subTest(words):

                def fail(_: dict[str, Any], error: Exception = error) -> Result:
                    raise error

                (result,) = await self.results(
                    (f"c{number}", "echo", "{}"), tools=[EchoTool(answer=fail)]
                )
                self.assertTrue(result.is_error)
                self.assertIn(words, result.content)
                self.assertNotIn("secret detail", result.content)
                self.assertEqual(self.turned.last.message.text, "done")

    async def test_everything_a_tool_answers_is_stored_and_the_text_is_sent(self) -> None:
        answer = Result("text", metadata='{"a": 1}', data="aGk=", mime_type="image/png")
        (result,) = await self.results(
            ("c1", "echo", "{}"), tools=[EchoTool(answer=lambda _: answer)]
        )
        expected = ToolResultPart("c1", "echo", "text", '{"a": 1}', False, "aGk=", "image/png")
        self.assertEqual(result, expected)
        note = "(image/png: not shown, this model takes no such input)"
        sent = ChatMessage("tool", f"text\n{note}", tool_call_id="c1")
        self.assertEqual(self.provider.requests[1].messages[-1], sent)

    async def test_a_result_that_says_stop_ends_the_turn_and_the_calls_behind_it_do_not_run(
        self,
    ) -> None:
        stop = EchoTool("stop", answer=lambda _: denied("not today"))
        for read_only in (False, True):
            with self.subTest(read_only=read_only):
                stop.read_only = read_only
                tool = EchoTool()
                ids = [f"{name}{read_only}" for name in ("a", "b", "c")]
                results = await self.results(
                    (ids[0], "echo", "{}"),
                    (ids[1], "stop", "{}"),
                    (ids[2], "echo", "{}"),
                    tools=[stop, tool],
                )
                self.assertEqual([r.tool_call_id for r in results], ids)
                self.assertEqual([r.is_error for r in results], [False, True, True])
                self.assertIn("not today", results[1].content)
                self.assertEqual(len(tool.ran), 1)
                self.assertEqual(len(self.provider.requests), 1)
                finish = self.turned.last.message.finish
                self.assertEqual(finish and finish.reason, "end_turn")

    async def test_neighbours_that_only_read_run_at_the_same_time(self) -> None:
        gate, echo_tool = GateTool(read_only=True), EchoTool()
        calls = [(f"c{n}", "gate", "{}") for n in range(3)] + [("c3", "echo", "{}")]
        provider = PlannedProvider(use(*calls), said("done"))
        task = asyncio.create_task(self.converse(self.coder(provider, tools=[gate, echo_tool])))
        for _ in range(3):
            await gate.inside.acquire()
        self.assertEqual(echo_tool.ran, [])  # it may change what the others read: they run first
        gate.gate.set()
        await task
        self.assertEqual(len(echo_tool.ran), 1)
        sent = [m.tool_call_id for m in provider.requests[1].messages if m.role == "tool"]
        self.assertEqual(sent, ["c0", "c1", "c2", "c3"])

    async def test_calls_that_change_something_run_one_by_one_in_order(self) -> None:
        gate = GateTool()
        provider = PlannedProvider(use(("c0", "gate", "{}"), ("c1", "gate", "{}")), said("done"))
        task = asyncio.create_task(self.converse(self.coder(provider, tools=[gate])))
        await gate.inside.acquire()
        await self.clock.settle()
        self.assertTrue(gate.inside.locked())  # no other call has begun
        gate.gate.set()
        await task
        self.assertEqual(gate.left, 2)

    async def test_a_server_that_numbers_its_calls_anew_in_each_answer_is_understood(self) -> None:
        """Ids are stored, and a result names its call by the id: two calls must not share one."""
        tool = EchoTool()
        answers = [use(("call_0", "echo", json.dumps({"text": text}))) for text in "abc"]
        provider = PlannedProvider(*answers, said("done"), use(("call_0", "echo", "{}")), said("2"))
        agent = self.coder(provider, tools=[tool])
        turn = await self.converse(agent)
        turn.close(Outcome.COMPLETED, None)
        await self.converse(agent, "again")
        self.assertEqual([ran.get("text") for ran in tool.ran], ["a", "b", "c", None])
        sent = provider.requests[-1].messages
        ids = [call.id for message in sent for call in message.tool_calls]
        self.assertEqual(len(set(ids)), 4)
        results = {m.tool_call_id: m.text for m in sent if m.role == "tool"}
        self.assertEqual([results[i] for i in ids], ["echo a", "echo b", "echo c", "echo "])


class UsageTests(CoderBench):
    model = Model(
        id="m",
        cost_per_1m_in=1.0,
        cost_per_1m_out=10.0,
        cost_per_1m_in_cached=100.0,
        cost_per_1m_out_cached=1000.0,
    )

    async def session(self) -> Session:
        return await self.store.read(lambda conn: sessions.get_session(conn, SCOPE, SESSION))

    async def used(self, *answers: Answer) -> tuple[int, int, float]:
        """The session's counters after a turn with these answers."""
        await self.converse(
            self.coder(PlannedProvider(*answers), tools=[EchoTool()], model=self.model)
        )
        session = await self.session()
        return session.prompt_tokens, session.completion_tokens, round(session.cost, 9)

    async def test_a_call_costs_what_the_catalogue_says_for_each_kind_of_token(self) -> None:
        tokens = Tokens(1000, 100, cache_read=10, cache_write=1)
        counted = await self.used([Text("hi"), tokens, ModelStop("end_turn")])
        self.assertEqual(counted, (1011, 100, 0.0121))

    async def test_a_negative_price_counts_as_zero(self) -> None:
        self.model = Model(id="m", cost_per_1m_in=-1.0)
        counted = await self.used([Text("hi"), Tokens(1000, 100), ModelStop("end_turn")])
        self.assertEqual(counted, (1000, 100, 0.0))

    async def test_counters_hold_the_last_call_and_the_cost_adds_up(self) -> None:
        first, last = Tokens(1000, 100), Tokens(3000, 10)
        counted = await self.used(
            echo(1, tokens=first), [Text("done"), last, ModelStop("end_turn")]
        )
        self.assertEqual(counted, (3000, 10, 0.002 + 0.0031))

    async def test_a_later_report_replaces_only_what_it_knows(self) -> None:
        counted = await self.used(
            [Tokens(prompt=1000), Text("hi"), Tokens(completion=7), ModelStop("end_turn")]
        )
        self.assertEqual(counted[:2], (1000, 7))

    async def test_a_partial_report_keeps_the_counter_that_was_known(self) -> None:
        await self.used([Text("hi"), Tokens(1000, 100), ModelStop("end_turn")])
        counted = await self.used([Text("hi"), Tokens(completion=7), ModelStop("end_turn")])
        self.assertEqual(counted[:2], (1000, 7))

    async def test_without_a_report_the_size_is_estimated_and_costs_nothing(self) -> None:
        for report in ([], [Tokens(0, 0)]):
            with self.subTest(report):
                arguments = json.dumps({"text": "x" * 4000})
                asked = use(("c" + str(report), "echo", arguments))
                last: Answer = [Thought("h" * 40), Text("a" * 400), *report, ModelStop("end_turn")]
                prompt, completion, cost = await self.used([*asked[:-1], *report, asked[-1]], last)
                self.assertEqual((completion, cost), (110, 0.0))
                # The second request holds both the call and its result.
                self.assertGreater(prompt, 2000)
                self.assertLess(prompt, 5000)


class SummaryTests(CoderBench):
    async def summarized(
        self,
        window: int,
        used: Tokens | None,
        *,
        prompt: str = "hello",
        options: CoderOptions | None = None,
    ) -> bool:
        """Whether a turn makes a summary after a model call with this usage."""
        self.count = getattr(self, "count", 0) + 1
        self.provider = PlannedProvider(
            echo(self.count, "x", used), said("one"), said("two"), said("three")
        )
        agent = self.coder(
            self.provider,
            tools=[EchoTool()],
            model=Model(id="m", context_window=window),
            options=options,
        )
        (await self.converse(agent, prompt)).close(Outcome.COMPLETED, None)
        flagged = self.provider.requests[1].messages[-1].text.startswith(SUMMARY)
        await self.execute("UPDATE sessions SET prompt_tokens = 0, completion_tokens = 0")
        return flagged

    @scenario(266)
    async def test_a_session_is_summarized_when_little_of_the_window_is_left(self) -> None:
        """A large window is full when 20,000 tokens are left, another when a fifth is; an unknown
        one never, and none where it is switched off."""
        cases = [
            (400_000, Tokens(379_000, 999), False),
            (400_000, Tokens(379_000, 1_000), True),
            (200_000, Tokens(159_000, 999), False),
            (200_000, Tokens(159_000, 1_000), True),
            (200_000, Tokens(1_000, 0, cache_read=158_000, cache_write=1_000), True),
            (0, Tokens(10_000_000, 1), False),
        ]
        for window, tokens, expected in cases:
            with self.subTest(window=window, tokens=tokens):
                self.assertEqual(await self.summarized(window, tokens), expected)
        off = CoderOptions(auto_summarize=False)
        self.assertFalse(await self.summarized(1000, Tokens(999, 1), options=off))

    async def test_a_window_is_full_by_estimate_where_nothing_is_reported(self) -> None:
        """Local servers often report nothing, and have the smallest windows."""
        self.assertFalse(await self.summarized(5000, None))
        self.assertTrue(await self.summarized(5000, None, prompt="x" * 16_000))

    async def test_the_turn_goes_on_with_the_summary_and_what_was_asked(self) -> None:
        """At the later steps of the turn too: the summary alone does not say what was asked."""
        provider = PlannedProvider(
            echo(1, "big", Tokens(990, 10)),
            said("We talked about frogs."),
            echo(2, "small", Tokens(100, 10)),
            said("done"),
        )
        model = Model(id="m", context_window=1000)
        self.user("I like frogs")
        agent = self.coder(provider, tools=[EchoTool()], model=model)
        turn = await self.converse(agent, "draw one")
        turn.close(Outcome.COMPLETED, None)
        summary, third, fourth = provider.requests[1:]
        before = provider.requests[0]
        self.assertEqual((summary.system, summary.tools), (before.system, before.tools))
        self.assertEqual([m.text for m in summary.messages[:2]], ["I like frogs", "draw one"])
        self.assertEqual(summary.messages[-2].text, "echo big")
        for request in (third, fourth):
            first = request.messages[0]
            self.assertEqual(first.role, "user")
            self.assertIn("We talked about frogs.", first.text)
            self.assertTrue(first.text.endswith("draw one"))
        self.assertEqual([m.role for m in third.messages], ["user"])
        self.assertEqual([m.role for m in fourth.messages], ["user", "assistant", "tool"])
        rows = await self.stored(turn)
        flags = [(row.role, row.is_summary_message, row.text) for row in rows[4:]]
        self.assertEqual(
            flags,
            [
                ("assistant", True, "We talked about frogs."),
                ("assistant", False, ""),
                ("tool", False, ""),
                ("assistant", False, "done"),
            ],
        )
        self.assertEqual(turn.last.message.text, "done")

    async def test_ids_of_calls_before_a_summary_are_not_taken_again(self) -> None:
        call = ("call_0", "echo", "{}")
        provider = PlannedProvider(
            use(call, tokens=Tokens(990, 10)), said("short"), use(call), said("done")
        )
        tool = EchoTool()
        model = Model(id="m", context_window=1000)
        await self.converse(self.coder(provider, tools=[tool], model=model))
        self.assertEqual(len(tool.ran), 2)

    async def test_plain_answers_fill_a_window_too(self) -> None:
        """A conversation without tools is summarized before the answer that would not fit."""
        full: Answer = [Text("a long answer"), Tokens(800, 1), ModelStop("end_turn")]
        provider = PlannedProvider(full, said("in short: words"), said("more"))
        agent = self.coder(provider, model=Model(id="m", context_window=1000))
        (await self.converse(agent, "talk")).close(Outcome.COMPLETED, None)
        self.assertEqual(len(provider.requests), 1)
        await self.converse(agent, "go on")
        (asked,) = provider.requests[2].messages
        self.assertIn("in short: words", asked.text)
        self.assertTrue(asked.text.endswith("go on"))

    async def test_files_come_along_behind_a_summary_that_was_made_before_they_were_read(
        self,
    ) -> None:
        """After a later summary they are not repeated: they may be what fills the window."""
        full = Tokens(800, 1)
        provider = PlannedProvider(
            [Text("a long answer"), full, ModelStop("end_turn")],
            said("gist 1"),
            echo(1, tokens=full),
            said("gist 2"),
            said("done"),
        )
        model = Model(id="m", context_window=1000, supports_attachments=True)
        agent = self.coder(provider, tools=[EchoTool()], model=model)
        (await self.converse(agent, "talk")).close(Outcome.COMPLETED, None)
        files = [binary("text/plain", b"ribbit", "a.txt"), binary("image/png", b"png", "a.png")]
        await self.converse(agent, "look", files)
        first, second = (provider.requests[n].messages[0] for n in (2, 4))
        self.assertRegex(first.text, r"(?s)gist 1.*look.*ribbit")
        self.assertEqual(len(first.images), 1)
        self.assertIn("gist 2", second.text)
        self.assertTrue(second.text.endswith("look"))
        self.assertEqual(second.images, [])

    async def test_a_summary_that_fails_fails_the_turn_with_the_words_of_the_server(self) -> None:
        provider = PlannedProvider(
            echo(1, tokens=Tokens(990, 10)), [ProviderError("too long to read")], said("never")
        )
        agent = self.coder(provider, tools=[EchoTool()], model=Model(id="m", context_window=1000))
        with self.assertRaisesRegex(ProviderError, "too long to read"):
            await self.converse(agent)

    async def test_an_empty_summary_replaces_nothing(self) -> None:
        provider = PlannedProvider(echo(1, tokens=Tokens(990, 10)), [ModelStop("end_turn")])
        agent = self.coder(provider, tools=[EchoTool()], model=Model(id="m", context_window=1000))
        with self.assertRaises(ProviderFailed):
            await self.converse(agent)
        session = await self.store.read(lambda conn: sessions.get_session(conn, SCOPE, SESSION))
        self.assertEqual(session.summary_message_id, "")

    async def test_the_summary_is_asked_for_with_the_open_todos(self) -> None:
        todos = [Todo("feed the frog", "in_progress"), Todo("buy flies", "pending")]
        await self.store.submit(lambda conn: sessions.set_todos(conn, SCOPE, SESSION, todos, 1))
        provider = PlannedProvider(said("short"))
        self.user("hello")
        await self.coder(provider).summarize(self.turn())
        (request,) = provider.requests
        wish = request.messages[-1]
        self.assertEqual((wish.role, wish.text.startswith(SUMMARY)), ("user", True))
        self.assertIn("[in_progress] feed the frog", wish.text)
        self.assertIn("[pending] buy flies", wish.text)

    async def test_without_todos_nothing_is_said_of_them(self) -> None:
        provider = PlannedProvider(said("short"))
        await self.coder(provider).summarize(self.turn())
        self.assertEqual(provider.requests[0].messages[-1].text, SUMMARY)


class SilentProvider(PlannedProvider):
    """Begins to answer and never goes on."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        self.open += 1
        try:
            yield Text("Sm")
            await asyncio.Event().wait()
        finally:
            self.open -= 1


class TitleTests(CoderBench):
    async def title(self, text: str, small: Any, large: Any = None) -> str:
        self.small, self.large = PlannedProvider(small), PlannedProvider(large or said("Large"))
        agent = self.coder(self.large, small=self.small)
        self.made = await agent.title(text)
        return self.made.text

    async def test_the_small_model_is_asked_alone(self) -> None:
        self.assertEqual(await self.title("draw a frog", said("Frog Drawing")), "Frog Drawing")
        self.assertEqual(self.large.requests, [])
        (request,) = self.small.requests
        self.assertEqual((request.model, request.system, request.tools), ("small", TITLE, []))
        self.assertEqual([m.text for m in request.messages], ["draw a frog"])

    async def test_the_large_model_replaces_a_small_one_that_fails(self) -> None:
        self.assertEqual(await self.title("x", [Text("Sm"), broken()]), "Large")
        self.assertEqual(self.large.requests[0].model, "large")

    async def test_thinking_line_breaks_and_quotes_are_taken_out(self) -> None:
        cases = {
            "<think>frogs?\nyes</think>\n\nA Frog": "A Frog",
            "A\nFrog\r\n Drawn": "A Frog Drawn",
            '"A Frog"': "A Frog",
            "<think>a</think>A <think>b</think>Frog": "A Frog",
        }
        for answer, title in cases.items():
            with self.subTest(answer):
                self.assertEqual(await self.title("x", said(answer)), title)
        reasoned: Answer = [Thought("hmm"), Text("A Frog"), ModelStop("end_turn")]
        self.assertEqual(await self.title("x", reasoned), "A Frog")

    async def test_an_empty_title_is_the_beginning_of_the_prompt(self) -> None:
        for answer in ("", "\n", "<think>never closed", '""'):
            with self.subTest(answer):
                text = "draw\na " + "frog " * 20
                title = await self.title(text, said(answer))
                self.assertEqual(title, ("draw a " + "frog " * 20)[:50])
                self.assertEqual(len(title), 50)

    async def test_after_two_failures_the_title_is_the_prompt_and_cost_nothing(self) -> None:
        refused = [ProviderError("no")]
        self.assertEqual(await self.title("draw\na frog", refused, refused), "draw a frog")
        self.assertTrue(self.made.plain, "one that a client gave is better")
        self.assertEqual((self.made.usage.cost, self.made.usage.estimated), (0.0, True))

    async def test_a_small_model_that_is_silent_for_a_minute_is_left_at_once(self) -> None:
        small, large = SilentProvider(), PlannedProvider(said("Large"))
        agent = self.coder(large, small=small)
        agent._clock = self.clock
        task = asyncio.create_task(agent.title("x"))
        await self.clock.advance(59.0)
        self.assertEqual((task.done(), small.open), (False, 1))
        await self.clock.advance(1.0)
        self.assertEqual(((await task).text, small.open, self.clock.pending), ("Large", 0, 0))

    async def test_a_title_reports_what_it_used(self) -> None:
        await self.title("x", [Text("A Frog"), Tokens(30, 3), ModelStop("end_turn")])
        usage = self.made.usage
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens), (30, 3))


# Histories ----------------------------------------------------------------------------------------


def message(role: str, *parts: Part, id_: str = "", summary: bool = False) -> Message:
    return Message(id_, role, SESSION, list(parts), is_summary_message=summary)


def user(text: str, *parts: Part) -> Message:
    return message("user", TextPart(text), *parts, FinishPart("stop"))


def calling(*ids: str, text: str = "") -> Message:
    calls = [ToolCallPart(id_, "ls", '{"path": "."}', finished=True) for id_ in ids]
    return message("assistant", TextPart(text), *calls, FinishPart("tool_use"))


def result(id_: str, content: str = "a.txt", **more: Any) -> Message:
    return message("tool", ToolResultPart(id_, "ls", content, **more), FinishPart("stop"))


def binary(mime_type: str, content: bytes = b"data", path: str = "file") -> BinaryPart:
    return BinaryPart(path, mime_type, base64.b64encode(content).decode())


class HistoryTests(unittest.TestCase):
    def roles(self, *messages: Message, **more: Any) -> list[tuple[str, str]]:
        return [(m.role, m.text) for m in chat_messages(messages, **more)]

    def test_the_text_of_a_user_is_sent_exactly_as_typed(self) -> None:
        text = "  <tool>\n\ttabs & “quotes” \x00 \n\n"
        self.assertEqual(self.roles(user(text), user("")), [("user", text), ("user", "")])

    def test_every_user_message_is_one_of_its_own(self) -> None:
        chat = self.roles(user("a"), user("b"), message("assistant"), user("c"))
        self.assertEqual(chat, [("user", "a"), ("user", "b"), ("user", "c")])

    def test_an_assistant_message_is_sent_with_its_calls_and_thoughts(self) -> None:
        thought = ReasoningPart("hmm", "signed")
        asked = calling("c1", text="look")
        asked.parts.insert(0, thought)
        self.assertEqual(
            chat_messages([user("a"), asked, result("c1", is_error=True)])[1:],
            [
                ChatMessage(
                    "assistant",
                    "look",
                    thinking="hmm",
                    signature="signed",
                    tool_calls=[ToolCall("c1", "ls", '{"path": "."}')],
                ),
                ChatMessage("tool", "Error: a.txt", tool_call_id="c1", is_error=True),
            ],
        )

    def test_the_result_of_a_failed_call_says_once_that_it_is_an_error(self) -> None:
        failed = [result("c1", is_error=True), result("c2", is_error=True)]
        failed[1].tool_results[0].content = "Error: as it was stored before"
        chat = self.roles(user("a"), calling("c1", "c2"), *failed)
        self.assertEqual(
            [text for role, text in chat if role == "tool"],
            ["Error: a.txt", "Error: as it was stored before"],
        )

    def test_an_image_of_a_tool_is_sent_to_a_model_that_takes_images(self) -> None:
        shown = result("c1")
        shown.tool_results[0].data, shown.tool_results[0].mime_type = "aGk=", "image/png"
        sent = chat_messages([user("a"), calling("c1"), shown], images=Images.ALL)[-1]
        self.assertEqual((sent.text, sent.images), ("a.txt", [Image("image/png", "aGk=")]))
        sent = chat_messages([user("a"), calling("c1"), shown])[-1]
        self.assertEqual(sent.images, [])
        self.assertIn("image/png: not shown", sent.text)
        shown.tool_results[0].data = "no base64"
        sent = chat_messages([user("a"), calling("c1"), shown], images=Images.ALL)[-1]
        self.assertEqual(sent.images, [], "providers would refuse every later request")

    def test_results_stand_right_behind_their_call_in_the_order_of_the_calls(self) -> None:
        messages = [user("a"), calling("c1", "c2"), result("c2", "2"), user("b"), result("c1", "1")]
        chat = self.roles(*messages)
        self.assertEqual(
            chat,
            [("user", "a"), ("assistant", ""), ("tool", "1"), ("tool", "2"), ("user", "b")],
        )

    def test_a_call_without_a_result_gets_an_error_and_its_neighbour_keeps_its_own(self) -> None:
        chat = chat_messages([user("a"), calling("c1", "c2"), result("c2"), user("b")])
        self.assertEqual([m.tool_call_id for m in chat[2:4]], ["c1", "c2"])
        self.assertEqual([m.is_error for m in chat[2:4]], [True, False])
        self.assertIn("interrupted", chat[2].text)

    def test_a_result_without_a_call_is_left_out(self) -> None:
        self.assertEqual(
            self.roles(user("a"), result("c9"), user("b")), [("user", "a"), ("user", "b")]
        )

    def test_an_assistant_message_that_says_nothing_is_left_out(self) -> None:
        for parts in ((), (TextPart(""),), (ReasoningPart("only thoughts"),)):
            with self.subTest(parts):
                empty = message("assistant", *parts, FinishPart("canceled"))
                self.assertEqual(self.roles(user("a"), empty), [("user", "a")])

    def test_stored_arguments_that_are_no_object_are_sent_as_an_empty_one(self) -> None:
        for stored in ("", '{"pa', "[1]", "null", '{"a": Infinity}', "[" * 5000):
            with self.subTest(stored[:10]):
                call = ToolCallPart("c1", "ls", stored)
                chat = chat_messages([message("assistant", call)])
                self.assertEqual(chat[0].tool_calls[0].input, "{}")
        self.assertEqual(valid_input('{"a": [1, 2.5, null]}'), '{"a": [1, 2.5, null]}')

    def test_a_history_begins_with_the_newest_summary(self) -> None:
        messages = [
            user("old"),
            calling("c1"),
            message("assistant", TextPart("older summary"), id_="s1", summary=True),
            user("newer"),
            message("assistant", TextPart("the gist"), id_="s2", summary=True),
            result("c1"),
            user("now"),
            message("assistant", TextPart("half"), id_="s3", summary=True),
            calling("c1"),
        ]
        first, *rest = self.roles(*messages, summary_id="s2")
        self.assertEqual(first[0], "user")
        self.assertIn("the gist", first[1])
        self.assertEqual([role for role, _ in rest], ["user", "assistant", "tool"])
        self.assertEqual(rest[0], ("user", "now"))

    def test_a_result_from_before_the_summary_answers_no_call_behind_it(self) -> None:
        gist = message("assistant", TextPart("gist"), id_="s", summary=True)
        chat = self.roles(calling("c1"), result("c1", "old"), gist, calling("c1"), summary_id="s")
        self.assertIn("interrupted", chat[-1][1])

    def test_without_a_valid_summary_everything_is_sent_but_summaries(self) -> None:
        half = message("assistant", TextPart("half"), id_="s1", summary=True)
        for summary_id in ("", "gone"):
            with self.subTest(summary_id):
                chat = self.roles(user("a"), half, user("b"), summary_id=summary_id)
                self.assertEqual(chat, [("user", "a"), ("user", "b")])

    def test_text_files_are_appended_to_the_text(self) -> None:
        files = [
            binary("text/plain", "é\n".encode(), "a.txt"),
            binary("text/x-c", b"int x;", "b.c"),
        ]
        ((_, text),) = self.roles(user("look", *files))
        self.assertTrue(text.startswith("look\n\n"))
        self.assertRegex(text, r'(?s)"a.txt".*é\n.*"b.c".*int x;')
        damaged = BinaryPart("c.txt", "text/plain", "no base64!")
        self.assertIn("damaged", self.roles(user("look", damaged))[0][1])

    def test_images_go_to_models_that_take_them_and_are_named_to_others(self) -> None:
        asked = user("look", binary("image/png", b"png", "a.png"), binary("image/tiff", b"t", "b"))
        (seeing,) = chat_messages([asked], images=Images.ALL)
        self.assertEqual(seeing.images, [Image("image/png", base64.b64encode(b"png").decode())])
        self.assertIn("b of type image/tiff is not shown", seeing.text)
        self.assertNotIn("a.png", seeing.text)
        (blind,) = chat_messages([asked])
        self.assertEqual(blind.images, [])
        self.assertIn("a.png of type image/png is not shown", blind.text)

    def test_a_shell_command_is_shown_with_its_output_and_exit_code(self) -> None:
        ran = message("user", ShellCommandPart("make", "no rule\n", 2), FinishPart("stop"))
        ((role, text),) = self.roles(ran)
        self.assertEqual(role, "user")
        self.assertRegex(text, r"(?s)make.*2.*no rule")

    def test_four_characters_are_about_a_token(self) -> None:
        self.assertEqual(estimated_tokens("a" * 10, "b" * 6), 4)


# In a daemon --------------------------------------------------------------------------------------


class SessionTests(CoderTestCase):
    async def row(self) -> dict[str, Any]:
        answer = await self.anna.call("GET", f"/sessions/{self.session}")
        found: dict[str, Any] = answer.json
        return found

    async def until_titled(self, title: str) -> None:
        if not any(event["title"] == title for event in self.anna.events.all("session")):
            await self.anna.events.wait_for("session", title=title)

    async def test_a_failed_title_is_a_fallback_and_no_failed_turn(self) -> None:
        await self.start(titles=lambda _: [Fail(500, "no titles today")])
        run_id = await self.post("draw a frog")
        for number in (1, 2):  # the turn, and the title, for which the small model failed
            call = await self.model.call(number)
            if call.request["messages"][0]["content"] == TITLE:
                call.error(404, "no such model")
            else:
                await call.text("here")
                await call.finish()
        self.assertEqual((await self.complete(run_id))["text"], "here")
        await self.until_titled("draw a frog")

    async def test_a_summary_in_the_middle_is_one_run_with_one_ending(self) -> None:
        """Tool, summary, answer: clients see one run, and the session points to the summary."""

        def script(request: dict[str, Any]) -> list[Step]:
            asked = chat(request)
            if asked[-1][1].startswith(SUMMARY):
                return [Say("the gist"), End(usage=(900, 20))]
            if "the gist" in asked[0][1]:
                return [Say("done"), End(usage=(30, 5))]
            return [Use("echo", "{}"), End(usage=(900, 50))]

        model = Model(id="m", context_window=1000)
        await self.start(script=script, tools=[EchoTool()], model=model)
        done = await self.complete(await self.post("go"))
        self.assertEqual((done["text"], done["error"]), ("done", None))
        self.assertEqual(len(self.anna.events.all("run_complete")), 1)
        row = await self.row()
        messages = await self.anna.messages(self.session)
        flagged = [m for m in messages if m["is_summary_message"]]
        self.assertEqual([m["id"] for m in flagged], [row["summary_message_id"]])
        self.assertEqual((flagged[0].text, flagged[0].finish), ("the gist", "end_turn"))
        self.assertEqual((row["prompt_tokens"], row["completion_tokens"]), (30, 5))
        self.assertEqual(len(self.model.calls), 3)

    async def test_a_cancel_in_the_middle_of_a_summary_takes_it_back(self) -> None:
        model = Model(id="m", context_window=1000)
        await self.start(tools=[EchoTool()], model=model)
        run_id = await self.post("go")
        call = await self.model.call(1)
        await call.tool_call("c1", "echo", "{}")
        await call.finish(usage=(900, 50))
        summary = await self.model.call(2)
        await summary.text("the gi")
        await self.anna.events.wait_for("message", is_summary_message=True)
        await self.anna.cancel(self.session)
        self.assertTrue((await self.complete(run_id))["cancelled"])
        self.assertEqual((await self.row())["summary_message_id"], "")
        finishes = [(role, finish) for role, finish, _ in await self.shape()]
        self.assertEqual(finishes, [("user", "stop"), ("assistant", "canceled"), ("tool", "stop")])

    async def test_a_shell_command_is_part_of_the_next_request(self) -> None:
        await self.start()
        body = {"command": "echo croak; exit 3"}
        answer = await self.anna.call("POST", f"/agent/sessions/{self.session}/shell", body)
        self.assertEqual((answer.status, answer.json["exit_code"]), (200, 3))
        await self.exchange("what was that?", "a frog")
        shell, prompt = self.asked(1)
        self.assertRegex(shell[1], r"(?s)echo croak.*3.*croak")
        self.assertEqual(prompt, ("user", "what was that?"))


class BuildTests(BoundedTestCase):
    async def test_a_configured_model_is_found_and_works_on_the_project(self) -> None:
        """From a crush.json of the user to a file that the model has changed."""
        model = await self.enterAsyncContext(FakeModel(script=obedient))

        def make(path: Path, env: Mapping[str, str], config: Any) -> Any:
            return find_agent("auto", SystemClock(), [CoderWing(local=())])(path, env, config)

        daemon = await self.enterAsyncContext(LocalDaemon(make))
        home = daemon.root / "home"
        (home / ".config" / "crush").mkdir(parents=True)
        config = {
            "options": {"disable_default_providers": True},
            "providers": {
                "pond": {
                    "type": "openai-compat",
                    "base_url": model.base_url,
                    "api_key": "$POND_KEY",
                    "system_prompt_prefix": "You live in a pond.",
                    "models": [
                        {"id": "frog", "context_window": 100_000, "default_max_tokens": 4096},
                        {"id": "tadpole", "context_window": 8_000},
                    ],
                }
            },
            "models": {
                "large": {"provider": "pond", "model": "frog"},
                "small": {"provider": "pond", "model": "tadpole"},
            },
        }
        (home / ".config" / "crush" / "crush.json").write_text(json.dumps(config))
        (daemon.root / "project" / "AGENTS.md").write_text("Frogs are green.")
        env = [f"HOME={home}", f"PATH={os.environ['PATH']}", "POND_KEY=croak-123456789"]
        anna = await daemon.join(env=env, yolo=True)
        info = (await anna.call("GET", "/agent")).json
        self.assertEqual((info["is_ready"], info["model_cfg"]["model"]), (True, "frog"))
        session = await anna.session()
        await anna.prompt(session, "@write pond/frog.txt green", run_id="r1")
        done = await anna.events.wait_for("run_complete", run_id="r1")
        self.assertEqual(done["error"], None)
        self.assertEqual((daemon.root / "project/pond/frog.txt").read_text(), "green")
        await anna.prompt(session, "@bash echo ${POND_KEY:-no key}", run_id="r2")
        done = await anna.events.wait_for("run_complete", run_id="r2")
        self.assertIn("The tool said: no key", done["text"])
        asked = [call for call in model.calls if call.request.get("tools")]
        self.assertEqual({call.request["model"] for call in asked}, {"frog"})
        self.assertEqual(
            {call.headers["authorization"] for call in asked}, {"Bearer croak-123456789"}
        )
        self.assertEqual(asked[0].request["max_tokens"], 4096)
        system = asked[0].request["messages"][0]["content"]
        self.assertTrue(system.startswith("You live in a pond.\n"))
        self.assertIn("Frogs are green.", system)
        titled = [c.request["model"] for c in model.calls if not c.request.get("tools")]
        self.assertEqual(titled, ["tadpole"])
