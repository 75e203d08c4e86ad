"""What an agent asks users and wings, and the commands that it runs: the half of LiveTurn that
reaches out of the transcript. Commands are run by a part of a wing."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..agent.base import UNKNOWN_JOB, Scope, Verdict
from ..errors import BadRequest, TurnOver
from ..protocol.codec import decode, dumps
from ..protocol.permissions import PermissionRequest
from ..protocol.questions import Question, QuestionBatch
from ..unique import random_hex
from ..wing import Author, Guards
from .prompts import clean
from .workspace_base import first_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..agent.base import Exit, JobInfo, JobOutput, RunningCommand, TurnCommands
    from ..protocol.messages import Prompt
    from ..protocol.permissions import PermissionOption
    from ..protocol.questions import QuestionResponse
    from ..wing import CommandWatch
    from .transcript import LiveMessage
    from .workspace_base import WorkspaceBase


T = TypeVar("T")

WATCH_SECONDS = 3.0  # how long a watch may take to end before the run ends anyway


class TurnRequests:
    """`parent` is the turn of the agent that this one works for, if it is a sub-agent's: requests,
    commands and jobs are its session's."""

    def __init__(
        self, workspace: WorkspaceBase, request: Prompt, parent: TurnRequests | None
    ) -> None:
        self.workspace, self.request = workspace, request
        self.run_id, self.session_id = request.run_id, request.session_id
        self.denied = 0  # requests, with those of its sub-agents
        self._above = parent
        self._for_session = self.session_id if parent is None else parent.session_id
        self._author = Author(self._for_session, self.run_id)
        above = parent.guards if parent is not None else None
        parts = workspace.parts
        made = (part.turn_guards(parts, self._author, above) for part in parts)
        self.guards: Guards = next(filter(None, made), Guards())
        self._over = False
        self._step: LiveMessage | None = None  # the assistant message of the current step
        self._unallowed: set[str] = set()  # tool calls that wait for a permission
        self._fresh_ids: dict[str, str] = {}  # of calls whose own id was used before; the newest
        self._commands: TurnCommands | None = None  # None: no command was started yet
        self._watch: CommandWatch | None = None  # of the turn as a whole

    def _check(self) -> None:
        if self._over:
            raise TurnOver(f"the turn of run {self.run_id} has ended")

    def _show_calls(self) -> None:
        """Publish the calls of this step: clients must know a call before they hear of it."""
        if self._step is not None:
            self.workspace.transcript.flush(self._step)

    def _stored_id(self, call_id: str) -> str:
        """The id on record of what the agent calls by this one."""
        return self._fresh_ids.get(call_id, call_id)

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
        options: Sequence[PermissionOption] = (),
    ) -> Verdict:
        self._check()
        self._show_calls()
        request = PermissionRequest(
            session_id=self._for_session,
            tool_call_id=self._stored_id(tool_call_id),
            tool_name=tool_name,
            description=clean(description),
            action=action,
            params=dict(params or {}),
            path=directory_of(path, self.workspace.path),
            scope=clean(scope.words) if scope is not None else "",
            rule=clean(scope.rule_words) if scope is not None else "",
            options=[replace(option, name=clean(option.name)) for option in options],
        )
        self._unallowed.add(request.tool_call_id)  # stays if the run is canceled meanwhile
        verdict = await self.guards.decide(request, scope, self)
        if verdict is None and self.request.auto_approve:
            verdict = Verdict(True)
        if verdict is None:
            verdict = await self.workspace.permissions.ask(request, self.run_id, scope)
        self._unallowed.discard(request.tool_call_id)
        if not verdict:
            self.denied += 1
            if self._above is not None:
                self._above.denied += 1
        return verdict

    async def ask(
        self,
        questions: str | Sequence[str | Question | Mapping[str, Any]],
        *,
        tool_call_id: str = "",
        confirm_title: str = "",
    ) -> list[QuestionResponse] | None:
        self._check()
        self._show_calls()
        batch = QuestionBatch(
            session_id=self._for_session,
            tool_call_id=self._stored_id(tool_call_id),
            questions=questions_of(questions),
            confirm_title=confirm_title,
        )
        self.guards.notify("agent_needs_input", batch.questions[0].question if questions else "")
        return await self.workspace.questions.ask(batch, self.run_id)

    # Commands and jobs ---------------------------------------------------------------------------

    def _running(self) -> TurnCommands:
        """What runs the commands of this turn. Raises NotFound if no part does."""
        self._check()
        if self._commands is None:
            found = (part.turn_commands(self._author) for part in self.workspace.parts)
            self._commands = first_of(found, "runs no commands")
        return self._commands

    async def command(self, command: str | Sequence[str], **options: Any) -> RunningCommand:
        running = self._running()
        await self._watches_ended()
        started = await running.start(command, **options)
        if self._over:
            started.kill()
            self._check()
        return started

    def job_output(self, job_id: str) -> JobOutput:
        return self._running().job_output(job_id)

    def job_info(self, job_id: str) -> JobInfo:
        return self._running().job_info(job_id)

    async def wait_for_job(self, job_id: str, seconds: float) -> None:
        await self._running().wait_for_job(job_id, seconds)

    async def kill_job(self, job_id: str) -> Exit | None:
        return await self._running().kill_job(job_id)

    def keep(self, command: RunningCommand, info: JobInfo = UNKNOWN_JOB) -> str:
        return self._running().keep(command, info)

    async def end_commands(self) -> None:
        """Kill what the agent's commands left running: it is dead, or had some seconds to die."""
        if self._commands is not None:
            await self._commands.end()
        if self._watch is not None:
            ending = asyncio.ensure_future(self._watch.ended())
            self._watch = None
            await asyncio.wait([ending], timeout=WATCH_SECONDS)

    async def watch_files(self) -> None:
        self._check()
        if self._watch is None:
            watch = await self.workspace.watch_command(self._author)
            if self._over:  # `end_commands` has looked already
                watch.dropped()
                self._check()
            self._watch = watch

    async def _watches_ended(self) -> None:
        """Wait for the watches of commands that have ended: see `TurnCommands.settle`."""
        if self._commands is not None:
            await self._commands.settle()
            self._check()


# The forms in which agents give things -----------------------------------------------------------


def fresh_call_id() -> str:
    return f"call_{random_hex(16)}"


def json_text(value: str | Mapping[str, Any]) -> str:
    """What travels as a string of JSON may be given as the object it stands for."""
    if isinstance(value, str):
        return clean(value)
    try:
        return dumps(dict(value)).decode("ascii")
    except RecursionError:
        raise BadRequest("this cannot be written as JSON: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise BadRequest(f"this cannot be written as JSON: {error}") from None


def typed(cls: type[T], value: T | Mapping[str, Any]) -> T:
    """Our own dataclasses may be given in the shape they have on the wire."""
    return value if isinstance(value, cls) else decode(cls, value, cls.__name__.lower())


def questions_of(given: str | Sequence[str | Question | Mapping[str, Any]]) -> list[Question]:
    """Questions, given as such, in the shape of the wire, or as texts that want a text."""
    asked = [given] if isinstance(given, str) else given
    return [
        Question(type="free_text", question=each, description="Asked by the agent.")
        if isinstance(each, str)
        else typed(Question, each)
        for each in asked
    ]


def directory_of(path: str, root: Path) -> str:
    """Approving one file covers its folder: the key of a permission is a directory."""
    if path in ("", "."):
        return str(root)
    target = Path(root, path)
    # Not target.is_file(): it raises for what may not be looked at, which is to be asked for.
    return str(target.parent) if os.path.isfile(target) else path
