"""What happened in a simulated world, as facts that invariants are checked against.

The ledger outlives every daemon of its world. It hears of facts from the spies (spies.py), from the
agent and from the clients; each fact is checked the moment it is entered, by the functions of
invariants.py. A violation cannot be raised there, since the product would handle it as its own
error: it is kept, and the loop is halted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crushlite.runs import Run, Runs
    from tests.support.simulation.loop import SeededLoop
    from tests.support.simulation.streams import StreamReader

Body = dict[str, Any]

UNKNOWN = "unknown"


class Violation(AssertionError):
    """An invariant does not hold."""


class Trace:
    """Everything that could be seen from outside, one line each, with the virtual time."""

    def __init__(self, root: Path) -> None:
        self.lines: list[str] = []
        self.loop: SeededLoop | None = None
        self._root = str(root)

    def add(self, text: str) -> None:
        at = self.loop.time() if self.loop is not None else 0.0
        self.lines.append(f"{at:10.3f} {text.replace(self._root, 'ROOT')}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


@dataclass(eq=False)
class RunFacts:
    """One acceptance of a prompt (or of a summary, which has no text) by the machine."""

    run_id: str
    session_id: str
    text: str | None  # None for a summary
    life: int
    machine: Runs
    durable: bool = False
    withdrawn: bool = False
    finished: bool = False  # how it ends was decided
    recorded: bool = False
    cleared: bool = False
    hit_at: float | None = None  # when a cancel, an interrupt, a deletion or a teardown hit it
    carrier: RunFacts | None = None
    entered_at: float | None = None  # the agent was called
    left: bool = False  # the agent has returned
    completion: Body | None = None  # its run_complete

    @property
    def is_prompt(self) -> bool:
        return self.text is not None

    @property
    def over(self) -> bool:
        return self.withdrawn or self.completion is not None or self.recorded

    @property
    def not_saved(self) -> bool:
        return self.completion is not None and "not saved" in self.completion.get("error", "")

    def __str__(self) -> str:
        return f"run {self.run_id[:8]} ({self.text or 'summary'})"


@dataclass
class Published:
    """One event of a hub. `growth` may be left out by a stream that is behind."""

    seq: int
    kind: str
    action: str
    body: Body
    growth: bool


@dataclass
class HubFacts:
    """The events of one opening of a workspace, and what they add up to."""

    epoch: str
    events: list[Published] = field(default_factory=list)
    messages: dict[str, Body] = field(default_factory=dict)  # by id, in the order of creation
    frozen: set[str] = field(default_factory=set)  # messages of turns that have ended
    granted: set[tuple[str, ...]] = field(default_factory=set)  # for a session, see `grant_key`

    def of_session(self, session_id: str) -> list[Body]:
        return [body for body in self.messages.values() if body["session_id"] == session_id]


@dataclass
class Request:
    """How often a permission or a question was opened and decided."""

    run_id: str
    awaiting: int = 0
    granted: int = 0
    denied: int = 0

    @property
    def closed(self) -> int:
        return self.granted + self.denied


@dataclass
class SessionFacts:
    session_id: str
    may_be_gone: bool = False  # its deletion was asked for, or it was lost with the power
    gone: bool = False  # the deletion was confirmed


@dataclass
class PromptFacts:
    """A prompt as its client sent it: `run_id` is empty until the daemon has given one."""

    text: str
    session_id: str
    body: Body
    run_id: str = ""
    promised: bool = False  # it was answered 202


class Ledger:
    """`query` reads what is committed, or returns None while no store is open."""

    def __init__(self, trace: Trace, query: Callable[..., list[tuple[Any, ...]] | None]) -> None:
        self.trace = trace
        self.counts: Counter[str] = Counter()  # how often what was reached
        self.violations: list[str] = []
        self.life = 0
        self.grace = 5.0  # how long a cancelled agent may take
        self.troubled_at: float | None = None  # when the store last had trouble in this life
        self.muted = False  # the daemon is dead: nothing that its remains do counts
        self.stopping = False  # the daemon is leaving
        self.accepting: str | None = None  # the prompt that is being accepted
        self.runs: dict[Run, RunFacts] = {}
        self.by_id: dict[str, list[RunFacts]] = {}
        self.hubs: dict[str, HubFacts] = {}  # by epoch
        self.epochs: dict[str, str] = {}  # by workspace id
        self.attached: dict[str, tuple[str, int]] = {}  # by client: epoch and number at its attach
        self.streams: set[StreamReader] = set()  # that are being read
        self.retired: set[str] = set()  # clients
        self.permissions: dict[str, Request] = {}  # by tool call
        self.questions: dict[str, Request] = {}  # by batch
        self.askers: dict[str, str] = {}  # tool call -> run
        self.sessions: dict[str, SessionFacts] = {}
        self.prompts: dict[str, PromptFacts] = {}  # by text
        self.settled: dict[str, dict[str, Body]] = {}  # by session: messages that cannot change
        self._query = query
        self._loop: SeededLoop | None = None

    # Time and violations -------------------------------------------------------------------------

    def begin_life(self, loop: SeededLoop, grace: float) -> None:
        self.life += 1
        self.grace = grace
        self.troubled_at = None
        self.muted = self.stopping = False
        self.streams.clear()
        self._loop = self.trace.loop = loop

    @property
    def now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    def violate(self, text: str) -> None:
        if self.muted:
            return
        self.trace.add(f"VIOLATION {text}")
        self.violations.append(text)
        if self._loop is not None:
            self._loop.halt()

    def check(self, invariant: Callable[..., None], *args: Any) -> None:
        """Hold a fact against an invariant."""
        try:
            invariant(self, *args)
        except Violation as violation:
            self.violate(f"{invariant.__name__}: {violation}")

    def troubled(self, seconds: float = 15.0) -> bool:
        """Whether the store had trouble lately, so that its errors are no surprise."""
        return self.troubled_at is not None and self.now - self.troubled_at < seconds

    # Looking things up ---------------------------------------------------------------------------

    def run(self, run_id: str) -> RunFacts | None:
        """The acceptance that was promised, else the newest."""
        found = self.by_id.get(run_id, [])
        return next((run for run in found if run.durable), found[-1] if found else None)

    def line(self, machine: Runs, session_id: str) -> list[RunFacts]:
        """What a session has accepted, oldest first."""
        runs = self.runs.values()
        return [run for run in runs if run.machine is machine and run.session_id == session_id]

    def hub_of(self, workspace_id: str) -> HubFacts:
        return self.hubs[self.epochs[workspace_id]]

    def open_sessions(self) -> list[SessionFacts]:
        return [one for one in self.sessions.values() if not one.may_be_gone]

    def session_may_be_gone(self, session_id: str) -> bool:
        facts = self.sessions.get(session_id)
        return facts is None or facts.may_be_gone

    def row(self, run_id: str) -> str | None:
        """The outcome of a run as it is committed: empty if it has none yet, None if it has no row,
        UNKNOWN if no store is open."""
        found = self._query("SELECT outcome FROM runs WHERE run_id = ?", run_id)
        if found is None:
            return UNKNOWN
        return str(found[0][0] or "") if found else None

    def after_crash(self) -> None:
        """The daemon has died. What has a row is promised, whether a client has heard of it or not;
        a session that nothing was promised in may have been lost with the power."""
        for run in self.runs.values():
            waiting = run.is_prompt and not run.durable and not run.withdrawn
            if waiting and run.life == self.life:
                run.durable = self.row(run.run_id) not in (None, UNKNOWN)
        promised = {run.session_id for run in self.runs.values() if run.durable}
        for session in self.open_sessions():
            if session.session_id not in promised:
                rows = self._query("SELECT 1 FROM sessions WHERE id = ?", session.session_id)
                session.may_be_gone = not rows
