"""The claims machine: each cell of its table, its scenarios, and then every order of calls.

`World` wraps a `Claims` and plays the backend: it keeps the armed timers from the effects alone,
and after every call it checks the invariants that the head of claims.py lists, from the outside.
The exploration then visits every state that a few clients and workspaces can reach.
"""

from __future__ import annotations

import itertools
import pickle
import random
import unittest
from dataclasses import dataclass, field
from typing import TypeAlias

from crushlite.claims import (
    MOST_RETIRED,
    TRANSITIONS,
    Arm,
    Claims,
    ClaimState,
    ClaimTimer,
    Disarm,
    Effect,
    Graces,
    Shutdown,
    Teardown,
)
from crushlite.errors import (
    ClientRetired,
    CrushliteError,
    IllegalCall,
    NotAttached,
    ServerInUse,
    ShuttingDown,
    UsageError,
    WorkspaceNotFound,
)

NONE, HELD_CREATE, STREAMING, STREAMING_RELEASED, HELD_DETACH = ClaimState
STREAMS = ("STREAMING", "STREAMING_RELEASED")
HOLDS = ("HELD_CREATE", "HELD_DETACH")

Pair: TypeAlias = tuple[str, str]
Op: TypeAlias = tuple[object, ...]


def told(effects: list[Effect]) -> list[str]:
    """Effects as short sentences, without generations: what a test wants to compare."""
    words = []
    for effect in effects:
        match effect:
            case Arm(timer, seconds):
                words.append(f"arm {timer.kind} {timer.workspace}{timer.client} {seconds:g}")
            case Disarm(timer):
                words.append(f"disarm {timer.kind} {timer.workspace}{timer.client}")
            case Teardown(workspace):
                words.append(f"teardown {workspace}")
            case Shutdown():
                words.append("shutdown")
    return [" ".join(word.split()) for word in words]


@dataclass
class World:
    """A `Claims` and what a backend knows of it. All of it pickles: the fastest way to copy."""

    claims: Claims
    graces: Graces
    armed: set[ClaimTimer] = field(default_factory=set)
    stale: list[ClaimTimer] = field(default_factory=list)
    retired: set[str] = field(default_factory=set)
    runs: set[Pair] = field(default_factory=set)
    pending: int = 0
    used: bool = False  # some create was admitted: from then on an idle grace of zero counts

    @classmethod
    def begun(cls, graces: Graces) -> World:
        world = cls(Claims(graces), graces)
        world.do("begin")
        return world

    # Calling

    def do(self, name: str, *args: object, before: Claims | None = None) -> list[str]:
        """Make one call, perform its effects, check everything. Errors come through, checked."""
        claims = self.claims
        copy: Claims = before or pickle.loads(pickle.dumps(claims))
        refusal = self.refusal(name, *args)
        raised: CrushliteError | None = None
        effects: list[Effect] = []
        try:
            effects = getattr(claims, name)(*args) or []
        except CrushliteError as error:
            raised = error
        assert type(raised) is (refusal or type(None)), f"{name}{args}: {raised!r}, not {refusal}"
        if raised is not None:
            assert vars(copy) == vars(claims), f"{name} raised and changed {copy!r} to {claims!r}"
            raise raised
        self.note(name, *args)
        self.check_step(copy, name, args, effects)
        self.perform(effects)
        self.check_state()
        return told(effects)

    def refusal(self, name: str, *args: object) -> type[CrushliteError] | None:
        """What this call must raise now: the whole list of refusals, in order of precedence."""
        claims = self.claims
        if name in ("create", "failed") and claims.pending == 0:
            return IllegalCall
        if name in ("admit", "create", "attach"):
            if claims.is_latched:
                return ShuttingDown
            if name == "attach" and args[0] not in claims.live:
                return WorkspaceNotFound
            return ClientRetired if args[-1] in self.retired else None
        if name in ("look", "say_interactive", "run_began") and args[0] not in claims.live:
            return WorkspaceNotFound
        if name == "look" and self.streams(str(args[0]), str(args[1])) == 0:
            return NotAttached
        busy = (claims.live or claims.pending) and not claims.is_latched
        return ServerInUse if name == "shutdown_if_idle" and busy else None

    def note(self, name: str, *args: object) -> None:
        self.used = self.used or name == "admit"
        self.pending += {"admit": 1, "create": -1, "failed": -1}.get(name, 0)
        match name, args:
            case "retire", (client,):
                self.retired.add(str(client))
            case "run_began", (workspace, run):
                self.runs.add((str(workspace), str(run)))
            case "run_ended", (workspace, run):
                self.runs.discard((str(workspace), str(run)))
            case "expired", (ClaimTimer() as timer,) if timer in self.armed:
                self.armed.remove(timer)
                self.stale.append(timer)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Arm(timer, seconds):
                    assert timer not in self.stale, f"{timer} was used before"
                    assert seconds == self.grace(timer)
                    assert seconds > 0 or self.state(timer.workspace, timer.client) == "HELD_CREATE"
                    self.armed.add(timer)
                case Disarm(timer):
                    self.armed.remove(timer)
                    self.stale.append(timer)
                case Teardown(workspace):
                    self.runs = {run for run in self.runs if run[0] != workspace}

    def grace(self, timer: ClaimTimer) -> float | None:
        if timer.kind == "idle":
            return self.graces.idle
        if timer.kind == "linger":
            return self.graces.detach
        state = dict(self.states(timer.workspace))[timer.client]
        return self.graces.create if state == "HELD_CREATE" else self.graces.detach

    # Looking

    def states(self, workspace: str) -> list[Pair]:
        return [(client, state) for client, state, _ in self.claims.clients(workspace)]

    def state(self, workspace: str, client: str) -> str:
        return dict(self.states(workspace)).get(client, "NONE")

    def streams(self, workspace: str, client: str) -> int:
        return sum(n for name, _, n in self.claims.clients(workspace) if name == client)

    def timer(self, kind: str, workspace: str = "", client: str = "") -> ClaimTimer:
        key = (kind, workspace, client)
        found = [t for t in self.armed if (t.kind, t.workspace, t.client) == key]
        assert len(found) == 1, f"{key}: {found}"
        return found[0]

    # The invariants

    def check_step(self, before: Claims, name: str, args: Op, effects: list[Effect]) -> None:
        claims = self.claims
        torn = [effect.workspace for effect in effects if isinstance(effect, Teardown)]
        gone = [workspace for workspace in before.live if workspace not in claims.live]
        assert sorted(torn) == sorted(gone), f"{name}: torn {torn}, gone {gone}"
        if name != "latch":
            subjects = set(args)
            if name == "expired" and isinstance(args[0], ClaimTimer):
                subjects = {args[0].client}
            assert not (torn and name == "run_ended" and self.graces.detach), "no linger"
            for workspace in torn:
                left = {client for client, _, _ in before.clients(workspace)} - subjects
                assert not left, f"{name}{args} tore {workspace} down under {left}"
                assert not any(run[0] == workspace for run in self.runs), f"{name}{args}"
        leaving = [effect for effect in effects if isinstance(effect, Shutdown)]
        latched = claims.is_latched and not before.is_latched
        assert len(leaving) == (latched and name != "latch"), f"{name}: {effects}"
        if leaving:
            assert not claims.live
            assert claims.pending == 0
        assert claims.is_latched or not before.is_latched

    def check_state(self) -> None:
        claims, live = self.claims, self.claims.live
        assert claims.pending == self.pending >= 0
        expected = set()
        for workspace in live:
            clients = claims.clients(workspace)
            held = [client for client, state, _ in clients if state in HOLDS]
            expected |= {("claim", workspace, client) for client in held}
            for client, state, streams in clients:
                assert (streams > 0) == (state in STREAMS), f"{client}: {state} {streams}"
                assert state in HOLDS + STREAMS
                assert client not in self.retired
            if not clients and not any(run[0] == workspace for run in self.runs):
                expected.add(("linger", workspace, ""))
        assert all(run[0] in live for run in self.runs)
        idle = not live and not claims.pending and not claims.is_latched
        if idle and self.graces.idle:
            expected.add(("idle", "", ""))
        assert not (idle and self.graces.idle == 0 and self.used), "an idle server stayed"
        assert not (claims.is_latched and live), f"latched with {live}"
        keys = sorted((t.kind, t.workspace, t.client) for t in self.armed)
        assert keys == sorted(expected), f"armed {keys}, needed {sorted(expected)}"

    def check_stale(self) -> None:
        """No timer that is not armed, past or forged, has any effect."""
        forged = [
            ClaimTimer(t.kind, t.workspace, t.client, t.generation + shift)
            for t in self.armed
            for shift in (-1, 1)
        ]
        before: Claims = pickle.loads(pickle.dumps(self.claims))
        for timer in self.stale + forged:
            assert self.claims.expired(timer) == [], f"stale {timer} did something"
        assert vars(self.claims) == vars(before)

    # Shorthands of the scenarios

    def join(self, workspace: str, client: str) -> list[str]:
        """A whole create, as a backend does it."""
        return self.do("admit", client) + self.do("create", workspace, client)

    def open(self, workspace: str, client: str, streams: int = 1) -> None:
        self.join(workspace, client)
        for _ in range(streams):
            self.do("attach", workspace, client)

    def fire(self, kind: str, workspace: str = "", client: str = "") -> list[str]:
        return self.do("expired", self.timer(kind, workspace, client))


class ClaimsCase(unittest.TestCase):
    graces = Graces(create=30, detach=10, idle=60)

    def setUp(self) -> None:
        self.world = World.begun(self.graces)
        self.do = self.world.do
        self.join = self.world.join
        self.open = self.world.open
        self.fire = self.world.fire

    def tearDown(self) -> None:
        self.world.check_stale()

    def refused(self, error: type[CrushliteError], name: str, *args: object) -> None:
        with self.assertRaises(error):
            self.do(name, *args)


class TableTest(ClaimsCase):
    """Every cell. B streams on the same workspace throughout, so that nothing is torn down."""

    def setUp(self) -> None:
        super().setUp()
        self.open("W", "B")

    def bring(self, state: ClaimState) -> None:
        steps: dict[ClaimState, list[str]] = {
            NONE: [],
            HELD_CREATE: ["create"],
            STREAMING: ["attach"],
            STREAMING_RELEASED: ["attach", "release"],
            HELD_DETACH: ["attach", "detach"],
        }
        for step in steps[state]:
            self.call(step)
        self.assertEqual(self.world.state("W", "A"), state.name)

    def call(self, event: str) -> list[str]:
        if event == "create":
            return self.join("W", "A")
        if event == "expire":
            return self.fire("claim", "W", "A")
        args = ("A",) if event == "retire" else ("W", "A")
        return self.do("detach" if event == "detach_last" else event, *args)

    def cell(self, before: ClaimState, event: str, after: ClaimState, *effects: str) -> None:
        self.bring(before)
        self.assertEqual(self.call(event), list(effects))
        self.assertEqual(self.world.state("W", "A"), after.name)
        self.assertIs(TRANSITIONS[before].get(event, before), after)
        self.assertEqual(self.world.state("W", "B"), "STREAMING")

    def test_none_create(self) -> None:
        self.cell(NONE, "create", HELD_CREATE, "arm claim WA 30")

    def test_none_attach(self) -> None:
        self.cell(NONE, "attach", STREAMING)

    def test_none_detach(self) -> None:
        self.cell(NONE, "detach_last", NONE)

    def test_none_release(self) -> None:
        self.cell(NONE, "release", NONE)

    def test_none_retire_marks(self) -> None:
        self.cell(NONE, "retire", NONE)
        self.refused(ClientRetired, "attach", "W", "A")

    def test_held_create_create_rearms(self) -> None:
        self.cell(HELD_CREATE, "create", HELD_CREATE, "disarm claim WA", "arm claim WA 30")

    def test_held_create_attach(self) -> None:
        self.cell(HELD_CREATE, "attach", STREAMING, "disarm claim WA")

    def test_held_create_detach(self) -> None:
        self.cell(HELD_CREATE, "detach_last", HELD_CREATE)

    def test_held_create_release(self) -> None:
        self.cell(HELD_CREATE, "release", NONE, "disarm claim WA")

    def test_held_create_expire(self) -> None:
        self.cell(HELD_CREATE, "expire", NONE)

    def test_held_create_retire(self) -> None:
        self.cell(HELD_CREATE, "retire", NONE, "disarm claim WA")

    def test_streaming_create(self) -> None:
        self.cell(STREAMING, "create", STREAMING)
        self.assertEqual(self.world.streams("W", "A"), 1)

    def test_streaming_attach_counts(self) -> None:
        self.cell(STREAMING, "attach", STREAMING)
        self.assertEqual(self.world.streams("W", "A"), 2)

    def test_streaming_detach_last(self) -> None:
        self.cell(STREAMING, "detach_last", HELD_DETACH, "arm claim WA 10")

    def test_streaming_release(self) -> None:
        self.cell(STREAMING, "release", STREAMING_RELEASED)

    def test_streaming_retire(self) -> None:
        self.cell(STREAMING, "retire", NONE)

    def test_streaming_released_create_clears_the_flag(self) -> None:
        self.cell(STREAMING_RELEASED, "create", STREAMING)

    def test_streaming_released_attach_keeps_the_flag(self) -> None:
        self.cell(STREAMING_RELEASED, "attach", STREAMING_RELEASED)
        self.assertEqual(self.world.streams("W", "A"), 2)

    def test_streaming_released_detach_last_has_no_grace(self) -> None:
        self.cell(STREAMING_RELEASED, "detach_last", NONE)

    def test_streaming_released_release(self) -> None:
        self.cell(STREAMING_RELEASED, "release", STREAMING_RELEASED)

    def test_streaming_released_retire(self) -> None:
        self.cell(STREAMING_RELEASED, "retire", NONE)

    def test_held_detach_create(self) -> None:
        self.cell(HELD_DETACH, "create", HELD_CREATE, "disarm claim WA", "arm claim WA 30")

    def test_held_detach_attach(self) -> None:
        self.cell(HELD_DETACH, "attach", STREAMING, "disarm claim WA")

    def test_held_detach_detach(self) -> None:
        self.cell(HELD_DETACH, "detach_last", HELD_DETACH)

    def test_held_detach_release(self) -> None:
        self.cell(HELD_DETACH, "release", NONE, "disarm claim WA")

    def test_held_detach_expire(self) -> None:
        self.cell(HELD_DETACH, "expire", NONE)

    def test_held_detach_retire(self) -> None:
        self.cell(HELD_DETACH, "retire", NONE, "disarm claim WA")

    def test_the_table_has_no_other_cells(self) -> None:
        absent = [(NONE, "expire"), (STREAMING, "expire"), (STREAMING_RELEASED, "expire")]
        # Without a claim, or without a stream, these do nothing.
        absent += [(NONE, "release"), (NONE, "retire")]
        absent += [(state, "detach_last") for state in (NONE, HELD_CREATE, HELD_DETACH)]
        events = ("create", "attach", "detach_last", "release", "expire", "retire")
        cells = [(state, event) for state in TRANSITIONS for event in TRANSITIONS[state]]
        every = list(itertools.product(ClaimState, events))
        self.assertEqual(sorted(cells + absent, key=str), sorted(every, key=str))


class CreateTest(ClaimsCase):
    def test_two_clients_share_one_workspace(self) -> None:
        self.join("W", "A")
        self.join("W", "B")
        self.assertEqual(self.world.claims.live, ["W"])
        self.assertEqual([client for client, _ in self.world.states("W")], ["A", "B"])

    def test_same_client_twice_is_one_claim(self) -> None:
        self.join("W", "A")
        self.join("W", "A")
        released = self.do("release", "W", "A")
        self.assertEqual(released, ["disarm claim WA", "teardown W", "arm idle 60"])

    def test_parallel_creates_converge(self) -> None:
        clients = [f"C{n}" for n in range(16)]
        for client in clients:
            self.do("admit", client)
        for client in clients:
            self.do("create", "W", client)
        self.assertEqual(len(self.world.states("W")), 16)
        self.assertEqual(self.world.claims.pending, 0)

    def test_create_hold_expires(self) -> None:
        self.join("W", "A")
        self.assertEqual(self.fire("claim", "W", "A"), ["teardown W", "arm idle 60"])
        self.refused(WorkspaceNotFound, "attach", "W", "A")

    def test_failed_create_restores_the_counter(self) -> None:
        self.assertEqual(self.do("admit", "A"), ["disarm idle"])
        self.assertEqual(self.do("failed"), ["arm idle 60"])
        self.assertEqual((self.world.claims.live, self.world.claims.pending), ([], 0))

    def test_two_failed_creates_arm_the_idle_timer_once(self) -> None:
        self.do("admit", "A")
        self.do("admit", "B")
        self.assertEqual(self.do("failed"), [])
        self.assertEqual(self.do("failed"), ["arm idle 60"])

    def test_a_create_needs_an_admission(self) -> None:
        self.refused(IllegalCall, "create", "W", "A")
        self.refused(IllegalCall, "failed")

    def test_recreate_outlives_the_timer_it_replaced(self) -> None:
        self.join("W", "A")
        old = self.world.timer("claim", "W", "A")
        self.join("W", "A")
        self.assertEqual(self.do("expired", old), [])
        self.assertEqual(self.world.state("W", "A"), "HELD_CREATE")

    def test_zero_create_grace_still_creates(self) -> None:
        world = World.begun(Graces(create=0))
        self.assertEqual(world.join("W", "A"), ["disarm idle", "arm claim WA 0"])
        self.assertEqual(world.fire("claim", "W", "A"), ["teardown W", "arm idle 60"])

    def test_graces_are_not_negative(self) -> None:
        for seconds in (-1.0, float("nan")):
            with self.assertRaisesRegex(UsageError, "detach grace"):
                Graces(detach=seconds)
        self.assertEqual(Graces(), Graces(create=30.0, detach=10.0, idle=60.0))


class AttachTest(ClaimsCase):
    def test_attach_without_create_holds_the_workspace(self) -> None:
        self.open("W", "A")
        self.do("attach", "W", "B")
        self.do("retire", "A")
        self.assertEqual(self.world.claims.clients("W"), [("B", "STREAMING", 1)])

    def test_attach_to_an_unknown_workspace(self) -> None:
        self.refused(WorkspaceNotFound, "attach", "W", "A")

    def test_attach_of_a_retired_client(self) -> None:
        self.open("W", "B")
        self.do("retire", "A")
        self.refused(ClientRetired, "attach", "W", "A")

    def test_attach_to_a_latched_server_is_503_not_404(self) -> None:
        self.open("W", "A")
        self.do("latch")
        self.refused(ShuttingDown, "attach", "W", "A")

    def test_two_streams_of_one_client(self) -> None:
        self.open("W", "A", streams=2)
        self.assertEqual(self.do("detach", "W", "A"), [])
        self.assertEqual(self.do("detach", "W", "A"), ["arm claim WA 10"])

    def test_one_client_leaving_keeps_the_other(self) -> None:
        self.open("W", "A")
        self.open("W", "B")
        self.do("detach", "W", "A")
        self.assertEqual(self.fire("claim", "W", "A"), [])
        self.assertEqual(self.world.claims.clients("W"), [("B", "STREAMING", 1)])

    def test_grace_survives_a_blip(self) -> None:
        self.open("W", "A")
        self.do("detach", "W", "A")
        self.assertEqual(self.do("attach", "W", "A"), ["disarm claim WA"])

    def test_an_old_grace_cannot_end_a_new_one(self) -> None:
        self.open("W", "A")
        self.do("detach", "W", "A")
        old = self.world.timer("claim", "W", "A")
        self.do("attach", "W", "A")
        self.do("detach", "W", "A")
        self.assertEqual(self.do("expired", old), [])
        self.assertEqual(self.world.claims.live, ["W"])

    def test_grace_expiry_tears_down(self) -> None:
        self.open("W", "A")
        self.do("detach", "W", "A")
        self.assertEqual(self.fire("claim", "W", "A"), ["teardown W", "arm idle 60"])

    def test_zero_detach_grace_tears_down_at_once(self) -> None:
        world = World.begun(Graces(detach=0))
        world.open("W", "A")
        self.assertEqual(world.do("detach", "W", "A"), ["teardown W", "arm idle 60"])

    def test_fifty_attaches_and_detaches_balance(self) -> None:
        self.join("W", "A")
        for _ in range(50):
            self.do("attach", "W", "A")
        self.assertEqual(self.world.streams("W", "A"), 50)
        for _ in range(49):
            self.assertEqual(self.do("detach", "W", "A"), [])
        self.assertEqual(self.do("detach", "W", "A"), ["arm claim WA 10"])
        self.assertEqual(self.do("detach", "W", "A"), [])

    def test_hold_expiry_and_attach_in_either_order(self) -> None:
        self.join("V", "A")
        self.fire("claim", "V", "A")
        self.refused(WorkspaceNotFound, "attach", "V", "A")
        self.join("W", "A")
        timer = self.world.timer("claim", "W", "A")
        self.do("attach", "W", "A")
        self.assertEqual(self.do("expired", timer), [])
        self.assertEqual(self.world.streams("W", "A"), 1)


class ReleaseAndRetireTest(ClaimsCase):
    def test_release_skips_the_grace(self) -> None:
        self.open("W", "A")
        self.assertEqual(self.do("release", "W", "A"), [])
        self.assertEqual(self.do("detach", "W", "A"), ["teardown W", "arm idle 60"])

    def test_release_counts_for_the_last_of_several_streams(self) -> None:
        self.open("W", "A", streams=2)
        self.do("release", "W", "A")
        self.assertEqual(self.do("detach", "W", "A"), [])
        self.assertEqual(self.do("detach", "W", "A"), ["teardown W", "arm idle 60"])

    def test_release_without_stream_drops_the_hold_once(self) -> None:
        self.open("W", "B")
        self.join("W", "A")
        self.assertEqual(self.do("release", "W", "A"), ["disarm claim WA"])
        self.assertEqual(self.do("release", "W", "A"), [])

    def test_release_of_the_unknown(self) -> None:
        self.assertEqual(self.do("release", "W", "A"), [])
        self.assertEqual(self.do("detach", "W", "A"), [])

    def test_release_then_attach_is_a_fresh_claim(self) -> None:
        self.open("W", "B")
        self.join("W", "A")
        self.do("release", "W", "A")
        self.do("attach", "W", "A")
        self.assertEqual(self.do("detach", "W", "A"), ["arm claim WA 10"])

    def test_create_revokes_a_release(self) -> None:
        self.open("W", "A")
        self.do("release", "W", "A")
        self.join("W", "A")
        self.assertEqual(self.do("detach", "W", "A"), ["arm claim WA 10"])

    def test_retire_releases_every_kind_of_claim(self) -> None:
        self.open("S", "A")
        self.join("H", "A")
        self.open("D", "A")
        self.do("detach", "D", "A")
        self.open("R", "A")
        self.do("release", "R", "A")
        self.open("B", "A")
        self.open("B", "B")
        gone = ["teardown S", "disarm claim HA", "teardown H", "disarm claim DA", "teardown D"]
        self.assertEqual(self.do("retire", "A"), [*gone, "teardown R"])
        self.assertEqual(self.world.claims.live, ["B"])
        self.assertEqual(self.do("retire", "A"), [])
        self.assertEqual(self.do("detach", "S", "A"), [])

    def test_retire_refuses_later_creates(self) -> None:
        self.do("retire", "A")
        self.refused(ClientRetired, "admit", "A")
        self.assertEqual((self.world.claims.live, self.world.claims.pending), ([], 0))

    def test_retire_during_a_create_refuses_its_commit(self) -> None:
        self.do("admit", "A")
        self.do("retire", "A")
        self.refused(ClientRetired, "create", "W", "A")
        self.assertEqual(self.world.claims.live, [])
        self.assertEqual(self.do("failed"), ["arm idle 60"])

    def test_other_workspaces_are_independent(self) -> None:
        self.open("V", "A")
        self.open("W", "A")
        self.do("release", "V", "A")
        self.assertEqual(self.do("detach", "V", "A"), ["teardown V"])
        self.assertEqual(self.world.claims.clients("W"), [("A", "STREAMING", 1)])
        self.assertEqual(self.world.claims.clients("V"), [])


class DetachedRunTest(ClaimsCase):
    def setUp(self) -> None:
        super().setUp()
        self.open("W", "A")
        self.do("run_began", "W", "R")

    def leave(self) -> None:
        self.do("release", "W", "A")
        self.assertEqual(self.do("detach", "W", "A"), [])

    def test_the_run_keeps_the_workspace(self) -> None:
        self.leave()
        self.assertEqual((self.world.claims.live, self.world.states("W")), (["W"], []))
        self.refused(ServerInUse, "shutdown_if_idle")

    def test_the_detach_grace_follows_the_run(self) -> None:
        self.leave()
        self.assertEqual(self.do("run_ended", "W", "R"), ["arm linger W 10"])
        self.refused(ServerInUse, "shutdown_if_idle")
        self.assertEqual(self.fire("linger", "W"), ["teardown W", "arm idle 60"])

    def test_zero_detach_grace_after_the_run(self) -> None:
        world = World.begun(Graces(detach=0))
        world.open("W", "A")
        world.do("run_began", "W", "R")
        world.do("detach", "W", "A")
        self.assertEqual(world.do("run_ended", "W", "R"), ["teardown W", "arm idle 60"])

    def test_retiring_the_poster_leaves_the_run_alone(self) -> None:
        self.assertEqual(self.do("retire", "A"), [])
        self.assertEqual(self.world.claims.live, ["W"])

    def test_a_run_that_is_not_the_last_claim_leaves_no_linger(self) -> None:
        self.do("run_began", "W", "R2")
        self.assertEqual(self.do("run_ended", "W", "R2"), [])
        self.assertEqual(self.do("run_ended", "W", "R"), [])
        self.do("release", "W", "A")
        self.assertEqual(self.do("detach", "W", "A"), ["teardown W", "arm idle 60"])

    def test_of_two_runs_the_last_one_lingers(self) -> None:
        self.do("run_began", "W", "R2")
        self.leave()
        self.assertEqual(self.do("run_ended", "W", "R"), [])
        self.assertEqual(self.do("run_ended", "W", "R2"), ["arm linger W 10"])

    def test_a_run_told_twice_is_one_claim(self) -> None:
        self.do("run_began", "W", "R")
        self.leave()
        self.assertEqual(self.do("run_ended", "W", "R"), ["arm linger W 10"])
        self.assertEqual(self.do("run_ended", "W", "R"), [])

    def test_whoever_comes_during_the_linger_ends_it(self) -> None:
        self.leave()
        self.do("run_ended", "W", "R")
        self.assertEqual(self.do("run_began", "W", "R2"), ["disarm linger W"])
        self.do("run_ended", "W", "R2")
        self.assertEqual(self.do("attach", "W", "B"), ["disarm linger W"])
        self.do("run_began", "W", "R3")
        self.do("retire", "B")
        self.do("run_ended", "W", "R3")
        self.assertEqual(self.join("W", "A"), ["disarm linger W", "arm claim WA 30"])

    def test_an_old_linger_cannot_end_a_new_one(self) -> None:
        self.leave()
        self.do("run_ended", "W", "R")
        old = self.world.timer("linger", "W")
        self.do("run_began", "W", "R")
        self.do("run_ended", "W", "R")
        self.assertEqual(self.do("expired", old), [])
        self.assertEqual(self.world.claims.live, ["W"])

    def test_a_run_of_a_dead_workspace(self) -> None:
        self.do("latch")
        self.assertEqual(self.do("run_ended", "W", "R"), [])
        self.refused(WorkspaceNotFound, "run_began", "W", "R")


class IdleTest(ClaimsCase):
    def test_idle_from_the_start_of_the_process(self) -> None:
        claims = Claims(self.graces)
        self.assertEqual(told(claims.begin()), ["arm idle 60"])
        self.assertEqual(told(claims.begin()), [])

    def test_never(self) -> None:
        world = World.begun(Graces(idle=None))
        world.join("W", "A")
        self.assertEqual(world.do("release", "W", "A"), ["disarm claim WA", "teardown W"])
        self.assertEqual(world.armed, set())

    def test_only_after_the_last_client(self) -> None:
        self.open("W", "A")
        self.open("W", "B")
        self.do("detach", "W", "A")
        self.assertEqual(self.fire("claim", "W", "A"), [])
        self.do("detach", "W", "B")
        self.assertEqual(self.fire("claim", "W", "B"), ["teardown W", "arm idle 60"])
        self.assertEqual(self.fire("idle"), ["shutdown"])
        self.assertTrue(self.world.claims.is_latched)

    def test_a_create_within_the_linger_stays(self) -> None:
        old = self.world.timer("idle")
        self.do("admit", "A")
        self.assertEqual(self.do("expired", old), [])
        self.do("create", "W", "A")
        self.assertEqual(self.do("expired", old), [])
        self.assertFalse(self.world.claims.is_latched)

    def test_a_pending_create_outlives_the_last_workspace(self) -> None:
        self.join("V", "A")
        self.do("admit", "B")
        self.assertEqual(self.do("release", "V", "A"), ["disarm claim VA", "teardown V"])
        self.assertEqual(self.do("create", "W", "B"), ["arm claim WB 30"])

    def test_after_the_decision_creates_are_refused(self) -> None:
        self.fire("idle")
        self.refused(ShuttingDown, "admit", "A")

    def test_so_many_retired_clients_are_remembered_and_not_more(self) -> None:
        claims = Claims(Graces())
        names = [f"c{number}" for number in range(MOST_RETIRED)]
        for name in names:
            claims.retire(name)
        claims.retire(names[0])  # again: now the last
        self.assertEqual(counts(claims)[1], MOST_RETIRED)
        for number in range(100):
            claims.retire(f"more{number}")
        self.assertEqual(counts(claims)[1], MOST_RETIRED)
        for name in (names[0], names[101], "more99"):
            with self.assertRaises(ClientRetired):
                claims.admit(name)
        claims.admit(names[1])

    def test_retired_on_a_latched_server_is_503(self) -> None:
        self.do("retire", "A")
        self.do("latch")
        self.refused(ShuttingDown, "admit", "A")

    def test_zero_linger_leaves_at_once(self) -> None:
        world = World.begun(Graces(idle=0))
        self.assertFalse(world.claims.is_latched)
        world.join("W", "A")
        released = world.do("release", "W", "A")
        self.assertEqual(released, ["disarm claim WA", "teardown W", "shutdown"])

    def test_zero_linger_leaves_after_a_failed_create(self) -> None:
        world = World.begun(Graces(idle=0))
        world.do("admit", "A")
        self.assertEqual(world.do("failed"), ["shutdown"])


class ShutdownTest(ClaimsCase):
    def test_refused_while_a_workspace_lives(self) -> None:
        self.join("W", "A")
        self.refused(ServerInUse, "shutdown_if_idle")
        self.join("W", "B")

    def test_refused_while_a_create_is_pending(self) -> None:
        self.do("admit", "A")
        self.refused(ServerInUse, "shutdown_if_idle")
        self.do("create", "W", "A")

    def test_granted_when_idle(self) -> None:
        self.assertEqual(self.do("shutdown_if_idle"), ["disarm idle", "shutdown"])
        self.refused(ShuttingDown, "admit", "A")

    def test_granted_twice_it_happens_once(self) -> None:
        self.do("shutdown_if_idle")
        self.assertEqual(self.do("shutdown_if_idle"), [])
        self.assertEqual(self.do("latch"), [])

    def test_a_signal_takes_everything_down(self) -> None:
        self.open("V", "A")
        self.join("W", "A")
        self.do("run_began", "V", "R")
        self.do("admit", "B")
        signal = self.do("latch")
        self.assertEqual(signal, ["disarm claim WA", "teardown V", "teardown W"])
        self.refused(ShuttingDown, "create", "X", "B")
        self.assertEqual(self.do("failed"), [])
        self.assertEqual(self.do("latch"), [])
        self.assertEqual(self.do("detach", "V", "A"), [])


class PresenceTest(ClaimsCase):
    def viewers(self) -> tuple[int, int]:
        claims = self.world.claims
        found = claims.viewers("W", "S1"), claims.viewers("W", "S2")
        self.assertEqual(
            [("S1" in claims.viewed("W")), ("S2" in claims.viewed("W"))], [*map(bool, found)]
        )
        return found

    def test_set_switch_clear(self) -> None:
        self.open("W", "A")
        self.do("look", "W", "A", "S1")
        self.assertEqual(self.viewers(), (1, 0))
        self.do("look", "W", "A", "S2")
        self.assertEqual(self.viewers(), (0, 1))
        self.do("look", "W", "A", "")
        self.assertEqual(self.viewers(), (0, 0))
        self.assertEqual(self.world.claims.viewers("W", ""), 0)

    def test_only_with_a_stream(self) -> None:
        self.refused(WorkspaceNotFound, "look", "W", "A", "S1")
        self.join("W", "A")
        self.refused(NotAttached, "look", "W", "A", "S1")
        self.refused(NotAttached, "look", "W", "stranger", "S1")
        self.assertEqual(self.viewers(), (0, 0))

    def test_two_streams_count_once(self) -> None:
        self.open("W", "A", streams=2)
        self.open("W", "B")
        self.do("look", "W", "A", "S1")
        self.do("look", "W", "B", "S1")
        self.assertEqual(self.viewers(), (2, 0))
        self.assertEqual(self.world.claims.watchers("W"), 2)
        self.do("detach", "W", "B")
        self.assertEqual(self.world.claims.watchers("W"), 1)
        self.assertEqual(self.world.claims.watchers("unknown"), 0)

    def test_not_counted_during_the_grace_and_restored_within_it(self) -> None:
        self.open("W", "A")
        self.do("look", "W", "A", "S1")
        self.do("detach", "W", "A")
        self.assertEqual(self.viewers(), (0, 0))
        self.refused(NotAttached, "look", "W", "A", "S2")
        self.do("attach", "W", "A")
        self.assertEqual(self.viewers(), (1, 0))

    def test_gone_with_the_claim(self) -> None:
        self.open("W", "B")
        self.open("W", "A")
        self.do("look", "W", "A", "S1")
        self.do("detach", "W", "A")
        self.fire("claim", "W", "A")
        self.do("attach", "W", "A")
        self.assertEqual(self.viewers(), (0, 0))

    def test_a_dead_workspace_has_no_viewers(self) -> None:
        self.assertEqual(self.viewers(), (0, 0))
        self.assertFalse(self.world.claims.interactive("W"))


class InteractiveTest(ClaimsCase):
    def interactive(self) -> bool:
        return self.world.claims.interactive("W")

    def test_silence_means_a_person(self) -> None:
        self.join("W", "A")
        self.assertFalse(self.interactive())
        self.do("attach", "W", "A")
        self.assertTrue(self.interactive())
        self.assertFalse(self.world.claims.attended("W"))
        self.do("detach", "W", "A")
        self.assertFalse(self.interactive())

    def test_who_attends_has_said_so_and_is_attached(self) -> None:
        self.join("W", "A")
        self.do("say_interactive", "W", "A", True)
        self.assertFalse(self.world.claims.attended("W"))
        self.do("attach", "W", "A")
        self.assertTrue(self.world.claims.attended("W"))
        self.do("say_interactive", "W", "A", False)
        self.assertFalse(self.world.claims.attended("W"))

    def test_one_person_is_enough(self) -> None:
        self.open("W", "A")
        self.open("W", "B")
        self.do("say_interactive", "W", "A", False)
        self.assertTrue(self.interactive())
        self.do("say_interactive", "W", "B", False)
        self.assertFalse(self.interactive())
        self.do("say_interactive", "W", "A", True)
        self.assertTrue(self.interactive())

    def test_said_between_create_and_attach_counts_afterwards(self) -> None:
        self.join("W", "A")
        self.do("say_interactive", "W", None, False)
        self.do("attach", "W", "A")
        self.assertFalse(self.interactive())

    def test_without_a_name_the_newest_silent_client_then_the_newest(self) -> None:
        for client in ("A", "B", "C"):
            self.open("W", client)
        self.do("say_interactive", "W", "C", True)
        self.do("say_interactive", "W", None, False)  # B
        self.do("retire", "C")
        self.assertTrue(self.interactive())
        self.do("say_interactive", "W", None, False)  # A
        self.assertFalse(self.interactive())
        self.do("say_interactive", "W", None, True)  # B again: the newest
        self.do("retire", "A")
        self.assertTrue(self.interactive())

    def test_who_shows_a_session_is_a_person_unless_it_said_otherwise_by_name(self) -> None:
        self.open("W", "UI")
        self.open("W", "script")
        self.do("say_interactive", "W", None, True)  # the UI, but the guess is the newest
        self.do("say_interactive", "W", None, False)  # the script, guessed to be the UI
        self.do("retire", "script")
        self.assertFalse(self.interactive())
        self.do("look", "W", "UI", "S1")
        self.assertTrue(self.interactive())
        self.do("say_interactive", "W", "UI", False)
        self.do("look", "W", "UI", "S2")
        self.assertFalse(self.interactive())

    def test_nobody_to_say_it_for(self) -> None:
        self.refused(WorkspaceNotFound, "say_interactive", "W", None, False)
        self.open("W", "A")
        self.do("say_interactive", "W", "stranger", False)
        self.assertEqual(self.world.states("W"), [("A", "STREAMING")])
        self.do("run_began", "W", "R")
        self.do("release", "W", "A")
        self.do("detach", "W", "A")
        self.do("say_interactive", "W", None, False)
        self.assertEqual(self.world.states("W"), [])


@dataclass(frozen=True)
class Scope:
    """How much there is to explore."""

    clients: tuple[str, ...]
    workspaces: tuple[str, ...]
    runs: tuple[str, ...] = ("R",)
    streams: int = 2
    pending: int = 2


def moves(world: World, scope: Scope) -> list[Op]:
    """Every call that can be made in this state, useless and refused ones included."""
    claims = world.claims
    ops: list[Op] = [("failed",), ("shutdown_if_idle",), ("latch",), ("begin",)]
    ops += [("expired", timer) for timer in world.armed]
    for client in scope.clients:
        ops.append(("retire", client))
        if claims.pending < scope.pending:
            ops.append(("admit", client))
        for workspace in scope.workspaces:
            pair = (workspace, client)
            ops += [("create", *pair), ("detach", *pair), ("release", *pair)]
            if world.streams(*pair) < scope.streams:
                ops.append(("attach", *pair))
    for workspace, run in itertools.product(scope.workspaces, scope.runs):
        ops += [("run_began", workspace, run), ("run_ended", workspace, run)]
    return ops


def counts(claims: Claims) -> tuple[int, int]:
    """What no method of the machine shows: armed timers, and clients that are remembered."""
    return len(claims._armed), len(claims._retired)


def canonical(world: World, scope: Scope) -> object:
    """The state up to swapping clients and workspaces, to which the machine is blind."""
    claims = world.claims
    facts = (claims.pending, claims.is_latched, world.used and world.graces.idle == 0)
    live = claims.live
    places = [
        (
            workspace in live,
            tuple(sorted(run for place, run in world.runs if place == workspace)),
            {client: (state, streams) for client, state, streams in claims.clients(workspace)},
        )
        for workspace in scope.workspaces
    ]
    none = ("NONE", 0)
    views = [
        (
            [client in world.retired for client in clients],
            sorted((a, b, [held.get(client, none) for client in clients]) for a, b, held in places),
        )
        for clients in itertools.permutations(scope.clients)
    ]
    return repr(min(views)), facts, counts(claims)


def explore(scope: Scope, graces: Graces, depth: int) -> tuple[int, bool]:
    """Visit every state within `depth` calls. Returns how many, and whether there are no more.

    `World.do` checks what each call did; whatever is armed must match the state, so a state is
    described by its claims, runs, marks and counts alone.
    """
    start = World.begun(graces)
    seen = {canonical(start, scope)}
    front = [pickle.dumps(start)]
    for _ in range(depth):
        found = []
        for blob in front:
            origin: World = pickle.loads(blob)
            world: World = pickle.loads(blob)
            for name, *args in moves(origin, scope):
                try:
                    world.do(str(name), *args, before=origin.claims)
                except CrushliteError:
                    continue  # refused as it should be, and nothing changed: `do` has checked
                key = canonical(world, scope)
                if key not in seen:
                    seen.add(key)
                    world.check_stale()
                    found.append(pickle.dumps(world))
                world = pickle.loads(blob)
        front = found
    return len(seen), not front


class ExplorationTest(unittest.TestCase):
    """States repeat, so following each state once follows every order of calls."""

    ALWAYS = 99  # more calls than any new state is away: the whole space

    def test_one_workspace_in_every_order(self) -> None:
        scope = Scope(clients=("A", "B"), workspaces=("W",))
        for graces in (
            Graces(),
            Graces(detach=0),
            Graces(idle=0),
            Graces(idle=None),
            Graces(create=0, detach=0, idle=0),
        ):
            with self.subTest(graces=graces):
                states, complete = explore(scope, graces, self.ALWAYS)
                self.assertTrue(complete)
                self.assertGreater(states, 150)

    def test_two_runs_in_every_order(self) -> None:
        scope = Scope(clients=("A",), workspaces=("W",), runs=("R1", "R2"), pending=1)
        states, complete = explore(scope, Graces(), self.ALWAYS)
        self.assertTrue(complete)
        self.assertGreater(states, 30)

    def test_two_workspaces_in_every_order(self) -> None:
        scope = Scope(clients=("A", "B"), workspaces=("V", "W"), streams=1, pending=1)
        states, complete = explore(scope, Graces(), self.ALWAYS)
        self.assertTrue(complete)
        self.assertGreater(states, 1000)

    def test_two_workspaces_with_two_streams_each_nine_calls_deep(self) -> None:
        scope = Scope(clients=("A", "B"), workspaces=("V", "W"))
        states, _ = explore(scope, Graces(), depth=9)
        self.assertGreater(states, 1000)


class Walk:
    """A long random life of one server, with a second opinion on who looks at what."""

    clients = ("A", "B", "C")
    workspaces = ("U", "V", "W")
    sessions = ("S1", "S2", "")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        idle = self.random.choice((60.0, None))
        self.world = World.begun(Graces(detach=self.random.choice((10.0, 0.0)), idle=idle))
        self.looks: dict[Pair, str] = {}
        self.said: dict[Pair, bool] = {}
        self.guessed: set[Pair] = set()

    def pick(self) -> Op:
        """Mostly the calls of a usual life; what ends the server or a client for good is rare."""
        choice = self.random.choice
        pair = (choice(self.workspaces), choice(self.clients))
        timers = sorted(self.world.armed, key=lambda timer: timer.generation)
        if self.random.random() < 0.97:
            timers = [timer for timer in timers if timer.kind != "idle"]
        late = self.world.stale[-20:]
        ops: list[Op] = [
            ("admit", pair[1]),
            ("create", *pair),
            ("create", *pair),
            ("failed",),
            ("attach", *pair),
            ("attach", *pair),
            ("detach", *pair),
            ("release", *pair),
            ("run_began", pair[0], choice(("R1", "R2"))),
            ("run_ended", pair[0], choice(("R1", "R2"))),
            ("look", *pair, choice(self.sessions)),
            ("say_interactive", *pair, choice((True, False))),
            ("say_interactive", pair[0], None, choice((True, False))),
            ("expired", choice(timers)) if timers else ("begin",),
            ("expired", choice(late)) if late else ("begin",),
        ]
        if self.random.random() < 0.004:
            ops = [("retire", pair[1]), ("latch",), ("shutdown_if_idle",)]
        return choice(ops)

    def step(self) -> None:
        name, *args = self.pick()
        speaker = self.speaker(args) if name == "say_interactive" else None
        try:
            self.world.do(str(name), *args)
        except CrushliteError:
            return
        if name == "look":
            looker = str(args[0]), str(args[1])
            self.looks[looker] = str(args[2])
            if looker in self.guessed:
                self.said[looker] = True
        if speaker is not None:
            self.said[speaker] = bool(args[2])
            self.guessed.discard(speaker)
            if args[1] is None:
                self.guessed.add(speaker)
        for pair in {*self.looks, *self.said}:
            if self.world.state(*pair) == "NONE":
                self.looks.pop(pair, None)
                self.said.pop(pair, None)
                self.guessed.discard(pair)

    def speaker(self, args: list[object]) -> Pair | None:
        workspace, client = str(args[0]), args[1]
        newest = [name for name, _ in reversed(self.world.states(workspace))]
        if client is not None:
            return (workspace, str(client)) if client in newest else None
        silent = [name for name in newest if (workspace, name) not in self.said]
        return (workspace, (silent or newest)[0]) if newest else None

    def check(self) -> None:
        claims = self.world.claims
        for workspace in self.workspaces:
            here = [(workspace, name) for name, _, streams in claims.clients(workspace) if streams]
            for session in self.sessions[:2]:
                looking = sum(self.looks.get(pair) == session for pair in here)
                assert claims.viewers(workspace, session) == looking, f"{workspace} {session}"
            watched = any(self.said.get(pair, True) for pair in here)
            assert claims.interactive(workspace) == watched, f"{workspace} interactive"


class RandomWalkTest(unittest.TestCase):
    def test_long_lives(self) -> None:
        for seed in range(50):
            walk = Walk(seed)
            for step in range(400):
                if walk.world.claims.is_latched and step % 50 == 0:
                    break  # long enough since it left: nothing will happen any more
                try:
                    walk.step()
                    walk.check()
                except AssertionError as error:
                    self.fail(f"seed {seed}, step {step}: {error}")
            walk.world.check_stale()


if __name__ == "__main__":
    unittest.main()
