"""The commands that an agent runs, and the jobs of its session: commands that go on after their
run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..commands.background import UNKNOWN_JOB
from ..errors import TurnOver
from ..wing import Author
from .watching import begin_watches, end_watches, start_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..commands.background import JobInfo, JobOutput
    from ..commands.process import Command, Exit
    from ..wing import CommandWatch
    from .services import Services
    from .watching import WatchedCommand

COMMAND_SECONDS = 3.0  # how long a killed command may take to be gone before the run ends anyway


class TurnCommands:
    """The part of a LiveTurn that is about commands and jobs. A sub-agent has the jobs of the
    session that it works for."""

    run_id: str
    session_id: str
    _for_session: str  # the session that a sub-agent works for, else the turn's own
    _services: Services
    _over: bool
    _commands: set[Command]  # those that die with the run
    _watched: dict[Command, WatchedCommand]  # until their watches have recorded them
    _watches: list[CommandWatch]  # of the turn as a whole

    def _check(self) -> None:
        if self._over:
            raise TurnOver(f"the turn of run {self.run_id} has ended")

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        read_only: bool = False,
    ) -> Command:
        self._check()
        await self._watches_ended()
        watched = await start_command(
            self._services,
            command,
            Author(self._for_session, self.run_id),
            cwd=cwd,
            env=env,
            on_output=on_output,
            read_only=read_only,
        )
        started = watched.command
        self._commands.add(started)
        self._watched[started] = watched
        watched.reported.add_done_callback(lambda _: self._watched.pop(started, None))
        if self._over:
            started.kill()
            self._check()
        return started

    def job_output(self, job_id: str) -> JobOutput:
        self._check()
        return self._services.background.output(job_id, self._for_session)

    def job_info(self, job_id: str) -> JobInfo:
        self._check()
        return self._services.background.info(job_id, self._for_session)

    async def wait_for_job(self, job_id: str, seconds: float) -> None:
        self._check()
        await self._services.background.wait(job_id, self._for_session, seconds)

    async def kill_job(self, job_id: str) -> Exit | None:
        self._check()
        return await self._services.background.kill(job_id, self._for_session)

    def keep(self, command: Command, info: JobInfo = UNKNOWN_JOB) -> str:
        self._check()
        job_id = self._services.background.adopt(self._for_session, command, info)
        self._commands.discard(command)
        if command in self._watched:
            self._watched[command].keep()
        return job_id

    async def end_commands(self) -> None:
        """Kill what the agent's commands left running: when a run is reported ended, the processes
        of its foreground commands are dead."""
        for command in self._commands:
            command.kill()
        if self._commands:
            await asyncio.wait(
                [command.done for command in self._commands], timeout=COMMAND_SECONDS
            )
        if self._watched:
            reported = [watched.reported for watched in self._watched.values()]
            await asyncio.wait(reported, timeout=COMMAND_SECONDS)
        if self._watches:
            ending = asyncio.ensure_future(end_watches(self._watches))
            self._watches = []
            await asyncio.wait([ending], timeout=COMMAND_SECONDS)

    async def watch_files(self) -> None:
        self._check()
        if not self._watches:
            author = Author(self.session_id, self.run_id)
            self._watches = await begin_watches(self._services, author)

    async def _watches_ended(self) -> None:
        """Wait until the watches of commands that have ended are done: what comes next must not be
        taken for the doing of those commands."""
        due = [watched.reported for watched in self._watched.values() if watched.due]
        if due:
            await asyncio.wait(due)
            self._check()
