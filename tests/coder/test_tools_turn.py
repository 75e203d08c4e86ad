"""The tools on a real turn: grants for a session, file history, jobs, the to-do list."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from crushlite.clock import SystemClock
from crushlite.coder.tools.base import ToolContext, ToolOutcome, ToolUse
from crushlite.coder.tools.registry import all_tools
from crushlite.filehistory import queries as file_rows
from crushlite.hosting.dialogs import Permissions
from crushlite.protocol.permissions import PermissionRequest
from crushlite.protocol.questions import QuestionBatch, QuestionResponse
from tests.support.turns import SCOPE, SESSION, Bench


class TurnTests(Bench):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.path = self.path.resolve() / "demo"
        self.path.mkdir()
        self.permissions = Permissions(self.on_event, clock=self.clock)
        self.workspace.path, self.workspace.clock = self.path, SystemClock()
        self.workspace.permissions = self.permissions
        self.action = "deny"
        self.parts += [self.history(), part := self.shell()]
        self.addAsyncCleanup(part.close)
        self.live = self.turn()
        self.context = ToolContext(self.path, {"PATH": os.environ["PATH"]})
        self.tools = {tool.name: tool for tool in all_tools()}

    def on_event(self, payload: object) -> None:
        """Answer each permission request, as the user, as soon as it is published."""
        self.hub.publish("created", payload)
        if isinstance(payload, PermissionRequest):
            answer = functools.partial(
                self.permissions.resolve, payload.id, self.action, reason="no reason"
            )
            asyncio.get_running_loop().call_soon(answer)

    async def use(
        self, name: str, action: str = "deny", **arguments: Any
    ) -> tuple[ToolOutcome, bool]:
        """The outcome of a tool, and whether it asked; `action` is the user's answer."""
        self.action = action
        shown = len(self.published(PermissionRequest))
        call = ToolUse("call", name, arguments, self.live, self.context)
        outcome = await self.tools[name].run(call)
        return outcome, len(self.published(PermissionRequest)) > shown

    async def test_a_grant_for_the_session_covers_what_was_shown_in_the_same_directory(
        self,
    ) -> None:
        (self.path / "src").mkdir()

        async def bash(command: str, action: str = "deny", **more: str) -> tuple[bool, bool]:
            outcome, asked = await self.use("bash", action, command=command, description="", **more)
            return outcome.is_error, asked

        granted, unasked, refused = (False, True), (False, False), (True, True)
        self.assertEqual(await bash("echo $$", "allow_session"), granted)
        self.assertEqual(await bash("echo $$"), unasked, "the very same text")
        self.assertEqual(await bash("mkdir -p one; touch x"), refused, "another one")
        self.assertEqual(await bash("mkdir -p one; touch x", "allow_session"), granted)
        self.assertEqual(await bash("touch y && mkdir -p 'two'"), unasked, "the same programs")
        self.assertEqual(await bash("echo $$ $$"), refused)
        self.assertEqual(await bash("touch y && printf x"), refused, "a program more")
        self.assertEqual(await bash("touch y && mkdir -p 'two'", working_dir="src"), refused)
        self.assertEqual(await bash("touch a b"), unasked)
        for guarded in ("touch .envrc", "mkdir -p src/.GIT/x", f"touch {self.path}/crush.json"):
            self.assertEqual(await bash(guarded, "allow_session"), granted)
            self.assertEqual(await bash(guarded, "allow_session"), granted, "asked each time")

    async def test_a_grant_for_a_file_covers_the_ordinary_files_of_the_workspace(self) -> None:
        (self.path / "src").mkdir()
        (self.path / "hooks").symlink_to(".git/hooks")
        outcome, asked = await self.use("write", "allow_session", file_path="a", content="1")
        self.assertEqual((outcome.is_error, asked), (False, True))
        outcome, asked = await self.use("write", file_path="src/b", content="2")
        self.assertEqual((outcome.is_error, asked), (False, False))
        await self.use("view", file_path="a")
        outcome, asked = await self.use("edit", file_path="a", old_string="1", new_string="2")
        self.assertEqual((outcome.stop, asked), (True, True))
        for name in (".git/hooks/x", "hooks/x", "src/../crush.json", ".ENVRC", "../outside"):
            for content in ("1", "2"):
                text = f"{name} {content}"
                outcome, asked = await self.use(
                    "write", "allow_session", file_path=name, content=text
                )
                self.assertEqual((outcome.is_error, asked), (False, True), name)

    async def test_a_change_leaves_both_versions_in_the_history(self) -> None:
        (self.path / "a").write_bytes(b"one\r\n")
        await self.use("view", file_path="a")
        outcome, _ = await self.use(
            "edit", "allow", file_path="a", old_string="one", new_string="2"
        )
        self.assertFalse(outcome.is_error, outcome.content)
        files = await self.store.read(lambda conn: file_rows.list_files(conn, SCOPE, SESSION))
        self.assertEqual([file.content for file in files], ["one\r\n", "2\r\n"])

    async def test_a_job_belongs_to_the_session(self) -> None:
        outcome, _ = await self.use(
            "bash", "allow", command="exec sleep 1000", description="", run_in_background=True
        )
        self.assertIn("job 1", outcome.content)
        outcome, _ = await self.use("job_output", shell_id="1")
        self.assertIn("still running", outcome.content)
        outcome, asked = await self.use("job_kill", shell_id="1")
        self.assertEqual((outcome.content, asked), ("Job 1 was killed.", False))

    async def test_todos_and_questions_work_on_a_real_turn(self) -> None:
        todos = [{"content": "Write", "status": "in_progress"}]
        await self.use("todos", todos=todos)
        outcome, _ = await self.use("todos", todos=[{**todos[0], "status": "completed"}])
        self.assertIn('"just_completed": ["Write"]', outcome.metadata)
        question = {"type": "yes_no", "question": "Sure?", "description": "Really"}
        call = ToolUse("call", "question", {"questions": [question]}, self.live, self.context)
        task = asyncio.ensure_future(self.tools["question"].run(call))
        await self.clock.settle()
        batch = self.published(QuestionBatch)[0].payload
        answer = QuestionResponse(batch.questions[0].id, yes=True)
        self.workspace.questions.answer(batch.id, [answer])
        self.assertEqual((await task).content, "Q1: Sure?\nUser answered: yes")
