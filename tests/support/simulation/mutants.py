"""Bugs that the simulation must find. Each breaks the product in one place while it is entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Claims
from crushlite.events import Hub
from crushlite.hosting.dialogs import Permissions
from crushlite.hosting.live_run import LiveRun
from crushlite.hosting.runner import Runner
from crushlite.hosting.turn import LiveTurn
from crushlite.protocol.permissions import Resolution
from crushlite.runs import Outcome, Record, Runs, RunState, Start
from crushlite.store import recovery, writer
from crushlite.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


def _mutant(owner: Any, name: str) -> Callable[[Any], Any]:
    """The decorated function replaces a function of the product, which is its first argument."""

    def register(function: Any) -> Any:
        original = getattr(owner, name)

        def broken(*args: Any, **options: Any) -> Any:
            return function(original, *args, **options)

        MUTANTS[function.__name__] = lambda: mock.patch.object(owner, name, broken)
        return function

    return register


MUTANTS["promise_is_not_flushed"] = lambda: mock.patch.object(writer, "_SAFE", "NORMAL")


@_mutant(Runs, "_doom")
def cancel_misses_what_is_not_committed(original: Any, self: Runs, runs: list[Any]) -> Any:
    return original(self, [run for run in runs if run.durable])


@_mutant(Runs, "_settle")
def record_of_a_waiting_run_is_lost(original: Any, self: Runs, session_id: str) -> Any:
    effects = original(self, session_id)
    return [one for one in effects if not isinstance(one, Record)]


@_mutant(Runs, "unsaved")
def next_run_starts_before_an_ending_is_saved(original: Any, self: Runs, run: Any) -> Any:
    effects = original(self, run)
    line = self._lines[run.session_id]
    behind = [one for one in line if one.state is RunState.ACCEPTED and one.durable]
    if not behind or behind[0].doom is not None or effects:
        return effects
    self._move(behind[0], "start")
    behind[0].started = True
    return [Start(behind[0])]


@_mutant(Runs, "finish")
def cancel_is_forgotten_when_the_agent_returns(
    original: Any, self: Runs, run: Any, outcome: Outcome
) -> Any:
    run.doom = None
    return original(self, run, outcome)


@_mutant(Runner, "_stop")
def agent_that_ignores_its_cancel_is_never_given_up(original: Any, self: Any, live: Any) -> Any:
    live.agent_task.cancel()


@_mutant(LiveRun, "committed")
async def prompt_is_answered_before_its_commit(original: Any, self: LiveRun) -> bool:
    return True


@_mutant(Writer, "_commit")
def commits_are_reordered(original: Any, self: Writer, batch: list[Any]) -> None:
    original(self, batch[::-1])


@_mutant(Runner, "_is_ownerless")
def repeated_prompt_runs_again(original: Any, self: Runner, row: Any) -> bool:
    return True


@_mutant(recovery, "_recover_run")
def queued_prompt_is_not_recovered(
    original: Any, conn: Any, scope: str, row: Any, *rest: Any
) -> None:
    if row.user_message_id:
        original(conn, scope, row, *rest)


@_mutant(LiveTurn, "close")
def turn_is_left_open_at_its_end(original: Any, self: Any, outcome: Any, failure: Any) -> None:
    pass


@_mutant(Hub, "flush")
def event_is_delivered_twice(original: Any, self: Hub) -> None:
    if len(self._batch) > 1:
        self._batch.append(self._batch[-1])
    original(self)


@_mutant(Hub, "flush")
def events_are_reordered(original: Any, self: Hub) -> None:
    self._batch.reverse()
    original(self)


@_mutant(Hub, "_since")
def stream_resumes_one_event_too_late(original: Any, self: Hub, last_id: str | None) -> Any:
    start, events = original(self, last_id)
    return start, events[1:] if start is not None else events


@_mutant(Permissions, "resolve")
def grant_for_the_session_is_forgotten(
    original: Any, self: Permissions, request_id: str, action: str, *rest: Any
) -> Any:
    return original(self, request_id, action.removesuffix("_session"), *rest)


@_mutant(Permissions, "resolve")
def two_rivals_both_win(original: Any, self: Permissions, *args: Any) -> Resolution:
    original(self, *args)
    return Resolution(True, "")


@_mutant(Permissions, "close_run")
def request_outlives_its_run(original: Any, self: Permissions, run_id: str) -> None:
    pass


@_mutant(Claims, "detach")
def claim_of_a_closed_stream_stays(original: Any, self: Claims, *args: str) -> list[Any]:
    return []


@_mutant(Claims, "attach")
def stream_is_no_claim(original: Any, self: Claims, *args: str) -> list[Any]:
    return []
