"""The accept / active / cancel machine: everything that can change the state of a run is here.

Two rules keep this file auditable. Nothing in it awaits, sleeps, stores or publishes: a call
mutates the machine, returns what must now be done as data, and is over. And nothing outside it
decides about the state of a run: runner.py performs what is returned here, in order.

Theory of operation
-------------------
A *run* is an object from the moment its prompt is accepted. The live runs of a session stand in
one *line*, in order of acceptance. Because every call runs to its end on one event loop, a cancel
needs no locks, tickets or watermarks: it is a set operation over the objects that are live now.
It therefore covers every prompt accepted before it, and cannot touch one accepted after it.

    state      ACCEPTED -> ACTIVE -> ENDED      started, then finished
               ACCEPTED -> FOLDED -> ENDED      joined the turn of the active run, ends with it
               ACCEPTED -> ENDED                canceled or cleared before it could start
               ACCEPTED -> WITHDRAWN            never promised: its row could not be committed
    durable    its row is committed, the client may be told 202. Only a durable run starts or ends;
               a run that is first in line but not durable holds the line until it is one or the
               other of durable and withdrawn.
    doom       CANCELED or CLEARED once somebody asked for it; the first mark stays. The active run
               keeps running until its turn has unwound; a doomed run that waits never starts.
    held       the machine as a whole: endings wait to be written, and nothing starts until they
               are. Doomed runs end all the same, and active turns go on. A run whose Start was
               on its way when the hold began is *postponed*: first in line again.

Derived, never stored: *live* is neither ended nor withdrawn; *busy* is any live run in the
session; *queued* is accepted, not doomed, with a live run ahead or the machine held.

Every call ends by settling the line: while nothing is active and the first in line is durable, a
doomed one ends and an undoomed one starts, unless the machine is held. So a line can never be left
standing, however a turn ended.

Who may call what: accept, durable, withdraw by the acceptance of a prompt; cancel, cancel_run,
clear, remove by requests; drop by the deletion of a session, and readmit when that is over; fold
and finish by the turn of the active run; close by teardown; hold and release by whoever keeps the
endings, and postpone, while held, by the lane that would have begun the turn.

Effects and their order
-----------------------
`Stop` acts at once. The others are performed in one ordered lane per session, so the records of a
canceled waiter are written after the active turn has closed its own: history stays one that model
providers accept.

Exceptions to the table: `finish` on a run that has ended is a no-op, because an abandoned agent
may report twice. `fold` on a doomed run folds nothing. `Drained` is not about a run at all.

Invariants (explored exhaustively in tests/test_runs.py): at most one active run per session; runs
start in order of acceptance; exactly one End per durable run and none for a withdrawn one; a
cancel dooms all that is live and nothing else, that of a run only this run; an idle cancel changes
nothing; a run that is not durable never starts; no live durable run is first in line while nothing
is active, except an undoomed one while the machine is held; while it is held and after close
nothing starts; an illegal call raises and changes nothing.

Knows nothing of: asyncio, tasks, the store, events, HTTP, prompts, agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .errors import IllegalCall, NotQueued, SessionBusy, SessionNotFound, WorkspaceClosing


class RunState(Enum):
    ACCEPTED = "accepted"
    ACTIVE = "active"
    FOLDED = "folded"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


TRANSITIONS: dict[RunState, dict[str, RunState]] = {
    RunState.ACCEPTED: {
        "start": RunState.ACTIVE,
        "fold": RunState.FOLDED,
        "end": RunState.ENDED,
        "withdraw": RunState.WITHDRAWN,
    },
    RunState.ACTIVE: {"postpone": RunState.ACCEPTED, "end": RunState.ENDED},
    RunState.FOLDED: {"end": RunState.ENDED},
    RunState.ENDED: {},
    RunState.WITHDRAWN: {},
}


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
    INTERRUPT = "interrupt"  # cancel everything ahead, then start
    REJECT = "reject"  # refuse


class Run:
    """One prompt's life. Only `Runs` writes these attributes."""

    __slots__ = (
        "carrier",
        "doom",
        "durable",
        "kind",
        "outcome",
        "run_id",
        "session_id",
        "state",
        "when_busy",
    )

    def __init__(self, session_id: str, run_id: str, when_busy: WhenBusy, kind: str) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.when_busy = when_busy
        self.kind = kind
        self.state = RunState.ACCEPTED
        self.durable = False
        self.doom: Outcome | None = None
        self.outcome: Outcome | None = None  # set once, when the run ends
        self.carrier: Run | None = None  # the active run it was folded into

    @property
    def live(self) -> bool:
        return self.state in (RunState.ACCEPTED, RunState.ACTIVE, RunState.FOLDED)

    def __repr__(self) -> str:
        marks = "".join(
            (" durable" if self.durable else "", f" {self.doom.value}" if self.doom else "")
        )
        return f"<Run {self.run_id} {self.state.value}{marks}>"


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the turn of this run."""

    run: Run


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the turn of this active run, now; it ends when it has unwound."""

    run: Run


@dataclass(frozen=True, slots=True)
class Fold:
    """Store these runs' prompts inside the active run's turn."""

    run: Run
    riders: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Record and publish this run's ending."""

    run: Run
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Drained:
    """No live run is left in this dropped session, or, for None, in the closed workspace."""

    session_id: str | None


Effect = Start | Stop | Fold | End | Drained


@dataclass(frozen=True, slots=True)
class Canceled:
    """What a cancel hit: every run that was live, and the state it was in."""

    receipt: tuple[tuple[Run, str], ...]
    effects: list[Effect]


class Runs:
    """The runs of one workspace."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Run]] = {}  # live runs by session, in order of acceptance
        self._by_id: dict[str, Run] = {}  # the same runs by run_id
        self._dropped: set[str] = set()  # sessions that accept nothing any more
        self._draining: set[str | None] = set()  # who still waits for a Drained (None: close)
        self._closed = False
        self._held = False

    def __repr__(self) -> str:
        marks = " held" * self._held + " closed" * self._closed
        return f"<Runs live={len(self._by_id)} sessions={len(self._lines)}{marks}>"

    # What is derived -----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def held(self) -> bool:
        return self._held

    def live(self, session_id: str | None = None) -> list[Run]:
        """Live runs of a session, or of all, oldest first within a session."""
        if session_id is not None:
            return list(self._lines.get(session_id, ()))
        return [run for line in self._lines.values() for run in line]

    def find(self, run_id: str) -> Run | None:
        """The live run with this id."""
        return self._by_id.get(run_id)

    def busy(self, session_id: str) -> bool:
        return session_id in self._lines

    def active(self, session_id: str) -> Run | None:
        line = self._lines.get(session_id)
        return line[0] if line and line[0].state is RunState.ACTIVE else None

    def queued(self, session_id: str) -> list[Run]:
        """What is waiting its turn: exactly what list, clear and remove see."""
        line = self._lines.get(session_id, ())
        return [run for run in line if self.describe(run) == "queued"]

    def describe(self, run: Run) -> str:
        """The state's name for outsiders: accepted, queued, active, folded, ended."""
        if _waits(run) and (self._held or self._lines[run.session_id][0] is not run):
            return "queued"
        return run.state.value

    # Acceptance ----------------------------------------------------------------------------------

    def accept(
        self,
        session_id: str,
        run_id: str,
        when_busy: WhenBusy = WhenBusy.QUEUE,
        kind: str = "prompt",
    ) -> Run:
        """Join the line. A live run with this id is returned instead."""
        known = self._by_id.get(run_id)
        if known is not None:
            return known
        if self._closed:
            raise WorkspaceClosing("workspace closing: create it again and retry")
        if session_id in self._dropped:
            raise SessionNotFound(f"session {session_id} is being deleted")
        if when_busy is WhenBusy.REJECT and self.busy(session_id):
            raise SessionBusy(
                f"session is currently processing another request: {session_id} is busy, wait for "
                "its run or cancel it"
            )
        run = Run(session_id, run_id, when_busy, kind)
        self._lines.setdefault(session_id, []).append(run)
        self._by_id[run_id] = run
        return run

    def durable(self, run: Run) -> list[Effect]:
        """The run's row is committed: it is promised and will end exactly once."""
        self._require(run, run.state is RunState.ACCEPTED and not run.durable, "durable")
        effects: list[Effect] = []
        run.durable = True
        if run.doom is Outcome.CLEARED:
            self._end(run, Outcome.CLEARED, effects)
        elif run.doom is None and run.when_busy is WhenBusy.INTERRUPT:
            line = self._lines[run.session_id]
            self._doom(line[: line.index(run)], effects)
        return self._settle(run.session_id, effects)

    def withdraw(self, run: Run) -> list[Effect]:
        """The run could not be promised: it leaves without a trace."""
        self._require(run, not run.durable and run.state is RunState.ACCEPTED, "withdraw")
        self._leave(run, "withdraw")
        return self._settle(run.session_id, [])

    # Cancel and clear ----------------------------------------------------------------------------

    def cancel(self, session_id: str) -> Canceled:
        """Doom all that is live in the session; with nothing live, remember nothing."""
        return self._cancel(session_id, self._lines.get(session_id, []))

    def cancel_run(self, run: Run) -> Canceled:
        """Doom one run, and those that ride with it, and nobody behind it. One that waits in line
        is forgotten, as by `remove`: it ends now, not when its turn comes."""
        if run.carrier is not None:
            raise NotQueued(f"run {run.run_id} is in the turn of {run.carrier.run_id}: cancel that")
        self._require(run, run.live, "cancel_run")
        if self.describe(run) == "queued":
            return Canceled(((run, "queued"),), self._clear(run.session_id, [run]))
        return self._cancel(run.session_id, [run])

    def clear(self, session_id: str) -> list[Effect]:
        """Forget what is queued, leaving the active run alone."""
        return self._clear(session_id, self.queued(session_id))

    def remove(self, run: Run) -> list[Effect]:
        """Forget one queued run."""
        if self.describe(run) != "queued":
            raise NotQueued(f"run {run.run_id} is {self.describe(run)}, not queued: cancel instead")
        return self._clear(run.session_id, [run])

    # The active run ------------------------------------------------------------------------------

    def fold(self, run: Run) -> list[Effect]:
        """At a step of the active run: take in the prompts that were typed to steer it."""
        self._require(run, run.state is RunState.ACTIVE, "fold")
        if run.doom is not None:
            return []
        riders: list[Run] = []
        for other in self._lines[run.session_id][1:]:
            if other.when_busy is WhenBusy.INTERRUPT:
                break  # what was typed after an interrupt belongs to the turn after it
            if _waits(other) and other.durable and other.when_busy is WhenBusy.STEER:
                riders.append(other)
        for rider in riders:
            self._move(rider, "fold")
            rider.carrier = run
        return [Fold(run, tuple(riders))] if riders else []

    def finish(self, run: Run, outcome: Outcome) -> list[Effect]:
        """The active run's turn is over; a doom that came first decides how it ended."""
        if run.state is RunState.ENDED:
            return []
        self._require(run, run.state is RunState.ACTIVE, "finish")
        effects: list[Effect] = []
        outcome = run.doom or outcome
        riders = [other for other in self._lines[run.session_id] if other.carrier is run]
        for ending in (run, *riders):
            self._end(ending, outcome, effects)
        return self._settle(run.session_id, effects)

    # The hold ------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Start nothing until `release`; what is doomed ends all the same."""
        self._held = True

    def postpone(self, run: Run) -> None:
        """Its Start came to be performed during a hold: the run is first in line again."""
        begun = any(other.carrier is run for other in self._lines.get(run.session_id, ()))
        legal = self._held and run.state is RunState.ACTIVE and run.doom is None and not begun
        self._require(run, legal, "postpone")
        self._move(run, "postpone")

    def release(self) -> list[Effect]:
        """The hold is over: every line that can begins again."""
        self._held = False
        effects: list[Effect] = []
        for session_id in list(self._lines):
            self._settle(session_id, effects)
        return effects

    # The end of a session, the end of the workspace ----------------------------------------------

    def drop(self, session_id: str) -> Canceled:
        """Cancel the session and refuse it from now on; Drained follows when nothing is live."""
        self._dropped.add(session_id)
        self._draining.add(session_id)
        return self.cancel(session_id)

    def readmit(self, session_id: str) -> None:
        """The deletion is over, one way or the other: who asks the store will know."""
        self._dropped.discard(session_id)
        self._draining.discard(session_id)

    def close(self) -> list[Effect]:
        """Cancel everything and accept nothing more; Drained(None) follows."""
        effects: list[Effect] = []
        if not self._closed:
            self._closed = True
            self._draining.add(None)
        for session_id in list(self._lines):
            effects += self.cancel(session_id).effects
        self._drained(None, effects)
        return effects

    # Inside --------------------------------------------------------------------------------------

    def _settle(self, session_id: str, effects: list[Effect]) -> list[Effect]:
        line = self._lines.get(session_id, [])
        while line and line[0].durable and line[0].state is RunState.ACCEPTED:
            head = line[0]
            if head.doom is not None:
                self._end(head, head.doom, effects)
            elif self._held:
                break
            else:
                self._move(head, "start")
                effects.append(Start(head))
        self._drained(session_id, effects)
        self._drained(None, effects)
        return effects

    def _drained(self, session_id: str | None, effects: list[Effect]) -> None:
        live = self._by_id if session_id is None else self._lines.get(session_id)
        if session_id in self._draining and not live:
            self._draining.discard(session_id)
            effects.append(Drained(session_id))

    def _cancel(self, session_id: str, runs: list[Run]) -> Canceled:
        receipt = tuple((run, self.describe(run)) for run in runs)
        effects: list[Effect] = []
        self._doom(runs, effects)
        return Canceled(receipt, self._settle(session_id, effects))

    def _doom(self, runs: list[Run], effects: list[Effect]) -> None:
        for run in runs:
            if run.doom is None:
                run.doom = Outcome.CANCELED
                if run.state is RunState.ACTIVE:
                    effects.append(Stop(run))

    def _clear(self, session_id: str, runs: list[Run]) -> list[Effect]:
        effects: list[Effect] = []
        for run in runs:
            run.doom = Outcome.CLEARED
            if run.durable:
                self._end(run, Outcome.CLEARED, effects)
        return self._settle(session_id, effects)

    def _end(self, run: Run, outcome: Outcome, effects: list[Effect]) -> None:
        self._leave(run, "end")
        run.outcome = outcome
        effects.append(End(run, outcome))

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


def _waits(run: Run) -> bool:
    return run.state is RunState.ACCEPTED and run.doom is None
