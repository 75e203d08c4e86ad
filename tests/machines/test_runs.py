"""runs.py, alone: named cases, every interleaving of up to nine operations, long random walks."""

from __future__ import annotations

import contextlib
import random
import unittest
from dataclasses import dataclass, field

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
    Effect,
    Outcome,
    Record,
    Run,
    Runs,
    RunState,
    Start,
    Stop,
    WhenBusy,
)

S, OTHER = "s", "other"
COMPLETED, FAILED = Outcome.COMPLETED, Outcome.FAILED
CANCELED, CLEARED = Outcome.CANCELED, Outcome.CLEARED


def promised(runs: Runs, run_id: str, mode: WhenBusy = WhenBusy.QUEUE, session: str = S) -> Run:
    run = runs.accept(session, run_id, mode)
    runs.durable(run)
    return run


def ended(run: Run, outcome: Outcome, *riders: Run) -> Record:
    return Record(run, riders, outcome)


class MachineCase(unittest.TestCase):
    def setUp(self) -> None:
        self.runs = Runs()

    def finish(self, run: Run, outcome: Outcome = COMPLETED) -> list[Effect]:
        """Finish a turn and record it; what follows from that."""
        record = self.runs.finish(run, outcome)
        return self.runs.recorded(record.run)


class AcceptanceTest(MachineCase):
    def test_a_run_starts_only_when_it_is_durable(self) -> None:
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.live(), [run])
        self.assertEqual(self.runs.describe(run), "accepted")
        self.assertEqual(self.runs.durable(run), [Start(run)])
        self.assertEqual(self.runs.describe(run), "active")

    def test_accepted_counts_as_busy(self) -> None:
        self.assertFalse(self.runs.busy(S))
        self.runs.accept(S, "a")
        self.assertTrue(self.runs.busy(S))
        self.assertFalse(self.runs.busy(OTHER))

    def test_a_known_run_id_is_returned_until_its_ending_is_recorded(self) -> None:
        run = promised(self.runs, "a")
        self.assertIs(self.runs.accept(S, "a"), run)
        self.assertEqual(self.runs.live(), [run])
        self.runs.finish(run, COMPLETED)
        self.assertIs(self.runs.accept(S, "a"), run)
        self.runs.unsaved(run)
        self.assertIs(self.runs.accept(S, "a"), run)
        self.runs.recorded(run)
        self.assertIsNot(self.runs.accept(S, "a"), run)

    def test_reject_is_refused_while_busy_and_taken_when_idle(self) -> None:
        first = promised(self.runs, "a", WhenBusy.REJECT)
        with self.assertRaises(SessionBusy):
            self.runs.accept(S, "b", WhenBusy.REJECT)
        self.assertEqual(self.runs.live(), [first])
        self.runs.accept(OTHER, "b", WhenBusy.REJECT)

    def test_reject_is_refused_while_an_ending_is_being_written(self) -> None:
        first = promised(self.runs, "a")
        self.runs.finish(first, COMPLETED)
        with self.assertRaises(SessionBusy):
            self.runs.accept(S, "b", WhenBusy.REJECT)
        self.runs.recorded(first)
        self.runs.accept(S, "b", WhenBusy.REJECT)

    def test_a_first_in_line_that_is_not_durable_holds_the_line(self) -> None:
        first = self.runs.accept(S, "a")
        second = self.runs.accept(S, "b")
        self.assertEqual(self.runs.durable(second), [])
        self.assertEqual(self.runs.durable(first), [Start(first)])

    def test_withdraw_leaves_without_a_trace_and_releases_the_line(self) -> None:
        first = self.runs.accept(S, "a")
        second = promised(self.runs, "b")
        self.assertEqual(self.runs.withdraw(first), [Start(second)])
        self.assertTrue(first.over)
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
        self.assertEqual(self.runs.finish(a, COMPLETED), ended(a, COMPLETED))
        c = self.runs.accept(OTHER, "c")
        self.runs.durable(c)
        self.assertEqual(self.finish(b), [Start(c)])
        self.assertEqual(self.runs.describe(a), "active")


class EndingTest(MachineCase):
    """Between the decision how a run ends and the word that this is written."""

    def test_a_run_that_is_ending_is_live_busy_and_told_as_before(self) -> None:
        run = promised(self.runs, "a")
        rider = promised(self.runs, "r", WhenBusy.STEER)
        self.runs.fold(run)
        record = self.runs.finish(run, COMPLETED)
        self.assertEqual(record, ended(run, COMPLETED, rider))
        self.assertEqual(self.runs.live(S), [run, rider])
        self.assertTrue(self.runs.busy(S))
        self.assertEqual([self.runs.describe(each) for each in (run, rider)], ["active", "folded"])
        self.assertEqual(self.runs.recorded(run), [])
        self.assertFalse(self.runs.busy(S))
        self.assertTrue(run.over)
        self.assertTrue(rider.over)
        self.assertEqual(self.runs.describe(run), "ended")

    def test_the_next_run_starts_only_when_the_one_ahead_is_recorded(self) -> None:
        first, second = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.finish(first, FAILED)
        self.assertEqual(self.runs.describe(second), "queued")
        third = self.runs.accept(S, "c")
        self.assertEqual(self.runs.durable(third), [])
        self.assertEqual(self.runs.recorded(first), [Start(second)])

    def test_doomed_runs_end_one_after_the_other_in_the_order_of_the_line(self) -> None:
        active, b, c = (promised(self.runs, run_id) for run_id in "abc")
        self.runs.cancel(S)
        self.assertEqual(self.runs.finish(active, COMPLETED), ended(active, CANCELED))
        self.assertEqual(self.runs.recorded(active), [ended(b, CANCELED)])
        self.assertEqual(self.runs.describe(b), "accepted")
        self.assertEqual(self.runs.recorded(b), [ended(c, CANCELED)])
        self.assertEqual(self.runs.recorded(c), [])

    def test_a_record_is_recorded_once_and_by_the_run_it_names(self) -> None:
        run = promised(self.runs, "a")
        rider = promised(self.runs, "r", WhenBusy.STEER)
        self.runs.fold(run)
        for early in (run, rider):
            with self.assertRaises(IllegalCall):
                self.runs.recorded(early)
        self.runs.finish(run, COMPLETED)
        for call in (self.runs.recorded, self.runs.unsaved):
            with self.assertRaises(IllegalCall):
                call(rider)
        self.runs.recorded(run)
        for call in (self.runs.recorded, self.runs.unsaved):
            with self.assertRaises(IllegalCall):
                call(run)

    def test_only_the_active_run_finishes_and_once(self) -> None:
        run, waiting = promised(self.runs, "a"), promised(self.runs, "b")
        with self.assertRaises(IllegalCall):
            self.runs.finish(waiting, COMPLETED)
        self.runs.finish(run, COMPLETED)
        with self.assertRaises(IllegalCall):
            self.runs.finish(run, FAILED)
        self.assertIs(run.outcome, COMPLETED)

    def test_every_exit_serves_the_queue_in_order(self) -> None:
        a, b, c = (promised(self.runs, run_id) for run_id in "abc")
        self.assertEqual(self.finish(a, FAILED), [Start(b)])
        self.assertEqual(self.finish(b), [Start(c)])


class UnsavedTest(MachineCase):
    """A store that cannot write an ending: it is published, and its line starts nothing."""

    def test_an_unsaved_run_has_ended_for_clients_and_holds_its_line(self) -> None:
        first, second = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.finish(first, COMPLETED)
        self.assertEqual(self.runs.unsaved(first), [])
        self.assertEqual(self.runs.describe(first), "ended")
        self.assertFalse(first.live)
        self.assertFalse(first.over)
        self.assertEqual(self.runs.live(S), [second])
        self.assertEqual((self.runs.describe(second), self.runs.queued(S)), ("queued", [second]))
        self.assertEqual(self.runs.recorded(first), [Start(second)])

    def test_a_session_with_nothing_but_an_unsaved_run_is_not_busy(self) -> None:
        run = promised(self.runs, "a")
        self.runs.finish(run, COMPLETED)
        self.runs.unsaved(run)
        self.assertFalse(self.runs.busy(S))

    def test_riders_are_unsaved_with_their_carrier(self) -> None:
        run, rider = promised(self.runs, "a"), promised(self.runs, "r", WhenBusy.STEER)
        self.runs.fold(run)
        self.runs.finish(run, COMPLETED)
        self.runs.unsaved(run)
        self.assertEqual(self.runs.describe(rider), "ended")
        self.runs.recorded(run)
        self.assertTrue(rider.over)

    def test_doomed_runs_behind_an_unsaved_one_end_all_the_same(self) -> None:
        a, b, c = (promised(self.runs, run_id) for run_id in "abc")
        self.runs.finish(a, COMPLETED)
        self.runs.unsaved(a)
        canceled = self.runs.cancel(S)
        self.assertEqual(canceled.receipt, ((b, "queued"), (c, "queued")))
        self.assertEqual(canceled.effects, [ended(b, CANCELED)])
        self.assertEqual(self.runs.unsaved(b), [ended(c, CANCELED)])
        after = promised(self.runs, "d")
        self.assertEqual(self.runs.recorded(c), [])
        self.assertEqual(self.runs.recorded(a), [])
        self.assertEqual(self.runs.recorded(b), [Start(after)])

    def test_a_cleared_run_that_is_unsaved_holds_nothing(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b")
        self.assertEqual(self.runs.clear(S), [ended(b, CLEARED)])
        self.runs.unsaved(b)
        c = promised(self.runs, "c")
        self.assertEqual(self.finish(a), [Start(c)])
        self.assertEqual(self.runs.recorded(b), [])

    def test_an_interrupt_behind_an_unsaved_run_ends_those_ahead_and_waits(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.finish(a, COMPLETED)
        self.runs.unsaved(a)
        urgent = self.runs.accept(S, "c", WhenBusy.INTERRUPT)
        self.assertEqual(self.runs.durable(urgent), [ended(b, CANCELED)])
        self.assertIs(a.outcome, COMPLETED)
        self.assertEqual(self.runs.recorded(b), [])
        self.assertEqual(self.runs.recorded(a), [Start(urgent)])


class CancelTest(MachineCase):
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
        self.assertEqual(self.runs.finish(active, COMPLETED), ended(active, CANCELED))
        self.assertEqual(self.runs.recorded(active), [ended(queued, CANCELED)])
        self.assertEqual(self.runs.recorded(queued), [])
        self.assertEqual(self.runs.durable(unpromised), [ended(unpromised, CANCELED)])
        self.assertEqual(self.runs.recorded(unpromised), [Start(after)])

    def test_cancel_before_durable_ends_the_run_without_a_start(self) -> None:
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.cancel(S).receipt, ((run, "accepted"),))
        self.assertEqual(self.runs.durable(run), [ended(run, CANCELED)])
        self.assertEqual(self.runs.describe(run), "accepted", "it never had a turn")

    def test_a_second_cancel_lists_the_same_runs_and_stops_nothing_twice(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.cancel(S)
        again = self.runs.cancel(S)
        self.assertEqual([run for run, _ in again.receipt], [active, queued])
        self.assertEqual(again.effects, [])

    def test_a_second_cancel_finds_what_the_first_one_hit_until_its_ending_is_out(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.cancel(S)
        self.runs.finish(active, COMPLETED)
        again = self.runs.cancel(S)
        self.assertEqual(again.receipt, ((active, "active"), (queued, "accepted")))
        self.assertEqual(again.effects, [])
        self.runs.recorded(active)
        self.assertEqual(self.runs.cancel(S).receipt, ((queued, "accepted"),))
        self.runs.unsaved(queued)
        self.assertEqual(self.runs.cancel(S).receipt, ())

    def test_a_cancel_does_not_hit_a_run_that_is_ending_in_another_way(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        self.runs.finish(active, COMPLETED)
        canceled = self.runs.cancel(S)
        self.assertEqual((canceled.receipt, canceled.effects), (((queued, "queued"),), []))
        self.assertIs(active.outcome, COMPLETED)
        self.assertEqual(self.runs.recorded(active), [ended(queued, CANCELED)])

    def test_cancel_is_isolated_per_session(self) -> None:
        a, b = promised(self.runs, "a"), promised(self.runs, "b", session=OTHER)
        self.assertEqual(self.runs.cancel(S).effects, [Stop(a)])
        self.assertEqual(self.runs.finish(b, COMPLETED), ended(b, COMPLETED))

    def test_an_interrupt_dooms_everything_ahead_when_it_is_durable(self) -> None:
        active, queued = promised(self.runs, "a"), promised(self.runs, "b")
        urgent = self.runs.accept(S, "c", WhenBusy.INTERRUPT)
        behind = promised(self.runs, "d")
        self.assertIsNone(active.doom)
        self.assertEqual(self.runs.durable(urgent), [Stop(active)])
        self.assertEqual(self.finish(active), [ended(queued, CANCELED)])
        self.assertEqual(self.runs.recorded(queued), [Start(urgent)])
        self.assertIsNone(behind.doom)

    def test_a_doomed_interrupt_dooms_nobody(self) -> None:
        urgent = self.runs.accept(S, "a", WhenBusy.INTERRUPT)
        self.runs.cancel(S)
        after = promised(self.runs, "b")
        self.assertEqual(self.runs.durable(urgent), [ended(urgent, CANCELED)])
        self.assertEqual(self.runs.recorded(urgent), [Start(after)])


class QueueTest(MachineCase):
    def setUp(self) -> None:
        super().setUp()
        self.active = promised(self.runs, "a")

    def test_queued_is_what_waits_undoomed_behind_another_run(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.assertEqual(self.runs.queued(S), [b, c])
        self.assertEqual(self.runs.describe(b), "queued")
        self.runs.cancel(S)
        self.assertEqual(self.runs.queued(S), [])
        self.assertEqual(self.runs.queued(OTHER), [])

    def test_clear_ends_durable_ones_now_and_others_when_durable(self) -> None:
        b = promised(self.runs, "b")
        c = self.runs.accept(S, "c")
        self.assertEqual(self.runs.clear(S), [ended(b, CLEARED)])
        self.assertEqual(self.runs.queued(S), [])
        self.assertEqual(self.runs.durable(c), [ended(c, CLEARED)])
        self.assertEqual(self.runs.describe(self.active), "active")

    def test_a_cleared_run_is_recorded_out_of_line(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.runs.remove(b)
        self.assertTrue(b.live)
        self.assertEqual(self.finish(self.active), [Start(c)])
        self.assertEqual(self.runs.recorded(b), [])
        self.assertEqual(self.runs.live(S), [c])

    def test_a_run_behind_nothing_but_a_cleared_one_is_not_queued(self) -> None:
        b = promised(self.runs, "b")
        self.runs.clear(S)
        self.finish(self.active)
        c = self.runs.accept(S, "c")
        self.assertEqual(self.runs.describe(c), "accepted")
        self.assertEqual(self.runs.durable(c), [Start(c)])
        self.assertTrue(b.live)

    def test_the_first_doom_stays(self) -> None:
        c = self.runs.accept(S, "c")
        self.runs.clear(S)
        self.runs.cancel(S)
        self.assertEqual(self.runs.durable(c), [ended(c, CLEARED)])

    def test_a_cancel_does_not_list_what_was_cleared(self) -> None:
        b = promised(self.runs, "b")
        self.runs.clear(S)
        self.assertEqual(self.runs.cancel(S).receipt, ((self.active, "active"),))
        self.assertIs(b.outcome, CLEARED)

    def test_remove_takes_one_and_refuses_what_is_not_queued(self) -> None:
        b, c = promised(self.runs, "b"), promised(self.runs, "c")
        self.assertEqual(self.runs.remove(b), [ended(b, CLEARED)])
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
        self.assertEqual(taken_back.effects, [ended(b, CLEARED)], "not only when its turn comes")
        self.assertEqual(self.runs.queued(S), [c])
        self.assertEqual(self.runs.finish(self.active, COMPLETED), ended(self.active, CANCELED))
        self.assertEqual(self.runs.recorded(self.active), [Start(c)])

    def test_a_cancel_of_a_run_that_is_ending_lists_it_only_if_it_ends_canceled(self) -> None:
        b = promised(self.runs, "b")
        self.runs.remove(b)
        self.assertEqual(self.runs.cancel_run(b).receipt, ())
        self.runs.recorded(b)
        with self.assertRaises(IllegalCall):
            self.runs.cancel_run(b)
        self.runs.cancel_run(self.active)
        self.runs.finish(self.active, COMPLETED)
        self.assertEqual(self.runs.cancel_run(self.active).receipt, ((self.active, "active"),))
        self.runs.unsaved(self.active)
        self.assertEqual(self.runs.cancel_run(self.active).receipt, ())

    def test_a_cancel_of_one_run_takes_its_riders_along_but_not_the_other_way_round(self) -> None:
        rider = promised(self.runs, "b", WhenBusy.STEER)
        self.runs.fold(self.active)
        with self.assertRaisesRegex(NotQueued, "in the turn of a: cancel that"):
            self.runs.cancel_run(rider)
        self.runs.cancel_run(self.active)
        record = self.runs.finish(self.active, COMPLETED)
        self.assertEqual(record, ended(self.active, CANCELED, rider))


class FoldTest(MachineCase):
    def setUp(self) -> None:
        super().setUp()
        self.active = promised(self.runs, "a")

    def test_steer_runs_fold_past_queue_runs_in_order_and_end_with_their_carrier(self) -> None:
        s1 = promised(self.runs, "s1", WhenBusy.STEER)
        q = promised(self.runs, "q", WhenBusy.QUEUE)
        s2 = promised(self.runs, "s2", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), (s1, s2))
        self.assertEqual(self.runs.describe(s1), "folded")
        self.assertEqual(self.runs.queued(S), [q])
        self.assertEqual(self.runs.fold(self.active), ())
        record = self.runs.finish(self.active, COMPLETED)
        self.assertEqual(record, ended(self.active, COMPLETED, s1, s2))
        self.assertEqual(self.runs.recorded(self.active), [Start(q)])

    def test_nothing_folds_past_an_interrupt(self) -> None:
        s1 = promised(self.runs, "s1", WhenBusy.STEER)
        self.runs.accept(S, "i", WhenBusy.INTERRUPT)
        s2 = promised(self.runs, "s2", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), (s1,))
        self.assertEqual(self.runs.describe(s2), "queued")

    def test_an_active_interrupt_takes_in_what_steers_it(self) -> None:
        runs = Runs()
        urgent = promised(runs, "i", WhenBusy.INTERRUPT)
        steer = promised(runs, "s", WhenBusy.STEER)
        self.assertEqual(runs.fold(urgent), (steer,))

    def test_nothing_folds_into_a_run_that_wants_its_turn_alone(self) -> None:
        runs = Runs()
        alone = runs.accept(S, "a", alone=True)
        runs.durable(alone)
        steer = promised(runs, "s", WhenBusy.STEER)
        self.assertEqual(runs.fold(alone), ())
        self.assertEqual(runs.describe(steer), "queued")

    def test_a_cleared_interrupt_is_no_barrier(self) -> None:
        urgent = self.runs.accept(S, "i", WhenBusy.INTERRUPT)
        self.runs.clear(S)
        self.runs.durable(urgent)
        s1 = promised(self.runs, "s1", WhenBusy.STEER)
        self.assertTrue(urgent.live)
        self.assertEqual(self.runs.fold(self.active), (s1,))

    def test_neither_unpromised_nor_doomed_runs_fold(self) -> None:
        unpromised = self.runs.accept(S, "u", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), ())
        self.runs.cancel(S)
        late = promised(self.runs, "l", WhenBusy.STEER)
        self.assertEqual(self.runs.fold(self.active), ())
        self.runs.durable(unpromised)
        self.assertEqual(self.finish(self.active), [ended(unpromised, CANCELED)])
        self.assertEqual(self.runs.recorded(unpromised), [Start(late)])

    def test_a_cancel_hits_folded_runs_through_their_carrier(self) -> None:
        rider = promised(self.runs, "r", WhenBusy.STEER)
        self.runs.fold(self.active)
        self.assertEqual(self.runs.cancel(S).receipt, ((self.active, "active"), (rider, "folded")))
        record = self.runs.finish(self.active, COMPLETED)
        self.assertEqual(record, ended(self.active, CANCELED, rider))

    def test_only_the_active_run_folds(self) -> None:
        waiting = promised(self.runs, "b")
        with self.assertRaises(IllegalCall):
            self.runs.fold(waiting)


class DropAndCloseTest(MachineCase):
    def test_a_dropped_session_refuses_prompts_and_cancels_what_it_has(self) -> None:
        self.assertEqual(self.runs.drop(OTHER), [])
        active = promised(self.runs, "a")
        unpromised = self.runs.accept(S, "b")
        self.assertEqual(self.runs.drop(S), [Stop(active)])
        with self.assertRaises(SessionNotFound):
            self.runs.accept(S, "c")
        self.assertEqual(self.finish(active), [])
        self.assertEqual(self.runs.withdraw(unpromised), [])
        self.assertEqual(self.runs.live(S), [])

    def test_readmit_undoes_a_drop(self) -> None:
        self.runs.drop(S)
        self.runs.readmit(S)
        run = self.runs.accept(S, "a")
        self.assertEqual(self.runs.durable(run), [Start(run)])

    def test_close_cancels_everything_and_accepts_nothing(self) -> None:
        active = promised(self.runs, "a")
        unpromised = self.runs.accept(OTHER, "b")
        self.assertEqual(self.runs.close(), [Stop(active)])
        self.assertTrue(self.runs.closed)
        with self.assertRaises(WorkspaceClosing):
            self.runs.accept(S, "c")
        self.assertEqual(self.finish(active), [])
        self.assertEqual(self.runs.durable(unpromised), [ended(unpromised, CANCELED)])
        self.assertEqual(self.runs.close(), [])
        self.assertEqual(self.runs.recorded(unpromised), [])
        self.assertEqual(self.runs.live(), [])

    def test_repr_shows_what_matters(self) -> None:
        run = promised(self.runs, "a")
        self.assertEqual(repr(run), "<Run a active durable>")
        self.runs.close()
        self.assertEqual(repr(run), "<Run a active durable canceled>")


# Exploration ------------------------------------------------------------------------------------

Op = tuple[str, str]  # the call, and the session or run it is for; accept carries its mode
Fingerprint = tuple[object, ...]
SESSIONS = (S, OTHER)


@dataclass
class World:
    """A machine, every run it has ever seen by id, and the Records nobody has answered yet."""

    machine: Runs
    seen: dict[str, Run]
    open_records: set[str] = field(default_factory=set)  # by the id of the run they name

    def copy(self) -> World:
        clones: dict[str, Run] = {}
        for run_id, run in self.seen.items():
            twin = Run(run.session_id, run_id, run.when_busy)
            twin.state, twin.durable, twin.doom = run.state, run.durable, run.doom
            twin.outcome, twin.started = run.outcome, run.started
            twin.carrier = clones[run.carrier.run_id] if run.carrier else None
            clones[run_id] = twin
        old, new = self.machine, Runs()
        new._lines = {s: [clones[run.run_id] for run in line] for s, line in old._lines.items()}
        new._by_id = {run_id: clones[run_id] for run_id in old._by_id}
        new._dropped, new.closed = set(old._dropped), old.closed
        return World(new, clones, set(self.open_records))

    def fingerprint(self) -> Fingerprint:
        """All that tells two worlds apart from here on: of a run that is over nothing but its state
        is ever read again (`check_run` looked at the rest when it ended). Enum members by id():
        hashing them is slow."""
        machine = self.machine
        lines = machine._lines
        return (
            *[
                (run.session_id, id(run.state), run in lines.get(run.session_id, ()))
                if id(run.state) in OVER
                else (
                    run.session_id,
                    id(run.when_busy),
                    id(run.state),
                    run.durable,
                    run.started,
                    id(run.doom),
                    id(run.outcome),
                    run.carrier and run.carrier.run_id,
                    run in lines.get(run.session_id, ()),
                )
                for run in self.seen.values()
            ],
            frozenset(machine._dropped),
            machine.closed,
        )

    def operations(self, accepts: list[tuple[Op, ...]]) -> list[Op]:
        """Everything anybody could call next, legal or not. `accepts` are the ways in which the
        first run may be accepted, the second, and so on."""
        runs = [(call, r) for r in self.seen for call in RUN_CALLS]
        sessions = [(call, s) for s in SESSIONS for call in ("cancel", "clear", "drop")]
        fresh = accepts[len(self.seen)] if len(self.seen) < len(accepts) else ()
        return [*fresh, *runs, *sessions, ("close", "")]

    def apply(self, op: Op) -> list[Effect]:
        effects = self._call(*op)
        if op[0] == "recorded":
            self.open_records.remove(op[1])
        self.open_records |= {e.run.run_id for e in effects if isinstance(e, Record)}
        return effects

    def _call(self, call: str, target: str) -> list[Effect]:
        machine = self.machine
        if call.startswith("accept:"):
            run_id = f"r{len(self.seen)}"
            run = machine.accept(target, run_id, WhenBusy(call.partition(":")[2]))
            assert all(run is not other for other in self.seen.values()), "not a new run"
            assert run.doom is None, "a prompt accepted after a cancel is not covered"
            self.seen[run_id] = run
            return []
        if call == "cancel":
            return machine.cancel(target).effects
        if call in ("drop", "clear"):
            return machine.drop(target) if call == "drop" else machine.clear(target)
        if call == "close":
            return machine.close()
        run = self.seen[target]
        if call == "cancel_run":
            return machine.cancel_run(run).effects
        if call == "finish":
            return [machine.finish(run, COMPLETED)]
        if call == "fold":
            machine.fold(run)
            return []
        calls = {"durable": machine.durable, "withdraw": machine.withdraw}
        calls |= {"remove": machine.remove, "recorded": machine.recorded}
        calls |= {"unsaved": machine.unsaved}
        return calls[call](run)


MODES = {mode.value[0]: mode.value for mode in WhenBusy}  # steer, queue, interrupt, reject
RUN_CALLS = (
    *("durable", "withdraw", "finish", "fold", "remove", "cancel_run"),
    *("recorded", "unsaved"),
)
ENDING, UNSAVED = RunState.ENDING, RunState.UNSAVED
OVER = {id(RunState.ENDED), id(RunState.WITHDRAWN)}


def check_state(world: World) -> None:
    """What must hold in every state, whatever led to it."""
    for session in SESSIONS:
        check_line(world, session)
    for run in world.seen.values():
        check_run(world, run)


def check_run(world: World, run: Run) -> None:
    machine = world.machine
    assert (run.outcome is not None) == (run.state in (ENDING, UNSAVED, RunState.ENDED))
    assert run.over == (run not in machine._lines.get(run.session_id, []))
    assert run.over == (run.run_id not in machine._by_id)
    assert not (run.state is RunState.WITHDRAWN and run.durable)
    assert run.outcome is None or run.durable, "only a promised run ends"
    named = run.carrier is None and run.state in (ENDING, UNSAVED)
    assert named == (run.run_id in world.open_records), "a Record for each run that ends"
    told = machine.describe(run)
    assert told != "active" or run.started, "active means that its turn has begun"
    assert (told == "ended") == (run.state in (UNSAVED, RunState.ENDED))


def check_line(world: World, session: str) -> None:
    machine = world.machine
    everyone = machine._lines.get(session, [])
    order = [int(run.run_id[1:]) for run in everyone]
    assert order == sorted(order), "the line is in order of acceptance"
    live = machine.live(session)
    assert live == [run for run in everyone if run.live]
    assert machine.busy(session) == bool(live), "busy is any live run"
    line = [run for run in everyone if run.outcome is not CLEARED]  # those are out of line
    behind = line[1:]
    expected = [run for run in behind if run.state is RunState.ACCEPTED and not run.doom]
    assert machine.queued(session) == expected
    unsaved = [run for run in line if run.state is UNSAVED]
    working = [run for run in line if run.state in (RunState.ACTIVE, ENDING) and not run.carrier]
    assert len(working) <= 1, "one run of a line is active or ending"
    assert not unsaved or all(r.state is not RunState.ACTIVE for r in line), "nothing has started"
    rest = [run for run in line if run.state is not UNSAVED]
    if rest and not working:
        first = rest[0]
        held = bool(unsaved) and first.doom is None
        assert not first.durable or held, "no durable run waits while nothing is active"
        assert all(run.state is RunState.ACCEPTED for run in rest), "riders need a carrier"
    assert not working or rest[0] is working[0], "the active run is first in line"
    for run in everyone:
        assert run.durable or run.state is RunState.ACCEPTED, "only durable runs start or end"
        assert run.carrier is None or run.carrier.state in (RunState.ACTIVE, ENDING, UNSAVED)
        if session in machine._dropped or machine.closed:
            assert run.doom or run.outcome, "drop and close doom all"


def check_step(before: World, op: Op, effects: list[Effect], after: World) -> None:
    """What must hold for every single step."""
    for run_id, now in after.seen.items():
        was = before.seen.get(run_id)
        its = effects and [
            e for e in effects if e.run is now or (isinstance(e, Record) and now in e.riders)
        ]
        if was is None:
            assert not its
            continue
        same = was.state is now.state and was.doom is now.doom and was.outcome is now.outcome
        if same and not its:
            continue  # nothing happened to it, so all below holds; most runs in most steps
        records = [e for e in its if isinstance(e, Record)]
        stops = [e for e in its if isinstance(e, Stop)]
        moved = was.state is not now.state
        assert len(records) == (was.outcome is None and now.outcome is not None), "one Record"
        assert all(e.outcome is now.outcome for e in records)
        started = moved and now.state is RunState.ACTIVE
        assert len(its) == len(records) + len(stops) + started, "a Start for each that starts"
        if started:
            assert was.doom is None
            assert not after.machine.closed, "no doomed start"
            ahead = after.machine._lines[now.session_id]
            ahead = [run for run in ahead[: ahead.index(now)] if run.outcome is not CLEARED]
            assert ahead == [], "the run ahead is recorded before the next one starts"
        if moved:
            assert now.state in TRANSITIONS[was.state].values()
            check_run(after, now)
        assert was.doom is None or now.doom is was.doom, "the first doom stays"
        assert was.outcome is None or now.outcome is was.outcome, "how it ends is decided once"
        newly = now.doom is CANCELED and was.doom is None and was.state is RunState.ACTIVE
        assert len(stops) == newly, "a turn is stopped once, when it is doomed"
        if was.outcome is None and was.state is RunState.ACTIVE and now.outcome is not None:
            assert now.outcome is (was.doom or COMPLETED)
    if op[0] in ("cancel", "drop", "cancel_run"):
        check_cancel(before, op, after)


def check_cancel(before: World, op: Op, after: World) -> None:
    for run_id, was in before.seen.items():
        covered = was.live and was.outcome is None and op[1] in (was.session_id, run_id)
        now = after.seen[run_id]
        assert not covered or now.doom is not None, "a cancel covers all live, or its run"
        assert covered or now.doom is was.doom, "a cancel touches nothing else"
    if op[0] == "cancel" and not before.machine.busy(op[1]):
        assert before.fingerprint() == after.fingerprint(), "an idle cancel changes nothing"


def explore(accepts: list[tuple[Op, ...]], depth: int) -> int:
    """Visit every state reachable in `depth` operations; return how many there are."""
    start = World(Runs(), {})
    known = {start.fingerprint()}
    frontier = [start]
    for _ in range(depth):
        following: list[World] = []
        for world in frontier:
            for op, effects, trial in legal_steps(world, accepts):
                check_step(world, op, effects, trial)
                mark = trial.fingerprint()
                if mark not in known:
                    check_state(trial)
                    known.add(mark)
                    following.append(trial)
        frontier = following
    return len(known)


def legal_steps(
    world: World, accepts: list[tuple[Op, ...]]
) -> list[tuple[Op, list[Effect], World]]:
    """What each operation leads to, apart from those that raise: they must change nothing."""
    steps: list[tuple[Op, list[Effect], World]] = []
    refused: list[Op] = []
    trial = world.copy()
    for op in world.operations(accepts):
        try:
            steps.append((op, trial.apply(op), trial))
        except CrushliteError:
            refused.append(op)
        else:
            trial = world.copy()
    # A refusal that changes something would also be in the trial of the next legal operation.
    for op in refused:
        with contextlib.suppress(CrushliteError):
            trial.apply(op)
            raise AssertionError(f"{op} was refused, and then it was not")
    assert trial.fingerprint() == world.fingerprint(), "a refusal changed the state"
    return steps


class ExplorationTest(unittest.TestCase):
    """Every order of up to nine operations over four runs and two sessions."""

    def explore_modes(self, modes: str, sessions: str) -> int:
        places = {"s": S, "o": OTHER}
        accepts = [(f"accept:{MODES[m]}", places[s]) for m, s in zip(modes, sessions, strict=True)]
        return explore([(accept,) for accept in accepts], 9)

    def test_three_mixed_runs_in_line_and_one_beside(self) -> None:
        self.assertGreater(self.explore_modes("qsqs", "ssso"), 1000)

    def test_an_interrupt_among_steering_runs(self) -> None:
        self.assertGreater(self.explore_modes("qsis", "ssss"), 1000)

    def test_a_reject_run_like_summarize_with_prompts_behind(self) -> None:
        self.assertGreater(self.explore_modes("rsqi", "ssos"), 1000)

    def test_two_lines_side_by_side(self) -> None:
        self.assertGreater(self.explore_modes("sisq", "soso"), 1000)

    def test_every_mix_of_modes_keeps_the_invariants_in_shorter_orders(self) -> None:
        any_mode = tuple((f"accept:{mode}", S) for mode in MODES.values())
        self.assertGreater(explore([any_mode] * 3, 6), 10_000)


class RandomWalkTest(unittest.TestCase):
    """Far beyond nine operations: long walks over more runs, reproducible by their seed."""

    def test_long_walks_keep_every_invariant_and_end_every_run_once(self) -> None:
        for seed in range(60):
            with self.subTest(seed=seed):
                self.walk(random.Random(seed), 200)

    def walk(self, rng: random.Random, steps: int) -> None:
        world = World(Runs(), {})
        endings: dict[str, int] = {}
        for _ in range(steps):
            mode, place = rng.choice(list(WhenBusy)).value, rng.choice(SESSIONS)
            accept = (f"accept:{mode}", place)
            accepts: list[tuple[tuple[str, str], ...]] = [(accept,)] * (len(world.seen) + 1)
            ops = [op for op in world.operations(accepts) if op[0] not in ("close", "drop")]
            ops += [("close", "")] * (rng.random() < 0.01) + [("drop", place)] * (
                rng.random() < 0.01
            )
            before = world.copy()
            op = rng.choice([*ops, accept])
            try:
                effects = world.apply(op)
            except CrushliteError:
                self.assertEqual(world.fingerprint(), before.fingerprint())
                continue
            check_step(before, op, effects, world)
            check_state(world)
            for effect in effects:
                if isinstance(effect, Record):
                    for run in (effect.run, *effect.riders):
                        endings[run.run_id] = endings.get(run.run_id, 0) + 1
        self.assertLessEqual(set(endings.values()), {1})
