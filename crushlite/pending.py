"""Permissions and questions: one first-wins machine for everything that waits for a person.

A request is *waiting* behind an earlier one of its lane, *open* (listed, addressable, answerable),
or *closed*. A lane is a session for permissions and the whole workspace for questions: within a
lane requests open one by one, in order. Closing is a single synchronous step, so of any number of
answers, a cancel and a timeout exactly one wins; the winner's notification goes out before the
waiting tool wakes.

The answer of a client is bound to the request as it was stored here: nothing a client sends back
except the id is believed.

The *stream* shows one permission request per workspace, the oldest open one, because the Crush UI
has one dialog and a second request would replace it under the user's finger. Clients that can show
several read the list when an awaiting notification arrives.

Backpressure: none needed. Every open request belongs to a live run, a session has one active run,
and everything a run left open is closed when it ends.

Knows nothing of: runs, tasks, the store, HTTP. Notifications leave through `publish`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from crushlite.errors import BadRequest, RequestNotFound
from crushlite.protocol.permissions import (
    ACTIONS,
    PermissionNotification,
    PermissionRequest,
    Resolution,
)
from crushlite.protocol.questions import QUESTION_TYPES, QuestionBatch, QuestionNotification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crushlite.clock import Clock, Timer
    from crushlite.protocol.questions import Question, QuestionResponse

__all__ = ["Allowed", "Denied", "Permissions", "Questions", "check_questions"]

R = TypeVar("R", bound=PermissionRequest | QuestionBatch)
A = TypeVar("A")

REMEMBERED = 1024  # closed ids kept, so that a late answer learns who was first


class _Entry(Generic[R, A]):
    __slots__ = ("answer", "by", "is_open", "lane", "request", "run_id", "timer")

    def __init__(self, request: R, lane: str, run_id: str) -> None:
        self.request = request
        self.lane = lane
        self.run_id = run_id
        self.answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self.is_open = False
        self.by = ""
        self.timer: Timer | None = None


class _Desk(Generic[R, A]):
    """The machine: lanes of entries, first close wins."""

    def __init__(
        self,
        on_open: Callable[[_Entry[R, A]], None],
        on_close: Callable[[_Entry[R, A], A], None],
    ) -> None:
        self._on_open = on_open
        self._on_close = on_close
        self._entries: OrderedDict[str, _Entry[R, A]] = OrderedDict()  # waiting and open
        self._closed: OrderedDict[str, str] = OrderedDict()  # id -> who answered

    def open_entries(self) -> list[_Entry[R, A]]:
        return [entry for entry in self._entries.values() if entry.is_open]

    def find(self, request_id: str) -> _Entry[R, A] | None:
        entry = self._entries.get(request_id)
        return entry if entry is not None and entry.is_open else None

    def winner(self, request_id: str) -> str | None:
        """Who answered a closed request; None if this id was never open here."""
        return self._closed.get(request_id)

    async def wait(self, request: R, lane: str, run_id: str, dropped: A) -> A:
        """Stand in the lane until answered. `dropped` is recorded if the wait is cancelled."""
        entry: _Entry[R, A] = _Entry(request, lane, run_id)
        self._entries[request.id] = entry
        self._open_next(lane)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            self.close(entry, dropped)
            raise

    def close(self, entry: _Entry[R, A], answer: A, by: str = "") -> bool:
        """Decide an entry; False if it was decided already."""
        if self._entries.pop(entry.request.id, None) is None:
            return False
        entry.by = by
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.is_open:
            self._closed[entry.request.id] = by
            if len(self._closed) > REMEMBERED:
                self._closed.popitem(last=False)
            self._on_close(entry, answer)
        if not entry.answer.done():
            entry.answer.set_result(answer)
        self._open_next(entry.lane)
        return True

    def close_run(self, run_id: str, dropped: A) -> None:
        """Close whatever a run left behind."""
        # Waiting ones first, so that closing the open one does not open a dead one for an instant.
        mine = [entry for entry in self._entries.values() if entry.run_id == run_id]
        for entry in sorted(mine, key=lambda entry: entry.is_open):
            self.close(entry, dropped)

    def _open_next(self, lane: str) -> None:
        first = next((e for e in self._entries.values() if e.lane == lane), None)
        if first is not None and not first.is_open:
            first.is_open = True
            self._on_open(first)


class Allowed:
    """A granted permission."""

    reason = ""


class Denied:
    """A refused permission and the reason, which goes to the model."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class Permissions:
    """The permission requests of one workspace.

    `policy(tool, action)` is the configured allow-list. `unattended` is how long a request may
    stand while `interactive()` is false before it is denied; None waits for ever.
    """

    def __init__(
        self,
        publish: Callable[[str, object], object],
        *,
        clock: Clock,
        interactive: Callable[[], bool] = lambda: True,
        policy: Callable[[str, str], bool] = lambda tool, action: False,
        unattended: float | None = None,
    ) -> None:
        self.skip = False
        self._publish = publish
        self._clock = clock
        self._interactive = interactive
        self._policy = policy
        self._unattended = unattended
        self._desk: _Desk[PermissionRequest, Allowed | Denied] = _Desk(self._opened, self._closed)
        self._shown: str | None = None  # the id of the request on the stream
        self._granted: set[tuple[str, str, str, str]] = set()

    async def ask(self, request: PermissionRequest, run_id: str) -> Allowed | Denied:
        """Decide a tool's request: by policy, by memory, or by whoever answers first."""
        if self.skip or self._policy(request.tool_name, request.action):
            return Allowed()
        request = replace(request, id=str(uuid.uuid4()))
        return await self._desk.wait(
            request, request.session_id, run_id, Denied("the run was canceled")
        )

    def listed(self) -> list[PermissionRequest]:
        """Open requests, the one on the stream first, then oldest first."""
        entries = self._desk.open_entries()
        entries.sort(key=lambda entry: entry.request.id != self._shown)
        return [entry.request for entry in entries]

    def on_stream(self) -> PermissionRequest | None:
        entry = self._desk.find(self._shown) if self._shown is not None else None
        return entry.request if entry is not None else None

    def resolve(self, request_id: str, action: str, by: str = "", reason: str = "") -> Resolution:
        """Answer a request. `resolved` is false when somebody was first or the id is unknown."""
        if action not in ACTIONS:
            raise BadRequest(f"invalid permission action {action!r}: use {', '.join(ACTIONS)}")
        entry = self._desk.find(request_id)
        if entry is None:
            return Resolution(False, self._desk.winner(request_id) or "")
        if action == "allow_session":
            self._granted.add(_key(entry.request))
        answer = Denied(reason) if action == "deny" else Allowed()
        self._desk.close(entry, answer, by)
        return Resolution(True, by)

    def require_known(self, request_id: str) -> None:
        if self._desk.find(request_id) is None and self._desk.winner(request_id) is None:
            raise RequestNotFound(f"no permission request {request_id}: list W/permissions")

    def close_run(self, run_id: str) -> None:
        self._desk.close_run(run_id, Denied("the run has ended"))

    def forget_session(self, session_id: str) -> None:
        """A deleted session's grants must not outlive it."""
        self._granted = {key for key in self._granted if key[0] != session_id}

    def _opened(self, entry: _Entry[PermissionRequest, Allowed | Denied]) -> None:
        request = entry.request
        self._publish("created", PermissionNotification(request.tool_call_id))
        if _key(request) in self._granted:
            self._desk.close(entry, Allowed())
            return
        self._show_next()
        if self._unattended is not None:
            self._arm(entry, self._unattended)

    def _closed(
        self, entry: _Entry[PermissionRequest, Allowed | Denied], answer: Allowed | Denied
    ) -> None:
        granted = isinstance(answer, Allowed)
        self._publish(
            "created",
            PermissionNotification(entry.request.tool_call_id, granted=granted, denied=not granted),
        )
        if self._shown == entry.request.id:
            self._shown = None
            self._show_next()

    def _show_next(self) -> None:
        if self._shown is None:
            for entry in self._desk.open_entries():
                self._shown = entry.request.id
                self._publish("created", entry.request)
                break

    def _arm(self, entry: _Entry[PermissionRequest, Allowed | Denied], seconds: float) -> None:
        def lapse() -> None:
            if self._interactive():
                # Somebody is there now; look again later in case they leave.
                self._arm(entry, max(seconds, 1.0))
            else:
                why = "denied: no interactive client answered"
                self._desk.close(entry, Denied(why), "unattended")

        entry.timer = self._clock.call_later(seconds, lapse)


def _key(request: PermissionRequest) -> tuple[str, str, str, str]:
    return (request.session_id, request.tool_name, request.action, request.path)


class Questions:
    """The question batches of one workspace, open one at a time, in order."""

    def __init__(self, publish: Callable[[str, object], object]) -> None:
        self._publish = publish
        self._desk: _Desk[QuestionBatch, list[QuestionResponse] | None] = _Desk(
            self._opened, self._closed
        )

    async def ask(self, batch: QuestionBatch, run_id: str) -> list[QuestionResponse] | None:
        """Show a form and wait; None when it was dismissed."""
        check_questions(batch.questions)
        questions = [replace(q, id=str(uuid.uuid4())) for q in batch.questions]
        stored = replace(batch, id=str(uuid.uuid4()), questions=questions)
        if len(questions) > 1:
            stored.confirm_title = batch.confirm_title or "Send these answers?"
            stored.confirm_description = (
                batch.confirm_description or "The agent goes on when you confirm."
            )
        answers = await self._desk.wait(stored, "", run_id, None)
        return None if answers is None else _in_order(batch.questions, questions, answers)

    def listed(self) -> list[QuestionBatch]:
        return [entry.request for entry in self._desk.open_entries()]

    def answer(self, batch_id: str, responses: list[QuestionResponse], by: str = "") -> Resolution:
        """Answer the open batch: by id, or, as the Crush client does, by its question ids."""
        entry = self._desk.find(batch_id) if batch_id else self._holding(responses)
        if entry is None:
            return Resolution(False, self._desk.winner(batch_id) or "")
        asked = {question.id for question in entry.request.questions}
        unknown = [r.request_id for r in responses if r.request_id not in asked]
        if unknown:
            raise BadRequest(f"question {unknown[0]!r} is not part of batch {entry.request.id}")
        self._desk.close(entry, list(responses), by)
        return Resolution(True, by)

    def cancel(self, batch_id: str = "", by: str = "") -> Resolution:
        """Dismiss a batch, or whichever is open."""
        entries = self._desk.open_entries()
        entry = self._desk.find(batch_id) if batch_id else next(iter(entries), None)
        if entry is None:
            return Resolution(False, self._desk.winner(batch_id) or "")
        self._desk.close(entry, None, by)
        return Resolution(True, by)

    def require_known(self, batch_id: str) -> None:
        if self._desk.find(batch_id) is None and self._desk.winner(batch_id) is None:
            raise RequestNotFound(f"no question batch {batch_id}: list W/questions")

    def close_run(self, run_id: str) -> None:
        self._desk.close_run(run_id, None)

    def _holding(
        self, responses: list[QuestionResponse]
    ) -> _Entry[QuestionBatch, list[QuestionResponse] | None] | None:
        named = {response.request_id for response in responses}
        for entry in self._desk.open_entries():
            if not named.isdisjoint(question.id for question in entry.request.questions):
                return entry
        return None

    def _opened(self, entry: _Entry[QuestionBatch, list[QuestionResponse] | None]) -> None:
        self._publish("created", entry.request)

    def _closed(
        self,
        entry: _Entry[QuestionBatch, list[QuestionResponse] | None],
        answer: list[QuestionResponse] | None,
    ) -> None:
        self._publish("created", QuestionNotification(entry.request.id))


def _in_order(
    asked: list[Question], minted: list[Question], answers: list[QuestionResponse]
) -> list[QuestionResponse]:
    """Answers in the order asked, under the asker's own ids where it gave any."""
    by_id = {answer.request_id: answer for answer in answers}
    return [
        replace(by_id[ours.id], request_id=theirs.id or ours.id)
        for theirs, ours in zip(asked, minted, strict=True)
        if ours.id in by_id
    ]


def check_questions(questions: list[Question]) -> None:
    """Refuse a form that no client could render; the text is for the model that wrote it."""
    if not 1 <= len(questions) <= 5:
        raise BadRequest(f"ask 1 to 5 questions at once, not {len(questions)}")
    for number, question in enumerate(questions, 1):
        problem = next(_problems(question), None)
        if problem is not None:
            raise BadRequest(f"question {number}: {problem}")


def _problems(question: Question) -> Iterator[str]:
    if question.type not in QUESTION_TYPES:
        yield f"type must be one of {', '.join(QUESTION_TYPES)}, not {question.type!r}"
    if not 0 < len(question.question) <= 240:
        yield "question is required and has at most 240 characters"
    if not 0 < len(question.description) <= 600:
        yield "description is required and has at most 600 characters"
    if question.type in ("single_choice", "multi_choice"):
        yield from _choice_problems(question)


def _choice_problems(question: Question) -> Iterator[str]:
    if not 2 <= len(question.choices) <= 5:
        yield f"give 2 to 5 choices, not {len(question.choices)}"
    ids = [choice.id for choice in question.choices]
    if not all(ids) or len(set(ids)) != len(ids):
        yield "every choice needs an id of its own"
    for choice in question.choices:
        if not 0 < len(choice.label) <= 200 or len(choice.description) > 200:
            yield f"choice {choice.id!r}: label is required, label and description have <= 200"
