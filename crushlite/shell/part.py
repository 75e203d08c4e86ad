"""Commands in a workspace: how they are started and watched, and those that a person types.

Before a command that may change files starts, every part is asked for a CommandWatch. When the
command has ended, or goes on as a job of its session, `ended` of the watch is awaited. A command
that only reads starts without that.

Commands that a person types into a session are no runs: they neither make a session busy nor queue,
a cancel of the session kills them, and they are not bound to the request that asked for them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..agent.base import UNKNOWN_JOB
from ..clock import resolve_once
from ..commands import process
from ..commands.environment import command_env
from ..errors import CrushliteError, SessionNotFound
from ..features.wire import ShellAnswer
from ..hosting.tasks import OwnedTasks
from ..protocol.messages import ShellCommandPart
from ..records import dataclass
from ..wing import Author, WorkspacePart
from .background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..agent.base import Exit, JobInfo, JobOutput, RunningCommand
    from ..commands.process import Command
    from ..wing import CommandWatch, OpenWorkspace

log = logging.getLogger(__name__)

OUTPUT_CHARS = 100_000  # of a command that a person types, kept and shown
# How long a killed command may take to be gone and on record, before its run ends anyway.
END_SECONDS = 3.0


class ShellPart(WorkspacePart):
    def __init__(self, workspace: OpenWorkspace) -> None:
        self.jobs = Background(workspace.clock)
        self.typed = TypedCommands(workspace)
        self._workspace = workspace

    def turn_commands(self, author: Author) -> CommandsOfTurn:
        return CommandsOfTurn(self._workspace, self.jobs, author)

    def session_canceled(self, session_id: str) -> None:
        self.typed.kill(session_id)

    async def end_session(self, session_id: str) -> None:
        await self.typed.end(session_id)
        await self.jobs.kill_session(session_id)

    async def close(self) -> None:
        # At the same time: nothing must be left alive if this takes too long and is cancelled.
        await asyncio.gather(self.typed.close(), self.jobs.close())


class WatchedCommand:
    """A command that runs, and its watch."""

    def __init__(self, command: Command, watch: CommandWatch | None) -> None:
        self.command = command
        self._watch = watch
        self._kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Done when the watch has ended.
        self.reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if watch is None:
            self.reported.set_result(None)
        else:
            self.reported = asyncio.create_task(self._report(watch))

    @property
    def due(self) -> bool:
        """Whether the command has ended or was kept: then its watch is ending, or has ended."""
        return self.command.done.done() or self._kept.done()

    def keep(self) -> None:
        """The command goes on, but what it changes from now on belongs to no run."""
        resolve_once(self._kept)

    async def _report(self, watch: CommandWatch) -> None:
        ends: list[asyncio.Future[Any]] = [self.command.done, self._kept]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await watch.ended()


async def start_command(  # noqa: PLR0913 - the options of a command
    workspace: OpenWorkspace,
    command: str | Sequence[str],
    author: Author,
    *,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    on_output: Callable[[bytes], None] | None = None,
    read_only: bool = False,
) -> WatchedCommand:
    """Start a command: in the workspace's directory and with its environment without secrets,
    unless others are given."""
    watch = None if read_only else await workspace.watch_command(author)
    try:
        started = await process.start(
            command,
            cwd=cwd or workspace.path,
            env=command_env(workspace) if env is None else env,
            clock=workspace.clock,
            on_output=on_output,
        )
    except BaseException:
        if watch is not None:
            watch.dropped()
        raise
    return WatchedCommand(started, watch)


class CommandsOfTurn:
    """Implements agent.base.TurnCommands."""

    def __init__(self, workspace: OpenWorkspace, jobs: Background, author: Author) -> None:
        self._workspace, self._jobs, self._author = workspace, jobs, author
        self._running: set[RunningCommand] = set()  # those that die with the run
        # Until their watches have recorded them.
        self._watched: dict[RunningCommand, WatchedCommand] = {}

    async def start(self, command: str | Sequence[str], **options: Any) -> RunningCommand:
        watched = await start_command(self._workspace, command, self._author, **options)
        started = watched.command
        self._running.add(started)
        self._watched[started] = watched
        watched.reported.add_done_callback(lambda _: self._watched.pop(started, None))
        return started

    def keep(self, command: RunningCommand, info: JobInfo = UNKNOWN_JOB) -> str:
        job_id = self._jobs.adopt(self._author.session_id, command, info)
        self._running.discard(command)
        if command in self._watched:
            self._watched[command].keep()
        return job_id

    def job_output(self, job_id: str) -> JobOutput:
        return self._jobs.output(job_id, self._author.session_id)

    def job_info(self, job_id: str) -> JobInfo:
        return self._jobs.info(job_id, self._author.session_id)

    async def wait_for_job(self, job_id: str, seconds: float) -> None:
        await self._jobs.wait(job_id, self._author.session_id, seconds)

    async def kill_job(self, job_id: str) -> Exit | None:
        return await self._jobs.kill(job_id, self._author.session_id)

    async def settle(self) -> None:
        due = [watched.reported for watched in self._watched.values() if watched.due]
        if due:
            await asyncio.wait(due)

    async def end(self) -> None:
        for command in self._running:
            command.kill()
        if self._running:
            await asyncio.wait([command.done for command in self._running], timeout=END_SECONDS)
        if self._watched:
            reported = [watched.reported for watched in self._watched.values()]
            await asyncio.wait(reported, timeout=END_SECONDS)


# Commands that a person types --------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Typed:
    """A command from its request on: a kill finds it also while it is being started."""

    session_id: str
    command: Command | None = None
    killed: bool = False

    def kill(self) -> None:
        self.killed = True
        if self.command is not None:
            self.command.kill()


class TypedCommands:
    def __init__(self, workspace: OpenWorkspace) -> None:
        self.tasks = OwnedTasks()
        self._workspace = workspace
        self._typed: dict[_Typed, asyncio.Task[ShellAnswer]] = {}  # until they are on record

    async def run(self, session_id: str, command: str) -> ShellAnswer:
        """Run a command in the workspace; it is put on record if its session exists."""
        typed = _Typed(session_id)
        task = self._typed[typed] = self.tasks.spawn(self._run(typed, command))
        task.add_done_callback(lambda _: self._typed.pop(typed))
        return await asyncio.shield(task)

    def kill(self, session_id: str | None) -> list[asyncio.Task[ShellAnswer]]:
        """Kill those of a session, or all; returns their tasks."""
        mine = [one for one in self._typed if session_id in (None, one.session_id)]
        for typed in mine:
            typed.kill()
        return [self._typed[typed] for typed in mine]

    async def end(self, session_id: str | None = None) -> None:
        """Kill those of a session, or all, and return when they are dead and on record."""
        tasks = self.kill(session_id)
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    async def close(self) -> None:
        await self.end()
        await self.tasks.end(END_SECONDS)

    async def _run(self, typed: _Typed, command: str) -> ShellAnswer:
        watched = await start_command(self._workspace, command, Author(typed.session_id))
        started = typed.command = watched.command
        if typed.killed:
            started.kill()
        try:
            end = await started.wait()
        except asyncio.CancelledError:
            started.kill()
            raise
        await watched.reported
        answer = ShellAnswer(started.output.text(OUTPUT_CHARS), end.code)
        part = ShellCommandPart(command, answer.output, answer.exit_code)
        try:
            await self._workspace.add_message(typed.session_id, part)
        except SessionNotFound:
            pass  # the command has had its effect; there is just nowhere to write it down
        except CrushliteError as error:
            log.error("a shell command may not be on record: %s", error)
        return answer
