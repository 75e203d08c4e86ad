"""Performs what runs.py decides.

    accept -> insert run row (COMMIT) -> durable -> 202
           -> Start: user message -> agent.run(turn) -> close the turn -> COMMIT -> run_complete

The turn itself, with its two tasks, is in turns.py, what closes it in closing.py. Effects are
performed in one ordered *lane* per session, except Stop, which acts at once. An ending in a lane is
awaited to its commit before the next effect begins.

Inside, a run ends in `Runs.finish`. For outsiders it ends when its `run_complete` goes out, after
the commit: until then the Runner keeps its Job, and busy, W/runs and waiting go by that. If the
store cannot commit it, endings.py keeps it and this Runner is held: nothing starts until it is
written.

Who decides: runs.py about runs, pending.py about requests. This file holds no rule of its own
about the state of a run.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clock import settled, within
from ..errors import (
    BadRequest,
    NotQueued,
    NotSaved,
    ProviderFailed,
    RunIdReused,
    RunNotFound,
    SessionBusy,
)
from ..protocol.runs import CanceledRun, CancelReceipt, QueuedPrompt
from ..runs import Drained, End, Fold, Outcome, Runs, RunState, Start, Stop, WhenBusy
from ..store import TROUBLE, runs as run_rows, sessions as session_rows
from .chores import Chores
from .closing import Closing
from .jobs import (
    SUMMARIZE,
    Job,
    Lanes,
    digest_of,
    log_crash,
    nothing,
    read_prompt,
    row_info,
    row_infos,
)
from .staff import Staff
from .turn import Order, Services
from .turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ..agent.base import Agent
    from ..protocol.messages import Message, Prompt
    from ..protocol.runs import RunInfo
    from ..runs import Canceled, Effect
    from ..settings import Settings
    from ..store import Connection
    from ..store.runs import RunRow
    from .endings import Endings

    Hit = tuple[CancelReceipt, list[asyncio.Future[None]]]  # and what to wait for

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Detached:
    """Tells the owner about detached runs, by their ids: each keeps the workspace alive by itself,
    from `began` to `ended`."""

    began: Callable[[str], None]
    ended: Callable[[str], None]


class Runner:
    """The runs of one workspace. `endings` is that of the store."""

    def __init__(
        self,
        services: Services,
        agent: Agent | None,
        settings: Settings,
        detached: Detached,
        endings: Endings,
    ) -> None:
        self.staff = Staff(agent)
        self.chores = Chores(services, endings.require_none)
        self.turns = Turns(
            services,
            self.staff,
            self.chores,
            settings.cancel_grace,
            fold=self._fold,
            own=self._own,
        )
        self.closing = Closing(
            services,
            self.turns,
            endings,
            forget=self._forget,
            released=detached.ended,
        )
        self._services = services
        self._settings = settings
        self._detached = detached
        self._store = services.store
        self._scope = services.scope
        self._clock = services.clock
        self._transcript = services.transcript
        self._runs = Runs()
        self._jobs: dict[str, Job] = {}  # by run_id, until published or withdrawn
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lanes = Lanes(self._spawn)
        self._drained: dict[str | None, asyncio.Future[None]] = {}
        self._endings = endings
        endings.join(self)

    # Prompts -------------------------------------------------------------------------------------

    def accept(self, prompt: Prompt) -> Job:
        """Take a prompt into the line. Synchronous: the order of calls is the order of the line.

        `prompt` waits for the commit behind it; the insert goes on whoever waits.
        """
        self.staff.require()
        order, when_busy = read_prompt(prompt)
        digest = digest_of(order)
        known = self._jobs.get(order.run_id)
        if known is None:
            self._endings.require_none()
            run = self._runs.accept(order.session_id, order.run_id, when_busy)
            now = self._clock.now()
            job = Job(run, order, digest=digest, detach=prompt.detach, now=now)
            self._jobs[order.run_id] = job
            if job.detach:
                self._detached.began(run.run_id)
            row, scope = job.row(self._store.boot_id), self._scope
            job.inserted = self._store.submit(
                lambda conn: run_rows.insert_run(conn, scope, row), promise=True
            )
            # The first callback: whoever waits for the same future is told after it has run.
            job.inserted.add_done_callback(lambda done: self._inserted(job, done))
            return job
        if known.digest != digest:
            raise RunIdReused(f"run_id {order.run_id!r} was used for another prompt")
        return known

    async def prompt(self, prompt: Prompt) -> RunInfo:
        """Accept a prompt and return when it is promised: committed, or found to be a repeat."""
        try:
            job = self.accept(prompt)
        except (SessionBusy, NotSaved):
            # A repeat of a prompt that has ended is no new prompt, however busy the session is and
            # whatever the store still has to write.
            known = await self._repeated(prompt)
            if known is None:
                raise
            return known
        assert job.inserted is not None  # a summary has no row, but its digest is no prompt's
        await asyncio.shield(job.inserted)
        # Not promised: a repeat of a run that has ended. Or a repeat that came in the turn of the
        # loop between the commit and `_inserted`. In both cases the row knows.
        if not job.run.durable:
            return await self.run_info(job.run.run_id)
        return self._job_info(job)

    async def _repeated(self, prompt: Prompt) -> RunInfo | None:
        if not prompt.run_id:
            return None
        order, _ = read_prompt(prompt)
        try:
            row = await self._store.read(
                lambda conn: run_rows.get_run(conn, self._scope, prompt.run_id)
            )
        except RunNotFound:
            return None
        if row.digest != digest_of(order):
            raise RunIdReused(f"run_id {prompt.run_id!r} was used for another prompt")
        return await self.run_info(prompt.run_id)

    def _inserted(self, job: Job, done: asyncio.Future[RunRow | None]) -> None:
        error = done.exception()
        row = done.result() if error is None else None
        if error is None and (row is None or self._ownerless(row)):
            self._perform(self._runs.durable(job.run))
            return
        # Not promised: the session is unknown, the store refused, or it is a repeat of a run that
        # has ended. Whoever waits for this commit learns the same.
        del self._jobs[job.run.run_id]
        effects = self._runs.withdraw(job.run)
        if job.detach:
            self._detached.ended(job.run.run_id)
        settled(job.published)
        self._perform(effects)

    def _ownerless(self, row: RunRow) -> bool:
        """Committed although its poster was told that it was not: nobody else will run it."""
        begun = row.outcome is not None or row.user_message_id or row.run_id in self.closing.unsaved
        return not begun and row.boot_id == self._store.boot_id

    async def summarize(self, session_id: str) -> None:
        """Summarize a session: a run without a row, a user message or a `run_complete`. Returns at
        its end, also if it was canceled; raises what went wrong."""
        agent = self.staff.require()
        session = await self._store.read(
            lambda conn: session_rows.get_session(conn, self._scope, session_id)
        )
        if not session.message_count and not self.busy(session_id):
            return
        if not agent.summarizes:
            raise BadRequest("this agent cannot summarize: it has no such method")
        self._endings.require_none()
        order = Order(str(uuid.uuid4()), session_id, "")
        run = self._runs.accept(session_id, order.run_id, WhenBusy.REJECT, SUMMARIZE)
        job = Job(run, order, digest="", detach=False, now=self._clock.now())
        self._jobs[run.run_id] = job
        self._perform(self._runs.durable(run))
        await asyncio.shield(job.published)
        if isinstance(job.cause, TROUBLE):
            raise job.cause
        if job.failure is not None:
            raise ProviderFailed(job.failure.detail)

    # Cancel and the queue ------------------------------------------------------------------------

    def cancel(self, session_id: str) -> Hit:
        """Cancel all that a session has accepted so far. What an earlier cancel has hit is listed
        again until its ending is out: who asks a second time waits for the same."""
        self.chores.kill_shells(session_id)
        unwinding = [
            job
            for job in self._jobs.values()
            if job.run.session_id == session_id
            and job.run.state is RunState.ENDED
            and job.run.doom is Outcome.CANCELED
        ]
        receipt, endings = self._canceled(self._runs.cancel(session_id))
        again = [CanceledRun(job.run.run_id, self._describe(job)) for job in unwinding]
        return (
            CancelReceipt([*again, *receipt.canceled]),
            [*(job.published for job in unwinding), *endings],
        )

    async def cancel_run(self, run_id: str) -> Hit:
        """Cancel one run, and nobody behind it. One that has ended is left alone."""
        run, job = self._runs.find(run_id), self._jobs.get(run_id)
        if run is not None:
            return self._canceled(self._runs.cancel_run(run))
        if job is None:
            await self.run_info(run_id)  # raises if there is no such run
        return CancelReceipt([]), [job.published] if job is not None else []

    def _canceled(self, canceled: Canceled) -> Hit:
        jobs = [(self._jobs[run.run_id], was) for run, was in canceled.receipt]
        self._perform(canceled.effects)
        # What the machine has started may still wait for the ending before it to be written.
        hit = [
            CanceledRun(job.run.run_id, was if was != "active" or job.started_at else "accepted")
            for job, was in jobs
        ]
        return CancelReceipt(hit), [job.published for job, _ in jobs]

    def queue(self, session_id: str) -> list[QueuedPrompt]:
        jobs = [self._jobs[run.run_id] for run in self._runs.queued(session_id)]
        return [
            QueuedPrompt(job.run.run_id, job.order.prompt, job.run.when_busy.value, job.accepted_at)
            for job in jobs
            if job.run.kind != SUMMARIZE  # held, as nothing else keeps one from starting
        ]

    def clear(self, session_id: str) -> None:
        self._perform(self._runs.clear(session_id))

    async def remove(self, session_id: str, run_id: str) -> None:
        run = self._runs.find(run_id)
        if run is None or run.session_id != session_id:
            info = await self.run_info(run_id)
            if info.session_id != session_id:
                raise RunNotFound(f"session {session_id} has no run {run_id}")
            raise NotQueued(f"run {run_id} is {info.state}, not queued")
        self._perform(self._runs.remove(run))

    def busy(self, session_id: str | None = None) -> bool:
        """Accepted counts, and so does an ending that is not published yet."""
        return any(session_id in (None, job.run.session_id) for job in self._jobs.values())

    # The hold ------------------------------------------------------------------------------------

    def hold(self) -> None:
        self._runs.hold()

    def release(self) -> None:
        self._perform(self._runs.release())

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Stop):
                self.turns.stop(self._jobs[effect.run.run_id])
            elif isinstance(effect, Start):
                self._push(self._start, self._jobs[effect.run.run_id])
            elif isinstance(effect, End):
                self._push(self.closing.end, self._jobs[effect.run.run_id], effect.outcome)
            elif isinstance(effect, Drained):
                self._note_drained(effect.session_id)

    def _push(self, work: Callable[..., Coroutine[Any, Any, None]], job: Job, *args: Any) -> None:
        done = self._lanes.push(job.run.session_id, lambda: work(job, *args))
        done.add_done_callback(log_crash)

    def _forget(self, job: Job) -> None:
        """Its ending is being told: from here on the session is not busy with it."""
        del self._jobs[job.run.run_id]

    def _note_drained(self, session_id: str | None) -> None:
        if session_id in self._drained:
            settled(self._drained[session_id])

    async def _start(self, job: Job) -> None:
        if self._runs.held and job.run.doom is None:
            # Decided before it was known that the ending ahead of it cannot be written.
            self._runs.postpone(job.run)
        else:
            self._spawn(self._take_turn(job))

    async def _take_turn(self, job: Job) -> None:
        """The turn task: every way out of a turn leads through `finish`."""
        outcome = await self.turns.take(job)
        self._perform(self._runs.finish(job.run, outcome))

    async def _fold(self, job: Job) -> list[Message]:
        """Store the prompts that were typed to steer this turn, then hand them to the agent."""
        # Who joins a turn must be asked as in one of their own.
        effects = [] if job.order.auto_approve else self._runs.fold(job.run)
        riders = [self._jobs[r.run_id] for e in effects if isinstance(e, Fold) for r in e.riders]
        for rider in riders:
            rider.carrier = job
            job.riders.append(rider)
            rider.started_at = self._clock.now()
        if not riders:
            return []
        return await self._lanes.push(job.run.session_id, lambda: self._store_riders(job, riders))

    async def _store_riders(self, job: Job, riders: list[Job]) -> list[Message]:
        """If this fails the turn fails, and its ending stores what is missing."""
        lives = [self.turns.user_message(rider, job.run.run_id) for rider in riders]
        try:
            await self._store.submit(self._transcript.unsaved(lives), promise=True)
        except Exception as error:
            job.cause = error
            raise
        self._transcript.saved(lives)
        return [live.snapshot() for live in lives]

    # Views of runs -------------------------------------------------------------------------------

    def _describe(self, job: Job) -> str:
        """A run's state for outsiders. One that the machine has started but whose lane is still
        busy with the ending before it is not active yet; an unpublished ending still is."""
        if job.run.state is RunState.ENDED and job.carrier is not None:
            return "folded"
        if job.run.state in (RunState.ACTIVE, RunState.ENDED):
            return "active" if job.started_at else "accepted"
        return self._runs.describe(job.run)

    def states(self) -> list[tuple[str, str]]:
        """Session and state of every run that lives, as outsiders see it."""
        return [(job.run.session_id, self._describe(job)) for job in self._jobs.values()]

    async def run_info(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """One run; with `wait`, its state when it has ended or the time is up."""
        job = self._jobs.get(run_id) or self.closing.unsaved.get(run_id)
        if job is not None and wait > 0:
            await within(self._clock, job.published, wait)
        if job is not None and job.run.durable:
            return self._job_info(job)
        scope = self._scope

        def read(conn: Connection) -> RunInfo:
            return row_info(conn, scope, run_rows.get_run(conn, scope, run_id))

        try:
            return await self._store.read(read)
        except RunNotFound:
            # A row comes first, for a job without a promise may repeat a run that has ended.
            if job is None or job.run.state is RunState.WITHDRAWN:
                raise
            return self._job_info(job)

    async def list_runs(self, session_id: str | None, state: str | None) -> list[RunInfo]:
        """Runs, oldest first. References are taken before the read, as in the transcript: a run
        that ends meanwhile is then told by its job, not by a row that was not written yet."""
        jobs = self.closing.unsaved | self._jobs
        scope, unsure = self._scope, [key for key, job in jobs.items() if not job.run.durable]
        infos = []
        for info in await self._store.read(
            lambda conn: row_infos(conn, scope, session_id, state, unsure)
        ):
            job = jobs.pop(info.run_id, None)
            infos.append(self._job_info(job) if job is not None and job.run.durable else info)
        infos += [
            self._job_info(job)
            for job in jobs.values()
            if session_id in (None, job.run.session_id) and job.run.state is not RunState.WITHDRAWN
        ]
        return [info for info in infos if state in (None, info.state)]

    def _job_info(self, job: Job) -> RunInfo:
        return job.info("ended" if job.published.done() else self._describe(job))

    # The end -------------------------------------------------------------------------------------

    async def drop(self, session_id: str) -> None:
        """Cancel a session that is being deleted and wait until its last ending is out."""
        waiter = asyncio.get_running_loop().create_future()
        waiter = self._drained.setdefault(session_id, waiter)
        self._perform(self._runs.drop(session_id).effects)
        bound = self._settings.cancel_grace + self._settings.drain
        if not await within(self._clock, waiter, bound):
            log.error("session %s did not drain in %s s; deleted all the same", session_id, bound)
        self._drained.pop(session_id, None)
        # The last ending may still be on its way through the lane.
        await self._lanes.push(session_id, nothing)

    def readmit(self, session_id: str) -> None:
        """The deletion is over. If it failed, the session is still there and takes prompts."""
        self._runs.readmit(session_id)

    def shut(self) -> None:
        """Accept nothing more and cancel everything, from this call on."""
        if None not in self._drained:
            self._drained[None] = asyncio.get_running_loop().create_future()
        self._perform(self._runs.close())

    async def close(self) -> None:
        """End every run and publish the endings, or abandon what does not end in time."""
        self.shut()
        drained = asyncio.ensure_future(self._drain(self._drained[None]))
        if not await within(self._clock, drained, self._settings.drain):
            # The cancel grace may be longer than the drain: give the agents up, as after it.
            for job in self._jobs.values():
                settled(job.over)
        if not await within(self._clock, drained, self._settings.drain):
            log.error("workspace %s did not drain; abandoning it", self._services.path)
            drained.cancel()
        await self._save_last()

    async def _save_last(self) -> None:
        """One more try for the endings that wait. What is still not written then is written when
        the store is next opened; if that is by another process, as interrupted."""
        unsaved = self.closing.unsaved
        if unsaved:
            trying = asyncio.ensure_future(self._endings.retry())
            await within(self._clock, trying, self._settings.drain)
        if unsaved:
            log.error("workspace %s: not saved are %s", self._services.path, list(unsaved))
        self._endings.leave(self)

    async def let_agents_go(self) -> None:
        """Close them, and cancel whatever they left running."""
        closing = self._spawn(self.staff.close())
        if not await within(self._clock, closing, self._settings.drain):
            log.error("workspace %s: the agent did not close", self._services.path)
        for task in list(self._tasks):
            task.cancel()

    async def _drain(self, waiter: asyncio.Future[None]) -> None:
        await waiter
        await self._lanes.idle()

    def change_agent(self, agent: Agent | None) -> None:
        """Runs that start from now on are answered by this one."""
        self.staff.replace(agent)
        if not self._jobs and self.chores.idle:
            self._spawn(self.staff.close_former())

    # Inside --------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._own(task)
        return task

    def _own(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
