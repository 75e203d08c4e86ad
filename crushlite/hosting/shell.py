"""Shell commands that a person types into a session. They are no runs: they neither make a session
busy nor queue, a cancel of the session kills them, and they are not bound to the request that asked
for them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError, SessionNotFound
from ..protocol.messages import FinishPart, Message, ShellCommandPart
from ..protocol.sessions import ShellAnswer
from ..records import dataclass
from ..store import sessions as session_rows
from ..wing import Author
from .tasks import OwnedTasks
from .watching import start_command

if TYPE_CHECKING:
    from ..commands.process import Command
    from .endings import Endings
    from .services import Services

log = logging.getLogger(__name__)

OUTPUT_CHARS = 100_000  # of a command, kept and shown
END_SECONDS = 3.0  # for what was killed to be gone and on record


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
    def __init__(self, services: Services, endings: Endings) -> None:
        self.tasks = OwnedTasks()
        self._services = services
        self._endings = endings
        self._shells: dict[_Shell, asyncio.Task[ShellAnswer]] = {}  # until they are on record

    async def run(self, session_id: str, command: str) -> ShellAnswer:
        """Run a command in the workspace; it is put on record if its session exists."""
        if not command.strip() or "\0" in command:
            raise BadRequest("command must not be empty or contain NUL")
        self._endings.require_none()
        shell = _Shell(session_id)
        task = self._shells[shell] = self.tasks.spawn(self._run(shell, command))
        task.add_done_callback(lambda _: self._shells.pop(shell))
        return await asyncio.shield(task)

    def kill(self, session_id: str) -> None:
        for shell in self._shells:
            if shell.session_id == session_id:
                shell.kill()

    async def end(self, session_id: str) -> None:
        """Kill those of a session, and return when they are dead and on record."""
        self.kill(session_id)
        await self._wait([t for s, t in self._shells.items() if s.session_id == session_id])

    async def close(self) -> None:
        """Kill all, and let their records be written."""
        for shell in self._shells:
            shell.kill()
        await self._wait(list(self._shells.values()))
        await self.tasks.end(END_SECONDS)

    async def _wait(self, tasks: list[asyncio.Task[ShellAnswer]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    async def _run(self, shell: _Shell, command: str) -> ShellAnswer:
        watched = await start_command(self._services, command, Author(shell.session_id))
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
        services, now = self._services, int(self._services.clock.now())
        part = ShellCommandPart(command, answer.output, answer.exit_code)
        message = Message(
            str(uuid.uuid4()),
            "user",
            session_id,
            [part, FinishPart("stop")],
            created_at=now,
            updated_at=now,
        )
        try:
            await services.store.read(session_rows.get_session, session_id)
            # Published in its place in the order, as every message; a session that is deleted after
            # this look takes it along. Writes are done in turn: after the next one it is on record.
            services.transcript.create(message)
            await services.store.write(lambda conn, scope: None)
        except SessionNotFound:
            return  # the command has had its effect; there is just nowhere to write it down
        except CrushliteError as error:
            log.error("a shell command may not be on record: %s", error)
