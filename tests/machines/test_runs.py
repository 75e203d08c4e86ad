"""runs.py, alone: named cases, every interleaving of up to nine operations, long random walks."""

from __future__ import annotations

import itertools
import random
import unittest
from dataclasses import dataclass

from crushlite.errors import (
    CrushliteError,
    IllegalCall,
    NotQueued,
    SessionBusy,
    SessionNotFound,
    WorkspaceClosing,
)
from crushlite.runs import (
    TRANSITIONS,
    Drained,
    Effect,
    End,
    Fold,
    Outcome,
    Run,
    Runs,
    RunState,
    Start,
    Stop,
    WhenBusy,
)

S, OTHER = "s", "other"
COMPLETED, CANCELED, CLEARED = Outcome.COMPLETED, Outcome.CANCELED, Outcome.CLEARED


def promised(runs: Runs, run_id: str, mode: WhenBusy = WhenBusy.QUEUE, session: str = S) -> Run:
    assert runs.find(run_id) is None
    run = runs.accept(session, run_id, mode)
    runs.durable(run)
    return run


class AcceptanceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()

    def test_a_run_starts_only_when_it_is_durable(self) -> None:
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.live(), [run])
        self.assertIs(self.runs.active(S), None)
        self.assertEqual(self.runs.describe(run), "accepted")
        self.assertEqual(self.runs.durable(run), [Start(run)])
        self.assertIs(self.runs.active(S), run)
        self.assertEqual(self.runs.describe(run), "active")

    def test_accepted_counts_as_busy(self) -> None:
        self.assertFalse(self.runs.busy(S))
        self.runs.accept(S, "a")
        self.assertTrue(self.runs.busy(S))
        self.assertFalse(self.runs.busy(OTHER))

    def test_a_live_run_id_is_returned_instead_of_a_second_run(self) -> None:
        run = promised(self.runs, "a")
        self.assertIs(self.runs.accept(S, "a"), run)
        self.assertEqual(self.runs.live(), [run])
        self.assertIs(self.runs.find("a"), run)
        self.runs.finish(run, COMPLETED)
        self.assertIsNone(self.runs.find("a"))
        self.assertIsNot(self.runs.accept(S, "a"), run)

    def test_reject_is_refused_while_busy_and_taken_when_idle(self) -> None:
        first = promised(self.runs, "a", WhenBusy.REJECT)
        with self.assertRaises(SessionBusy):
            self.runs.accept(S, "b", WhenBusy.REJECT)
        self.assertEqual(self.runs.live(), [first])
        self.runs.accept(OTHER, "b", WhenBusy.REJECT)

    def test_a_first_in_line_that_is_not_durable_holds_the_line(self) -> None:
        first = self.runs.accept(S, "a")
        second = self.runs.accept(S, "b")
        self.assertEqual(self.runs.durable(second), [])
        self.assertEqual(self.runs.durable(first), [Start(first)])

    def test_withdraw_leaves_without_a_trace_and_releases_the_line(self) -> None:
        first = self.runs.accept(S, "a")
        second = promised(self.runs, "b")
        self.assertEqual(self.runs.withdraw(first), [Start(second)])
        self.assertFalse(first.live)
        self.assertIsNone(first.outcome)
        self.assertEqual(self.runs.live(), [second])

    def test_only_an_unpromised_run_can_be_withdrawn(self) -> None:
        run = promised(self.runs, "a")
        with self.assertRaises(IllegalCall):
            self.runs.withdraw(run)
        with self.assertRaises(IllegalCall):
            self.runs.durable(run)

    def test_a_run_of_another_machine_is_refused(self) -> None:
        stranger = Runs().accept(S, "a")
        self.runs.accept(S, "a")
        with self.assertRaises(IllegalCall):
            self.runs.durable(stranger)

    def test_live_runs_are_listed_by_session_or_all_together(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b", session=OTHER)
        self.assertEqual((self.runs.live(S), self.runs.live(OTHER)), ([a], [b]))
        self.assertEqual((self.runs.live(), self.runs.live("none")), ([a, b], []))

    def test_sessions_do_not_wait_for_each_other(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b", session=OTHER)
        self.assertEqual((self.runs.active(S), self.runs.active(OTHER)), (a, b))
        self.assertEqual(self.runs.finish(a, COMPLETED), [End(a, COMPLETED)])
        self.assertIs(self.runs.active(OTHER), b)


class CancelTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()

    def test_idle_cancel_remembers_nothing(self) -> None:
        canceled = self.runs.cancel(S)
        self.assertEqual((canceled.receipt, canceled.effects), ((), []))
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.durable(run), [Start(run)])

    def test_cancel_covers_all_accepted_before_it_and_none_after(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        unpromised = self.runs.accept(S, "c")
        canceled = self.runs.cancel(S)
        self.assertEqual(
            canceled.receipt, ((active, "active"), (queued, "queued"), (unpromised, "queued"))
        )
        self.assertEqual(canceled.effects, [Stop(active)])
        after = promised(self.runs, "d")
        self.assertEqual(
            self.runs.finish(active, COMPLETED), [End(active, CANCELED), End(queued, CANCELED)]
        )
        self.assertEqual(self.runs.durable(unpromised), [End(unpromised, CANCELED), Start(after)])

    def test_cancel_before_durable_ends_the_run_without_a_start(self) -> None:
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.cancel(S).receipt, ((run, "accepted"),))
        self.assertEqual(self.runs.durable(run), [End(run, CANCELED)])

    def test_a_second_cancel_lists_the_same_runs_and_stops_nothing_twice(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.cancel(S)
        again = self.runs.cancel(S)
        self.assertEqual([run for run, _ in again.receipt], [active, queued])
        self.assertEqual(again.effects, [])

    def test_cancel_is_isolated_per_session(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b", session=OTHER)
        self.assertEqual(self.runs.cancel(S).effects, [Stop(a)])
        self.assertEqual(self.runs.finish(b, COMPLETED), [End(b, COMPLETED)])

    def test_an_interrupt_dooms_everything_ahead_when_it_is_durable(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        urgent = self.runs.accept(S, "c", WhenBusy.INTERRUPT)
        behind = promised(self.runs, "d")
        self.assertIsNone(active.doom)
        self.assertEqual(self.runs.durable(urgent), [Stop(active)])
        self.assertEqual(
            self.runs.finish(active, COMPLETED),
            [End(active, CANCELED), End(queued, CANCELED), Start(urgent)],
        )
        self.assertIsNone(behind.doom)

    def test_a_doomed_interrupt_dooms_nobody(self) -> None:
        urgent = self.runs.accept(S, "a", WhenBusy.INTERRUPT)
        self.runs.cancel(S)
        after = promised(self.runs, "b")
        self.assertEqual(self.runs.durable(urgent), [End(urgent, CANCELED), Start(after)])


class QueueTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()
        self.active = promised(self.runs, "a")

    def test_queued_is_what_waits_undoomed_behind_a_live_run(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.assertEqual(self.runs.queued(S), [b, c])
        self.assertEqual(self.runs.describe(b), "queued")
        self.runs.cancel(S)
        self.assertEqual(self.runs.queued(S), [])
        self.assertEqual(self.runs.queued(OTHER), [])

    def test_clear_ends_durable_ones_now_and_others_when_durable(self) -> None:
        b = promised(self.runs, "b")
        c = self.runs.accept(S, "c")
        self.assertEqual(self.runs.clear(S), [End(b, CLEARED)])
        self.assertEqual(self.runs.queued(S), [])
        self.assertEqual(self.runs.durable(c), [End(c, CLEARED)])
        self.assertIs(self.runs.active(S), self.active)

    def test_the_first_doom_stays(self) -> None:
        c = self.runs.accept(S, "c")
        self.runs.clear(S)
        self.runs.cancel(S)
        self.assertEqual(self.runs.durable(c), [End(c, CLEARED)])

    def test_remove_takes_one_and_refuses_what_is_not_queued(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.assertEqual(self.runs.remove(b), [End(b, CLEARED)])
        for run in (self.active, b):
            with self.assertRaises(NotQueued):
                self.runs.remove(run)
        self.assertEqual(self.runs.queued(S), [c])

    def test_a_cancel_of_one_run_leaves_those_behind_it_in_line(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        hit = self.runs.cancel_run(self.active)
        self.assertEqual(hit.receipt, ((self.active, "active"),))
        self.assertEqual(hit.effects, [Stop(self.active)])
        taken_back = self.runs.cancel_run(b)
        self.assertEqual(taken_back.receipt, ((b, "queued"),))
        self.assertEqual(taken_back.effects, [End(b, CLEARED)], "not only when its turn comes")
        self.assertEqual(self.runs.queued(S), [c])
        ended = self.runs.finish(self.active, COMPLETED)
        self.assertEqual(ended, [End(self.active, CANCELED), Start(c)])
        with self.assertRaises(IllegalCall):
            self.runs.cancel_run(b)

    def test_a_cancel_of_one_run_takes_its_riders_along_but_not_the_other_way_round(self) -> None:
        rider = promised(self.runs, "b", WhenBusy.STEER)
        self.runs.fold(self.active)
        with self.assertRaisesRegex(NotQueued, "in the turn of a: cancel that"):
            self.runs.cancel_run(rider)
        self.runs.cancel_run(self.active)
        ended = self.runs.finish(self.active, COMPLETED)
        self.assertEqual(ended, [End(self.active, CANCELED), End(rider, CANCELED)])

    def test_every_exit_serves_the_queue_in_order(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.assertEqual(
            self.runs.finish(self.active, Outcome.FAILED),
            [End(self.active, Outcome.FAILED), Start(b)],
        )
        self.assertEqual(self.runs.finish(b, COMPLETED), [End(b, COMPLETED), Start(c)])

    def test_a_second_finish_is_a_no_op_and_a_waiting_run_cannot_finish(self) -> None:
        b = promised(self.runs, "b")
        with self.assertRaises(IllegalCall):
            self.runs.finish(b, COMPLETED)
        self.runs.finish(self.active, COMPLETED)
        self.assertEqual(self.runs.finish(self.active, Outcome.FAILED), [])
        self.assertIs(self.active.outcome, COMPLETED)


class FoldTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()
        self.active = promised(self.runs, "a")

    def test_steer_runs_fold_past_queue_runs_in_order_and_end_with_their_carrier(self) -> None:
        s1 = promised(self.runs, "s1", WhenBusy.STEER)
        q = promised(self.runs, "q", WhenBusy.QUEUE)
        s2 = promised(self.runs, "s2", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), [Fold(self.active, (s1, s2))])
        self.assertEqual(self.runs.describe(s1), "folded")
        self.assertEqual(self.runs.queued(S), [q])
        self.assertEqual(self.runs.fold(self.active), [])
        ends: list[Effect] = [End(run, COMPLETED) for run in (self.active, s1, s2)]
        self.assertEqual(self.runs.finish(self.active, COMPLETED), [*ends, Start(q)])

    def test_nothing_folds_past_an_interrupt(self) -> None:
        s1 = promised(self.runs, "s1", WhenBusy.STEER)
        self.runs.accept(S, "i", WhenBusy.INTERRUPT)
        s2 = promised(self.runs, "s2", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), [Fold(self.active, (s1,))])
        self.assertEqual(self.runs.describe(s2), "queued")

    def test_neither_unpromised_nor_doomed_runs_fold(self) -> None:
        unpromised = self.runs.accept(S, "u", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), [])
        self.runs.cancel(S)
        late = promised(self.runs, "l", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), [])
        self.runs.durable(unpromised)
        self.assertEqual(
            self.runs.finish(self.active, COMPLETED),
            [End(self.active, CANCELED), End(unpromised, CANCELED), Start(late)],
        )

    def test_a_cancel_hits_folded_runs_through_their_carrier(self) -> None:
        rider = promised(self.runs, "r", WhenBusy.STEER)
        self.runs.fold(self.active)
        self.assertEqual(self.runs.cancel(S).receipt, ((self.active, "active"), (rider, "folded")))
        self.assertEqual(
            self.runs.finish(self.active, COMPLETED),
            [End(self.active, CANCELED), End(rider, CANCELED)],
        )

    def test_only_the_active_run_folds(self) -> None:
        waiting = promised(self.runs, "b")
        with self.assertRaises(IllegalCall):
            self.runs.fold(waiting)


class HoldTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()

    def test_nothing_starts_while_held_and_every_line_begins_at_the_release(self) -> None:
        self.runs.hold()
        self.assertTrue(self.runs.held)
        a, b = promised(self.runs, "a"), promised(self.runs, "b", session=OTHER)
        c = promised(self.runs, "c")
        self.assertEqual((self.runs.active(S), self.runs.active(OTHER)), (None, None))
        self.assertEqual(self.runs.release(), [Start(a), Start(b)])
        self.assertFalse(self.runs.held)
        self.assertEqual(self.runs.queued(S), [c])

    def test_a_held_run_is_queued_although_it_is_first_in_line(self) -> None:
        self.runs.hold()
        a, b = promised(self.runs, "a"), promised(self.runs, "b")
        self.assertEqual(self.runs.queued(S), [a, b])
        self.assertEqual(self.runs.describe(a), "queued")
        self.runs.release()
        self.assertEqual(self.runs.queued(S), [b])
        self.assertEqual(self.runs.describe(a), "active")

    def test_a_run_that_could_not_begin_is_postponed_to_the_release(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b")
        self.assertEqual(self.runs.finish(a, COMPLETED), [End(a, COMPLETED), Start(b)])
        self.runs.hold()
        self.runs.postpone(b)
        self.assertEqual(self.runs.queued(S), [b])
        self.assertEqual(self.runs.release(), [Start(b)])

    def test_canceled_cleared_and_removed_runs_end_during_the_hold(self) -> None:
        self.runs.hold()
        a, b, c = (promised(self.runs, run_id) for run_id in "abc")
        self.assertEqual(self.runs.remove(a), [End(a, CLEARED)])
        self.assertEqual(self.runs.clear(S), [End(b, CLEARED), End(c, CLEARED)])
        d = promised(self.runs, "d")
        canceled = self.runs.cancel(S)
        self.assertEqual(canceled.receipt, ((d, "queued"),))
        self.assertEqual(canceled.effects, [End(d, CANCELED)])
        self.assertEqual(self.runs.release(), [])

    def test_an_interrupt_during_the_hold_ends_those_ahead_and_waits(self) -> None:
        self.runs.hold()
        a = promised(self.runs, "a")
        urgent = self.runs.accept(S, "b", WhenBusy.INTERRUPT)
        self.assertEqual(self.runs.durable(urgent), [End(a, CANCELED)])
        self.assertEqual(self.runs.release(), [Start(urgent)])

    def test_an_active_turn_goes_on_and_its_successor_waits(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.hold()
        self.assertEqual(self.runs.describe(a), "active")
        self.assertEqual(self.runs.finish(a, COMPLETED), [End(a, COMPLETED)])
        self.assertEqual(self.runs.release(), [Start(b)])

    def test_close_drains_a_held_machine(self) -> None:
        self.runs.hold()
        a = promised(self.runs, "a")
        self.assertEqual(self.runs.close(), [End(a, CANCELED), Drained(None)])
        self.assertEqual(self.runs.release(), [])

    def test_only_an_undoomed_run_without_riders_is_postponed_and_only_while_held(self) -> None:
        a = promised(self.runs, "a")
        with self.assertRaises(IllegalCall):
            self.runs.postpone(a)
        self.runs.hold()
        waiting = promised(self.runs, "b", WhenBusy.STEER)
        with self.assertRaises(IllegalCall):
            self.runs.postpone(waiting)
        self.runs.fold(a)
        with self.assertRaises(IllegalCall):
            self.runs.postpone(a)
        doomed = promised(self.runs, "c", session=OTHER)
        self.runs.release()
        self.runs.hold()
        self.runs.cancel(OTHER)
        with self.assertRaises(IllegalCall):
            self.runs.postpone(doomed)


class DropAndCloseTest(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()

    def test_drop_of_an_idle_session_is_drained_at_once(self) -> None:
        self.assertEqual(self.runs.drop(S).effects, [Drained(S)])
        with self.assertRaises(SessionNotFound):
            self.runs.accept(S, "a")

    def test_drop_cancels_and_drains_once(self) -> None:
        active = promised(self.runs, "a")
        unpromised = self.runs.accept(S, "b")
        self.assertEqual(self.runs.drop(S).effects, [Stop(active)])
        self.assertEqual(self.runs.finish(active, COMPLETED), [End(active, CANCELED)])
        self.assertEqual(self.runs.withdraw(unpromised), [Drained(S)])

    def test_readmit_undoes_a_drop(self) -> None:
        self.runs.drop(S)
        self.runs.readmit(S)
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.durable(run), [Start(run)])

    def test_close_waits_for_what_is_not_durable_yet(self) -> None:
        active = promised(self.runs, "a")
        unpromised = self.runs.accept(OTHER, "b")
        self.assertEqual(self.runs.close(), [Stop(active)])
        self.assertTrue(self.runs.closed)
        with self.assertRaises(WorkspaceClosing):
            self.runs.accept(S, "c")
        self.assertEqual(self.runs.finish(active, COMPLETED), [End(active, CANCELED)])
        self.assertEqual(self.runs.durable(unpromised), [End(unpromised, CANCELED), Drained(None)])
        self.assertEqual(self.runs.close(), [])

    def test_close_of_an_idle_machine_is_drained_at_once(self) -> None:
        self.assertEqual(self.runs.close(), [Drained(None)])

    def test_repr_shows_what_matters(self) -> None:
        run = promised(self.runs, "a")
        self.assertEqual(repr(run), "<Run a active durable>")
        self.runs.close()
        self.assertEqual(repr(run), "<Run a active durable canceled>")
        self.runs.hold()
        self.assertEqual(repr(self.runs), "<Runs live=1 sessions=1 held closed>")


# Exploration ------------------------------------------------------------------------------------

Op = tuple[str, str]  # the call, and the session or run it is for; accept carries its mode
Fingerprint = tuple[object, ...]
SESSIONS = (S, OTHER)


@dataclass
class World:
    """A machine and every run it has ever seen, by id: cheap to copy, cheap to compare."""

    machine: Runs
    seen: dict[str, Run]

    def copy(self) -> World:
        clones: dict[str, Run] = {}
        for run_id, run in self.seen.items():
            twin = Run(run.session_id, run_id, run.when_busy, run.kind)
            twin.state, twin.durable, twin.doom = run.state, run.durable, run.doom
            twin.outcome = run.outcome
            twin.carrier = clones[run.carrier.run_id] if run.carrier else None
            clones[run_id] = twin
        old, new = self.machine, Runs()
        new._lines = {s: [clones[run.run_id] for run in line] for s, line in old._lines.items()}
        new._by_id = {run_id: clones[run_id] for run_id in old._by_id}
        new._dropped, new._draining = set(old._dropped), set(old._draining)
        new._closed, new._held = old._closed, old._held
        return World(new, clones)

    def fingerprint(self) -> Fingerprint:
        machine = self.machine
        return (
            tuple(
                (
                    run.session_id,
                    run.when_busy.value,
                    run.state.value,
                    run.durable,
                    run.doom and run.doom.value,
                    run.outcome and run.outcome.value,
                    run.carrier and run.carrier.run_id,
                )
                for run in self.seen.values()
            ),
            tuple((s, tuple(r.run_id for r in machine._lines.get(s, ()))) for s in SESSIONS),
            frozenset(machine._dropped),
            frozenset(machine._draining),
            machine._closed,
            machine._held,
        )

    def operations(self, accepts: list[Op]) -> list[Op]:
        """Everything anybody could call next, legal or not."""
        runs = [(call, r) for r in self.seen for call in RUN_CALLS]
        sessions = [(call, s) for s in SESSIONS for call in ("cancel", "clear", "drop")]
        fresh = accepts[len(self.seen) : len(self.seen) + 1]
        whole = [(call, "") for call in ("close", "hold", "release")]
        return [*fresh, *runs, *sessions, *whole]

    def apply(self, op: Op) -> list[Effect]:
        call, target = op
        machine = self.machine
        if call.startswith("accept:"):
            run_id = f"r{len(self.seen)}"
            run = machine.accept(target, run_id, WhenBusy(call.partition(":")[2]))
            assert all(run is not other for other in self.seen.values()), "not a new run"
            assert run.doom is None, "a prompt accepted after a cancel is not covered"
            self.seen[run_id] = run
            return []
        if call in ("cancel", "drop"):
            canceled = machine.cancel(target) if call == "cancel" else machine.drop(target)
            return canceled.effects
        if call == "clear":
            return machine.clear(target)
        if call in ("close", "release"):
            return machine.close() if call == "close" else machine.release()
        if call in ("hold", "postpone"):
            machine.hold() if call == "hold" else machine.postpone(self.seen[target])
            return []
        run = self.seen[target]
        if call == "cancel_run":
            return machine.cancel_run(run).effects
        if call == "finish":
            return machine.finish(run, COMPLETED)
        calls = {"durable": machine.durable, "withdraw": machine.withdraw}
        calls |= {"fold": machine.fold, "remove": machine.remove}
        return calls[call](run)


MODES = {mode.value[0]: mode.value for mode in WhenBusy}  # steer, queue, interrupt, reject
RUN_CALLS = ("durable", "withdraw", "finish", "fold", "remove", "postpone", "cancel_run")


def check_state(world: World) -> None:
    """What must hold in every state, whatever led to it."""
    machine = world.machine
    for session in SESSIONS:
        line = machine.live(session)
        active = [run for run in line if run.state is RunState.ACTIVE]
        assert len(active) <= 1, "at most one active run per session"
        assert not active or line[0] is active[0], "the active run is first in line"
        assert all(run.live for run in line), "only live runs stand in line"
        assert machine.busy(session) == bool(line), "busy is any live run"
        if line and not active:
            held = machine.held and line[0].doom is None
            assert held or not line[0].durable, "no durable run waits while nothing is active"
            assert all(run.state is RunState.ACCEPTED for run in line), "riders need a carrier"
        for run in line:
            assert run.durable or run.state is RunState.ACCEPTED, "only durable runs start or fold"
            assert run.carrier is None or run.carrier is active[0], "a carrier is the active run"
        order = [int(run.run_id[1:]) for run in line]
        assert order == sorted(order), "the line is in order of acceptance"
        behind = line if machine.held else line[1:]
        expected = [run for run in behind if run.state is RunState.ACCEPTED and not run.doom]
        assert machine.queued(session) == expected
        if session in machine._dropped or machine.closed:
            assert all(run.doom for run in line), "drop and close doom all"
    for run in world.seen.values():
        assert (run.outcome is not None) == (run.state is RunState.ENDED)
        assert run.live == (machine.find(run.run_id) is run)
        assert not (run.state is RunState.WITHDRAWN and run.durable)
        assert run.state is not RunState.ENDED or run.durable, "only a promised run ends"
    assert (None in machine._draining) <= bool(machine.live()), "drained is said when it is so"


def check_step(before: World, op: Op, effects: list[Effect], after: World) -> None:
    """What must hold for every single step."""
    for run_id, now in after.seen.items():
        was = before.seen.get(run_id)
        ended = [e for e in effects if isinstance(e, End) and e.run is now]
        started = [e for e in effects if isinstance(e, Start) and e.run is now]
        if was is None:
            assert not ended
            assert not started
            continue
        assert len(ended) == (was.live and now.state is RunState.ENDED), "exactly one ending"
        assert all(e.outcome is now.outcome for e in ended)
        assert len(started) == (was.state is not now.state and now.state is RunState.ACTIVE)
        assert not started or (was.doom is None and not after.machine.closed), "no doomed start"
        assert not started or not after.machine.held, "nothing starts while held"
        assert was.doom is None or now.doom is was.doom, "the first doom stays"
        assert now.state is was.state or now.state in TRANSITIONS[was.state].values()
        stops = [e for e in effects if isinstance(e, Stop) and e.run is now]
        newly = now.doom is CANCELED and was.doom is None and was.state is RunState.ACTIVE
        assert len(stops) == newly, "a turn is stopped once, when it is doomed"
        if now.state is RunState.ENDED and was.state is RunState.ACTIVE:
            assert now.outcome is (was.doom or COMPLETED)
    if op[0] in ("cancel", "drop"):
        for run_id, was in before.seen.items():
            covered = was.live and was.session_id == op[1]
            assert not covered or after.seen[run_id].doom is not None, "cancel covers all live"
            changed = after.seen[run_id].doom is not was.doom
            assert not changed or covered, "cancel touches nothing else"
        if op[0] == "cancel" and not before.machine.busy(op[1]):
            assert before.fingerprint() == after.fingerprint(), "an idle cancel changes nothing"
    if op[0] == "cancel_run":
        for run_id, was in before.seen.items():
            covered = run_id == op[1]
            assert not covered or after.seen[run_id].doom is not None, "it covers its run"
            changed = after.seen[run_id].doom is not was.doom
            assert not changed or covered, "and touches no other"
    drained = [e.session_id for e in effects if isinstance(e, Drained)]
    for session in drained:
        assert not after.machine.live(session), "drained means nothing is live"
    assert len(drained) == len(set(drained))


def explore(accepts: list[Op], depth: int) -> int:
    """Visit every state reachable in `depth` operations; return how many there are."""
    start = World(Runs(), {})
    known = {start.fingerprint()}
    frontier = [start]
    for _ in range(depth):
        following: list[World] = []
        for world in frontier:
            print_of_world = world.fingerprint()
            for op in world.operations(accepts):
                trial = world.copy()
                try:
                    effects = trial.apply(op)
                except CrushliteError:
                    assert trial.fingerprint() == print_of_world, f"{op} raised and changed state"
                    continue
                check_step(world, op, effects, trial)
                mark = trial.fingerprint()
                if mark not in known:
                    check_state(trial)
                    known.add(mark)
                    following.append(trial)
        frontier = following
    return len(known)


class ExplorationTest(unittest.TestCase):
    """Every order of up to nine operations over four runs and two sessions."""

    def explore_modes(self, modes: str, sessions: str) -> int:
        places = {"s": S, "o": OTHER}
        accepts = [(f"accept:{MODES[m]}", places[s]) for m, s in zip(modes, sessions, strict=True)]
        return explore(accepts, 9)

    def test_three_mixed_runs_in_line_and_one_beside(self) -> None:
        self.assertGreater(self.explore_modes("qsqs", "ssso"), 1000)

    def test_an_interrupt_among_steering_runs(self) -> None:
        self.assertGreater(self.explore_modes("qsis", "ssss"), 1000)

    def test_a_reject_run_like_summarize_with_prompts_behind(self) -> None:
        self.assertGreater(self.explore_modes("rsqi", "ssos"), 1000)

    def test_two_lines_side_by_side(self) -> None:
        self.assertGreater(self.explore_modes("sisq", "soso"), 1000)

    def test_every_mix_of_modes_keeps_the_invariants_in_shorter_orders(self) -> None:
        for modes in itertools.product(MODES, repeat=3):
            accepts = [(f"accept:{MODES[m]}", S) for m in modes]
            explore(accepts, 6)


class RandomWalkTest(unittest.TestCase):
    """Far beyond nine operations: long walks over more runs, reproducible by their seed."""

    def test_long_walks_keep_every_invariant(self) -> None:
        for seed in range(60):
            with self.subTest(seed=seed):
                self.walk(random.Random(seed), 200)

    def walk(self, rng: random.Random, steps: int) -> None:
        world = World(Runs(), {})
        endings: dict[str, int] = {}
        for _ in range(steps):
            mode, place = rng.choice(list(WhenBusy)).value, rng.choice(SESSIONS)
            accepts = [(f"accept:{mode}", place)] * (len(world.seen) + 1)
            ops = [op for op in world.operations(accepts) if op[0] not in ("close", "drop")]
            ops += [("close", "")] * (rng.random() < 0.01) + [("drop", place)] * (
                rng.random() < 0.01
            )
            before = world.copy()
            op = rng.choice([*ops, accepts[0]])
            try:
                effects = world.apply(op)
            except CrushliteError:
                self.assertEqual(world.fingerprint(), before.fingerprint())
                continue
            check_step(before, op, effects, world)
            check_state(world)
            for effect in effects:
                if isinstance(effect, End):
                    endings[effect.run.run_id] = endings.get(effect.run.run_id, 0) + 1
        self.assertLessEqual(set(endings.values()), {1})
