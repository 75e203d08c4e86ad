"""What the tests of tools share: a workspace, a folder outside of it, and a turn that keeps a
record.

The turn runs real commands under real keepers; the answers to permission requests and questions are
set by the test. A request for which no answer is set is denied and recorded, so that no test hangs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crushlite.agent.base import UNKNOWN_JOB, Scope, Verdict
from crushlite.clock import SystemClock
from crushlite.coder.tools.base import ToolContext, ToolOutcome, ToolUse, failure
from crushlite.coder.tools.registry import all_tools
from crushlite.commands import process
from crushlite.errors import CrushliteError
from crushlite.hosting.dialogs import check_questions
from crushlite.protocol.sessions import Session
from crushlite.shell.background import Background
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crushlite.agent.base import Exit, JobInfo, JobOutput, Turn
    from crushlite.coder.tools.base import Tool
    from crushlite.commands.process import Command
    from crushlite.protocol.questions import Question, QuestionResponse
    from crushlite.protocol.sessions import Todo

SECRET = "the secret of the outside"


@dataclass
class Asked:
    """A permission request, as the tool made it."""

    tool: str
    action: str
    description: str
    params: dict[str, Any]
    path: str
    call_id: str
    scope: Scope | None = None


class FakeTurn:
    """The part of Turn that tools use."""

    session_id = "session-1"
    run_id = "run-1"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env: dict[str, str] = {}
        self.interactive = True
        # Set by the test.
        self.verdict = Verdict(False, "nobody allowed that")
        self.meanwhile: Callable[[Asked], object] | None = None  # called while the request is open
        self.answers: list[QuestionResponse] | None = None
        # Recorded.
        self.asked: list[Asked] = []
        self.questions: list[Question] = []
        self.todo_list: list[Todo] = []
        self.read: list[str] = []
        self.changed: list[tuple[str, str | None, str | None]] = []
        self.ran: list[str | list[str]] = []
        self.commands: list[Command] = []
        self.shown: list[tuple[str, str]] = []
        self.started = asyncio.Event()  # a command runs
        self.said = asyncio.Event()  # a command has written some output
        self.jobs = Background(SystemClock())

    async def permission(
        self,
        tool_name: str,
        action: str,
        *,
        description: str = "",
        params: Mapping[str, Any] | None = None,
        path: str = "",
        tool_call_id: str = "",
        scope: Scope | None = None,
    ) -> Verdict:
        shown = dict(params or {})
        asked = Asked(tool_name, action, description, shown, path, tool_call_id, scope)
        self.asked.append(asked)
        if self.meanwhile is not None:
            self.meanwhile(asked)
        return self.verdict

    async def ask(
        self, questions: Sequence[Question], *, tool_call_id: str = "", confirm_title: str = ""
    ) -> list[QuestionResponse] | None:
        check_questions(list(questions))
        self.questions = list(questions)
        return self.answers

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        read_only: bool = False,
    ) -> Command:
        self.ran.append(command if isinstance(command, str) else list(command))

        def heard(data: bytes) -> None:
            if on_output is not None:
                on_output(data)
            self.said.set()

        started = await process.start(
            command,
            cwd=cwd or self.path,
            env=dict(os.environ) if env is None else env,
            clock=SystemClock(),
            on_output=heard,
        )
        self.commands.append(started)
        self.started.set()
        return started

    def keep(self, command: Command, info: JobInfo = UNKNOWN_JOB) -> str:
        return self.jobs.adopt(self.session_id, command, info)

    def progress(self, call_id: str, output: str) -> None:
        self.shown.append((call_id, output))

    def job_output(self, job_id: str) -> JobOutput:
        return self.jobs.output(job_id, self.session_id)

    def job_info(self, job_id: str) -> JobInfo:
        return self.jobs.info(job_id, self.session_id)

    async def wait_for_job(self, job_id: str, seconds: float) -> None:
        await self.jobs.wait(job_id, self.session_id, seconds)

    async def kill_job(self, job_id: str) -> Exit | None:
        return await self.jobs.kill(job_id, self.session_id)

    async def session(self) -> Session:
        return Session(id=self.session_id, todos=self.todo_list)

    async def todos(self, todos: Sequence[Todo]) -> None:
        self.todo_list = list(todos)

    async def file_read(self, path: str) -> None:
        self.read.append(path)

    async def file_changed(self, path: str, before: str | None, after: str | None) -> None:
        self.changed.append((path, before, after))

    async def aclose(self) -> None:
        await self.jobs.close()
        for command in self.commands:
            command.kill()
            await command.wait()


class ToolTestCase(BoundedTestCase):
    """A workspace at `self.root`, with `self.outside` beside it, and the tools by name."""

    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-tools-")
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name).resolve()
        self.root = self.base / "demo"
        self.outside = self.base / "outside"
        self.root.mkdir()
        self.outside.mkdir()
        (self.outside / "secret.txt").write_text(SECRET)
        self.turn = FakeTurn(self.root)
        self.addAsyncCleanup(self.turn.aclose)
        self.context = ToolContext(self.root, {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})
        self.tools: dict[str, Tool] = {tool.name: tool for tool in all_tools()}

    def allow(self) -> None:
        self.turn.verdict = Verdict(True)

    def deny(self, reason: str = "") -> None:
        self.turn.verdict = Verdict(False, reason)

    async def use(self, name: str, **arguments: Any) -> ToolOutcome:
        """Run a tool as the loop does: a CrushliteError becomes a failure for the model. Any other
        exception fails the test."""
        call = ToolUse("call-1", name, arguments, cast("Turn", self.turn), self.context)
        try:
            return await self.tools[name].run(call)
        except CrushliteError as error:
            return failure(error.message)

    async def seen(self, name: str, content: str | bytes) -> Path:
        """Write a file and let the model view it."""
        path = self.root / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.assertFalse((await self.use("view", file_path=name)).is_error)
        return path

    def assert_failed(self, outcome: ToolOutcome, words: str = "") -> None:
        self.assertTrue(outcome.is_error, outcome.content)
        self.assertFalse(outcome.stop)
        self.assertFalse(outcome.content.startswith("Error"), "clients say that it is an error")
        self.assertIn(words, outcome.content)

    def assert_denied(self, outcome: ToolOutcome, reason: str = "") -> None:
        self.assertTrue(outcome.is_error, outcome.content)
        self.assertTrue(outcome.stop)
        self.assertIn("User denied permission", outcome.content)
        self.assertIn(reason, outcome.content)
