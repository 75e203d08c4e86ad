"""How a run ends for outsiders: its messages are closed, it is recorded, and it is told.

    close the messages -> COMMIT -> agent_event, run_complete

In this order and nowhere else. What the store cannot write is told all the same, with the error
`not saved: ...`, and kept by endings.py; until it is written its jobs are in `unsaved`, and tell
more about these runs than their rows do.

Knows nothing of: lines, lanes, when a run ends. Whoever performs an End calls `end`, one at a time
for each session.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..clock import settled
from ..protocol.runs import AgentEvent, RunComplete
from ..runs import Outcome
from ..store import TROUBLE, runs as run_rows, sessions as session_rows
from .endings import Ending
from .jobs import SUMMARIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.sessions import Session
    from ..store import Connection
    from .endings import Endings
    from .jobs import Job
    from .transcript import Live
    from .turn import Services
    from .turns import Turns

log = logging.getLogger(__name__)


class Closing:
    """The endings of one workspace's runs. `forget(job)` is called when an ending is about to be
    told, `released(run_id)` when that of a detached run has been."""

    def __init__(
        self,
        services: Services,
        turns: Turns,
        endings: Endings,
        *,
        forget: Callable[[Job], None],
        released: Callable[[str], None],
    ) -> None:
        self.ended = dict.fromkeys(Outcome, 0)  # how many runs were told to have ended so
        self.unsaved: dict[str, Job] = {}  # by run_id: told, but not written yet
        self._turns = turns
        self._endings = endings
        self._forget = forget
        self._released = released
        self._scope = services.scope
        self._clock = services.clock
        self._transcript = services.transcript
        self._hub = services.hub

    async def end(self, job: Job, outcome: Outcome) -> None:
        """Record an ending and tell it: the only place where a run ends for outsiders."""
        if job.published.done():
            return  # a rider: it ended with its carrier
        if job.run.kind == SUMMARIZE:  # nobody was promised anything: whoever asked is waiting
            job.outcome, job.ended_at = outcome.value, self._clock.now()
            self._forget(job)
            settled(job.published)
            return
        # Riders end with their carrier, in one transaction: when it is said to have finished, the
        # session must not be busy with them any more.
        jobs = [job, *job.riders]
        lives = [live for one in jobs for live in self._close(one, outcome)]
        session = await self._record(jobs, lives)
        self._tell(jobs, outcome, session)

    def _close(self, job: Job, outcome: Outcome) -> list[Live]:
        job.outcome, job.ended_at = outcome.value, self._clock.now()
        lives = self._close_messages(job, outcome)
        if outcome is Outcome.FAILED and job.failure is not None:
            job.error = job.failure.detail or job.failure.title
        return lives

    def _close_messages(self, job: Job, outcome: Outcome) -> list[Live]:
        """Give the run the messages its outcome calls for; returns what the ending must store."""
        if outcome is Outcome.CLEARED:
            return []
        if job.carrier is not None:
            job.message_id, job.text = job.carrier.message_id, job.carrier.text
            job.failure = job.carrier.failure
            return [job.user or self._turns.user_message(job, job.carrier.run.run_id)]
        # Canceled before it could start, it begins now: what a person typed is never lost.
        turn = job.turn or self._turns.begin(job)
        turn.close(outcome, job.failure)
        job.message_id, job.text = turn.last.message.id, turn.last.message.text
        return turn.lives

    async def _record(self, jobs: list[Job], lives: list[Live]) -> Session | None:
        """Commit an ending. If that cannot be done it says so, and waits for its time."""
        run, ids = jobs[0].run, tuple(job.run.run_id for job in jobs)
        work = _record_of(self._scope, jobs, self._transcript.unsaved(lives))

        def written(session: Session | None) -> None:
            for run_id in ids:
                self.unsaved.pop(run_id, None)
            if session is not None:
                self._transcript.saved(lives)
                self._hub.publish("updated", session)

        try:
            session = await self._endings.commit(
                Ending(self._scope, run.session_id, ids, work, written)
            )
        except Exception as error:
            of_store = isinstance(error, TROUBLE)
            log.error("run %s is not saved: %s", run.run_id, error, exc_info=not of_store)
            for job in jobs:
                job.error = f"not saved: {error}" + f"; {job.error}" * bool(job.error)
            if of_store:
                self.unsaved |= {job.run.run_id: job for job in jobs}
            elif lives:  # what was said cannot be stored; that it ended can
                return await self._record(jobs, [])
            return None
        if session is not None:
            self._transcript.saved(lives)
        return session

    def _tell(self, jobs: list[Job], outcome: Outcome, session: Session | None) -> None:
        self.ended[outcome] += len(jobs)
        for job in jobs:
            self._forget(job)
        if session is not None and outcome is not Outcome.CLEARED:
            self._hub.publish("updated", session)
        notice = _announcement(jobs[0], outcome, session)
        if notice is not None:
            self._hub.publish("created", notice)
        for job in jobs:
            self._hub.publish("updated", _completion(job, outcome))
            settled(job.published)
            if job.detach:
                self._released(job.run.run_id)


def _record_of(
    scope: str, jobs: list[Job], save: Callable[[Connection], None]
) -> Callable[[Connection], Session]:
    """The transaction that ends a run and its riders, as they are now, with their messages."""
    session_id = jobs[0].run.session_id
    rows = [
        (
            *(job.run.run_id, job.outcome, job.message_id, job.error),
            *(job.denied, job.folded_into, job.ended_at),
        )
        for job in jobs
    ]

    def end(conn: Connection) -> Session:
        session_rows.require_session(conn, scope, session_id)
        save(conn)
        for row in rows:
            run_rows.end_run(conn, scope, *row)
        return session_rows.get_session(conn, scope, session_id)

    return end


def _announcement(job: Job, outcome: Outcome, session: Session | None) -> AgentEvent | None:
    """The notice that goes out before the `run_complete`; none for what was canceled."""
    event = AgentEvent("agent_finished", job.run.session_id, run_id=job.run.run_id)
    if outcome is Outcome.COMPLETED:
        event.session_title = session.title if session is not None else ""
    elif outcome is Outcome.FAILED:
        event.type, event.error = "error", job.error
    else:
        return None
    return event


def _completion(job: Job, outcome: Outcome) -> RunComplete:
    return RunComplete(
        session_id=job.run.session_id,
        message_id=job.message_id,
        run_id=job.run.run_id,
        text=job.text,
        error=job.error,
        cancelled=outcome in (Outcome.CANCELED, Outcome.CLEARED),
        folded_into=job.folded_into,
    )
