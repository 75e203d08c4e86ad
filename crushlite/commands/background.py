"""Background commands. They belong to a session, not to a run: they end by themselves, when they
are killed, when their session is deleted, or with the workspace.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Conflict, NotFound

if TYPE_CHECKING:
    from ..clock import Clock, Timer
    from .process import Command, Exit


class JobOutput(NamedTuple):
    text: str
    done: bool
    exit: Exit | None


class _Job:
    def __init__(self, session_id: str, command: Command) -> None:
        self.session_id = session_id
        self.command = command
        self.exit: Exit | None = None
        self.expiry: Timer | None = None


class Background:
    """The background commands of a workspace. They belong to a session, not to a run.

    A job that has ended stays until its output was read, for an hour, or until too many newer
    ones have ended.
    """

    def __init__(
        self, clock: Clock, *, live: int = 50, kept: int = 50, keep: float = 3600.0
    ) -> None:
        self._clock = clock
        self._max_live = live
        self._max_kept = kept
        self._keep = keep
        self._jobs: dict[str, _Job] = {}
        self._ended: dict[str, None] = {}  # in the order of their ends
        self._count = 0
        self._closed = False

    @property
    def live(self) -> int:
        return len(self._jobs) - len(self._ended)

    def adopt(self, session_id: str, command: Command) -> str:
        """Make a job of a command that already runs; returns the job's id."""
        if self._closed:
            raise Conflict("the workspace is closing: no new jobs")
        if self.live >= self._max_live:
            raise Conflict(
                f"{self._max_live} background jobs are running, which is the most there may be: "
                "kill one first"
            )
        self._count += 1
        job_id = str(self._count)
        self._jobs[job_id] = _Job(session_id, command)
        command.done.add_done_callback(lambda done: self._end(job_id, done.result()))
        return job_id

    def output(self, job_id: str, session_id: str) -> JobOutput:
        """What a session's job has said so far. One that has ended is forgotten after this."""
        job = self._find(job_id, session_id)
        if job.exit is not None:
            self._forget(job_id)
        return JobOutput(job.command.output.text(), job.exit is not None, job.exit)

    async def kill(self, job_id: str, session_id: str) -> Exit | None:
        """End a session's job; returns when it is dead. Its output stays readable."""
        job = self._find(job_id, session_id)
        await self._kill([job])
        return job.exit

    async def kill_session(self, session_id: str) -> None:
        """End the jobs of a session and forget them."""
        await self._drop([key for key, job in self._jobs.items() if job.session_id == session_id])

    async def close(self) -> None:
        """End all jobs, take no new ones."""
        self._closed = True
        await self._drop(list(self._jobs))

    async def _drop(self, ids: list[str]) -> None:
        await self._kill([self._jobs[job_id] for job_id in ids])
        for job_id in ids:
            self._forget(job_id)

    def _find(self, job_id: str, session_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None or job.session_id != session_id:
            raise NotFound(
                f"no job {job_id}: there was none, or it has ended and its output was read"
            )
        return job

    def _end(self, job_id: str, result: Exit) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.exit = result
        job.expiry = self._clock.call_later(self._keep, lambda: self._forget(job_id))
        self._ended[job_id] = None
        while len(self._ended) > self._max_kept:
            self._forget(next(iter(self._ended)))

    def _forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        self._ended.pop(job_id, None)
        if job is not None and job.expiry is not None:
            job.expiry.cancel()

    async def _kill(self, jobs: list[_Job]) -> None:
        """Returns when all of them are dead."""
        for job in jobs:
            job.command.kill()
        await asyncio.gather(*(job.command.done for job in jobs), return_exceptions=True)
