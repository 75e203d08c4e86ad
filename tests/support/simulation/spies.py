"""Tell the ledger what the product does, from inside: who was accepted, hit and recorded, and what
was published. The product itself has no hooks for tests: methods are wrapped for as long as a
simulation runs, and do what they always do."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.events import Hub
from crushlite.hosting.backend import Backend
from crushlite.hosting.runner import Runner
from crushlite.http import client as http_client
from crushlite.protocol.events import to_json
from crushlite.runs import Outcome, Runs, WhenBusy
from tests.support.simulation import invariants
from tests.support.simulation.ledger import HubFacts, Published, Request, RunFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crushlite.events import Subscriber
    from crushlite.protocol.messages import Prompt
    from crushlite.runs import Canceled, Effect, Record, Run
    from tests.support.simulation.ledger import Ledger

Wrapper = tuple[type, str, "Callable[..., Any]"]


@contextlib.contextmanager
def spies(ledger: Ledger) -> Iterator[None]:
    """Wrap the product's methods. What was wrapped before, by a test that breaks something, stays
    as it is underneath."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrapper in _wrappers(ledger):
            original = getattr(owner, name)
            wrapped = functools.wraps(original)(functools.partial(wrapper, original))
            stack.enter_context(mock.patch.object(owner, name, _method(wrapped)))
        stack.enter_context(
            mock.patch.object(http_client._PooledConnection, "__hash__", _numbered(), create=True)
        )
        stack.enter_context(_logs(ledger))
        yield


def _method(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapped(self, *args, **kwargs)

    return call


def _numbered() -> Callable[[Any], int]:
    """A hash in the order of first use, the same in every process."""
    numbers: dict[int, int] = {}

    def number(self: Any) -> int:
        known: int = self.__dict__.setdefault("_simulated_number", len(numbers))
        numbers.setdefault(known, known)
        return known

    return number


def _wrappers(ledger: Ledger) -> list[Wrapper]:
    machine = _MachineSpy(ledger)
    hub = _HubSpy(ledger)
    return [
        (Runner, "accept", machine.accept_prompt),
        (Runs, "accept", machine.accept),
        (Runs, "durable", machine.durable),
        (Runs, "withdraw", machine.withdraw),
        (Runs, "cancel", machine.cancel),
        (Runs, "cancel_run", machine.cancel_run),
        (Runs, "clear", machine.clear),
        (Runs, "remove", machine.remove),
        (Runs, "fold", machine.fold),
        (Runs, "finish", machine.finish),
        (Runs, "recorded", machine.recorded),
        (Hub, "publish", hub.publish),
        (Hub, "close", hub.close),
        (Backend, "attach", hub.attach),
    ]


class _MachineSpy:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def accept_prompt(self, original: Any, runner: Runner, prompt: Prompt) -> Any:
        self._ledger.accepting = prompt.prompt
        try:
            return original(runner, prompt)
        finally:
            self._ledger.accepting = None

    def accept(
        self,
        original: Any,
        machine: Runs,
        session_id: str,
        run_id: str,
        when_busy: WhenBusy = WhenBusy.QUEUE,
        **options: Any,
    ) -> Run:
        ledger = self._ledger
        run: Run = original(machine, session_id, run_id, when_busy, **options)
        if run not in ledger.runs:
            text = ledger.accepting
            facts = RunFacts(run_id, session_id, text, when_busy.value, ledger.life, machine)
            ledger.runs[run] = facts
            ledger.by_id.setdefault(run_id, []).append(facts)
            ledger.trace.add(f"accepted {facts} {when_busy.value}")
        return run

    def durable(self, original: Any, machine: Runs, run: Run) -> list[Effect]:
        facts = self._ledger.runs[run]
        facts.durable = True
        self._ledger.check(invariants.a_prompt_is_promised_once, facts)
        if run.doom is None and run.when_busy is WhenBusy.INTERRUPT:
            line = self._ledger.line(machine, run.session_id)
            self._hit([one for one in line[: line.index(facts)] if not one.finished])
        effects: list[Effect] = original(machine, run)
        return effects

    def withdraw(self, original: Any, machine: Runs, run: Run) -> list[Effect]:
        self._ledger.runs[run].withdrawn = True
        self._ledger.counts["withdrawn"] += 1
        effects: list[Effect] = original(machine, run)
        return effects

    def cancel(self, original: Any, machine: Runs, session_id: str) -> Canceled:
        live = [run for run in self._ledger.line(machine, session_id) if not run.over]
        return self._cancel(live, original(machine, session_id))

    def cancel_run(self, original: Any, machine: Runs, run: Run) -> Canceled:
        facts = self._ledger.runs[run]
        queued = run in machine.queued(run.session_id)
        canceled = self._cancel([] if facts.over else [facts], original(machine, run))
        if queued:
            facts.cleared = True
        return canceled

    def _cancel(self, live: list[RunFacts], canceled: Canceled) -> Canceled:
        listed = [self._ledger.runs[run] for run, _ in canceled.receipt]
        self._ledger.check(invariants.a_receipt_lists_what_is_live, live, listed)
        self._hit(listed)
        return canceled

    def _hit(self, runs: list[RunFacts]) -> None:
        for run in runs:
            if run.hit_at is None:
                run.hit_at = self._ledger.now

    def clear(self, original: Any, machine: Runs, session_id: str) -> list[Effect]:
        for run in machine.queued(session_id):
            self._ledger.runs[run].cleared = True
        effects: list[Effect] = original(machine, session_id)
        return effects

    def remove(self, original: Any, machine: Runs, run: Run) -> list[Effect]:
        effects: list[Effect] = original(machine, run)
        self._ledger.runs[run].cleared = True
        return effects

    def fold(self, original: Any, machine: Runs, run: Run) -> tuple[Run, ...]:
        riders: tuple[Run, ...] = original(machine, run)
        for rider in riders:
            self._ledger.runs[rider].carrier = self._ledger.runs[run]
            self._ledger.counts["folded"] += 1
        return riders

    def finish(self, original: Any, machine: Runs, run: Run, outcome: Outcome) -> Record:
        facts = self._ledger.runs[run]
        for one in self._ledger.line(machine, run.session_id):
            if one is facts or one.carrier is facts:
                one.finished = True
        record: Record = original(machine, run, outcome)
        return record

    def recorded(self, original: Any, machine: Runs, run: Run) -> list[Effect]:
        facts = self._ledger.runs[run]
        for one in self._ledger.line(machine, run.session_id):
            if one is facts or one.carrier is facts:
                one.recorded = True
        effects: list[Effect] = original(machine, run)
        return effects


class _HubSpy:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def attach(self, original: Any, backend: Backend, workspace_id: str, client: str, **options: Any) -> Subscriber:
        hub = backend.get(workspace_id).hub
        subscriber: Subscriber = original(backend, workspace_id, client, **options)
        self._ledger.attached[client] = (hub.epoch, hub.current)
        return subscriber

    def close(self, original: Any, hub: Hub) -> None:
        original(hub)
        self.facts(hub).closed = True

    def facts(self, hub: Hub) -> HubFacts:
        return self._ledger.hubs.setdefault(hub.epoch, HubFacts(hub.epoch))

    def publish(
        self, original: Any, hub: Hub, action: str, payload: object, *, growth: bool = False
    ) -> int:
        wire = to_json(action, payload)
        if not hub.closed:
            # Before it is sent: a stream may deliver it within the call.
            event = Published(
                hub.current + 1, wire["type"], action, wire["payload"]["payload"],
                growth or wire["type"] == "tool_output",
            )
            self._note(self.facts(hub), event)
        seq: int = original(hub, action, payload, growth=growth)
        return seq

    def _note(self, hub: HubFacts, event: Published) -> None:
        if self._ledger.muted:
            return
        hub.events.append(event)
        self._ledger.counts[f"event {event.kind}"] += 1
        note = getattr(self, f"_note_{event.kind}", None)
        if note is not None:
            note(hub, event)

    def _note_message(self, hub: HubFacts, event: Published) -> None:
        body = event.body
        self._ledger.check(invariants.no_message_event_follows_its_ending, hub, event)
        if event.action == "deleted":
            hub.messages.pop(body["id"], None)
        else:
            self._ledger.check(invariants.a_message_is_created_once, hub, event)
            hub.messages[body["id"]] = body

    def _note_session(self, hub: HubFacts, event: Published) -> None:
        if event.action == "deleted":
            hub.sessions.pop(event.body["id"], None)
        else:
            hub.sessions[event.body["id"]] = event.body

    def _note_permission_notification(self, hub: HubFacts, event: Published) -> None:
        call_id = event.body["tool_call_id"]
        run_id = self._ledger.askers.get(call_id, "")
        request = self._ledger.permissions.setdefault(call_id, Request(run_id))
        request.granted += bool(event.body.get("granted"))
        request.denied += bool(event.body.get("denied"))
        request.awaiting += not event.body.get("granted") and not event.body.get("denied")
        self._ledger.check(invariants.a_request_is_decided_once, call_id, request)

    def _note_question_batch_request(self, hub: HubFacts, event: Published) -> None:
        run_id = self._ledger.askers.get(event.body["tool_call_id"], "")
        request = self._ledger.questions.setdefault(event.body["id"], Request(run_id))
        request.awaiting += 1
        self._ledger.check(invariants.a_request_is_decided_once, event.body["id"], request)

    def _note_question_batch_notification(self, hub: HubFacts, event: Published) -> None:
        batch_id = event.body["batch_id"]
        request = self._ledger.questions.setdefault(batch_id, Request(""))
        request.denied += 1
        self._ledger.check(invariants.a_request_is_decided_once, batch_id, request)

    def _note_run_complete(self, hub: HubFacts, event: Published) -> None:
        ledger, body = self._ledger, event.body
        ledger.trace.add(f"run_complete {body}")
        ledger.check(invariants.only_what_was_promised_ends_and_once, body)
        run = ledger.run(body["run_id"])
        if run is None or ledger.violations:
            return
        run.completion = body
        for invariant in invariants.AT_AN_ENDING:
            ledger.check(invariant, hub, run)
        if body.get("message_id"):
            self._freeze(hub, run)

    def _freeze(self, hub: HubFacts, run: RunFacts) -> None:
        """The messages of a turn that has ended change no more, and are on disk."""
        for body in hub.of_session(run.session_id):
            if body["id"] not in hub.frozen:
                hub.frozen.add(body["id"])
                if not run.not_saved:
                    self._ledger.settled.setdefault(run.session_id, {})[body["id"]] = body


# Logs -------------------------------------------------------------------------------------------


class _LogSpy(logging.Handler):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__(logging.WARNING)
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        ledger = self._ledger
        if ledger.muted:
            return
        text = record.getMessage()
        ledger.trace.add(f"{record.levelname} {record.name}: {text}")
        if record.levelno >= logging.ERROR:
            if record.exc_info and record.exc_info[1] is not None:
                text += f" ({record.exc_info[1]!r})"
            ledger.check(invariants.no_error_is_logged_but_the_expected, text)


@contextlib.contextmanager
def _logs(ledger: Ledger) -> Iterator[None]:
    handler = _LogSpy(ledger)
    loggers = [logging.getLogger(name) for name in ("crushlite", "asyncio")]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate, _ = propagate, logger.setLevel(level)
