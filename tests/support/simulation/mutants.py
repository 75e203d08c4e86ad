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
from crushlite.runs import Outcome, Runs, RunState, Start
from crushlite.store import recovery, writer
from crushlite.store.writer import Writer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def _patch(owner: Any, name: str, make: Any) -> AbstractContextManager[Any]:
    """Replace a method by what `make` makes of it."""
    return mock.patch.object(owner, name, make(getattr(owner, name)))


def cancel_misses_what_is_not_committed() -> AbstractContextManager[Any]:
    return _patch(
        Runs, "_doom", lambda doom: lambda self, runs: doom(self, [r for r in runs if r.durable])
    )


def record_of_a_waiting_run_is_lost() -> AbstractContextManager[Any]:
    def settle(original: Any) -> Any:
        def settled(self: Runs, session_id: str) -> Any:
            effects = original(self, session_id)
            lost = [e for e in effects if getattr(e, "outcome", None) is Outcome.CANCELED]
            return [effect for effect in effects if effect not in lost]

        return settled

    return _patch(Runs, "_settle", settle)


def next_run_starts_before_an_ending_is_saved() -> AbstractContextManager[Any]:
    def unsaved(original: Any) -> Any:
        def effects(self: Runs, run: Any) -> Any:
            found = original(self, run)
            behind = [one for one in self._lines[run.session_id] if one.state is RunState.ACCEPTED]
            if behind and behind[0].durable and behind[0].doom is None and not found:
                self._move(behind[0], "start")
                behind[0].started = True
                found = [Start(behind[0])]
            return found

        return effects

    return _patch(Runs, "unsaved", unsaved)


def agent_that_ignores_its_cancel_is_never_given_up() -> AbstractContextManager[Any]:
    return mock.patch.object(Runner, "_stop", lambda self, live: live.agent_task.cancel())


def prompt_is_answered_before_its_commit() -> AbstractContextManager[Any]:
    async def committed(self: LiveRun) -> bool:
        return True

    return mock.patch.object(LiveRun, "committed", committed)


def promise_is_not_flushed() -> AbstractContextManager[Any]:
    return mock.patch.object(writer, "_SAFE", "NORMAL")


def commits_are_reordered() -> AbstractContextManager[Any]:
    return _patch(
        Writer, "_commit", lambda commit: lambda self, batch: commit(self, list(reversed(batch)))
    )


def repeated_prompt_runs_again() -> AbstractContextManager[Any]:
    return mock.patch.object(Runner, "_is_ownerless", lambda self, row: True)


def queued_prompt_is_not_recovered() -> AbstractContextManager[Any]:
    def recover_run(original: Any) -> Any:
        def recovered(conn: Any, scope: str, row: Any, now: float) -> None:
            if row.user_message_id:
                original(conn, scope, row, now)

        return recovered

    return _patch(recovery, "_recover_run", recover_run)


def turn_is_left_open_at_its_end() -> AbstractContextManager[Any]:
    return mock.patch.object(LiveTurn, "close", lambda self, outcome, failure: None)


def event_is_delivered_twice() -> AbstractContextManager[Any]:
    def flush(original: Any) -> Any:
        def flushed(self: Hub) -> None:
            if len(self._batch) > 1:
                self._batch.append(self._batch[-1])
            original(self)

        return flushed

    return _patch(Hub, "flush", flush)


def stream_resumes_one_event_too_late() -> AbstractContextManager[Any]:
    def since(original: Any) -> Any:
        def replay(self: Hub, last_id: str | None) -> Any:
            start, events = original(self, last_id)
            return start, events[1:] if start is not None else events

        return replay

    return _patch(Hub, "_since", since)


def event_overtakes_another() -> AbstractContextManager[Any]:
    def flush(original: Any) -> Any:
        def flushed(self: Hub) -> None:
            self._batch.reverse()
            original(self)

        return flushed

    return _patch(Hub, "flush", flush)


def grant_for_the_session_is_forgotten() -> AbstractContextManager[Any]:
    def resolve(original: Any) -> Any:
        def resolved(self: Permissions, request_id: str, action: str, *rest: Any) -> Any:
            once = "allow" if action == "allow_session" else action
            return original(self, request_id, once, *rest)

        return resolved

    return _patch(Permissions, "resolve", resolve)


def two_rivals_both_win() -> AbstractContextManager[Any]:
    def resolve(original: Any) -> Any:
        def resolved(self: Permissions, *args: Any) -> Resolution:
            original(self, *args)
            return Resolution(True, "")

        return resolved

    return _patch(Permissions, "resolve", resolve)


def request_outlives_its_run() -> AbstractContextManager[Any]:
    return mock.patch.object(Permissions, "close_run", lambda self, run_id: None)


def claim_of_a_closed_stream_stays() -> AbstractContextManager[Any]:
    return mock.patch.object(Claims, "detach", lambda self, workspace_id, client: [])


MUTANTS = {
    make.__name__: make
    for make in (
        cancel_misses_what_is_not_committed,
        record_of_a_waiting_run_is_lost,
        next_run_starts_before_an_ending_is_saved,
        agent_that_ignores_its_cancel_is_never_given_up,
        prompt_is_answered_before_its_commit,
        promise_is_not_flushed,
        commits_are_reordered,
        repeated_prompt_runs_again,
        queued_prompt_is_not_recovered,
        turn_is_left_open_at_its_end,
        event_is_delivered_twice,
        stream_resumes_one_event_too_late,
        event_overtakes_another,
        grant_for_the_session_is_forgotten,
        two_rivals_both_win,
        request_outlives_its_run,
        claim_of_a_closed_stream_stays,
    )
}
