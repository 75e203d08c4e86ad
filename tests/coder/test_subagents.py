"""The `agent` tool of the coder: what sub-agents may do, and what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crushlite.coder.prompts import SUB_AGENT
from crushlite.coder.subagents import NEVER
from crushlite.config.agentfiles import agent_files
from crushlite.config.files import Roots, digest
from crushlite.config.trust import TrustStore
from crushlite.fake_model import End, Fail, Say, Use
from tests.support.configured import ConfiguredTestCase, chat, results, use

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crushlite.fake_model import Step

WRITER = """---
name: writer
description: Writes notes.
tools: Read, Write, mcp_x
model: {model}
---
You write what you are told.
"""


def tools_of(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


def is_child(request: dict[str, Any]) -> bool:
    return SUB_AGENT in request["messages"][0]["content"]


class SubAgentCase(ConfiguredTestCase):
    """`child` are the answers of sub-agents, `plan` those of the agent itself."""

    async def asyncSetUp(self) -> None:
        self.child: list[Sequence[Step]] = []
        await super().asyncSetUp()
        self.anna = await self.join(self.project)
        self.session = await self.anna.session()

    def _script(self, request: dict[str, Any]) -> Sequence[Step]:
        return self.child.pop(0) if is_child(request) else super()._script(request)

    def title(self, request: dict[str, Any]) -> Sequence[Step]:
        return self.child.pop(0) if is_child(request) else super().title(request)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [call.request for call in self.model.calls]

    async def run_it(self, *plan: Sequence[Step], **fields: Any) -> list[dict[str, Any]]:
        """Play the answers of the agent; returns the results of its tools."""
        self.plan = [*plan, [Say("done"), End()]]
        self.done = await self.turn(self.anna, self.session, "go", **fields)
        return results(await self.anna.messages(self.session))

    def define(self, folder: Path, text: str) -> Path:
        file = folder / ".claude/agents/writer.md"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        return file


class ReadingTests(SubAgentCase):
    async def test_a_sub_agent_reads_and_its_last_words_are_the_result(self) -> None:
        (self.project / "a.txt").write_text("forty-two\n")
        self.child = [use("view", "v", file_path="a.txt"), [Say("It says forty-two."), End()]]
        [result] = await self.run_it(use("agent", "c1", prompt="what does a.txt say?"))
        self.assertEqual(result["content"], "It says forty-two.")
        first, inner, second, last = self.requests
        self.assertEqual(tools_of(inner), ["view", "ls", "glob", "grep"])
        self.assertIn("agent", tools_of(first))
        self.assertEqual(chat(inner)[-1], ("user", "what does a.txt say?"))
        self.assertIn("forty-two", chat(second)[-1][1])
        self.assertNotIn("forty-two\n", str(last["messages"][:-1]))

    async def test_several_in_one_answer_work_at_once_and_each_gets_its_own_result(self) -> None:
        self.child = [[Say("one of them"), End()] for _ in range(6)]
        calls = [Use("agent", f'{{"prompt": "part {n}"}}', f"c{n}") for n in range(6)]
        found = await self.run_it([*calls, End()])
        self.assertEqual([each["content"] for each in found], ["one of them"] * 6)

    async def test_a_failure_or_an_empty_answer_is_an_error_of_the_call_only(self) -> None:
        self.child = [[Fail(400, "no such luck")], [End()]]
        found = await self.run_it(
            use("agent", "c1", prompt="x"),
            use("agent", "c2", prompt="y"),
            use("agent", "c3", prompt=" "),
            use("agent", "c4", prompt="z", agent="nobody"),
        )
        self.assertEqual([each["is_error"] for each in found], [True] * 4)
        self.assertIn("no such luck", found[0]["content"])
        self.assertIn("without an answer", found[1]["content"])
        self.assertEqual(self.done["text"], "done")

    async def test_it_can_be_turned_off(self) -> None:
        self.configure(options={"disabled_tools": ["agent"]})
        self.anna = await self.join(self.folder("other"))
        self.session = await self.anna.session()
        await self.run_it()
        self.assertNotIn("agent", tools_of(self.requests[-1]))


class NamedTests(SubAgentCase):
    async def test_a_named_one_has_its_instructions_tools_and_model_and_asks_as_the_agent(
        self,
    ) -> None:
        self.define(self.home, WRITER.format(model="fake-small"))
        self.child = [use("write", "w", file_path="n.txt", content="x\n"), [Say("written"), End()]]
        self.plan = [use("agent", "c1", prompt="note it", agent="writer"), [Say("done"), End()]]
        run = await self.prompt(self.anna, self.session, "go")
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual((request["session_id"], request["tool_name"]), (self.session, "write"))
        await self.anna.grant(request.payload)
        await self.ended(self.anna, run)
        [inner, _] = [call.request for call in self.titles.calls if is_child(call.request)]
        self.assertIn("You write what you are told.", inner["messages"][0]["content"])
        self.assertEqual(tools_of(inner), ["view", "write"])
        self.assertTrue(NEVER.isdisjoint(tools_of(inner)))
        self.assertEqual((self.project / "n.txt").read_text(), "x\n")
        # What it has changed belongs to the run, and can be undone with it.
        changes = await self.anna.call("GET", f"/runs/{run}/changes")
        self.assertEqual(
            [each["path"] for each in changes.json["files"]], [str(self.project / "n.txt")]
        )

    async def test_a_denied_permission_stops_the_agent_as_well(self) -> None:
        self.define(self.home, WRITER.format(model="inherit"))
        self.child = [use("write", "w", file_path="n.txt", content="x\n")]
        self.plan = [use("agent", "c1", prompt="note it", agent="writer")]
        run = await self.prompt(self.anna, self.session, "go")
        request = await self.anna.events.wait_for("permission_request")
        await self.anna.grant(request.payload, "deny")
        await self.ended(self.anna, run)
        self.assertEqual((await self.run_info(self.anna, run))["denied"], 1)
        [result] = results(await self.anna.messages(self.session))
        self.assertIn("denied", result["content"])

    async def test_one_of_a_project_is_offered_only_after_trust(self) -> None:
        file = self.define(self.project, WRITER.format(model="large"))
        await self.run_it()
        self.assertNotIn("writer", str(self.requests[-1]["tools"]))
        roots = Roots.below(self.home)
        self.assertEqual(len(agent_files(self.project, {}, roots)), 1)
        TrustStore.of(roots, {}).record({file: {digest(file.read_bytes())}})
        await self.run_it()
        self.assertIn("writer: Writes notes.", str(self.requests[-1]["tools"]))
