"""What a hostile or careless agent reports: requests show what they ask for, and nothing grows
without a bound."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from crushlite.acp_agents import updates
from crushlite.acp_agents.asking import ask, options_of
from crushlite.acp_agents.process import WAITING, WAITING_CHARS, _Waiting
from crushlite.acp_agents.updates import (
    CALL_CHARS,
    INPUTS_CHARS,
    MOST_CALLS,
    CostMeter,
    TurnWriter,
)
from crushlite.protocol.codec import dumps
from crushlite.store.messages import PARTS_CHARS

ONCE = {"optionId": "once", "name": "Allow", "kind": "allow_once"}
NO = {"optionId": "no", "name": "Reject", "kind": "reject_once"}
ALWAYS = {"optionId": "always", "name": "Allow everything", "kind": "allow_always"}


class RecordedTurn:
    """Keeps the calls, results and permission requests that it is given; grants everything."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}  # by id, their input
        self.results: list[tuple[Any, ...]] = []
        self.asked: list[dict[str, Any]] = []

    async def tool_call(self, name: str, given: Any, ident: str | None, finished: bool) -> str:
        ident = ident or f"call {len(self.calls)}"
        self.calls[ident] = given
        return ident

    async def tool_result(self, *result: Any) -> None:
        self.results.append(result)

    async def permission(self, tool: str, action: str, **asked: Any) -> Any:
        self.asked.append(asked)
        return SimpleNamespace(granted=True, option="")


class ReportsCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.turn = RecordedTurn()
        self.writer = TurnWriter(cast("Any", self.turn), CostMeter())

    async def report(self, kind: str = "tool_call", **fields: Any) -> None:
        await self.writer.apply({"sessionUpdate": kind, **fields})

    async def ask(self, *options: dict[str, str], **call: Any) -> dict[str, Any]:
        """Ask for a call; returns what users are shown."""
        known = await self.writer.call_of({"toolCallId": "c", **call})
        assert known is not None
        offered = options_of({"options": [*options] or [ONCE]})
        await ask(cast("Any", self.turn), known, offered)
        return self.turn.asked[-1]


class ShownTests(ReportsCase):
    async def test_a_request_with_the_id_of_a_call_that_has_ended_shows_what_it_asks_for(
        self,
    ) -> None:
        await self.report(
            toolCallId="c", title="ls", rawInput={"command": "ls"}, status="completed"
        )
        asked = await self.ask(title="rm -r /", rawInput={"command": "rm -r /"})
        self.assertEqual(asked["description"], "rm -r /")
        self.assertEqual(asked["params"], {"command": "rm -r /"})
        self.assertEqual(self.turn.calls[asked["tool_call_id"]], {"command": "rm -r /"})
        self.assertEqual(len(self.turn.calls), 2)

    async def test_what_a_tool_is_given_is_not_covered_by_what_is_said_about_it(self) -> None:
        text = {"type": "content", "content": {"type": "text", "text": "harmless"}}
        asked = await self.ask(content=[text], rawInput={"details": "all of it"})
        self.assertEqual(
            asked["params"], {"input": {"details": "all of it"}, "details": "harmless"}
        )
        diff = {"type": "diff", "path": "/ws/a", "oldText": "a", "newText": "b"}
        asked = await self.ask(content=[diff], rawInput={"file_path": "/etc/passwd"}, kind="edit")
        self.assertEqual(asked["params"]["input"], {"file_path": "/etc/passwd"})
        self.assertEqual(asked["params"]["file_path"], "/ws/a")

    async def test_only_the_input_of_an_edit_is_shown_as_the_lines_that_change(self) -> None:
        same = {"type": "diff", "path": "/ws/a", "oldText": "rm -r /", "newText": "rm -r /"}
        given = {"content": [same], "rawInput": {"command": "rm -r /"}}
        asked = await self.ask(kind="execute", **given)
        self.assertEqual(asked["params"]["command"], "rm -r /")
        diff = {"type": "diff", "path": "/ws/a", "oldText": "a", "newText": "b"}
        asked = await self.ask(kind="edit", content=[diff], rawInput={"content": "b"})
        self.assertNotIn("content", asked["params"])

    async def test_a_grant_does_not_cover_the_same_request_if_a_yes_means_more(self) -> None:
        once, again, always = [
            (await self.ask(*options, title="touch f"))["scope"].parts
            for options in ((ONCE,), (ALWAYS, ONCE), (ALWAYS,))
        ]
        self.assertEqual(once, again)
        self.assertNotEqual(once, always)

    async def test_what_is_not_kept_whole_is_refused_unasked(self) -> None:
        diff = {"type": "diff", "path": "/ws/a", "oldText": "a", "newText": "b"}
        cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"content": [diff] * 1001}, {"content": [diff]}),
            ({"rawInput": {"a": "x" * (CALL_CHARS + 1)}}, {"rawInput": {"a": "x"}}),
            ({"title": "x" * (CALL_CHARS + 1)}, {"title": "x"}),
        ]
        for number, (large, small) in enumerate(cases):
            call = await self.writer.call_of({"toolCallId": "c", **large})
            assert call is not None
            answer = await ask(cast("Any", self.turn), call, options_of({"options": [ONCE, NO]}))
            self.assertEqual(answer["outcome"]["optionId"], "no")
            self.assertEqual(len(self.turn.asked), number)
            await self.ask(**small)


class BoundTests(ReportsCase):
    async def test_an_id_that_is_used_again_is_one_more_call(self) -> None:
        for _ in range(MOST_CALLS + 5):
            await self.report(toolCallId="c", status="completed")
        self.assertEqual(len(self.turn.results), MOST_CALLS)

    async def test_the_inputs_of_a_turn_fit_into_one_message(self) -> None:
        given = {"texts": ["\0" * 20_000] * 80}  # the worst that JSON can be given
        for number in range(5):
            await self.report(toolCallId=str(number), rawInput=given, title=f"call {number}")
        self.assertEqual(self.turn.calls["call 2"], given)
        self.assertEqual(self.turn.calls["call 4"], {"title": "call 4"})
        written = len(dumps(dumps(list(self.turn.calls.values())).decode()))
        self.assertLess(written * INPUTS_CHARS // (3 * 1_600_000), PARTS_CHARS)
        await self.report("tool_call_update", toolCallId="2", rawInput={"a": "b"})
        await self.report("tool_call_update", toolCallId="4", rawInput=given)
        self.assertEqual(self.turn.calls["call 4"], given)  # there is room again

    async def test_the_result_of_a_call_that_has_ended_is_small_while_another_is_open(self) -> None:
        text = {"type": "content", "content": {"type": "text", "text": "x" * 1_000_000}}
        await self.report(toolCallId="open")
        await self.report(toolCallId="c", status="completed", content=[text])
        self.assertEqual(self.turn.results, [])
        self.assertLess(len(str(self.writer._held)), 100_000)
        await self.report("tool_call_update", toolCallId="open", status="failed")
        self.assertEqual(
            [(result[0], result[2]) for result in self.turn.results],
            [("call 1", False), ("call 0", True)],
        )

    async def test_the_results_of_a_turn_have_a_bound_and_calls_that_have_ended_hold_nothing(
        self,
    ) -> None:
        text = "x" * 100_000
        with mock.patch.object(updates, "RESULTS_CHARS", 200_000):
            for number in range(10):
                output: Any = {"rawOutput": text, "rawInput": {"a": text}, "title": text}
                await self.report(toolCallId=str(number), status="completed", **output)
        sizes = [len(str(result)) for result in self.turn.results]
        self.assertGreater(min(sizes[:3]), 60_000)
        self.assertLess(max(sizes[3:]), 1000)
        self.assertLess(sum(len(str(vars(call))) for call in self.writer._calls.values()), 5000)

    async def test_an_output_that_is_not_kept_whole_is_cut_once(self) -> None:
        text = {"type": "text", "text": "x" * (CALL_CHARS + 1)}
        await self.report(toolCallId="a", status="completed", rawOutput=text["text"])
        content = [{"type": "content", "content": text}]
        await self.report(toolCallId="b", status="completed", content=content)
        for _, result, _, _ in self.turn.results:
            left_out = CALL_CHARS + 1 - result.count("x")
            self.assertIn(f"... {left_out} characters left out", result)

    def test_what_comes_between_two_turns_is_bounded_in_number_and_size(self) -> None:
        many, large = _Waiting(), _Waiting()
        for _ in range(WAITING + 5):
            many.add({"a": "b"})
        for _ in range(5):
            large.add({"a": "x" * (WAITING_CHARS // 3)})
        self.assertEqual((len(many.updates), len(large.updates)), (WAITING, 2))
