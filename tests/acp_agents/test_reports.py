"""What a hostile or careless agent reports: permission requests show what they ask for."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any, cast

from crushlite.acp_agents.asking import ask, options_of
from crushlite.acp_agents.updates import CostMeter, TurnWriter

ONCE = {"optionId": "once", "name": "Allow", "kind": "allow_once"}
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
