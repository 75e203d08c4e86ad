"""Performs what runs.py decides about the runs of one workspace.

    accept    the run joins its line; the insert of its row is queued
    durable   the row is committed: the 202 goes out
    Start     user message, agent task, turn task
    finish    the agent has returned or was given up; its requests are closed, its commands killed
    Record    the messages are closed and shown; COMMIT; recorded; agent_event, run_complete
    Start     of the next run in line

A turn has two tasks. The *agent task* runs the agent, and is all that a cancel touches. The *turn
task* waits until the agent has returned or the cancel grace is over, and records the ending, which
is thus never written by code that may be cancelled: a task that is cancelled before its first step
runs neither its body nor its `finally`. A run that ends without a turn is recorded by a task of its
own. This file holds no rule of its own about the state of a run.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from ..clock import all_done, resolve_once, wait_at_most
from ..errors import LimitReached, NotQueued, NotSaved, RunIdReused, RunNotFound, SessionBusy
from ..protocol.messages import Prompt
from ..protocol.runs import AgentEvent, CanceledRun, CancelReceipt, QueuedPrompt
from ..runs import Outcome, Record, Runs, Start, Stop, WhenBusy
from ..store import STORE_ERRORS, runs as run_rows, sessions as session_rows
from ..unique import new_id
from .agents import AgentSlot, run_agent
from .endings import Ending
from .live_run import LiveRun, row_info, row_infos
from .prompts import Failure, digest_of, explain, read_prompt, words
from .tasks import OwnedTasks
from .turn import LiveTurn
from .workspace_base import tolerated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..agent.base import Agent
    from ..protocol.messages import Message
    from ..protocol.runs import RunInfo
    from ..protocol.sessions import Session
    from ..runs import Canceled, Effect
    from ..store import Connection
    from ..store.runs import RunRow
    from .live_run import Summarizing
    from .transcript import LiveMessage
    from .workspace_base import WorkspaceBase

    # The answer of a cancel, and the futures of the endings that it may wait for.
    CancelResult = tuple[CancelReceipt, list[asyncio.Future[None]]]

log = logging.getLogger(__name__)


class Runner:
    """The runs of one workspace."""

    def __init__(self, workspace: WorkspaceBase) -> None:
        make = functools.partial(workspace.profile.make_agent, workspace.env)
        self.agents = AgentSlot(make({}), make, workspace.parts)
        self.outcomes = dict.fromkeys(Outcome, 0)  # how many runs have ended so
        self.abandoned = 0  # agents that did not return within the cancel grace
        self._workspace = workspace
        self._runs = Runs()
        self._known: dict[str, LiveRun] = {}  # by run_id: what the machine has not forgotten
        self._tasks = OwnedTasks()

    # Prompts -------------------------------------------------------------------------------------

    def accept(self, prompt: Prompt) -> LiveRun:
        """Take a prompt into the line and queue the insert of its row, which no request owns: it
        goes on if the client leaves. Synchronous: the order of calls is the order of the line.
        Raises BadRequest, NoAgent, RunIdReused, NotSaved, and what `Runs.accept` raises."""
        request, when_busy = read_prompt(prompt)
        if not request.models:
            self.agents.require(request.session_id)
        known = self._known.get(request.run_id)
        if known is not None:
            if known.digest != digest_of(request):
                raise RunIdReused(f"run_id {request.run_id!r} was used for another prompt")
            return known
        self._workspace.endings.require_none()
        session_id, models = request.session_id, request.models
        agent = self.agents.with_models(models, session_id) if models else None
        alone = request.auto_approve or agent is not None
        run = self._runs.accept(session_id, request.run_id, when_busy, alone=alone)
        live = self._known[run.run_id] = LiveRun(run, request, self._workspace.clock.now())
        live.agent = agent
        if request.detach:
            workspace = self._workspace
            workspace.perform_claims(workspace.claims.run_began(workspace.id, run.run_id))
        store = self._workspace.store
        inserted = store.write_durably(run_rows.insert_run, live.row(store.store.boot_id))
        inserted.add_done_callback(lambda done: self._inserted(live, done))
        return live

    async def prompt(self, prompt: Prompt) -> RunInfo:
        """Accept a prompt and return when it is promised: committed, or found to be a repeat."""
        try:
            live = self.accept(prompt)
        except (SessionBusy, NotSaved, RunIdReused):
            # A repeat of a prompt that has ended is no new prompt, however busy the session is,
            # whatever the store still has to write, and though another prompt that is not promised
            # yet, and will be refused, has come with its id.
            known = await self._repeated(prompt)
            if known is None:
                raise
            return known
        if not await live.committed():
            return await self.run_info(live.run.run_id)
        return self._info(live)

    async def _repeated(self, prompt: Prompt) -> RunInfo | None:
        read = self._workspace.store.read
        row = await read(run_rows.find_run, prompt.run_id) if prompt.run_id else None
        if row is None:
            return None
        if row.digest != digest_of(prompt):
            raise RunIdReused(f"run_id {prompt.run_id!r} was used for another prompt")
        return await self.run_info(prompt.run_id)

    def _inserted(self, live: LiveRun, done: asyncio.Future[RunRow | None]) -> None:
        error = done.exception()
        row = done.result() if error is None else None
        if error is None and (row is None or self._is_ownerless(row)):
            # The 202 goes out first: `resolve_commit` schedules the requests that wait for it, and
            # what is scheduled after that comes after them.
            live.resolve_commit(True)
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: self._perform(self._runs.durable(live.run)))
            return
        # Not promised: the session is unknown, the store refused, or it is a repeat of a run that
        # has ended. All requests that wait for this commit get the same answer.
        live.resolve_commit(error if isinstance(error, Exception) else False)
        del self._known[live.run.run_id]
        effects = self._runs.withdraw(live.run)
        resolve_once(live.ended)
        self._perform(effects)
        self._release_claims([live])

    def _is_ownerless(self, row: RunRow) -> bool:
        """Whether the row that was there already has no run: its commit worked but was reported as
        failed, so its run was withdrawn. Rows of earlier boots were ended by recovery."""
        begun = row.outcome is not None or row.user_message_id
        return not begun and row.boot_id == self._workspace.store.store.boot_id

    async def summarize(self, session_id: str, work: Summarizing) -> LiveRun:
        """Let `work` summarize a session: a run without a row, a user message or a `run_complete`.
        Returns at its end, also if it failed or was canceled. Raises NotSaved and SessionBusy."""
        self._workspace.endings.require_none()
        request = Prompt(session_id, run_id=new_id())
        run = self._runs.accept(session_id, request.run_id, WhenBusy.REJECT)
        live = LiveRun(run, request, self._workspace.clock.now(), work)
        self._known[run.run_id] = live
        self._perform(self._runs.durable(run))
        await asyncio.shield(live.ended)
        return live

    # Cancel and the queue ------------------------------------------------------------------------

    def cancel(self, session_id: str) -> CancelResult:
        """Cancel all that a session has accepted so far. A run that an earlier cancel has hit is
        listed again until its ending is out, so a second request waits for the same. One that is
        ending in another way is neither listed nor waited for."""
        return self._canceled(self._runs.cancel(session_id))

    async def cancel_run(self, run_id: str) -> CancelResult:
        """Cancel one run and what was folded into it; one that is ending already is waited for."""
        live = self._known.get(run_id)
        if live is None:
            await self.run_info(run_id)  # raises if there is no such run
            return CancelReceipt([]), []
        receipt, _ = self._canceled(self._runs.cancel_run(live.run))
        return receipt, [live.ended]

    def _canceled(self, canceled: Canceled) -> CancelResult:
        hit = [CanceledRun(run.run_id, was) for run, was in canceled.receipt]
        endings = [self._known[run.run_id].ended for run, _ in canceled.receipt]
        self._perform(canceled.effects)
        return CancelReceipt(hit), endings

    def queue(self, session_id: str) -> list[QueuedPrompt]:
        waiting = [(run, self._known[run.run_id]) for run in self._runs.queued(session_id)]
        return [
            QueuedPrompt(run.run_id, live.request.prompt, run.when_busy.value, live.accepted_at)
            for run, live in waiting
        ]

    def clear(self, session_id: str) -> None:
        self._perform(self._runs.clear(session_id))

    async def remove(self, session_id: str, run_id: str) -> None:
        live = self._known.get(run_id)
        if live is None or live.run.session_id != session_id:
            info = await self.run_info(run_id)
            if info.session_id != session_id:
                raise RunNotFound(f"session {session_id} has no run {run_id}")
            raise NotQueued(f"run {run_id} is {info.state}, not queued")
        self._perform(self._runs.remove(live.run))

    def busy(self, session_id: str | None = None) -> bool:
        return bool(self._runs.live()) if session_id is None else self._runs.busy(session_id)

    # Effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Start):
                self._start(self._known[effect.run.run_id])
            elif isinstance(effect, Stop):
                self._stop(self._known[effect.run.run_id])
            else:
                self._tasks.spawn(self._record(effect))

    # A turn --------------------------------------------------------------------------------------

    def _start(self, live: LiveRun) -> None:
        live.started_at = self._workspace.clock.now()
        try:
            summary = live.summarize
            work = summary(live.request) if summary else self._call_agent(self._begin_turn(live))
            live.agent_task = self._tasks.spawn(work)
            live.agent_task.add_done_callback(lambda _: resolve_once(live.agent_gone))
        except Exception as error:  # noqa: BLE001 - logged there; the run must end
            self._broke(live, error)
            resolve_once(live.agent_gone)
        seconds, clock = live.request.max_seconds, self._workspace.clock
        if seconds is not None:
            live.deadline = clock.call_later(seconds, lambda: self._out_of_time(live))
        self._tasks.spawn(self._take_turn(live))

    def _out_of_time(self, live: LiveRun) -> None:
        """Stop a run that has reached its max_seconds, as a cancel does; it ends as failed."""
        left = live.agent_gone.done() or live.agent_task is None or live.agent_task.done()
        if live.turn is not None and not left:
            seconds = f"max_seconds = {live.request.max_seconds:g}"
            live.overdue = live.turn.limits.stop("time", seconds)
            self._stop(live)

    def _stop(self, live: LiveRun) -> None:
        """Cancel the agent; if it does not return within the grace it is given up."""
        if live.grace is not None:
            return  # it was cancelled before, for another reason
        if live.agent_task is not None:
            live.agent_task.cancel()
        live.grace = self._workspace.clock.call_later(
            self._workspace.settings.cancel_grace, lambda: resolve_once(live.agent_gone)
        )

    async def _take_turn(self, live: LiveRun) -> None:
        """The turn task: every way out of a turn leads to its record."""
        try:
            await live.agent_gone
            outcome = self._outcome(live)
            await self._end_requests(live)
        except Exception as error:  # noqa: BLE001 - logged there; the run must end
            outcome = Outcome.FAILED
            self._broke(live, error)
        await self._record(self._runs.finish(live.run, outcome))

    def _begin_turn(self, live: LiveRun) -> LiveTurn:
        """Make the turn of a run, with its prompt as the first message."""
        agent = live.agent or self.agents.serving(live.run.session_id)
        live.turn = LiveTurn(self._workspace, live.request, agent, fold=self._fold)
        live.turn.messages.append(self._user_message(live, live.turn))
        return live.turn

    def _user_message(self, live: LiveRun, turn: LiveTurn) -> LiveMessage:
        """Add a run's prompt to the transcript; one transaction stores it and starts the run."""
        scope, run_id, carrier = self._workspace.store.scope, live.run.run_id, live.folded_into
        message, started_at = live.user_message(self._workspace.clock.now()), live.started_at
        live.user = self._workspace.transcript.create(
            message,
            lambda conn: run_rows.start_run(conn, scope, run_id, message, started_at, carrier),
        )
        for part in self._workspace.parts:
            with tolerated(part, "at the start of a run"):
                part.prompt_started(turn, run_id, live.request.prompt)
        return live.user

    async def _call_agent(self, turn: LiveTurn) -> None:
        """The agent task. An agent that tries to exit the process only fails its own turn."""
        try:
            await self.agents.ready(turn.agent)
            await turn.guards.prompt(turn.prompt)
            await run_agent(turn)
            await turn.agent_done()
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"the agent raised {type(error).__name__}") from error
        finally:
            turn.fence()

    def _outcome(self, live: LiveRun) -> Outcome:
        """How the run ends as far as its agent and its limits decide; a doom overrules it."""
        for timer in (live.grace, live.deadline):
            if timer is not None:
                timer.cancel()
        outcome = self._left(live)
        stopped = live.overdue
        if outcome is Outcome.COMPLETED and live.turn is not None:
            # Of any limit, max_seconds too: the agent was told of it, and returned all the same.
            stopped = live.turn.limits.error
        if stopped is not None:
            live.failure = explain(stopped, live.run.run_id)
            return Outcome.FAILED
        if isinstance(live.cause, LimitReached) and live.turn is not None:
            live.turn.limits.stop(live.cause.limit, "")  # it may be a limit that the agent has set
        return outcome

    def _left(self, live: LiveRun) -> Outcome:
        """How the agent left its turn: it returned, raised, was cancelled or was given up."""
        task = live.agent_task
        if task is None:
            return Outcome.FAILED
        if not task.done():
            self.abandoned += 1
            log.error("run %s: the agent ignored its cancellation; abandoned", live.run.run_id)
            task.add_done_callback(_log_late)
            return Outcome.CANCELED
        if task.cancelled():
            return Outcome.CANCELED
        # If `_fold` could not store its prompts the turn fails, also if the agent caught the error.
        live.cause = task.exception() or live.cause
        if live.cause is None:
            return Outcome.COMPLETED
        live.failure = explain(live.cause, live.run.run_id)
        return Outcome.FAILED

    async def _end_requests(self, live: LiveRun) -> None:
        """Close what the turn has asked people, and kill its commands."""
        if live.turn is not None:
            live.turn.fence()
        self._workspace.permissions.close_run(live.run.run_id)
        self._workspace.questions.close_run(live.run.run_id)
        if live.turn is not None:
            await live.turn.end_children()
            await live.turn.end_commands()

    def _broke(self, live: LiveRun, error: Exception) -> None:
        log.error("run %s: the turn broke", live.run.run_id, exc_info=error)
        live.failure = Failure("Internal error", f"{type(error).__name__}: {words(error)}")

    async def _fold(self, turn: LiveTurn) -> list[Message]:
        """Store the prompts that were typed to steer this turn; returns them for the agent. If they
        cannot be stored the turn fails, and its ending stores what is missing."""
        live = self._known[turn.run_id]
        riders = [self._known[run.run_id] for run in self._runs.fold(live.run)]
        for rider in riders:
            rider.turn = turn
            rider.started_at = self._workspace.clock.now()
        if not riders:
            return []
        messages = [self._user_message(rider, turn) for rider in riders]
        save = self._workspace.transcript.saving(messages)
        try:
            await self._workspace.store.write_durably(lambda conn, scope: save(conn))
        except Exception as error:
            live.cause = error
            raise
        self._workspace.transcript.saved(messages)
        return [message.snapshot() for message in messages]

    # An ending -----------------------------------------------------------------------------------

    async def _record(self, record: Record) -> None:
        """Write an ending and publish it: the only place where endings are published."""
        group = [self._known[run.run_id] for run in (record.run, *record.riders)]
        messages = self._close_messages(group, record.outcome)
        session: Session | None = None
        try:
            if group[0].summarize is None:
                session = await self._commit(group, messages)
        except STORE_ERRORS:
            effects = self._runs.unsaved(record.run)
        else:
            effects = self._recorded(group)
        self._publish_ending(group, record.outcome, session)
        self._perform(effects)
        self._release_claims(group)

    def _close_messages(self, group: list[LiveRun], outcome: Outcome) -> list[LiveMessage]:
        """Give runs the messages that their ending calls for; returns what it must store."""
        first, *riders = group
        messages: list[LiveMessage] = []
        if first.summarize is None and outcome is not Outcome.CLEARED:
            try:
                # A run that was canceled before its turn began gets one here, which no agent
                # answers: what a person typed is never lost.
                turn = first.turn or self._begin_turn(first)
                turn.close(outcome, first.failure)
                first.message_id, first.text = turn.last.message.id, turn.last.message.text
                messages += turn.messages
                messages += [rider.user or self._user_message(rider, turn) for rider in riders]
            except Exception as error:  # noqa: BLE001 - logged there; the run must end
                self._broke(first, error)
        now = self._workspace.clock.now()
        for live in group:
            live.end(first, now)
        return messages

    async def _commit(self, group: list[LiveRun], messages: list[LiveMessage]) -> Session | None:
        """Write an ending; None if its session is gone or it is refused for good. Raises one of
        STORE_ERRORS if it is kept, to be written when that is possible again."""
        transcript = self._workspace.transcript
        work = self._ending_work(group, messages)
        run = group[0].run

        # Called later, if `commit` raises below because the store cannot write now.
        def written(session: Session | None) -> None:
            if session is not None:
                transcript.saved(messages)
                self._workspace.hub.publish("updated", session)
            self._perform(self._recorded(group))

        run_ids = tuple(live.run.run_id for live in group)
        ending = Ending((self._workspace.store.scope, run.session_id), run_ids, work, written)
        try:
            session = await self._workspace.endings.commit(ending)
        except Exception as error:
            of_store = isinstance(error, STORE_ERRORS)
            log.error("run %s is not saved: %s", run.run_id, error, exc_info=not of_store)
            for live in group:
                live.not_saved(error)
            if of_store:
                raise
            # What was said cannot be stored; that the run ended can. If not even that is possible,
            # the run counts as recorded all the same: it would block its session for ever.
            return await self._commit(group, []) if messages else None
        if session is not None:
            transcript.saved(messages)
        return session

    def _ending_work(
        self, group: list[LiveRun], messages: list[LiveMessage]
    ) -> Callable[[Connection], Session]:
        """The transaction that ends a run and its riders, as they are now, with their messages."""
        scope, session_id = self._workspace.store.scope, group[0].run.session_id
        save = self._workspace.transcript.saving(messages)
        turn = group[0].turn
        save_usage = turn.saving_usage() if turn is not None else None
        rows = [live.info("ended") for live in group]

        def end(conn: Connection) -> Session:
            session_rows.require_session(conn, scope, session_id)
            save(conn)
            ended = [run_rows.end_run(conn, scope, row) for row in rows]
            # Once: a try that failed only after its commit is repeated, and cost is added.
            if save_usage is not None and ended[0]:
                return save_usage(conn)
            return session_rows.get_session(conn, scope, session_id)

        return end

    def _recorded(self, group: list[LiveRun]) -> list[Effect]:
        effects = self._runs.recorded(group[0].run)
        for live in group:
            del self._known[live.run.run_id]
        return effects

    def _publish_ending(
        self, group: list[LiveRun], outcome: Outcome, session: Session | None
    ) -> None:
        hub = self._workspace.hub
        if group[0].turn is not None:
            group[0].turn.publish_end(session)
        if group[0].summarize is None:
            self.outcomes[outcome] += len(group)
            if session is not None and outcome is not Outcome.CLEARED:
                # Also if `publish_end` has: Crush publishes a session after its last message, too.
                hub.publish("updated", session, more=True)
            notice = _notice(group[0], session)
            if notice is not None:
                hub.publish("created", notice, more=True)
        for live in group:
            if live.summarize is None:
                hub.publish("updated", live.info("ended").complete())
            resolve_once(live.ended)

    def _release_claims(self, group: list[LiveRun]) -> None:
        """End the claims of detached runs, when all effects are performed: with the last claim the
        workspace closes within this call and cancels every run, also one that has just started."""
        workspace = self._workspace
        for live in group:
            if live.request.detach:
                effects = workspace.claims.run_ended(workspace.id, live.run.run_id)
                workspace.perform_claims(effects)

    # Views of runs -------------------------------------------------------------------------------

    def _info(self, live: LiveRun) -> RunInfo:
        return live.info(self._runs.describe(live.run))

    def states(self) -> list[tuple[str, str]]:
        """Session and state of every live run, as clients see it."""
        return [(run.session_id, self._runs.describe(run)) for run in self._runs.live()]

    async def run_info(self, run_id: str, wait: float = 0.0) -> RunInfo:
        """One run; with `wait`, its state when it has ended or the time is up."""
        live = self._known.get(run_id)
        if live is not None and wait > 0:
            await wait_at_most(self._workspace.clock, live.ended, wait)
        if live is not None and live.run.durable:
            return self._info(live)
        try:
            return await self._workspace.store.read(row_info, run_id)
        except RunNotFound:
            # A row comes first, for a run without a promise may repeat one that has ended.
            if live is None or live.run.over:
                raise
            return self._info(live)

    async def list_runs(self, session_id: str | None, state: str | None) -> list[RunInfo]:
        """Runs, oldest first. The live ones are collected before the read: of one that ends
        meanwhile the object is shown, not a row that was not written yet."""
        known = dict(self._known)
        unsure = [key for key, live in known.items() if not live.run.durable]
        infos = []
        for info in await self._workspace.store.read(row_infos, session_id, state, unsure):
            live = known.pop(info.run_id, None)
            infos.append(self._info(live) if live is not None and live.run.durable else info)
        infos += [
            self._info(live)
            for live in known.values()
            if session_id in (None, live.run.session_id)
            and (live.run.durable or not live.run.over)  # not one that was withdrawn
        ]
        return [info for info in infos if state in (None, info.state)]

    # The end -------------------------------------------------------------------------------------

    async def drop(self, session_id: str) -> None:
        """Cancel a session that is being deleted and wait until its last ending is out."""
        self._perform(self._runs.drop(session_id))
        bound = self._workspace.settings.cancel_grace + self._workspace.settings.drain
        endings = [self._known[run.run_id].ended for run in self._runs.live(session_id)]
        if not await all_done(self._workspace.clock, endings, bound):
            log.error("session %s did not drain in %s s; deleted all the same", session_id, bound)

    def readmit(self, session_id: str) -> None:
        """The deletion is over. If it failed, the session is still there and takes prompts."""
        self._runs.readmit(session_id)

    def begin_close(self) -> None:
        """Accept nothing more and cancel everything, from this call on."""
        self._perform(self._runs.close())

    async def close(self) -> None:
        """End every run and publish the endings, or abandon what does not end in time."""
        self.begin_close()
        clock, drain = self._workspace.clock, self._workspace.settings.drain
        endings = [live.ended for live in self._known.values()]
        if not await all_done(clock, endings, drain):
            # The cancel grace may be longer than the drain: give the agents up, as after it.
            for live in self._known.values():
                resolve_once(live.agent_gone)
        if not await all_done(clock, endings, drain):
            log.error("workspace %s did not drain; abandoning it", self._workspace.path)
        if self._known:
            # One more try for the endings that wait. What is still not written then is written when
            # the store is next opened; if that is by another process, as interrupted.
            trying = asyncio.ensure_future(self._workspace.endings.retry())
            await wait_at_most(clock, trying, drain)
        if self._known:
            log.error("workspace %s: not saved are %s", self._workspace.path, list(self._known))
        self._workspace.endings.leave()

    async def close_agents(self) -> None:
        """Close the agents, then cancel what is left: abandoned ones, turns that did not drain."""
        closing = self._tasks.spawn(self.agents.close())
        if not await wait_at_most(self._workspace.clock, closing, self._workspace.settings.drain):
            log.error("workspace %s: the agent did not close", self._workspace.path)
        self._tasks.cancel()

    def change_agent(self, agent: Agent | None) -> None:
        """Runs that start from now on are answered by this one."""
        self.agents.replace(agent)
        if not self._known and not any(part.uses_agent for part in self._workspace.parts):
            self._tasks.spawn(self.agents.close_replaced())


def _notice(live: LiveRun, session: Session | None) -> AgentEvent | None:
    """The event that goes out before the `run_complete`; none for what was canceled."""
    event = AgentEvent("agent_finished", live.run.session_id, run_id=live.run.run_id)
    if live.run.outcome is Outcome.COMPLETED:
        event.session_title = session.title if session is not None else ""
    elif live.run.outcome is Outcome.FAILED:
        event.type, event.error = "error", live.error
    else:
        return None
    return event


def _log_late(done: asyncio.Future[None]) -> None:
    """An abandoned agent has left after all; its run ended long ago."""
    if not done.cancelled() and done.exception() is not None:
        log.warning("an abandoned agent failed", exc_info=done.exception())
