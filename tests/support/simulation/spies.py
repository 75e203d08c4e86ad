"""Tell the ledger what the product does, from inside: who was accepted, hit and recorded, and what
was published. The product itself has no hooks for tests: its machine of runs and its hub are
replaced by subclasses that do what they always do, for as long as a simulation runs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.events import Hub
from crushlite.hosting import runner as runner_module, workspace_base
from crushlite.hosting.backend import Backend
from crushlite.hosting.runner import Runner
from crushlite.http import client as http_client
from crushlite.protocol.events import to_json
from crushlite.runs import Runs, WhenBusy
from tests.support.simulation import invariants
from tests.support.simulation.ledger import HubFacts, Published, Request, RunFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crushlite.events import Subscriber
    from crushlite.protocol.messages import Prompt
    from crushlite.runs import Canceled, Effect, Outcome, Record, Run
    from tests.support.simulation.ledger import Ledger


@contextlib.contextmanager
def spies(ledger: Ledger) -> Iterator[None]:
    """Put the subclasses in place. What a mutant has broken in their base classes stays broken."""
    numbers = itertools.count()
    accept, attach = Runner.accept, Backend.attach

    def accept_prompt(self: Runner, prompt: Prompt) -> Any:
        ledger.accepting = prompt.prompt
        try:
            return accept(self, prompt)
        finally:
            ledger.accepting = None

    def note_attach(self: Backend, workspace_id: str, client: str, **options: Any) -> Subscriber:
        hub = self.get(workspace_id).hub
        subscriber = attach(self, workspace_id, client, **options)
        ledger.attached[client] = (hub.epoch, hub.current)
        return subscriber

    def number(self: Any) -> int:
        """A hash that is the same in every process."""
        found: int = self.__dict__.setdefault("_simulated_number", next(numbers))
        return found

    runs, hub = functools.partial(SpiedRuns, ledger), functools.partial(SpiedHub, ledger)
    with (
        mock.patch.object(runner_module, "Runs", runs),
        mock.patch.object(workspace_base, "Hub", hub),
        mock.patch.object(Runner, "accept", accept_prompt),
        mock.patch.object(Backend, "attach", note_attach),
        mock.patch.object(http_client._PooledConnection, "__hash__", number, create=True),
        _logs(ledger),
    ):
        yield


class SpiedRuns(Runs):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def _facts(self, run: Run) -> RunFacts:
        return self._ledger.runs[run]

    def _line(self, session_id: str) -> list[RunFacts]:
        return self._ledger.line(self, session_id)

    def accept(
        self,
        session_id: str,
        run_id: str,
        when_busy: WhenBusy = WhenBusy.QUEUE,
        **options: Any,
    ) -> Run:
        run = super().accept(session_id, run_id, when_busy, **options)
        ledger = self._ledger
        if run not in ledger.runs:
            facts = RunFacts(run_id, session_id, ledger.accepting, ledger.life, self)
            ledger.runs[run] = facts
            ledger.by_id.setdefault(run_id, []).append(facts)
            ledger.trace.add(f"accepted {facts} {when_busy.value}")
        return run

    def durable(self, run: Run) -> list[Effect]:
        facts = self._facts(run)
        facts.durable = True
        self._ledger.check(invariants.a_prompt_is_promised_once, facts)
        if run.doom is None and run.when_busy is WhenBusy.INTERRUPT:
            line = self._line(run.session_id)
            self._hit([one for one in line[: line.index(facts)] if not one.finished])
        return super().durable(run)

    def withdraw(self, run: Run) -> list[Effect]:
        self._facts(run).withdrawn = True
        self._ledger.counts["withdrawn"] += 1
        return super().withdraw(run)

    def cancel(self, session_id: str) -> Canceled:
        live = [run for run in self._line(session_id) if not run.over]
        return self._note_receipt(live, super().cancel(session_id))

    def cancel_run(self, run: Run) -> Canceled:
        facts = self._facts(run)
        live = [] if facts.over else [facts]
        queued = run in self.queued(run.session_id)
        canceled = self._note_receipt(live, super().cancel_run(run))
        facts.cleared = facts.cleared or queued
        return canceled

    def _note_receipt(self, live: list[RunFacts], canceled: Canceled) -> Canceled:
        listed = [self._facts(run) for run, _ in canceled.receipt]
        self._ledger.counts.update(f"canceled while {was}" for _, was in canceled.receipt)
        self._ledger.check(invariants.a_receipt_lists_what_is_live, live, listed)
        self._hit(listed)
        return canceled

    def _hit(self, runs: list[RunFacts]) -> None:
        for run in runs:
            if run.hit_at is None:
                run.hit_at = self._ledger.now

    def clear(self, session_id: str) -> list[Effect]:
        for run in self.queued(session_id):
            self._facts(run).cleared = True
        return super().clear(session_id)

    def remove(self, run: Run) -> list[Effect]:
        effects = super().remove(run)
        self._facts(run).cleared = True
        return effects

    def fold(self, run: Run) -> tuple[Run, ...]:
        riders = super().fold(run)
        for rider in riders:
            self._facts(rider).carrier = self._facts(run)
            self._ledger.counts["folded"] += 1
        return riders

    def _together(self, run: Run) -> list[RunFacts]:
        """A run and its riders."""
        facts = self._facts(run)
        line = self._line(run.session_id)
        return [one for one in line if one is facts or one.carrier is facts]

    def finish(self, run: Run, outcome: Outcome) -> Record:
        for one in self._together(run):
            one.finished = True
        return super().finish(run, outcome)

    def recorded(self, run: Run) -> list[Effect]:
        for one in self._together(run):
            one.recorded = True
        return super().recorded(run)


class SpiedHub(Hub):
    def __init__(self, ledger: Ledger, **options: Any) -> None:
        super().__init__(**options)
        self._ledger = ledger
        self.facts = ledger.hubs[self.epoch] = HubFacts(self.epoch)

    def close(self) -> None:
        self._ledger.check(invariants.a_workspace_in_use_stays_open, self.facts)
        super().close()

    def publish(
        self, action: str, payload: object, *, growth: bool = False, more: bool = False
    ) -> int:
        if not self.closed and not self._ledger.muted:
            wire = to_json(action, payload)
            kind, body = wire["type"], wire["payload"]["payload"]
            skippable = growth or kind == "tool_output"
            event = Published(self.current + 1, kind, action, body, skippable)
            # Noted before it is sent: a stream may deliver it within the call.
            self.facts.events.append(event)
            self._ledger.counts[f"event {kind}"] += 1
            note = getattr(self, f"_note_{kind}", None)
            if note is not None:
                note(event)
        return super().publish(action, payload, growth=growth, more=more)

    def _note_message(self, event: Published) -> None:
        hub, body = self.facts, event.body
        self._ledger.check(invariants.no_message_event_follows_its_ending, hub, event)
        if event.action == "deleted":
            hub.messages.pop(body["id"], None)
        else:
            self._ledger.check(invariants.a_message_is_created_once, hub, event)
            hub.messages[body["id"]] = body

    def _note_permission_request(self, event: Published) -> None:
        self._ledger.check(invariants.a_grant_for_the_session_is_kept, self.facts, event.body)

    def _note_permission_notification(self, event: Published) -> None:
        body = event.body
        self._note_request(
            self._ledger.permissions,
            body["tool_call_id"],
            self._ledger.askers.get(body["tool_call_id"], ""),
            "granted" if body.get("granted") else "denied" if body.get("denied") else "awaiting",
        )

    def _note_question_batch_request(self, event: Published) -> None:
        run_id = self._ledger.askers.get(event.body["tool_call_id"], "")
        self._note_request(self._ledger.questions, event.body["id"], run_id, "awaiting")

    def _note_question_batch_notification(self, event: Published) -> None:
        self._note_request(self._ledger.questions, event.body["batch_id"], "", "denied")

    def _note_request(self, requests: dict[str, Request], key: str, run_id: str, step: str) -> None:
        request = requests.setdefault(key, Request(run_id))
        setattr(request, step, getattr(request, step) + 1)
        self._ledger.check(invariants.a_request_is_decided_once, key, request)

    def _note_run_complete(self, event: Published) -> None:
        ledger, body = self._ledger, event.body
        ledger.trace.add(f"run_complete {body}")
        ledger.check(invariants.only_what_was_promised_ends_and_once, body)
        run = ledger.run(body["run_id"])
        if run is None or ledger.violations:
            return
        run.completion = body
        for invariant in invariants.AT_AN_ENDING:
            ledger.check(invariant, self.facts, run, body)
        if body.get("message_id"):
            self._freeze(run)

    def _freeze(self, run: RunFacts) -> None:
        """The messages of a turn that has ended change no more, and are on disk."""
        hub = self.facts
        for body in hub.of_session(run.session_id):
            if body["id"] not in hub.frozen:
                hub.frozen.add(body["id"])
                if not run.not_saved:
                    self._ledger.settled.setdefault(run.session_id, {})[body["id"]] = body


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
    with contextlib.ExitStack() as stack:
        for logger in (logging.getLogger("crushlite"), logging.getLogger("asyncio")):
            stack.callback(logger.setLevel, logger.level)
            stack.callback(setattr, logger, "propagate", logger.propagate)
            stack.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
        yield
