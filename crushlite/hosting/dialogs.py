"""Permissions and questions: one first-wins machine for everything that waits for a person.

A request is *waiting* behind an earlier one of its queue, *open* (listed, addressable, answerable),
or *closed*. Permissions have a queue for each session, questions one for the whole workspace; the
first of a queue is the open one. Closing is a single synchronous step, so of any number of answers,
a cancel and a timeout exactly one wins; its notification goes out before the waiting tool wakes.

Of what a client sends back only the id is believed. What is stored is a copy that has been through
JSON once: it cannot change under the user's eyes, and one that no client could read is refused to
the agent that made it.

The *stream* shows one permission request per workspace, the oldest open one, because the Crush UI
has one dialog and a second request would replace it under the user's finger. Clients that can show
several read the list when an awaiting notification arrives.

Knows nothing of: runs, tasks, the store, HTTP. Everything that a run left open is closed when it
ends, so there is nothing to bound.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..agent.base import Verdict
from ..errors import BadRequest, RequestNotFound
from ..protocol.codec import decode, dumps, encode, loads
from ..protocol.permissions import (
    PERMISSION_ACTIONS,
    RULE_ACTIONS,
    PermissionNotification,
    PermissionRequest,
    PermissionRule,
    Resolution,
)
from ..protocol.questions import (
    QUESTION_TYPES,
    QuestionBatch,
    QuestionNotification,
    QuestionResponse,
)
from ..unique import new_id
from .difference import difference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..agent.base import Scope
    from ..clock import Clock, Timer
    from ..protocol.questions import Question

R = TypeVar("R", bound=PermissionRequest | QuestionBatch)
A = TypeVar("A")
Answers = list[QuestionResponse] | None  # None: the form was dismissed

MOST_RULES = 1000  # of the sessions of one workspace; the oldest goes
ANYTHING = "*"  # the only part of a rule for requests without a scope
REMEMBERED = 1024  # closed ids kept, so that a late answer learns who was first
LOOKS = 4  # at who is watching, per unattended period
# More than a user can read before answering a permission request.
SHOWN_BYTES = 200_000
SHOWN_LINES = 2000
CHANGED_FILE = ("old_content", "new_content")  # parameters that clients show as a diff
UNATTENDED = "unattended"  # `by` of a request that was closed because no interactive client came


class _Entry(Generic[R, A]):
    __slots__ = ("answer", "is_open", "number", "queue", "request", "run_id", "scope", "timer")

    def __init__(self, number: int, request: R, queue: str, run_id: str, scope: Scope | None):
        self.number = number  # of asking: age, across queues
        self.request, self.queue, self.run_id, self.scope = request, queue, run_id, scope
        self.answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self.is_open = False
        self.timer: Timer | None = None


class _Dialogs(ABC, Generic[R, A]):
    """The machine: queues of entries, first close wins. A request that stands for `unattended`
    seconds while `interactive()` is false is closed; None waits for ever."""

    _unknown: str  # the error for an id that was never open

    def __init__(
        self,
        publish: Callable[[object], object],
        *,
        clock: Clock,
        interactive: Callable[[], bool] = lambda: True,
        unattended: float | None = None,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._interactive = interactive
        self._unattended = unattended
        self._numbers = itertools.count()
        # By queue, then by id, oldest first; no queue is empty.
        self._entries: dict[str, dict[str, _Entry[R, A]]] = {}
        self._opening: set[str] = set()  # queues in _open_next
        self._winners: dict[str, str] = {}  # closed id -> who answered, oldest first

    def _opened(self, entry: _Entry[R, A]) -> None:
        """A request has opened: publish it."""

    def _closed(self, entry: _Entry[R, A], answer: A) -> None:
        """An open request has got its answer: publish that."""

    @abstractmethod
    def _unanswered(self, why: str) -> A:
        """The answer to a request that no person has answered."""

    def require_known(self, request_id: str) -> None:
        """Raise RequestNotFound for a request that neither is open nor was."""
        if self._find(request_id) is None and request_id not in self._winners:
            raise RequestNotFound(self._unknown.format(request_id))

    def close_run(self, run_id: str) -> None:
        """Close whatever a run left behind."""
        # Waiting ones first, so that closing the open one does not open a dead one for an instant.
        everything = (entry for queue in self._entries.values() for entry in queue.values())
        mine = [entry for entry in everything if entry.run_id == run_id]
        for entry in sorted(mine, key=lambda entry: entry.is_open):
            self._close(entry, self._unanswered("the run has ended"))

    def _open_entries(self) -> list[_Entry[R, A]]:
        """The first of each queue, oldest first."""
        firsts = (next(iter(queue.values())) for queue in self._entries.values())
        return sorted((e for e in firsts if e.is_open), key=lambda entry: entry.number)

    def _find(self, request_id: str) -> _Entry[R, A] | None:
        return next((e for e in self._open_entries() if e.request.id == request_id), None)

    def _too_late(self, request_id: str) -> Resolution:
        return Resolution(False, self._winners.get(request_id, ""))

    def _answerable(self, entry: _Entry[R, A] | None) -> _Entry[R, A] | None:
        """The entry, unless its waiter was cancelled: that decided it, although the waiter has
        not run since. An answer that comes in between must not claim to have won."""
        if entry is not None and entry.answer.cancelled():
            self._drop(entry)
            return None
        return entry

    async def _wait(self, request: R, queue: str, run_id: str, scope: Scope | None = None) -> A:
        """Stand in the queue until answered."""
        entry: _Entry[R, A] = _Entry(next(self._numbers), request, queue, run_id, scope)
        self._entries.setdefault(queue, {})[request.id] = entry
        try:
            self._open_next(queue)
            return await entry.answer
        finally:
            self._drop(entry)

    def _drop(self, entry: _Entry[R, A]) -> None:
        self._close(entry, self._unanswered("the run was canceled"))

    def _close(self, entry: _Entry[R, A], answer: A, by: str = "") -> None:
        """Decide an entry, unless it was decided already."""
        queue = self._entries.get(entry.queue, {})
        if queue.pop(entry.request.id, None) is None:
            return
        if not queue:
            del self._entries[entry.queue]
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.is_open:
            self._winners[entry.request.id] = by
            if len(self._winners) > REMEMBERED:
                del self._winners[next(iter(self._winners))]
            self._closed(entry, answer)
        if not entry.answer.done():
            entry.answer.set_result(answer)
        self._open_next(entry.queue)

    def _open_next(self, queue: str) -> None:
        """Open the first of a queue, unless it is. A loop, for what opens may close at once, by a
        remembered grant for example, and so may a thousand behind it: too many for the stack."""
        if queue in self._opening:
            return
        self._opening.add(queue)
        try:
            while queue in self._entries:
                first = next(iter(self._entries[queue].values()))
                if first.is_open:
                    break
                first.is_open = True
                self._opened(first)
                self._watch(first, None)
        finally:
            self._opening.discard(queue)

    def _watch(self, entry: _Entry[R, A], since: float | None) -> None:
        """Close an entry once no interactive client was there for the whole period, `since` when.
        Looked at a few times per period: who reconnects between two looks was never away, and who
        leaves late leaves the others the full time to come."""
        seconds = self._unattended
        if seconds is None or entry.answer.done():
            return
        now = self._clock.time()
        if self._interactive():
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= seconds:
            refused = self._unanswered("denied: no interactive client answered")
            self._close(entry, refused, UNATTENDED)
        else:
            pause = seconds / LOOKS or 1.0
            entry.timer = self._clock.call_later(pause, lambda: self._watch(entry, since))


def _sealed(request: R) -> R:
    """The copy that is stored, shown and decided on."""
    return decode(type(request), loads(_json(encode(request))), "request")


async def _require_readable(request: PermissionRequest) -> None:
    """Raise BadRequest if a request is too large to be read before it is answered. Of a file that
    is to be changed, only what clients show of it counts: its changed lines and those around."""
    params = {key: value for key, value in request.params.items() if key not in CHANGED_FILE}
    text = _json({"params": params, "description": request.description})
    size, lines = len(text), text.count(b"\\n")
    old, new = (str(request.params.get(key, "")) for key in CHANGED_FILE)
    if not _is_readable(size + len(old) + len(new), lines + old.count("\n") + new.count("\n")):
        shown = await asyncio.to_thread(difference, old, new)
        size, lines = size + sum(map(len, shown)), lines + len(shown)
    if not _is_readable(size, lines):
        raise BadRequest(
            "too large to show to the user, who must see all of it before allowing it: split it "
            f"into parts of less than {SHOWN_LINES} lines and {SHOWN_BYTES} characters"
        )


def _is_readable(size: int, lines: int) -> bool:
    return size <= SHOWN_BYTES and lines <= SHOWN_LINES


def _json(value: object) -> bytes:
    try:
        return dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"this cannot be shown to anybody, it is not JSON: {error}") from None


class Permissions(_Dialogs[PermissionRequest, Verdict]):
    """The permission requests of one workspace, and the rules that users have granted. `policy` is
    the configured allow-list, `kept` gives the rules that are for good."""

    _unknown = "no permission request {}: list W/permissions"

    def __init__(
        self,
        publish: Callable[[object], object],
        *,
        policy: Callable[[str, str], bool] = lambda tool, action: False,
        kept: Callable[[], Sequence[PermissionRule]] = tuple,
        **watched: Any,
    ) -> None:
        super().__init__(publish, **watched)
        self.skip = False
        self.grants = Grants(kept)
        self._policy = policy
        self._shown: str | None = None  # the id of the request on the stream

    async def ask(
        self,
        request: PermissionRequest,
        run_id: str,
        scope: Scope | None = None,
        *,
        always: bool = False,
    ) -> Verdict:
        """Decide a tool's request: by policy, unless `always`, by a rule that was granted, or by
        the first client that answers. Raises BadRequest, phrased for the model, for one that no
        user could read. `scope` is what a grant for the session would cover; None stands for every
        request with the same tool, action and path."""
        if self.skip or (not always and self._policy(request.tool_name, request.action)):
            return Verdict(True)
        if not self.grants.covers(request, scope):
            await _require_readable(request)
        stored = _sealed(replace(request, id=new_id()))
        return await self._wait(stored, stored.session_id, run_id, scope)

    def announce(self, request: PermissionRequest, *, granted: bool) -> None:
        """Tell clients how a request was decided."""
        decided = PermissionNotification(request.tool_call_id, granted=granted, denied=not granted)
        self._publish(decided)

    def listed(self) -> list[PermissionRequest]:
        """Open requests, the one on the stream first, then oldest first."""
        entries = self._open_entries()
        entries.sort(key=lambda entry: entry.request.id != self._shown)
        return [entry.request for entry in entries]

    def on_stream(self) -> list[PermissionRequest]:
        """The request on the stream, if there is one."""
        return [request for request in self.listed() if request.id == self._shown]

    def resolve(
        self, request_id: str, action: str, by: str = "", reason: str = "", option: str = ""
    ) -> Resolution:
        """Answer a request. `resolved` is false if it was answered before or its id is unknown.
        Raises BadRequest for an unknown action or option, or a rule that is not offered. One that
        is to be kept for good is granted for the session: keeping it is up to the caller."""
        if action not in (*PERMISSION_ACTIONS, *RULE_ACTIONS):
            known = ", ".join((*PERMISSION_ACTIONS, *RULE_ACTIONS))
            raise BadRequest(f"invalid permission action {action!r}: use {known}")
        entry = self._answerable(self._find(request_id))
        if entry is None:
            return self._too_late(request_id)
        if option:
            _check_option(entry.request, action, option)
        scope = entry.scope
        if action == "allow_session" and (scope is None or scope.parts):
            asked = entry.request
            words = asked.scope or f"every {asked.tool_name} ({asked.action}) in {asked.path}"
            parts = (ANYTHING,) if scope is None else scope.parts
            self.grants.add(self._rule(asked, parts, words), scoped=scope is not None)
        elif action in RULE_ACTIONS:
            offered = self.offered(request_id)
            if offered is None:
                raise BadRequest(f"{action}: no rule is offered for this: allow it once")
            self.grants.add(offered)
        denied = action == "deny"
        self._close(entry, Verdict(not denied, reason if denied else "", option), by)
        return Resolution(True, by)

    def offered(self, request_id: str) -> PermissionRule | None:
        """The rule that is offered with an open request; None if there is none."""
        entry = self._find(request_id)
        if entry is None or entry.scope is None or not entry.scope.rule_parts:
            return None
        return self._rule(entry.request, entry.scope.rule_parts, entry.request.rule)

    def _rule(self, asked: PermissionRequest, parts: Sequence[str], words: str) -> PermissionRule:
        return PermissionRule(
            id=asked.id,  # it is answered once
            tool_name=asked.tool_name,
            action=asked.action,
            path=asked.path,
            words=words,
            parts=list(parts),
            session_id=asked.session_id,
            created_at=int(self._clock.now()),
        )

    def _opened(self, entry: _Entry[PermissionRequest, Verdict]) -> None:
        request = entry.request
        self._publish(PermissionNotification(request.tool_call_id))
        if self.grants.covers(request, entry.scope):
            self._close(entry, Verdict(True))
        else:
            self._show_next()

    def _unanswered(self, why: str) -> Verdict:
        return Verdict(False, why)

    def _closed(self, entry: _Entry[PermissionRequest, Verdict], answer: Verdict) -> None:
        self.announce(entry.request, granted=bool(answer))
        if self._shown == entry.request.id:
            self._shown = None
            self._show_next()

    def _show_next(self) -> None:
        entries = self._open_entries()
        if self._shown is None and entries:
            self._shown = entries[0].request.id
            self._publish(entries[0].request)


def _check_option(request: PermissionRequest, action: str, option: str) -> None:
    """Raise BadRequest if the request does not offer an option, or the action is not its own."""
    chosen = next((one for one in request.options if one.id == option), None)
    if chosen is None:
        known = ", ".join(one.id for one in request.options) or "none"
        raise BadRequest(f"option {option!r} is not offered for this: there is {known}")
    wanted = "allow" if chosen.allows else "deny"
    if action != wanted:
        raise BadRequest(f"option {option!r} goes with the action {wanted}, not {action!r}")


# Rules -------------------------------------------------------------------------------------------


class Grants:
    """What users have allowed beyond a single request: rules, for one session or for good.

    A rule covers requests of one tool and action in one directory, by parts (agent/base.py: Scope):
    if each part of a request was granted, or one part of each of the sets that it says would cover
    it. A request without any scope is covered only by a rule that was granted for such a request.
    """

    def __init__(self, kept: Callable[[], Iterable[PermissionRule]] = tuple) -> None:
        self._kept = kept
        self._rules: dict[str, tuple[PermissionRule, bool]] = {}  # with whether it has a scope

    def covers(self, request: PermissionRequest, scope: Scope | None) -> bool:
        """Whether requests like this one were granted."""
        granted: set[str] = set()
        for rule, scoped in (*self._rules.values(), *((rule, True) for rule in self._kept())):
            fits = rule.session_id in ("", request.session_id)
            if fits and scoped == (scope is not None) and _place(rule) == _place(request):
                granted.update(rule.parts)
        if scope is None:
            return ANYTHING in granted
        if scope.parts and granted.issuperset(scope.parts):
            return True
        return bool(scope.covered_by) and not any(map(granted.isdisjoint, scope.covered_by))

    def add(self, rule: PermissionRule, *, scoped: bool = True) -> None:
        """Add a rule for a session. One that says the same is replaced by it."""
        same = [
            each.id
            for each, has_scope in self._rules.values()
            if (each.session_id, _place(each), each.parts, has_scope)
            == (rule.session_id, _place(rule), rule.parts, scoped)
        ]
        for rule_id in same:
            del self._rules[rule_id]
        if len(self._rules) >= MOST_RULES:
            del self._rules[next(iter(self._rules))]
        self._rules[rule.id] = rule, scoped

    def listed(self) -> list[PermissionRule]:
        """All rules: those for sessions, oldest first, then those for good."""
        return [*(rule for rule, _ in self._rules.values()), *self._kept()]

    def remove(self, rule_id: str) -> bool:
        """Take back a rule for a session; returns whether there was one."""
        return self._rules.pop(rule_id, None) is not None

    def forget_session(self, session_id: str) -> None:
        gone = [key for key, (rule, _) in self._rules.items() if rule.session_id == session_id]
        for key in gone:
            del self._rules[key]


def _place(of: PermissionRule | PermissionRequest) -> tuple[str, str, str]:
    return of.tool_name, of.action, of.path


# Questions ---------------------------------------------------------------------------------------


class Questions(_Dialogs[QuestionBatch, Answers]):
    """The question batches of one workspace, open one at a time, in order."""

    _unknown = "no question batch {}: list W/questions"

    async def ask(self, batch: QuestionBatch, run_id: str) -> Answers:
        """Show a form and wait; None when it was dismissed."""
        check_questions(batch.questions)
        # Clients find a batch by these ids; an agent may give the same ones in each of its forms.
        questions = [replace(question, id=new_id()) for question in batch.questions]
        stored = _sealed(replace(batch, id=new_id(), questions=questions))
        if len(questions) > 1:
            stored.confirm_title = batch.confirm_title or "Send these answers?"
            stored.confirm_description = (
                batch.confirm_description or "The agent goes on when you confirm."
            )
        answers = await self._wait(stored, "", run_id)
        return None if answers is None else _in_order(batch.questions, questions, answers)

    def listed(self) -> list[QuestionBatch]:
        return [entry.request for entry in self._open_entries()]

    def answer(self, batch_id: str, responses: Answers, by: str = "") -> Resolution:
        """Answer the open batch: by id, or, as the Crush client does, by its question ids."""
        found = self._find(batch_id) if batch_id else self._holding(responses)
        entry = self._answerable(found)
        if entry is None:
            return self._too_late(batch_id)
        asked = {question.id for question in entry.request.questions}
        unknown = [r.request_id for r in responses or () if r.request_id not in asked]
        if unknown:
            raise BadRequest(f"question {unknown[0]!r} is not part of batch {entry.request.id}")
        self._close(entry, responses, by)
        return Resolution(True, by)

    def cancel(self, batch_id: str = "", by: str = "") -> Resolution:
        """Dismiss a batch, or whichever is open."""
        return self.answer(batch_id, None, by)

    def _holding(self, responses: Answers) -> _Entry[QuestionBatch, Answers] | None:
        """The open batch with one of these questions; any, if it is to be dismissed."""
        named = {response.request_id for response in responses or ()}
        for entry in self._open_entries():
            asked = {question.id for question in entry.request.questions}
            if responses is None or named & asked:
                return entry
        return None

    def _opened(self, entry: _Entry[QuestionBatch, Answers]) -> None:
        self._publish(entry.request)

    def _closed(self, entry: _Entry[QuestionBatch, Answers], answer: Answers) -> None:
        self._publish(QuestionNotification(entry.request.id))

    def _unanswered(self, why: str) -> Answers:
        return None


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
    if question.type not in ("single_choice", "multi_choice"):
        return
    if not 2 <= len(question.choices) <= 5:
        yield f"give 2 to 5 choices, not {len(question.choices)}"
    ids = [choice.id for choice in question.choices]
    if not all(ids) or len(set(ids)) != len(ids):
        yield "every choice needs an id of its own"
    for choice in question.choices:
        if not 0 < len(choice.label) <= 200 or len(choice.description) > 200:
            yield f"choice {choice.id!r}: label is required, label and description have <= 200"
