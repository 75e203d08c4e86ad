"""Who keeps a workspace alive, who keeps the server alive, and when both may go.

Everything that can change a claim is in this file, and nothing in it waits, sleeps or does I/O.
Each call decides at once, on one event loop, and returns what has to be done as data; so there are
no locks, and the decision to leave is atomic against a create. The backend performs the effects, in
the order of the list.

What a claim is
---------------
A claim belongs to one client and one workspace. It is proven by an open event stream, or else it
is bounded by a timer, for a client can die without a word at any moment:

    NONE                no claim; such a pair is not stored at all
    HELD_CREATE         created, no stream yet; the create grace runs
    STREAMING           at least one open stream
    STREAMING_RELEASED  the same, but the client has said goodbye: no grace after the last stream
    HELD_DETACH         the last stream closed unannounced; the detach grace runs

A detached run is a claim as well, proven by the run itself, whatever clients do. When such a run
was the last claim, the workspace *lingers* for one detach grace, so that its owner can come back to
look at the result. A workspace without any claim, run or linger is torn down; a server without any
workspace or pending create is idle and leaves after the idle grace.

The events of a claim
---------------------
`TRANSITIONS` says what each does to one claim. They are named after the calls that bring them; but
`detach_last` is the detach of a client's only open stream, `expire` the end of the claim's timer.
What the table does not say:

* A detach while other streams of the client are open changes a count, not the state. A detach or a
  release without such a stream or claim does nothing.
* A detach grace of zero: HELD_DETACH expires inside the same call. A create grace of zero is a
  timer of zero seconds, so that the create itself still succeeds.
* An idle grace of zero: the server leaves inside the call that made it idle, except in `begin`,
  or no client could ever reach it.
* Retired clients and a latched server are refused before the table is asked.

Invariants, each checked in every reachable state by the tests
--------------------------------------------------------------
1. Every claim has an open stream or exactly one armed timer, never both; a workspace without a
   claim has a live run or an armed linger timer, never both. No other workspace is live.
2. `Teardown` is returned once per live workspace, in the call that took its last claim. From then
   on the id is unknown here: it is not live, and late detaches and releases are no-ops.
3. The idle timer is armed exactly while the server is idle, not latched, and has an idle grace
   (with the exception of `begin` above).
4. The latch never opens. A latched server has no workspace and no timer, and gains none.
5. A retired client has no claim and gains none: a create that was overtaken by its client's
   retirement must still be refused. The marks of the last MOST_RETIRED clients are kept.
6. A timer counts by its generation. The expiry of one that was disarmed, replaced or already fired
   changes nothing, however late it is delivered.
7. A call that raises changes nothing.

Knows nothing of: clocks and loops, paths (the backend finds the id of a path and commits the create
in one synchronous step, and never uses an id twice), what a teardown does.
"""

from __future__ import annotations

from dataclasses import field, fields
from enum import Enum
from typing import Literal, TypeAlias

from . import errors
from .records import dataclass

MOST_RETIRED = 10_000  # clients that are remembered: more than ever overtake a request


class ClaimState(Enum):
    NONE = "none"
    HELD_CREATE = "held_create"
    STREAMING = "streaming"
    STREAMING_RELEASED = "streaming_released"
    HELD_DETACH = "held_detach"


_HELD = {
    "create": ClaimState.HELD_CREATE,
    "attach": ClaimState.STREAMING,
    "release": ClaimState.NONE,
    "expire": ClaimState.NONE,
    "retire": ClaimState.NONE,
}
TRANSITIONS: dict[ClaimState, dict[str, ClaimState]] = {
    ClaimState.NONE: {"create": ClaimState.HELD_CREATE, "attach": ClaimState.STREAMING},
    ClaimState.HELD_CREATE: _HELD,
    ClaimState.STREAMING: {
        "create": ClaimState.STREAMING,
        "attach": ClaimState.STREAMING,
        "detach_last": ClaimState.HELD_DETACH,
        "release": ClaimState.STREAMING_RELEASED,
        "retire": ClaimState.NONE,
    },
    ClaimState.STREAMING_RELEASED: {
        "create": ClaimState.STREAMING,
        "attach": ClaimState.STREAMING_RELEASED,
        "detach_last": ClaimState.NONE,
        "release": ClaimState.STREAMING_RELEASED,
        "retire": ClaimState.NONE,
    },
    ClaimState.HELD_DETACH: _HELD,
}


@dataclass(frozen=True, slots=True)
class Graces:
    """How many seconds an unproven claim and an idle server last. An idle of None: for ever."""

    create: float = 30.0
    detach: float = 10.0
    idle: float | None = 60.0

    def __post_init__(self) -> None:
        for knob in fields(self):
            seconds = getattr(self, knob.name)
            # Not `seconds < 0`, which a NaN would pass.
            if seconds is not None and not seconds >= 0:
                raise errors.UsageError(f"{knob.name} grace: expected seconds >= 0, got {seconds}")


TimerKind: TypeAlias = Literal["claim", "linger", "idle"]


@dataclass(frozen=True, slots=True)
class ClaimTimer:
    """The name of a timer. A linger timer has no `client`, the idle timer no `workspace` either."""

    kind: TimerKind
    workspace: str
    client: str
    generation: int


@dataclass(frozen=True, slots=True)
class Arm:
    """Call `expired(timer)` after so many seconds."""

    timer: ClaimTimer
    seconds: float


@dataclass(frozen=True, slots=True)
class Disarm:
    """The timer is not needed any more. Letting it expire all the same would do no harm."""

    timer: ClaimTimer


@dataclass(frozen=True, slots=True)
class Teardown:
    """The last claim on this workspace is gone, and there can be no new one."""

    workspace: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The server is idle and latched: leave, once the running teardowns are over."""


Effect: TypeAlias = Arm | Disarm | Teardown | Shutdown


@dataclass(slots=True)
class _Claim:
    state: ClaimState = ClaimState.NONE
    streams: int = 0
    # What the client looks at and what it said of itself live and die with its claim: they outlast
    # a blip of its stream, but a client that comes back after its grace starts anew.
    session: str | None = None
    interactive: bool | None = None
    guessed: bool = False  # the client that said so did not name itself


@dataclass(slots=True)
class _Workspace:
    claims: dict[str, _Claim] = field(default_factory=dict)  # by client, oldest claim first
    runs: set[str] = field(default_factory=set)  # detached runs that have not ended


class Claims:
    """The claims of all clients on all workspaces of one server. See the head of this file."""

    def __init__(self, graces: Graces) -> None:
        self._graces = graces
        self._workspaces: dict[str, _Workspace] = {}  # exactly the live ones
        self._retired: dict[str, None] = {}  # the last ones, the oldest first
        self.pending = 0  # creates admitted, and neither committed nor failed yet
        self.is_latched = False
        # The armed timers by what they are for: at most one each. A generation is used only once.
        self._armed: dict[tuple[TimerKind, str, str], ClaimTimer] = {}
        self._generation = 0

    # Creates

    def begin(self) -> list[Effect]:
        """The server is up: an unused one is idle too."""
        return self._rest() if self._graces.idle else []

    def admit(self, client: str) -> list[Effect]:
        """A create begins. It counts as use of the server until `create` or `failed`."""
        self._refuse(client)
        self.pending += 1
        return self._disarm("idle")

    def create(self, workspace: str, client: str) -> list[Effect]:
        """An admitted create commits: a workspace that is not live becomes so, and is claimed."""
        self._check_admitted()
        # Again, not only in `admit`: opening a workspace takes time, and the client may have been
        # retired or the server latched meanwhile.
        self._refuse(client)
        self.pending -= 1
        self._workspaces.setdefault(workspace, _Workspace())
        return self._claim(workspace, client, "create")

    def failed(self) -> list[Effect]:
        """An admitted create ended without a claim, for whatever reason."""
        self._check_admitted()
        self.pending -= 1
        return self._rest()

    # Claims of clients

    def attach(self, workspace: str, client: str) -> list[Effect]:
        """An event stream opens. A create is not needed before it, only a live workspace."""
        if not self.is_latched:
            self._live(workspace)
        self._refuse(client)
        effects = self._claim(workspace, client, "attach")
        self._workspaces[workspace].claims[client].streams += 1
        return effects

    def detach(self, workspace: str, client: str) -> list[Effect]:
        """One stream closed. The claim behind it may be long gone: then there is nothing to do."""
        claim = self._claims(workspace).get(client)
        if claim is None or not claim.streams:
            return []
        claim.streams -= 1
        return [] if claim.streams else self._move(workspace, client, "detach_last")

    def release(self, workspace: str, client: str) -> list[Effect]:
        """The client is done here: without a stream at once, else when its last stream closes."""
        if client not in self._claims(workspace):
            return []
        return self._move(workspace, client, "release")

    def retire(self, client: str) -> list[Effect]:
        """The client is gone for good: all its claims end, and no request of it makes a new one."""
        self._retired.pop(client, None)  # said again, it is the last one to be forgotten
        self._retired[client] = None
        if len(self._retired) > MOST_RETIRED:
            del self._retired[next(iter(self._retired))]
        effects: list[Effect] = []
        for workspace in self.live:
            if client in self._claims(workspace):
                effects += self._move(workspace, client, "retire")
        return effects

    def expired(self, timer: ClaimTimer) -> list[Effect]:
        """A timer ran out. Only the one that is armed now counts."""
        key = (timer.kind, timer.workspace, timer.client)
        if self._armed.get(key) != timer:
            return []
        del self._armed[key]
        if timer.kind == "claim":
            return self._move(timer.workspace, timer.client, "expire")
        if timer.kind == "linger":
            return self._leave(timer.workspace)
        return self.shutdown_if_idle()  # asks again whether the server is idle, then latches

    # Claims of detached runs

    def run_began(self, workspace: str, run_id: str) -> list[Effect]:
        """A detached run was accepted. Told twice, it is still one claim."""
        self._live(workspace).runs.add(run_id)
        return self._disarm("linger", workspace)

    def run_ended(self, workspace: str, run_id: str) -> list[Effect]:
        """A detached run is over. Unknown, or ended by a teardown: nothing to do."""
        found = self._workspaces.get(workspace)
        if found is None or run_id not in found.runs:
            return []
        found.runs.remove(run_id)
        if found.runs or found.claims:
            return []
        if self._graces.detach <= 0:
            return self._leave(workspace)
        return self._arm(self._graces.detach, "linger", workspace)

    # Presence

    def look(self, workspace: str, client: str, session: str) -> None:
        """The client shows this session now, or none ("")."""
        claim = self._live(workspace).claims.get(client)
        if claim is None or not claim.streams:
            raise errors.NotAttached("client not attached: open an event stream first")
        claim.session = session or None
        if claim.guessed:  # only a client with a person says what it shows
            claim.interactive = True

    def viewers(self, workspace: str, session: str) -> int:
        """How many clients with an open stream look at the session; two streams count once."""
        return sum(claim.session == session for claim in self._streaming(workspace))

    def viewed(self, workspace: str) -> set[str]:
        """The sessions that have viewers."""
        return {claim.session for claim in self._streaming(workspace) if claim.session}

    def watchers(self, workspace: str) -> int:
        """How many clients have an open stream; two streams count once."""
        return len(self._streaming(workspace))

    def say_interactive(self, workspace: str, client: str | None, interactive: bool) -> None:
        """Whether a person sits at this client; nothing is recorded for one without a claim. The
        base protocol does not name the client, which says this soon after its create: the newest
        one that has not said it yet is the best guess."""
        claims = self._live(workspace).claims
        guessed = client is None
        if client is None:
            newest = list(reversed(claims))
            silent = [name for name in newest if claims[name].interactive is None]
            client = next(iter(silent + newest), "")
        if client in claims:
            claims[client].interactive, claims[client].guessed = interactive, guessed

    def interactive(self, workspace: str) -> bool:
        """Whether a person may be watching: some attached client has not denied it."""
        return any(claim.interactive is not False for claim in self._streaming(workspace))

    def attended(self, workspace: str) -> bool:
        """Whether a person is watching: some attached client has said so."""
        return any(claim.interactive for claim in self._streaming(workspace))

    # The end of the server

    def shutdown_if_idle(self) -> list[Effect]:
        """Leave, if it does not already. Raises ServerInUse if a workspace is live."""
        if self.is_latched:
            return []
        if self._workspaces or self.pending:
            raise errors.ServerInUse("server is hosting live workspaces: it leaves when they do")
        return [*self.latch(), Shutdown()]

    def latch(self) -> list[Effect]:
        """A signal: leave now, also with live workspaces. Admitted creates still call `failed`."""
        self.is_latched = True
        effects: list[Effect] = [Disarm(timer) for timer in self._armed.values()]
        effects += [Teardown(workspace) for workspace in self._workspaces]
        self._armed.clear()
        self._workspaces.clear()
        return effects

    # For reports

    @property
    def live(self) -> list[str]:
        return list(self._workspaces)

    def clients(self, workspace: str) -> list[tuple[str, str, int]]:
        """(client, name of its state, open streams), oldest claim first."""
        claims = self._claims(workspace)
        return [(name, claim.state.name, claim.streams) for name, claim in claims.items()]

    # How claims come and go. Every way to lose one ends in `_leave`, and only `_leave` and `failed`
    # can make the server idle.

    def _claim(self, workspace: str, client: str, event: str) -> list[Effect]:
        self._workspaces[workspace].claims.setdefault(client, _Claim())
        return self._disarm("linger", workspace) + self._move(workspace, client, event)

    def _move(self, workspace: str, client: str, event: str) -> list[Effect]:
        claims = self._workspaces[workspace].claims
        # Every caller has checked that the table has this cell.
        state = claims[client].state = TRANSITIONS[claims[client].state][event]
        # A timer belongs to one stay in one state: even a claim that stays HELD gets a new one.
        effects = self._disarm("claim", workspace, client)
        if state is ClaimState.HELD_CREATE:
            return effects + self._arm(self._graces.create, "claim", workspace, client)
        if state is ClaimState.HELD_DETACH:
            if self._graces.detach <= 0:
                return effects + self._move(workspace, client, "expire")
            return effects + self._arm(self._graces.detach, "claim", workspace, client)
        if state is ClaimState.NONE:
            del claims[client]
            if not claims and not self._workspaces[workspace].runs:
                effects += self._leave(workspace)
        return effects

    def _leave(self, workspace: str) -> list[Effect]:
        del self._workspaces[workspace]
        return [Teardown(workspace), *self._rest()]

    def _rest(self) -> list[Effect]:
        seconds = self._graces.idle
        busy = self._workspaces or self.pending or self.is_latched
        if busy or seconds is None or ("idle", "", "") in self._armed:
            return []
        return self._arm(seconds, "idle") if seconds > 0 else self.shutdown_if_idle()

    # Small change

    def _refuse(self, client: str) -> None:
        if self.is_latched:
            raise errors.ShuttingDown("server is shutting down: start another one")
        if client in self._retired:
            raise errors.ClientRetired("client has been retired: use a new client id")

    def _check_admitted(self) -> None:
        if not self.pending:
            raise errors.IllegalCall("a create ended that was never admitted")

    def _live(self, workspace: str) -> _Workspace:
        if workspace not in self._workspaces:
            raise errors.WorkspaceNotFound("workspace not found: create it again")
        return self._workspaces[workspace]

    def _claims(self, workspace: str) -> dict[str, _Claim]:
        """By client; none on a workspace that is not live."""
        return self._workspaces[workspace].claims if workspace in self._workspaces else {}

    def _streaming(self, workspace: str) -> list[_Claim]:
        return [claim for claim in self._claims(workspace).values() if claim.streams]

    def _arm(
        self, seconds: float, kind: TimerKind, workspace: str = "", client: str = ""
    ) -> list[Effect]:
        self._generation += 1
        timer = ClaimTimer(kind, workspace, client, self._generation)
        self._armed[kind, workspace, client] = timer
        return [Arm(timer, seconds)]

    def _disarm(self, kind: TimerKind, workspace: str = "", client: str = "") -> list[Effect]:
        timer = self._armed.pop((kind, workspace, client), None)
        return [Disarm(timer)] if timer else []
