"""What an agent's calls do to messages, counters and files, and the fence behind them."""

from __future__ import annotations

import asyncio
import threading
import unittest
from concurrent.futures import Future
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from crushlite.agent.base import Usage, Verdict
from crushlite.errors import BadRequest, CorruptDatabase, LimitReached, TurnOver
from crushlite.hosting.agents import run_blocking
from crushlite.hosting.prompts import Failure, explain
from crushlite.hosting.turn import PIECES, LiveTurn
from crushlite.protocol.messages import (
    Attachment,
    FinishPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolOutput,
    ToolResultPart,
)
from crushlite.protocol.permissions import PermissionRequest
from crushlite.protocol.questions import Question, QuestionBatch, QuestionResponse
from crushlite.protocol.runs import AgentEvent
from crushlite.protocol.sessions import Session, Todo
from crushlite.runs import Outcome
from crushlite.settings import Settings
from crushlite.store import sessions
from crushlite.testing import LocalDaemon
from crushlite.wing import WorkspacePart
from tests.support.basics import BoundedTestCase
from tests.support.turns import SCOPE, SESSION, Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from crushlite.agent.base import Turn
    from crushlite.backlog import Event
    from crushlite.wing import Author, CommandWatch

LONE = "\ud800"  # half of a pair: no UTF-8, no SQLite text


class TurnBench(Bench):
    coalesce = 0.0  # every piece is an event: what is checked here is what, not how often

    async def close(
        self, turn: LiveTurn, outcome: Outcome = Outcome.COMPLETED, failure: Failure | None = None
    ) -> list[Message]:
        """End a turn as the workspace does, and return the rows it left."""
        turn.close(outcome, failure)
        await self.store.submit(self.transcript.saving(turn.messages))
        self.transcript.saved(turn.messages)
        return await self.rows()

    async def shape(self) -> list[tuple[str, list[str]]]:
        """Roles and part types of the stored messages."""
        return [(row.role, [part.tag for part in row.parts]) for row in await self.rows()]

    @staticmethod
    def reasons(rows: list[Message]) -> list[str]:
        return [row.finish.reason if row.finish else "" for row in rows]


class StepTests(TurnBench):
    async def test_the_first_piece_creates_an_empty_message_of_the_selected_model(self) -> None:
        turn = self.turn()
        self.assertEqual(self.hub.log, [])
        await turn.say("hi")
        created, updated = self.hub.log
        self.assertEqual((created.action, created.payload.parts), ("created", []))
        self.assertEqual((created.payload.role, created.payload.session_id), ("assistant", SESSION))
        self.assertEqual((created.payload.model, created.payload.provider), ("m", "p"))
        self.assertEqual((updated.action, updated.text), ("updated", "hi"))

    async def test_a_summary_ends_the_step_also_if_the_agent_makes_none(self) -> None:
        turn = self.turn()
        await turn.say("before")
        await turn.summarize()
        await turn.say("after")
        texts = [live.joined().text for live in turn.messages]
        self.assertEqual(texts, ["before", "after"])

    async def test_an_empty_piece_creates_nothing(self) -> None:
        turn = self.turn()
        await turn.say("")
        await turn.think("")
        self.assertEqual(self.hub.log, [])

    async def test_the_piece_after_a_result_begins_a_new_step(self) -> None:
        for begin in ("say", "think", "tool_call"):
            with self.subTest(begin):
                turn = self.turn()
                call = await turn.tool_call("ls", "{}")
                await turn.tool_result(call, "a.txt")
                await (turn.tool_call("ls", "{}") if begin == "tool_call" else turn.say("so"))
                steps = [live.message for live in turn.messages if live.message.role == "assistant"]
                self.assertEqual(len(steps), 2)
                self.assertEqual(self.reasons(steps), ["tool_use", ""])

    async def test_a_second_result_of_one_step_opens_no_step(self) -> None:
        turn = self.turn()
        one = await turn.tool_call("ls", "{}")
        two = await turn.tool_call("ls", "{}")
        await turn.tool_result(one, "a")
        await turn.tool_result(two, "b")
        await self.close(turn)
        self.assertEqual(
            await self.shape(),
            [
                ("assistant", ["tool_call", "tool_call", "finish"]),
                ("tool", ["tool_result", "finish"]),
                ("tool", ["tool_result", "finish"]),
            ],
        )

    async def test_step_ends_the_message_explicitly(self) -> None:
        turn = self.turn()
        await turn.say("one")
        await turn.step()
        await turn.say("two")
        rows = await self.close(turn)
        self.assertEqual([row.text for row in rows], ["one", "two"])
        self.assertEqual(self.reasons(rows), ["tool_use", "end_turn"])

    async def test_a_new_step_leaves_no_call_without_a_result(self) -> None:
        turn = self.turn()
        open_call = await turn.tool_call("ls", '{"pa', finished=False)
        await turn.step()
        await turn.say("on")
        rows = await self.rows()
        self.assertEqual(rows[0].tool_calls, [ToolCallPart(open_call, "ls", "{}", finished=True)])
        (result,) = rows[1].tool_results
        self.assertEqual((result.tool_call_id, result.is_error), (open_call, True))
        self.assertEqual(rows[2].text, "on")

    async def test_max_steps_stops_at_the_cap_and_not_before(self) -> None:
        turn = self.turn(max_steps=2)
        await turn.step()
        await turn.say("one")
        await turn.step()
        await turn.say("two")
        with self.assertRaises(LimitReached) as raised:
            await turn.step()
        self.assertIn("max_steps = 2", str(raised.exception))
        call = await turn.tool_call("ls", "{}")
        await turn.tool_result(call, "x")
        for again in (turn.say("three"), turn.think("three"), turn.tool_call("ls", "{}")):
            with self.assertRaises(LimitReached):
                await again
        self.assertEqual([row.text for row in await self.rows() if row.text], ["one", "two"])

    async def test_a_leading_line_break_is_dropped_once_per_message(self) -> None:
        turn = self.turn()
        await turn.say("\nfirst")
        await turn.say("\nsecond")
        await turn.step()
        await turn.say("\n\nthird")
        rows = await self.close(turn)
        self.assertEqual([row.text for row in rows], ["first\nsecond", "\nthird"])

    async def test_reasoning_is_closed_by_the_answer(self) -> None:
        turn = self.turn()
        await turn.think("hm ")
        await self.clock.advance(2)
        await turn.think("so", signature="s")
        await turn.say("well")
        (row,) = await self.close(turn)
        now = int(self.clock.now())
        self.assertEqual(row.parts[0], ReasoningPart("hm so", "s", now - 2, now))
        self.assertEqual(row.text, "well")


class ToolTests(TurnBench):
    async def test_one_result_is_one_tool_message_with_all_its_fields(self) -> None:
        turn = self.turn()
        call = await turn.tool_call("view", '{"file_path":"a"}', id="call_9")
        self.assertEqual(call, "call_9")
        await turn.tool_result(call, "text", True, '{"x":1}', "Zm9v", "image/png")
        assistant, tool = await self.rows()
        self.assertEqual(
            assistant.parts, [ToolCallPart("call_9", "view", '{"file_path":"a"}', finished=True)]
        )
        self.assertEqual(
            tool.parts,
            [
                ToolResultPart("call_9", "view", "text", '{"x":1}', True, "Zm9v", "image/png"),
                FinishPart("stop"),
            ],
        )
        self.assertEqual(tool.role, "tool")

    async def test_calls_without_an_id_get_one_of_their_own(self) -> None:
        turn = self.turn()
        ids = {await turn.tool_call("ls", "{}") for _ in range(3)}
        self.assertEqual(len(ids), 3)
        self.assertTrue(all(ids))

    async def test_streaming_input_replaces_the_call_with_its_id(self) -> None:
        turn = self.turn()
        for text in ('{"a', '{"a":1'):
            await turn.tool_call("ls", text, id="c", finished=False)
        await turn.tool_call("ls", '{"a":1}', id="c")
        (row,) = await self.rows()
        self.assertEqual(row.parts, [ToolCallPart("c", "ls", '{"a":1}', finished=True)])

    async def test_a_result_needs_an_open_call(self) -> None:
        turn = self.turn()
        await turn.tool_call("ls", "{}", id="c")
        await turn.tool_result("c", "x")
        for wrong in ("c", "unknown"):
            with self.subTest(wrong), self.assertRaises(BadRequest):
                await turn.tool_result(wrong, "again")
        self.assertEqual(len(await self.rows()), 2)

    async def test_an_answered_call_is_not_taken_again_while_others_of_its_step_are_open(
        self,
    ) -> None:
        turn = self.turn()
        for call in ("c", "d"):
            await turn.tool_call("ls", "{}", id=call)
        await turn.tool_result("c", "x")
        with self.assertRaises(BadRequest):
            await turn.tool_call("ls", "{}", id="c")
        await turn.tool_result("d", "y")
        self.assertEqual(len(await self.rows()), 3)

    async def test_a_later_step_may_use_an_id_again_which_means_its_newest_call(self) -> None:
        turn = self.turn()
        for step in range(3):
            for call in "01":
                await turn.tool_call("ls", "", id=call, finished=False)
                await turn.tool_call("ls", {"step": step}, id=call)
            for call in "10":
                await turn.tool_result(call, f"{call} of step {step}")
        rows = await self.close(turn)
        calls = [[call.id for call in row.tool_calls] for row in rows if row.tool_calls]
        self.assertEqual(([len(step) for step in calls], calls[0]), ([2, 2, 2], ["0", "1"]))
        self.assertEqual(len({call for step in calls for call in step}), 6, "an id of two calls")
        contents = {r.tool_call_id: r.content for row in rows for r in row.tool_results}
        wanted = [f"{call} of step {step}" for step in range(3) for call in "01"]
        self.assertEqual([contents[call] for step in calls for call in step], wanted)
        inputs = [call.input for row in rows for call in row.tool_calls]
        self.assertEqual(inputs, [f'{{"step":{step}}}' for step in range(3) for _ in "01"])

    async def test_an_id_that_is_used_again_stays_the_same_after_an_erase(self) -> None:
        turn = self.turn()
        await turn.tool_call("ls", "{}", id="c")
        await turn.tool_result("c", "x")
        await turn.say("half")
        first = await turn.tool_call("ls", "{", id="c", finished=False)
        await turn.erase()
        again = await turn.tool_call("ls", "{}", id="c")
        await turn.tool_result(again, "y")
        self.assertEqual(again, first)
        rows = await self.close(turn)
        ids = [result.tool_call_id for row in rows for result in row.tool_results]
        self.assertEqual(ids, ["c", again])

    async def test_people_are_shown_the_call_that_an_id_means_now(self) -> None:
        turn = self.turn()
        await turn.tool_call("ls", "{}", id="c")
        await turn.tool_result("c", "x")
        call = await turn.tool_call("bash", "{}", id="c")
        self.assertNotEqual(call, "c")
        turn.progress("c", "line\n")
        asking = asyncio.create_task(turn.permission("bash", "execute", tool_call_id="c"))
        form = asyncio.create_task(
            turn.ask([Question("q", "yes_no", "l", "Q?", "d")], tool_call_id="c")
        )
        await self.clock.settle()
        self.workspace.permissions.close_run(turn.run_id)
        self.workspace.questions.close_run(turn.run_id)
        await asyncio.gather(asking, form)
        for kind in (ToolOutput, PermissionRequest, QuestionBatch):
            (event,) = self.published(kind)
            self.assertEqual(event.payload.tool_call_id, call, kind)

    async def test_erase_drops_the_step_and_nothing_before_it(self) -> None:
        turn = self.turn()
        call = await turn.tool_call("ls", "{}")
        await turn.tool_result(call, "x")
        await turn.erase()  # the next step has streamed nothing yet
        await turn.think("bad idea")
        await turn.say("half an ans")
        await turn.tool_call("ls", "{", finished=False)
        await turn.erase()
        await turn.say("\nan answer")
        rows = await self.close(turn)
        self.assertEqual(
            await self.shape(),
            [
                ("assistant", ["tool_call", "finish"]),
                ("tool", ["tool_result", "finish"]),
                ("assistant", ["text", "finish"]),
            ],
        )
        self.assertEqual(rows[2].text, "an answer")


class EndingTests(TurnBench):
    async def test_a_turn_that_said_nothing_still_ends_with_a_message(self) -> None:
        for outcome, reason in (
            (Outcome.COMPLETED, "end_turn"),
            (Outcome.CANCELED, "canceled"),
            (Outcome.FAILED, "error"),
        ):
            with self.subTest(reason):
                rows = await self.close(self.turn(), outcome)
                self.assertEqual((rows[-1].role, self.reasons(rows)[-1]), ("assistant", reason))
                self.assertEqual(len(rows[-1].parts), 1)

    async def test_a_return_after_tools_is_end_turn(self) -> None:
        turn = self.turn()
        call = await turn.tool_call("ls", "{}")
        await turn.tool_result(call, "x")
        rows = await self.close(turn)
        self.assertEqual(self.reasons(rows), ["end_turn", "stop"])

    async def test_a_return_after_an_explicit_step_is_end_turn(self) -> None:
        turn = self.turn()
        await turn.say("all")
        await turn.step()
        rows = await self.close(turn)
        self.assertEqual(self.reasons(rows), ["end_turn"])

    async def test_the_agent_may_say_why_it_stopped(self) -> None:
        for reason in ("max_tokens", "content_filter"):
            with self.subTest(reason):
                turn = self.turn()
                await turn.say("half")
                await turn.finish(reason, "Refused", "by the provider")
                finish = (await self.close(turn))[-1].finish
                now = int(self.clock.now())
                self.assertEqual(finish, FinishPart(reason, now, "Refused", "by the provider"))

    async def test_a_cancel_or_a_failure_outweighs_the_reason_the_agent_gave(self) -> None:
        for outcome, reason in ((Outcome.CANCELED, "canceled"), (Outcome.FAILED, "error")):
            turn = self.turn()
            await turn.finish("max_tokens")
            self.assertEqual(self.reasons(await self.close(turn, outcome))[-1], reason)

    async def test_an_unknown_reason_is_refused(self) -> None:
        with self.assertRaises(BadRequest):
            await self.turn().finish("bored")

    async def test_a_failure_is_told_with_title_and_detail_below_the_partial_text(self) -> None:
        turn = self.turn()
        await turn.say("half an answer")
        (row,) = await self.close(turn, Outcome.FAILED, Failure("No model", "the key is wrong"))
        now = int(self.clock.now())
        self.assertEqual(
            row.parts,
            [TextPart("half an answer"), FinishPart("error", now, "No model", "the key is wrong")],
        )

    async def test_every_open_call_gets_a_result_that_says_why(self) -> None:
        for outcome, word in (
            (Outcome.CANCELED, "user cancelled"),
            (Outcome.FAILED, "failed"),
            (Outcome.COMPLETED, "without a result"),
        ):
            with self.subTest(word):
                before = len(await self.rows())
                turn = self.turn()
                done = await turn.tool_call("ls", '{"path":"a"}')
                streaming = await turn.tool_call("ls", '{"pa', finished=False)
                await turn.tool_result(done, "fine")
                rows = (await self.close(turn, outcome))[before:]
                self.assertEqual([row.role for row in rows], ["assistant", "tool", "tool"])
                calls = [(c.id, c.input, c.finished) for c in rows[0].tool_calls]
                expected = [(done, '{"path":"a"}', True), (streaming, "{}", True)]
                self.assertEqual(calls, expected)
                results = [row.tool_results[0] for row in rows[1:]]
                self.assertEqual([r.is_error for r in results], [False, True])
                self.assertEqual(results[1].tool_call_id, streaming)
                self.assertIn(word, results[1].content)

    async def test_reasoning_that_was_cut_off_is_closed(self) -> None:
        turn = self.turn()
        await turn.think("hm")
        (row,) = await self.close(turn, Outcome.CANCELED)
        part = row.parts[0]
        assert isinstance(part, ReasoningPart)
        self.assertEqual(part.finished_at, int(self.clock.now()))

    async def test_the_last_event_of_a_turn_holds_the_finish(self) -> None:
        turn = self.turn()
        await turn.tool_call("ls", "{", finished=False)
        await self.close(turn, Outcome.CANCELED)
        self.assertEqual(self.hub.log[-1].payload.finish.reason, "canceled")
        self.assertEqual(self.hub.log[-1].payload.id, turn.last.message.id)


class BreathTests(TurnBench):
    coalesce = 0.05

    async def test_an_agent_that_never_waits_lets_others_run(self) -> None:
        turn = self.turn()
        ran: list[int] = []
        asyncio.get_running_loop().call_soon(ran.append, 1)
        for _ in range(PIECES - 1):
            await turn.say("x")
        self.assertEqual(ran, [])
        await turn.say("x")
        self.assertEqual(ran, [1])

    async def test_an_agent_lets_others_run_once_per_window(self) -> None:
        turn = self.turn()
        ran: list[int] = []
        await turn.say("x")
        await self.clock.advance(0.06)
        asyncio.get_running_loop().call_soon(ran.append, 1)
        await turn.say("x")
        self.assertEqual(ran, [1])


class FenceTests(TurnBench):
    def every_call(self, turn: LiveTurn) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
        question = Question(type="yes_no", question="?", description="d")
        return {
            "say": lambda: turn.say("x"),
            "say nothing": lambda: turn.say(""),
            "think": lambda: turn.think("x"),
            "tool_call": lambda: turn.tool_call("ls", "{}"),
            "tool_call again": lambda: turn.tool_call("ls", "{}", id="open"),
            "tool_result": lambda: turn.tool_result("open", "x"),
            "step": turn.step,
            "erase": turn.erase,
            "finish": lambda: turn.finish("max_tokens"),
            "permission": lambda: turn.permission("bash", "execute"),
            "ask": lambda: turn.ask([question]),
            "followups": turn.followups,
            "usage": lambda: turn.usage(Usage(1, 1, 1.0)),
            "todos": lambda: turn.todos([Todo("x")]),
            "file_read": lambda: turn.file_read("a"),
            "file_changed": lambda: turn.file_changed("a", "", "x"),
            "session": turn.session,
            "history": turn.history,
            "recall": turn.recall,
            "remember": lambda: turn.remember("x"),
        }

    async def test_behind_the_fence_every_call_raises_and_leaves_no_trace(self) -> None:
        turn = self.turn()
        await turn.tool_call("ls", "{}", id="open")
        turn.fence()
        before = await self.rows()
        self.hub.log.clear()
        for name, call in self.every_call(turn).items():
            with self.subTest(name), self.assertRaises(TurnOver):
                await call()
        self.assertEqual(self.hub.log, [])
        self.assertEqual(await self.rows(), before)
        self.assertEqual(self.clock.pending, 0)

    async def test_close_is_a_fence_too(self) -> None:
        turn = self.turn()
        await self.close(turn)
        with self.assertRaises(TurnOver):
            await turn.say("one more thing")

    async def test_a_fence_that_falls_while_the_agent_breathes_is_noticed(self) -> None:
        turn = self.turn()
        asyncio.get_running_loop().call_soon(turn.fence)
        with self.assertRaises(TurnOver):
            await turn.say("x")  # without a window every call breathes


class SurrogateTests(TurnBench):
    """Model output may hold half characters. They must reach neither a client nor the store."""

    async def test_half_characters_are_replaced_wherever_an_agent_puts_them(self) -> None:
        turn = self.turn()
        await turn.think(f"t{LONE}", signature=f"s{LONE}")
        await turn.say(f"a{LONE}b")
        await turn.tool_call(f"n{LONE}", f'{{"x":"{LONE}"}}', id=f"c{LONE}")
        await turn.tool_result(
            f"c{LONE}", f"c{LONE}", metadata=f"m{LONE}", data=f"d{LONE}", mime_type=f"t{LONE}"
        )
        await turn.finish("max_tokens", f"m{LONE}", f"d{LONE}")
        rows = await self.close(turn)
        self.assertEqual([row.text for row in rows], ["a?b", ""])
        for message in [event.payload for event in self.published(Message)] + rows:
            for part in message.parts:
                self.assertFalse(_half_characters(part), part)

    async def test_a_failure_may_name_a_file_that_is_no_text(self) -> None:
        with self.assertLogs("crushlite.hosting", "WARNING"):
            failure = explain(ValueError("there is no a\udcff.txt"), "R")
        (row,) = await self.close(self.turn(), Outcome.FAILED, failure)
        finish = row.finish
        assert finish is not None
        wanted = ("The agent failed", "ValueError: there is no a?.txt")
        self.assertEqual((finish.message, finish.details), wanted)


def _half_characters(part: Any) -> list[str]:
    values = [getattr(part, field.name) for field in fields(part)]
    return [value for value in values if isinstance(value, str) and value != _without_halves(value)]


def _without_halves(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


class BookkeepingTests(TurnBench):
    async def test_token_counters_show_the_last_step_and_cost_adds_up(self) -> None:
        turn = self.turn()
        await turn.usage(Usage(100, 10, 0.25))
        await turn.usage(Usage(150, 5, 0.5))
        session = await turn.session()
        counters = (session.prompt_tokens, session.completion_tokens, session.cost)
        self.assertEqual(counters, (150, 5, 0.75))
        costs = [event.payload.cost for event in self.published(Session, "updated")]
        self.assertEqual(costs, [0.25, 0.75])

    async def test_an_estimate_costs_nothing(self) -> None:
        turn = self.turn(max_cost=0.5)
        await turn.usage(Usage(100, 10, 9.0, estimated=True))
        session = await turn.session()
        self.assertEqual((session.prompt_tokens, session.cost), (100, 0.0))

    async def test_a_partial_report_keeps_the_counters_that_are_known(self) -> None:
        turn = self.turn()
        await turn.usage(Usage(100, 10, 0.25))
        await turn.usage(Usage(0, 0, 0.25))
        await turn.usage(Usage(0, 20))
        session = await turn.session()
        counters = (session.prompt_tokens, session.completion_tokens, session.cost)
        self.assertEqual(counters, (100, 20, 0.5))

    async def test_max_cost_stops_the_turn_after_the_cost_is_saved(self) -> None:
        self.leave()
        turn = self.turn(max_cost=0.5)
        await turn.usage(Usage(1, 1, 0.25))
        with self.assertRaises(LimitReached) as raised:
            await turn.usage(Usage(1, 1, 0.25))
        self.assertIn("max_cost = 0.5", str(raised.exception))
        self.assertEqual((await turn.session()).cost, 0.5)
        self.assertEqual(turn.limits.reached, "cost")

    async def test_an_agent_that_ignores_its_limit_of_cost_gets_no_further_step(self) -> None:
        self.leave()
        turn = self.turn(max_cost=0.5)
        call = await turn.tool_call("ls", "{}")
        with self.assertRaises(LimitReached):
            await turn.usage(Usage(1, 1, 0.75))
        await turn.tool_result(call, "a.txt")
        for further in (turn.say("and"), turn.step()):
            with self.assertRaises(LimitReached):
                await further
        self.assertEqual(turn.limits.reached, "cost")

    async def test_what_a_damaged_row_cannot_take_fails_no_turn_and_is_owed(self) -> None:
        turn = self.turn()
        await self.execute("UPDATE sessions SET todos = '{'")
        with self.assertLogs("crushlite.hosting.turn", "WARNING") as logs:
            await turn.usage(Usage(100, 10, 0.25))
            with self.assertRaises(CorruptDatabase):
                await turn.session()  # waits for the write, then reads the same row
        self.assertIn("its usage could not be written", logs.output[0])
        await self.execute("UPDATE sessions SET todos = '[]'")
        await turn.usage(Usage(150, 5, 0.5))
        self.assertEqual((await turn.session()).cost, 0.75)

    async def test_impossible_usage_is_refused_and_lifts_no_limit(self) -> None:
        self.leave()
        turn = self.turn(max_cost=0.5)
        costs: tuple[Any, ...] = (float("nan"), float("inf"), -0.25, "1.5")
        counts = (Usage(-1), Usage(0, -1), Usage(2**63))
        for wrong in (*counts, *(Usage(cost=cost) for cost in costs)):
            with self.subTest(wrong), self.assertRaises(BadRequest):
                await turn.usage(wrong)
        self.assertEqual((await turn.session()).cost, 0.0)
        with self.assertRaises(LimitReached):
            await turn.usage(Usage(cost=0.5))

    async def test_todos_are_stored_and_told(self) -> None:
        turn = self.turn()
        todos = [Todo("write", "in_progress", "writing"), Todo("test")]
        await turn.todos(todos)
        self.assertEqual((await turn.session()).todos, todos)
        self.assertEqual(self.published(Session, "updated")[-1].payload.todos, todos)
        await turn.todos([])
        self.assertEqual((await turn.session()).todos, [])

    async def test_what_an_agent_keeps_with_a_session_is_there_for_later_turns(self) -> None:
        self.assertEqual(await self.turn().recall(), "")
        await self.turn().remember(f"one{LONE}")
        await self.turn().remember("two \0 three")
        self.assertEqual(await self.turn().recall(), "two \0 three")
        self.assertEqual(self.hub.log, [])
        with self.assertRaisesRegex(BadRequest, "at most 1048576 characters"):
            await self.turn().remember("x" * (1 << 20) + "x")
        self.assertEqual(await self.turn().recall(), "two \0 three")
        await self.store.submit(lambda conn: sessions.delete_session(conn, SCOPE, SESSION))
        rows = await self.store.read(lambda c: c.execute("SELECT * FROM session_notes").fetchall())
        self.assertEqual(rows, [])

    async def test_notes_that_no_agent_can_have_kept_count_as_none(self) -> None:
        """A database may come with a project."""
        await self.turn().remember("mine")
        for made_up in ("x'6d696e65'", "7", f"hex(zeroblob({1 << 19})) || 'x'"):
            await self.execute(f"UPDATE session_notes SET content = {made_up}")
            expected = "7" if made_up == "7" else ""  # a column of texts makes one of a number
            self.assertEqual(await self.turn().recall(), expected)

    async def test_a_retry_is_told_and_not_stored(self) -> None:
        turn = self.turn()
        turn.retrying(f"retrying in 4 s {LONE}")
        (event,) = self.hub.log
        self.assertEqual(
            (event.action, event.payload),
            ("created", AgentEvent("retry", SESSION, "", "run-1", progress="retrying in 4 s ?")),
        )
        turn.fence()
        with self.assertRaises(TurnOver):
            turn.retrying("again")


class ReadingTests(TurnBench):
    async def test_a_turn_knows_its_order_and_its_workspace(self) -> None:
        files = (Attachment("Zm9v", "a.txt", "a.txt", "text/plain"),)
        turn = self.turn("do it", attachments=files)
        self.assertEqual((turn.prompt, turn.attachments), ("do it", files))
        self.assertEqual((turn.run_id, turn.session_id), ("run-1", SESSION))
        self.assertEqual((turn.path, turn.env), (self.path, {"HOME": "/home/kim"}))
        self.assertTrue(turn.interactive)
        self.assertEqual(turn.watchers, 1)

    async def test_history_holds_this_turn_as_far_as_it_has_come(self) -> None:
        earlier = self.turn()
        await earlier.say("before")
        await self.close(earlier)
        turn = self.turn()
        await turn.say("now")
        await turn.say(" and here")
        history = await turn.history()
        self.assertEqual([m.text for m in history], ["before", "now and here"])
        history[1].parts.clear()  # the agent's copy: the turn goes on untouched
        self.assertEqual((await self.close(turn))[1].text, "now and here")

    async def test_followups_are_whatever_the_workspace_folds(self) -> None:
        rider = Message("u", "user", SESSION, [TextPart("also this")])

        async def fold(turn: LiveTurn) -> list[Message]:
            return [rider]

        self.assertEqual(await self.turn(fold=fold).followups(), [rider])
        self.assertEqual(await self.turn().followups(), [])

    async def test_nothing_is_folded_between_a_call_and_its_result(self) -> None:
        asked = 0

        async def fold(turn: LiveTurn) -> list[Message]:
            nonlocal asked
            asked += 1
            return []

        turn = self.turn(fold=fold)
        one = await turn.tool_call("ls", "{}")
        two = await turn.tool_call("ls", "{", finished=False)
        await turn.followups()
        await turn.tool_result(one, "a")
        await turn.followups()
        self.assertEqual(asked, 0)
        await turn.tool_result(two, "b")
        await turn.followups()
        self.assertEqual(asked, 1)
        await turn.tool_call("ls", "{}")
        await turn.erase()  # what was called is not called any more
        await turn.followups()
        self.assertEqual(asked, 2)


class PeopleTests(TurnBench):
    async def test_a_permission_carries_what_the_tool_said_and_a_directory(self) -> None:
        turn = self.turn()
        (self.path / "a.txt").write_text("x")
        for given, shown in (
            ("", str(self.path)),
            (".", str(self.path)),
            (str(self.path / "a.txt"), str(self.path)),
            (str(self.path / "new"), str(self.path / "new")),
        ):
            with self.subTest(given):
                asking = asyncio.ensure_future(
                    turn.permission(
                        "bash",
                        "execute",
                        description=f"d{LONE}",
                        params={"command": "ls"},
                        path=given,
                        tool_call_id="c",
                    )
                )
                await self.clock.settle()
                request = self.published(PermissionRequest)[-1].payload
                self.assertEqual(request.path, shown)
                self.assertEqual((request.tool_name, request.action), ("bash", "execute"))
                self.assertEqual((request.description, request.params), ("d?", {"command": "ls"}))
                self.assertEqual((request.tool_call_id, request.session_id), ("c", SESSION))
                self.workspace.permissions.resolve(request.id, "allow")
                self.assertTrue(await asking)

    async def test_a_denial_gives_its_reason_and_is_counted(self) -> None:
        turn = self.turn()
        asking = asyncio.ensure_future(turn.permission("bash", "execute"))
        await self.clock.settle()
        request = self.published(PermissionRequest)[-1].payload
        self.workspace.permissions.resolve(request.id, "deny", "", "not on a Friday")
        verdict = await asking
        self.assertEqual((bool(verdict), verdict.reason), (False, "not on a Friday"))
        self.assertEqual(turn.denied, 1)

    async def test_answers_come_back_under_the_askers_ids_and_a_dismissal_is_none(self) -> None:
        turn = self.turn()
        question = Question(id="mine", type="yes_no", question="Go on?", description="d")
        for responses in ([True], None):
            asking = asyncio.ensure_future(turn.ask([question], tool_call_id="c"))
            await self.clock.settle()
            batch = self.published(QuestionBatch)[-1].payload
            self.assertEqual((batch.session_id, batch.tool_call_id), (SESSION, "c"))
            if responses is None:
                self.workspace.questions.cancel(batch.id)
                self.assertIsNone(await asking)
            else:
                answer = QuestionResponse(request_id=batch.questions[0].id, yes=True)
                self.workspace.questions.answer(batch.id, [answer])
                answers = await asking
                assert answers is not None
                self.assertEqual([(a.request_id, a.yes) for a in answers], [("mine", True)])


class BlockingAgentTests(TurnBench):
    """A plain function gets a thread of its own and the same calls, which wait."""

    async def test_its_calls_wait_for_their_answers(self) -> None:
        turn = self.turn("loud")
        threads = []

        def agent(turn: Any) -> None:
            threads.append(threading.current_thread())
            turn.say(turn.prompt.upper())
            call = turn.tool_call("ls", "{}")
            turn.tool_result(call, str(len(turn.history())))
            turn.say("done")

        await run_blocking(agent, turn)
        rows = await self.close(turn)
        self.assertEqual([row.text for row in rows], ["LOUD", "", "done"])
        self.assertEqual(rows[1].tool_results[0].content, "1")
        self.assertIsNot(threads[0], threading.current_thread())

    async def test_a_watch_that_is_made_when_the_turn_is_over_is_dropped(self) -> None:
        turn, watch = self.turn(), mock.Mock()

        class Slow(WorkspacePart):
            async def before_command(self, author: Author) -> CommandWatch:
                turn.fence()
                return cast("CommandWatch", watch)

        self.parts.append(Slow())
        with self.assertRaises(TurnOver):
            await turn.watch_files()
        await turn.end_commands()
        self.assertEqual(watch.mock_calls, [mock.call.dropped()])

    async def test_its_exception_is_the_turns(self) -> None:
        def agent(turn: Any) -> None:
            raise ValueError("no idea")

        with self.assertRaisesRegex(ValueError, "no idea"):
            await run_blocking(agent, self.turn())

    async def test_an_exit_in_its_thread_fails_the_turn_only(self) -> None:
        def agent(turn: Any) -> None:
            raise SystemExit(3)

        with self.assertRaisesRegex(RuntimeError, "SystemExit"):
            await run_blocking(agent, self.turn())

    async def test_a_stop_iteration_in_a_thread_ends_the_turn(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "StopIteration"):
            await run_blocking(lambda turn: next(iter(())), self.turn())

    async def test_a_future_of_its_own_that_was_cancelled_fails_the_turn(self) -> None:
        canceled: Future[None] = Future()
        canceled.cancel()
        with self.assertRaisesRegex(RuntimeError, "CancelledError"):
            await run_blocking(lambda turn: canceled.result(), self.turn())

    async def test_a_cancel_makes_its_present_call_raise(self) -> None:
        raised: list[BaseException] = []
        turn = self.turn()

        def agent(turn: Any) -> None:
            try:
                turn.permission("bash", "execute")
            except TurnOver as error:
                raised.append(error)
                raise

        task = asyncio.ensure_future(run_blocking(agent, turn))
        seen: asyncio.Queue[Event] = asyncio.Queue()
        self.hub.observers.append(seen.put_nowait)
        while not isinstance((await seen.get()).payload, PermissionRequest):
            pass
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(len(raised), 1)
        self.assertEqual(self.workspace.permissions.listed(), [])


class OverHTTPTests(BoundedTestCase):
    async def test_an_error_that_is_no_text_still_ends_its_run_for_good(self) -> None:
        async def agent(turn: Turn) -> None:
            raise FileNotFoundError(f"a\udcff.txt {LONE}")

        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, run_id="r")
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual(done["error"], "FileNotFoundError: a?.txt ?")
            answer = await anna.call("GET", "/runs/r")
            self.assertEqual((answer.json["state"], answer.json["outcome"]), ("ended", "failed"))

    async def test_a_blocking_agent_serves_a_daemon(self) -> None:
        def agent(turn: Any) -> None:
            turn.say(f"You said {turn.prompt}")

        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hi")
            done = await anna.events.wait_for("run_complete")
            self.assertEqual((done["text"], done["error"]), ("You said hi", None))

    async def test_an_abandoned_agent_meets_the_fence(self) -> None:
        inside = asyncio.Event()
        let_go = asyncio.Event()
        late: list[BaseException] = []

        async def agent(turn: Turn) -> None:
            inside.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    pass  # what no agent should do
            try:
                await turn.say("I am still here")
            except TurnOver as error:
                late.append(error)
                done.set()

        done = asyncio.Event()
        async with LocalDaemon(agent, settings=Settings(cancel_grace=0.01)) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session)
            await inside.wait()
            await anna.cancel(session, wait=20)
            self.assertFalse(await anna.busy(session))
            let_go.set()
            await done.wait()
            self.assertEqual([m.text for m in await anna.messages(session)], ["hello", ""])
            await anna.events.never(lambda event: event.text == "I am still here")
        self.assertEqual(len(late), 1)


class VerdictTests(unittest.TestCase):
    def test_a_verdict_is_used_like_a_bool_and_keeps_its_reason(self) -> None:
        yes, no = Verdict(True), Verdict(False, "not now")
        self.assertTrue(yes)
        self.assertFalse(no)
        self.assertEqual((yes, no), (True, False))
        self.assertEqual((str(yes), f"{no}"), ("True", "False"))
        self.assertEqual((no.granted, no.reason), (False, "not now"))
        self.assertNotEqual(no, Verdict(False, "never"))


class WireShapeTests(TurnBench):
    """What an agent writes may be given as the plain objects it has at hand."""

    async def test_inputs_metadata_questions_and_todos_may_be_plain_objects(self) -> None:
        turn = self.turn()
        call = await turn.tool_call("ls", {"path": "."})
        await turn.tool_result(call, "a", metadata={"count": 1})
        await turn.todos([{"content": "look", "status": "completed"}])
        calls = [p for live in turn.messages for p in live.message.tool_calls]
        results = [p for live in turn.messages for p in live.message.tool_results]
        self.assertEqual(calls[0].input, '{"path":"."}')
        self.assertEqual(results[0].metadata, '{"count":1}')
        self.assertEqual((await turn.session()).todos[0].content, "look")
        with self.assertRaisesRegex(BadRequest, "cannot be written as JSON"):
            await turn.tool_call("ls", {"path": object()})
        with self.assertRaisesRegex(BadRequest, r"question.*type"):
            await turn.ask([{"type": "riddle", "question": "?", "description": "d"}])
