"""Commands in a workspace: how they are started and watched, and those that a person types.

Before a command that may change files starts, every part is asked for a CommandWatch. When the
command has ended, or goes on as a job of its session, `ended` of each watch is awaited. A command
that only reads starts without that. A turn whose agent is a program of its own, which changes files
without a command, is watched as a whole in the same way.

Commands that a person types into a session are no runs: they neither make a session busy nor queue,
a cancel of the session kills them, and they are not bound to the request that asked for them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..clock import resolve_once
from ..commands import process
from ..errors import BadRequest, CrushliteError, SessionNotFound
from ..protocol.messages import FinishPart, ShellCommandPart
from ..protocol.sessions import ShellAnswer
from ..records import dataclass
from ..store import sessions as session_rows
from ..wing import Author
from .tasks import OwnedTasks
from .transcript import new_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..commands.process import Command
    from ..wing import CommandWatch
    from .workspace_base import WorkspaceBase

log = logging.getLogger(__name__)

OUTPUT_CHARS = 100_000  # of a command, kept and shown
END_SECONDS = 3.0  # for what was killed to be gone and on record


class WatchedCommand:
    """A command that runs, and its watches."""

    def __init__(self, command: Command, watches: list[CommandWatch]) -> None:
        self.command = command
        self._watches = watches
        self._kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Done when every watch has ended.
        self.reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if watches:
            self.reported = asyncio.create_task(self._report())
        else:
            self.reported.set_result(None)

    @property
    def due(self) -> bool:
        """Whether the command has ended or was kept: then its watches are ending, or have ended."""
        return self.command.done.done() or self._kept.done()

    def keep(self) -> None:
        """The command goes on, but what it changes from now on belongs to no run."""
        resolve_once(self._kept)

    async def _report(self) -> None:
        ends: list[asyncio.Future[Any]] = [self.command.done, self._kept]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await end_watches(self._watches)


async def start_command(  # noqa: PLR0913 - the options of a command
    workspace: WorkspaceBase,
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
    watches = [] if read_only else await begin_watches(workspace, author)
    try:
        started = await process.start(
            command,
            cwd=cwd or workspace.path,
            env=workspace.profile.command_env(workspace.env) if env is None else env,
            clock=workspace.clock,
            on_output=on_output,
        )
    except BaseException:
        for watch in watches:
            watch.dropped()
        raise
    return WatchedCommand(started, watches)


async def begin_watches(workspace: WorkspaceBase, author: Author) -> list[CommandWatch]:
    """Ask every part for its watch. If one fails, or this is cancelled, none is left."""
    watches: list[CommandWatch] = []
    try:
        for part in workspace.parts:
            watch = await part.before_command(author)
            if watch is not None:
                watches.append(watch)
    except BaseException:
        for watch in watches:
            watch.dropped()
        raise
    return watches


async def end_watches(watches: list[CommandWatch]) -> None:
    """Let each watch record what has changed."""
    for watch in watches:
        await watch.ended()


# Commands that a person types --------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Shell:
    """A command from its request on: a kill finds it also while it is being started."""

    session_id: str
    command: Command | None = None
    killed: bool = False

    def kill(self) -> None:
        self.killed = True
        if self.command is not None:
            self.command.kill()


class Shells:
    def __init__(self, workspace: WorkspaceBase) -> None:
        self.tasks = OwnedTasks()
        self._workspace = workspace
        self._shells: dict[_Shell, asyncio.Task[ShellAnswer]] = {}  # until they are on record

    async def run(self, session_id: str, command: str) -> ShellAnswer:
        """Run a command in the workspace; it is put on record if its session exists."""
        if not command.strip() or "\0" in command:
            raise BadRequest("command must not be empty or contain NUL")
        self._workspace.endings.require_none()
        shell = _Shell(session_id)
        task = self._shells[shell] = self.tasks.spawn(self._run(shell, command))
        task.add_done_callback(lambda _: self._shells.pop(shell))
        return await asyncio.shield(task)

    def kill(self, session_id: str | None) -> list[asyncio.Task[ShellAnswer]]:
        """Kill those of a session, or all; returns their tasks."""
        mine = [one for one in self._shells if session_id in (None, one.session_id)]
        for shell in mine:
            shell.kill()
        return [self._shells[shell] for shell in mine]

    async def end(self, session_id: str | None = None) -> None:
        """Kill those of a session, or all, and return when they are dead and on record."""
        tasks = self.kill(session_id)
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    async def _run(self, shell: _Shell, command: str) -> ShellAnswer:
        watched = await start_command(self._workspace, command, Author(shell.session_id))
        started = shell.command = watched.command
        if shell.killed:
            started.kill()
        try:
            end = await started.wait()
        except asyncio.CancelledError:
            started.kill()
            raise
        await watched.reported
        answer = ShellAnswer(started.output.text(OUTPUT_CHARS), end.code)
        await self._record(shell.session_id, command, answer)
        return answer

    async def _record(self, session_id: str, command: str, answer: ShellAnswer) -> None:
        workspace = self._workspace
        part = ShellCommandPart(command, answer.output, answer.exit_code)
        parts = (part, FinishPart("stop"))
        message = new_message("user", session_id, parts, workspace.clock.now())
        try:
            await workspace.store.read(session_rows.get_session, session_id)
            # Published in its place in the order, as every message; a session that is deleted after
            # this look takes it along. Writes are done in turn: after the next one it is on record.
            workspace.transcript.create(message)
            await workspace.store.write(lambda conn, scope: None)
        except SessionNotFound:
            return  # the command has had its effect; there is just nowhere to write it down
        except CrushliteError as error:
            log.error("a shell command may not be on record: %s", error)
