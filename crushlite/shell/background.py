"""Background jobs: commands that belong to a session, not to a run.

A job ends by itself, when it is killed, when its session is deleted, or when the workspace closes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..agent.base import UNKNOWN_JOB, JobOutput
from ..clock import wait_at_most
from ..errors import Conflict, NotFound

if TYPE_CHECKING:
    from ..agent.base import Exit, JobInfo, RunningCommand
    from ..clock import Clock, Timer


class _Job:
    def __init__(self, session_id: str, command: RunningCommand, info: JobInfo) -> None:
        self.session_id = session_id
        self.command = command
        self.info = info
        self.exit: Exit | None = None
        self.expiry: Timer | None = None


class Background:
    """The background jobs of one workspace.

    A job that has ended stays in the list until its output was read, for `keep` seconds, or until
    more than `kept` newer ones have ended. At most `live` jobs may run.
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

    def adopt(self, session_id: str, command: RunningCommand, info: JobInfo = UNKNOWN_JOB) -> str:
        """Make a job of a running command. Return the job's id. Raises Conflict if the workspace is
        closing or too many jobs run."""
        if self._closed:
            raise Conflict("the workspace is closing: no new jobs")
        if self.live >= self._max_live:
            raise Conflict(
                f"{self._max_live} background jobs are running, which is the most there may be: "
                "kill one first"
            )
        self._count += 1
        job_id = str(self._count)
        self._jobs[job_id] = _Job(session_id, command, info)
        command.done.add_done_callback(lambda done: self._end(job_id, done.result()))
        return job_id

    def output(self, job_id: str, session_id: str) -> JobOutput:
        """The output of a session's job so far. A job that has ended leaves the list with this
        call. Raises NotFound for a job that the session does not have."""
        job = self._find(job_id, session_id)
        if job.exit is not None:
            self._forget(job_id)
        return JobOutput(job.command.output.text(), job.exit is not None, job.exit)

    def info(self, job_id: str, session_id: str) -> JobInfo:
        """What a session's job is. Raises NotFound for a job that the session does not have."""
        return self._find(job_id, session_id).info

    async def wait(self, job_id: str, session_id: str, seconds: float) -> None:
        """Wait until a session's job has ended, at most for some seconds. Raises NotFound for a job
        that the session does not have."""
        await wait_at_most(self._clock, self._find(job_id, session_id).command.done, seconds)

    async def kill(self, job_id: str, session_id: str) -> Exit | None:
        """Kill a session's job and wait until it is dead. Its output stays readable. Raises
        NotFound for a job that the session does not have."""
        job = self._find(job_id, session_id)
        await self._kill([job])
        return job.exit

    async def kill_session(self, session_id: str) -> None:
        """Kill the jobs of a session and remove them from the list."""
        await self._remove([key for key, job in self._jobs.items() if job.session_id == session_id])

    async def close(self) -> None:
        """Kill all jobs; later calls of `adopt` raise Conflict."""
        self._closed = True
        await self._remove(list(self._jobs))

    async def _remove(self, ids: list[str]) -> None:
        await self._kill([self._jobs[job_id] for job_id in ids])
        for job_id in ids:
            self._forget(job_id)

    def _find(self, job_id: str, session_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None or job.session_id != session_id:
            there = [key for key, each in self._jobs.items() if each.session_id == session_id]
            raise NotFound(
                f"no job {job_id}: there was none, or it has ended and its output was read. "
                f"Jobs of this session: {', '.join(there) or 'none'}"
            )
        return job

    def _end(self, job_id: str, result: Exit) -> None:
        """The command of a job has ended: keep its output for a while."""
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
        """Kill jobs and wait until all of them are dead."""
        for job in jobs:
            job.command.kill()
        await asyncio.gather(*(job.command.done for job in jobs), return_exceptions=True)
