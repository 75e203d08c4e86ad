"""The two tasks of a run, around an agent that may do anything.

The *agent task* runs the agent and nothing else; it is the only thing a cancel touches. The *turn
task*, which nobody cancels, is in `take`: it waits for the agent task or for the cancel grace, and
says how the turn ended. So an ending is never written by code that may itself be cancelled: a task
that is cancelled before its first step runs neither its body nor its `finally`.

Knows nothing of: lines, lanes, how endings are recorded. Whoever calls `take` reports its outcome
to runs.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..clock import settled
from ..runs import Outcome
from ..store import runs as run_rows
from .blocking import run_blocking
from .chores import write_summary
from .jobs import SUMMARIZE, explain, log_late, words
from .turn import Failure, LiveTurn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..agent.base import Agent
    from ..protocol.messages import Message
    from .chores import Chores
    from .jobs import Job
    from .staff import Staff
    from .transcript import Live
    from .turn import Order, Services

log = logging.getLogger(__name__)


class Turns:
    """The turns of one workspace. `fold(job)` gives a turn the prompts that were typed to steer it;
    `own(task)` takes charge of an agent's task, which may outlive its turn."""

    def __init__(
        self,
        services: Services,
        staff: Staff,
        chores: Chores,
        cancel_grace: float,
        *,
        fold: Callable[[Job], Awaitable[list[Message]]],
        own: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self.abandoned = 0  # agents that did not return within the cancel grace
        self._services = services
        self._staff = staff
        self._chores = chores
        self._cancel_grace = cancel_grace
        self._fold = fold
        self._own = own

    async def take(self, job: Job) -> Outcome:
        """Take the turn of a run, whatever becomes of it; afterwards nothing of it goes on."""
        outcome = Outcome.FAILED
        try:
            outcome = await self._converse(job)
        except Exception as error:
            log.exception("run %s: the turn broke", job.run.run_id)
            job.failure = Failure("Internal error", f"{type(error).__name__}: {words(error)}")
        self._close_requests(job)
        if job.turn is not None:
            await job.turn.end_commands()
        return outcome

    def stop(self, job: Job) -> None:
        """Cancel the agent; if it has none yet, `take` will make no task for it."""
        if job.agent_task is not None:
            job.agent_task.cancel()
            job.grace = self._services.clock.call_later(
                self._cancel_grace, lambda: settled(job.over)
            )

    def begin(self, job: Job) -> LiveTurn:
        """The turn of a run, with its prompt as the first message."""
        turn = job.turn = self._turn(job, self._staff.serving())
        turn.adopt(self.user_message(job))
        return turn

    def user_message(self, job: Job, carrier: str = "") -> Live:
        """Put a run's prompt into the transcript; the row follows in start_run's transaction."""
        scope, run_id, started_at = self._services.scope, job.run.run_id, job.started_at
        message = job.user_message(self._services.clock.now())
        job.user = self._services.transcript.create(
            message,
            lambda conn: run_rows.start_run(conn, scope, run_id, message, started_at, carrier),
        )
        self._chores.title(self._staff.serving(), run_id, job.run.session_id, job.order.prompt)
        return job.user

    async def _converse(self, job: Job) -> Outcome:
        agent = self._staff.serving()
        job.started_at = self._services.clock.now()
        if job.run.kind == SUMMARIZE:
            work = self._summary(agent, job.order)
        else:
            work = self._call_agent(agent, self.begin(job))
        if job.run.doom is not None:
            work.close()
            return Outcome.CANCELED
        task = job.agent_task = asyncio.create_task(work)
        self._own(task)
        task.add_done_callback(lambda _: settled(job.over))
        await job.over
        if job.grace is not None:
            job.grace.cancel()
        if not task.done():
            self.abandoned += 1
            log.error("run %s: the agent ignored its cancellation; abandoned", job.run.run_id)
            task.add_done_callback(log_late)
            return Outcome.CANCELED
        if task.cancelled():
            return Outcome.CANCELED
        # Prompts that could not be stored were never answered, whatever the agent made of that.
        job.cause = task.exception() or job.cause
        if job.cause is None:
            return Outcome.COMPLETED
        job.failure = explain(job.cause)
        return Outcome.FAILED

    def _turn(self, job: Job, agent: Agent) -> LiveTurn:
        async def summarize() -> None:
            if agent.summarizes:
                await write_summary(self._services, job.order, agent)

        selected = agent.info().selected
        return LiveTurn(self._services, job.order, selected, lambda: self._fold(job), summarize)

    async def _call_agent(self, agent: Agent, turn: LiveTurn) -> None:
        """The agent task. An agent that tries to exit the process only fails its own turn."""
        try:
            await self._staff.ready(agent)
            if agent.is_async:
                await agent.run(turn)
            else:
                await run_blocking(agent.run, turn)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"the agent raised {type(error).__name__}") from error
        finally:
            turn.fence()

    async def _summary(self, agent: Agent, order: Order) -> None:
        await self._staff.ready(agent)
        await write_summary(self._services, order, agent)

    def _close_requests(self, job: Job) -> None:
        if job.turn is not None:
            job.turn.fence()
        self._services.permissions.close_run(job.run.run_id)
        self._services.questions.close_run(job.run.run_id)
