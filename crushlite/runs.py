"""The state machine of runs: everything that decides about a run's state is in this file.

Nothing in it awaits, sleeps, stores or publishes: a call changes the machine, returns what must be
done now as data (*effects*), and is over. Nothing outside it decides about the state of a run:
hosting/runner.py performs the effects, which are begun in the order of the list.

Theory of operation
-------------------
A *run* is an object from the moment its prompt is accepted. The runs of a session stand in one
*line*, in order of acceptance. Every call runs to its end on one event loop, so a cancel needs no
locks, tickets or watermarks: it is a set operation over the objects that are live now. It therefore
covers every prompt accepted before it, and cannot touch one accepted after it.

    ACCEPTED   its prompt is in line
    ACTIVE     its turn has begun; at most one run of a session is ACTIVE
    FOLDED     it joined the turn of the active run (its *carrier*) and ends with it: a *rider*
    ENDING     how it ends is decided; its ending is being written and is not published yet
    UNSAVED    its ending was published, but the store could not write it yet
    ENDED      its ending is written (or given up) and published, in one step unless it was
               UNSAVED; the machine has forgotten it
    WITHDRAWN  it was never promised, because its row could not be committed; forgotten as well

    durable    its row is committed, so the client may be answered 202 (a summary has none and is
               durable at once). Only a durable run starts or ends. One that is first in line but
               not durable holds the line.
    doom       CANCELED or CLEARED once a request asked for it; the first mark stays. A doomed
               active run stays ACTIVE until its turn has unwound; one that waits never starts.
    outcome    how it ends: set when it becomes ENDING.

Derived, never stored: *live* is ACCEPTED, ACTIVE, FOLDED or ENDING; *busy* is any live run in the
session; *queued* is ACCEPTED, not doomed, with another run ahead of it in line (cleared
runs that are being recorded do not count).

A call that may let a run start or end settles the line: its first run that is not UNSAVED decides.
If that is ACCEPTED and durable, and doomed, it goes to ENDING; if it is not doomed, it starts, but
only if no UNSAVED run is ahead of it. So at most one ending of a line is being written at a time,
in the order of the line, nothing starts before the run ahead of it is recorded, and a line is never
left standing. Cleared runs are the exception: they leave no messages, so their endings are recorded
out of line, at once.

Who may call what: `accept`, `durable`, `withdraw` by the acceptance of a prompt; `cancel`,
`cancel_run`, `clear`, `remove` by requests; `drop` by the deletion of a session, and `readmit` when
that is over; `fold` and `finish` by the turn of the active run; `recorded` and `unsaved` by the
performer of a `Record`; `close` by the teardown of the workspace.

Invariants, explored exhaustively in tests/machines/test_runs.py
---------------------------------------------------------------
1. At most one active run per session; runs start in order of acceptance; a run that is not durable
   never starts; a run never starts before the run ahead of it is recorded.
2. Exactly one Record per durable run, alone or as a rider, none for a withdrawn one, and exactly
   one `recorded` for each Record. Records of a line come in its order, cleared runs aside.
3. A cancel dooms all that is live and not yet ending, and nothing else; that of one run only this
   run. An idle cancel changes nothing.
4. No live durable run is first in line while nothing is active or ending, unless an UNSAVED run
   holds it back.
5. Nothing is described as active whose turn has not begun, nor as ended before its ending is out.
6. After `close` nothing starts. A call that raises changes nothing.

Knows nothing of: asyncio, tasks, the store, events, HTTP, prompts, agents.
"""

from __future__ import annotations

from enum import Enum

from .errors import IllegalCall, NotQueued, SessionBusy, SessionNotFound, WorkspaceClosing
from .records import dataclass


class RunState(Enum):
    ACCEPTED = "accepted"
    ACTIVE = "active"
    FOLDED = "folded"
    ENDING = "ending"
    UNSAVED = "unsaved"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


TRANSITIONS: dict[RunState, dict[str, RunState]] = {
    RunState.ACCEPTED: {
        "start": RunState.ACTIVE,
        "fold": RunState.FOLDED,
        "end": RunState.ENDING,
        "withdraw": RunState.WITHDRAWN,
    },
    RunState.ACTIVE: {"end": RunState.ENDING},
    RunState.FOLDED: {"end": RunState.ENDING},
    RunState.ENDING: {"unsaved": RunState.UNSAVED, "recorded": RunState.ENDED},
    RunState.UNSAVED: {"recorded": RunState.ENDED},
    RunState.ENDED: {},
    RunState.WITHDRAWN: {},
}
LIVE = (RunState.ACCEPTED, RunState.ACTIVE, RunState.FOLDED, RunState.ENDING)


class Outcome(Enum):
    """How a run ended. The last two are also the two ways to be doomed."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    CLEARED = "cleared"


class WhenBusy(Enum):
    """What a prompt wants while its session is busy."""

    STEER = "steer"  # fold into the active turn at its next step
    QUEUE = "queue"  # a turn of its own
    INTERRUPT = "interrupt"  # once durable: cancel everything ahead, then start
    REJECT = "reject"  # refuse


@dataclass(slots=True, eq=False)
class Run:
    """One prompt's life. Only `Runs` writes these attributes."""

    session_id: str
    run_id: str
    when_busy: WhenBusy
    alone: bool = False  # no other run folds into its turn
    state: RunState = RunState.ACCEPTED
    durable: bool = False
    started: bool = False  # it had a turn of its own
    doom: Outcome | None = None
    outcome: Outcome | None = None
    carrier: Run | None = None  # the active run it was folded into

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def over(self) -> bool:
        """Whether it has left the machine: recorded as ended, or withdrawn."""
        return not TRANSITIONS[self.state]

    def __repr__(self) -> str:
        doom = f" {self.doom.value}" if self.doom else ""
        return f"<Run {self.run_id} {self.state.value}{' durable' * self.durable}{doom}>"


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the turn of this run. When it is over, call `finish`."""

    run: Run


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the turn of this active run, now; it ends when it has unwound."""

    run: Run


@dataclass(frozen=True, slots=True)
class Record:
    """Write the ending of this run and its riders in one transaction, then call `recorded` and
    publish it. If the store cannot write it, call `unsaved`, publish it, and `recorded` later."""

    run: Run
    riders: tuple[Run, ...]
    outcome: Outcome


Effect = Start | Stop | Record


@dataclass(frozen=True, slots=True)
class Canceled:
    """What a cancel hit: runs, each with the state it was in."""

    receipt: tuple[tuple[Run, str], ...]
    effects: list[Effect]


class Runs:
    """The runs of one workspace."""

    def __init__(self) -> None:
        # By session, in order of acceptance: all runs that are neither ENDED nor WITHDRAWN.
        self._lines: dict[str, list[Run]] = {}
        self._by_id: dict[str, Run] = {}  # the same runs by run_id
        self._dropped: set[str] = set()  # sessions that accept nothing any more
        self.closed = False

    # What is derived -----------------------------------------------------------------------------

    def live(self, session_id: str | None = None) -> list[Run]:
        """Live runs of a session, or of all, oldest first within a session."""
        lines = self._lines.values() if session_id is None else [self._lines.get(session_id, [])]
        return [run for line in lines for run in line if run.live]

    def busy(self, session_id: str) -> bool:
        return any(run.live for run in self._lines.get(session_id, ()))

    def queued(self, session_id: str) -> list[Run]:
        """What is waiting its turn: exactly what list, clear and remove see."""
        return [run for run in self._lines.get(session_id, ()) if self._is_queued(run)]

    def describe(self, run: Run) -> str:
        """The state's name for clients: accepted, queued, active, folded or ended. Until its ending
        is published, a run is described as it was before that."""
        if run.state is RunState.ENDING:
            if run.carrier is not None:
                return "folded"
            return "active" if run.started else "accepted"
        if run.state is RunState.UNSAVED:
            return "ended"
        return "queued" if self._is_queued(run) else str(run.state.value)

    # Acceptance ----------------------------------------------------------------------------------

    def accept(
        self,
        session_id: str,
        run_id: str,
        when_busy: WhenBusy = WhenBusy.QUEUE,
        *,
        alone: bool = False,
    ) -> Run:
        """Join the line. If the machine has a run with this id, that one is returned instead.
        Raises WorkspaceClosing, SessionNotFound, or SessionBusy for `reject` while busy."""
        known = self._by_id.get(run_id)
        if known is not None:
            return known
        if self.closed:
            raise WorkspaceClosing("workspace closing: create it again and retry")
        if session_id in self._dropped:
            raise SessionNotFound(f"session {session_id} is being deleted")
        if when_busy is WhenBusy.REJECT and self.busy(session_id):
            raise SessionBusy(
                f"session is currently processing another request: {session_id} is busy, wait for "
                "its run or cancel it"
            )
        run = Run(session_id, run_id, when_busy, alone)
        self._lines.setdefault(session_id, []).append(run)
        self._by_id[run_id] = run
        return run

    def durable(self, run: Run) -> list[Effect]:
        """The run's row is committed (a summary has none): it is promised, and ends once."""
        self._require(run, run.state is RunState.ACCEPTED and not run.durable, "durable")
        effects: list[Effect] = []
        run.durable = True
        if run.doom is Outcome.CLEARED:
            effects.append(self._end(run, Outcome.CLEARED))
        elif run.doom is None and run.when_busy is WhenBusy.INTERRUPT:
            line = self._lines[run.session_id]
            effects += self._doom(line[: line.index(run)])
        return effects + self._settle(run.session_id)

    def withdraw(self, run: Run) -> list[Effect]:
        """The run could not be promised: it leaves without a trace."""
        self._require(run, run.state is RunState.ACCEPTED and not run.durable, "withdraw")
        self._leave(run, "withdraw")
        return self._settle(run.session_id)

    # Cancel and clear ----------------------------------------------------------------------------

    def cancel(self, session_id: str) -> Canceled:
        """Doom all that is live in the session and not ending yet; with nothing live, remember
        nothing. What an earlier cancel hit is in the receipt again until it has ended."""
        return self._cancel(session_id, self.live(session_id))

    def cancel_run(self, run: Run) -> Canceled:
        """Doom one run; its riders end with it. One that is queued is CLEARED at once, as by
        `remove`: no messages. Raises NotQueued for a rider: its turn is its carrier's."""
        self._require(run, not run.over, "cancel_run")
        if run.state is RunState.FOLDED and run.carrier is not None:
            raise NotQueued(f"run {run.run_id} is in the turn of {run.carrier.run_id}: cancel that")
        if self._is_queued(run):
            return Canceled(((run, "queued"),), self._clear(run.session_id, [run]))
        return self._cancel(run.session_id, [run] if run.live else [])

    def clear(self, session_id: str) -> list[Effect]:
        """End what is queued, leaving the active run alone."""
        return self._clear(session_id, self.queued(session_id))

    def remove(self, run: Run) -> list[Effect]:
        """End one queued run. Raises NotQueued for any other."""
        if not self._is_queued(run):
            raise NotQueued(f"run {run.run_id} is {self.describe(run)}, not queued: cancel instead")
        return self._clear(run.session_id, [run])

    # The active run ------------------------------------------------------------------------------

    def fold(self, run: Run) -> tuple[Run, ...]:
        """At a step of the active run: take in the prompts that were typed to steer it. Returns
        them; the caller stores their prompts inside the turn."""
        self._require(run, run.state is RunState.ACTIVE, "fold")
        if run.doom is not None or run.alone:
            return ()
        riders: list[Run] = []
        for other in self._lines[run.session_id]:
            undecided = other is not run and other.outcome is None
            if undecided and other.when_busy is WhenBusy.INTERRUPT:
                break  # what was typed after an interrupt belongs to the turn after it; once the
                # interrupt is durable, `run` is doomed anyway
            if self._is_queued(other) and other.durable and other.when_busy is WhenBusy.STEER:
                riders.append(other)
        for rider in riders:
            self._move(rider, "fold")
            rider.carrier = run
        return tuple(riders)

    def finish(self, run: Run, outcome: Outcome) -> Record:
        """The active run's turn is over. If it was doomed, that is how it ended."""
        self._require(run, run.state is RunState.ACTIVE, "finish")
        return self._end(run, run.doom or outcome)

    # The record of an ending ---------------------------------------------------------------------

    def recorded(self, run: Run) -> list[Effect]:
        """The ending of a run and its riders is written: they leave their line."""
        self._require_record(run, (RunState.ENDING, RunState.UNSAVED), "recorded")
        for ended in self._with_riders(run):
            self._leave(ended, "recorded")
        return self._settle(run.session_id)

    def unsaved(self, run: Run) -> list[Effect]:
        """The ending of a run and its riders could not be written and is published all the same.
        Doomed runs behind it end as well; nothing starts until it is recorded."""
        self._require_record(run, (RunState.ENDING,), "unsaved")
        for ended in self._with_riders(run):
            self._move(ended, "unsaved")
        return self._settle(run.session_id)

    # The end of a session, the end of the workspace ----------------------------------------------

    def drop(self, session_id: str) -> list[Effect]:
        """Cancel the session and refuse its prompts from now on."""
        self._dropped.add(session_id)
        return self.cancel(session_id).effects

    def readmit(self, session_id: str) -> None:
        """The deletion is over. If it failed, the session takes prompts again."""
        self._dropped.discard(session_id)

    def close(self) -> list[Effect]:
        """Cancel everything and accept nothing more."""
        self.closed = True
        return [effect for sid in list(self._lines) for effect in self.cancel(sid).effects]

    # Inside --------------------------------------------------------------------------------------

    def _settle(self, session_id: str) -> list[Effect]:
        """Let the first run of a line start or end, if it can."""
        unsaved = False
        for run in self._lines.get(session_id, ()):
            if run.outcome is Outcome.CLEARED:
                continue  # recorded out of line
            if run.state is RunState.UNSAVED:
                unsaved = True
                continue
            if run.state is RunState.ACCEPTED and run.durable:
                if run.doom is not None:
                    return [self._end(run, run.doom)]
                if not unsaved:
                    self._move(run, "start")
                    run.started = True
                    return [Start(run)]
            break
        return []

    def _is_queued(self, run: Run) -> bool:
        if run.state is not RunState.ACCEPTED or run.doom is not None:
            return False
        in_line = (one for one in self._lines[run.session_id] if one.outcome is not Outcome.CLEARED)
        return next(in_line) is not run

    def _cancel(self, session_id: str, runs: list[Run]) -> Canceled:
        # A run that is ending in another way is not hit any more. One that is ending because of an
        # earlier cancel is listed again, so that this request can wait for it as well.
        hit = [run for run in runs if run.outcome in (None, Outcome.CANCELED)]
        receipt = tuple((run, self.describe(run)) for run in hit)
        effects = self._doom(hit)
        return Canceled(receipt, effects + self._settle(session_id))

    def _doom(self, runs: list[Run]) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs:
            if run.doom is None and run.outcome is None:
                run.doom = Outcome.CANCELED
                if run.state is RunState.ACTIVE:
                    effects.append(Stop(run))
        return effects

    def _clear(self, session_id: str, runs: list[Run]) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs:
            run.doom = Outcome.CLEARED
            if run.durable:
                effects.append(self._end(run, Outcome.CLEARED))
        return effects + self._settle(session_id)

    def _end(self, run: Run, outcome: Outcome) -> Record:
        together = self._with_riders(run)
        for ending in together:
            self._move(ending, "end")
            ending.outcome = outcome
        return Record(run, tuple(together[1:]), outcome)

    def _with_riders(self, run: Run) -> list[Run]:
        return [run, *(one for one in self._lines[run.session_id] if one.carrier is run)]

    def _leave(self, run: Run, event: str) -> None:
        self._move(run, event)
        del self._by_id[run.run_id]
        line = self._lines[run.session_id]
        line.remove(run)
        if not line:
            del self._lines[run.session_id]

    def _move(self, run: Run, event: str) -> None:
        run.state = TRANSITIONS[run.state][event]  # every caller has checked that there is one

    def _require(self, run: Run, legal: bool, event: str) -> None:
        if not legal or self._by_id.get(run.run_id) is not run:
            raise IllegalCall(f"{event} is not possible for {run!r}")

    def _require_record(self, run: Run, states: tuple[RunState, ...], event: str) -> None:
        """A Record names its run; its riders are recorded with it."""
        self._require(run, run.state in states and run.carrier is None, event)
