"""What an agent's calls do: the transcript they grow, the people they ask, the fence behind them.

A LiveTurn is made by the runner for one run (or by chores.py for one summary) and handed to the
agent. The agent can only add to the turn; how it ends is written by `close`, which its maker calls
once, after the agent is gone or was given up. From `fence` on every call raises TurnOver and
publishes nothing, so an agent that was abandoned cannot reach back into a turn that clients have
seen end.

Knows nothing of: how runs are accepted, canceled or recorded; HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..agent.base import Usage, Verdict
from ..commands import process
from ..errors import BadRequest, LimitReached, TurnOver
from ..protocol.codec import decode, dumps
from ..protocol.messages import FinishPart, Message, ToolCallPart, ToolOutput, ToolResultPart
from ..protocol.permissions import PermissionRequest
from ..protocol.questions import Question, QuestionBatch
from ..protocol.sessions import Todo
from ..runs import Outcome
from ..store import TROUBLE, files as file_rows, sessions as session_rows
from ..undo.changes import Noting
from ..worktree.states import FileState, mode_of
from .dialogs import Allowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..clock import Clock
    from ..commands.background import Background, JobOutput
    from ..commands.process import Command, Exit
    from ..events import Hub
    from ..protocol.config import SelectedModel
    from ..protocol.messages import Attachment
    from ..protocol.questions import QuestionResponse
    from ..protocol.sessions import Session
    from ..store import Connection, Store
    from ..undo.changes import Changes
    from .dialogs import Permissions, Questions
    from .transcript import Live, Transcript

log = logging.getLogger(__name__)

T = TypeVar("T")

OWN_REASONS = ("end_turn", "max_tokens", "content_filter", "unknown")
COMMAND_SECONDS = 3.0  # how long a killed command may take to be gone before the run ends anyway
BREATHS = 64  # says between two suspensions even if no time passes: see LiveTurn._breathe


@dataclass(frozen=True, slots=True)
class Services:
    """What the turns of one workspace share."""

    path: Path
    env: Mapping[str, str]
    store: Store
    scope: str
    hub: Hub
    clock: Clock
    transcript: Transcript
    permissions: Permissions
    questions: Questions
    interactive: Callable[[], bool]
    coalesce: float
    background: Background
    changes: Changes


@dataclass(frozen=True, slots=True)
class Order:
    """What one run asks of its turn."""

    run_id: str
    session_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = ()
    max_cost: float | None = None
    max_steps: int | None = None
    auto_approve: bool = False  # nobody is asked for permissions of this run


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a turn failed, as the user will read it."""

    title: str
    detail: str

    def __post_init__(self) -> None:
        # Errors about files quote their names, which need not be text; a row must be.
        object.__setattr__(self, "title", _clean(self.title))
        object.__setattr__(self, "detail", _clean(self.detail))


class LiveTurn:
    """Implements agent.base.Turn."""

    def __init__(
        self,
        services: Services,
        order: Order,
        selected: SelectedModel,
        fold: Callable[[], Awaitable[list[Message]]],
        summarize: Callable[[], Awaitable[None]] | None = None,
        *,
        is_summary: bool = False,
    ) -> None:
        self.run_id = order.run_id
        self.session_id = order.session_id
        self.prompt = order.prompt
        self.attachments: Sequence[Attachment] = order.attachments
        self.path = services.path
        self.env = services.env
        self.max_steps = order.max_steps
        self.denied = 0
        self.spent = Usage()  # what the last model call used
        self._services = services
        self._order = order
        self._selected = selected
        self._fold = fold
        self._summarize = summarize
        self._is_summary = is_summary
        self._commands: set[Command] = set()  # those that die with the run
        self._noting: dict[Command, Noting] = {}  # what they change, until it is on record
        self._over = False
        self._step: Live | None = None  # the assistant message of the current step
        self._new_step = True  # the next piece begins a message of its own
        self._steps = 0
        self._cost = 0.0
        self._owed = 0.0  # cost that no session row holds yet
        self._finish = FinishPart("end_turn")
        self._results: set[str] = set()  # tool calls that have one, of all steps
        self._calls: dict[str, ToolCallPart] = {}  # of this step
        self._fresh_ids: dict[str, str] = {}  # of calls whose own id was used before; the newest
        self._lives: list[Live] = []  # every message of this turn, for the ending's transaction
        self._said = 0
        self._breathed = services.clock.time()

    # For its maker -------------------------------------------------------------------------------

    @property
    def lives(self) -> list[Live]:
        return self._lives

    @property
    def last(self) -> Live:
        """The turn's last assistant message; it exists once the turn is closed."""
        assert self._step is not None
        return self._step

    @property
    def wrote(self) -> bool:
        """Whether the agent said anything at all."""
        return self._step is not None and bool(self._step.joined().text)

    def adopt(self, live: Live) -> None:
        """A message the runner wrote for this turn."""
        self._lives.append(live)

    def fence(self) -> None:
        self._over = True

    async def end_commands(self) -> None:
        """Kill what the agent's commands left running: promise 3 covers these."""
        for command in self._commands:
            command.kill()
        if self._commands:
            await asyncio.wait(
                [command.done for command in self._commands], timeout=COMMAND_SECONDS
            )
        if self._noting:
            noting = [noting.task for noting in self._noting.values()]
            await asyncio.wait(noting, timeout=COMMAND_SECONDS)

    def discard(self) -> None:
        """Remove a summary that was not finished: half a summary is worse than none."""
        self._over = True
        if self._step is not None:
            self._services.transcript.delete(self._step)

    def close(self, outcome: Outcome, failure: Failure | None) -> None:
        """Write how it ended, whatever state the agent left the turn in."""
        self._over = True
        if self._step is None:
            self._create_step()
        self._close_calls(outcome)
        finish = self._finish
        if outcome is Outcome.CANCELED:
            finish = FinishPart("canceled", message="User canceled request")
        elif outcome is Outcome.FAILED:
            failure = failure or Failure("The agent failed", "no reason was given")
            finish = FinishPart("error", message=failure.title, details=failure.detail)
        finish.time = self._now()
        self._services.transcript.finish(self.last, finish, write=False)

    def _close_calls(self, outcome: Outcome) -> None:
        """Providers refuse a history with a call that has no result, so none is left behind."""
        reason = "Error: the agent ended without a result for this tool call"
        if outcome is Outcome.CANCELED:
            reason = "Error: user cancelled assistant tool calling"
        elif outcome is Outcome.FAILED:
            reason = "Error: the turn failed before this tool call had a result"
        for call in list(self._calls.values()):
            if not call.finished:
                done = ToolCallPart(call.id, call.name, "{}", call.type, finished=True)
                self._services.transcript.tool_call(self.last, done)
            if call.id not in self._results:
                self._result(ToolResultPart(call.id, call.name, reason, is_error=True))

    # For the agent: reading ----------------------------------------------------------------------

    @property
    def interactive(self) -> bool:
        return self._services.interactive()

    async def session(self) -> Session:
        self._check()
        scope, session_id = self._services.scope, self.session_id
        return await self._services.store.read(
            lambda conn: session_rows.get_session(conn, scope, session_id)
        )

    async def history(self) -> list[Message]:
        self._check()
        return await self._services.transcript.messages(self.session_id)

    # For the agent: the transcript ---------------------------------------------------------------

    async def say(self, text: str) -> None:
        live = self._piece(text)
        if live is not None:
            self._services.transcript.say(live, _clean(text))
        await self._breathe()

    async def think(self, text: str, signature: str = "") -> None:
        live = self._piece(text or signature)
        if live is not None:
            self._services.transcript.think(live, _clean(text), _clean(signature))
        await self._breathe()

    async def tool_call(
        self,
        name: str,
        input: str | Mapping[str, Any],
        id: str | None = None,
        finished: bool = True,
    ) -> str:
        self._check()
        call_id = self._recorded(_clean(id)) if id else _fresh_id()
        known = self._calls.get(call_id)
        if id and call_id in self._results:
            if known is not None and not self._results.issuperset(self._calls):
                raise BadRequest(f"tool call {id!r} has its result, others of its step have none")
            # Some servers count their calls from zero in every answer; in a history an id means
            # one call.
            call_id, known = _fresh_id(), None
            self._fresh_ids[_clean(id)] = call_id
        live = self._current() if known is None else self.last
        call = ToolCallPart(call_id, _clean(name), _text(input), finished=bool(finished))
        self._services.transcript.tool_call(live, call)
        self._calls[call_id] = known or call
        await self._breathe()
        return call_id

    async def tool_result(
        self,
        id: str,
        content: str,
        is_error: bool = False,
        metadata: str | Mapping[str, Any] = "",
        data: str = "",
        mime_type: str = "",
    ) -> None:
        self._check()
        await self._noted()
        call = self._calls.get(self._recorded(_clean(id)))
        if call is None or call.id in self._results:
            raise BadRequest(f"there is no open tool call {id!r} in this step")
        texts = _clean(content), _text(metadata)
        media = _clean(data), _clean(mime_type)
        self._result(ToolResultPart(call.id, call.name, *texts, bool(is_error), *media))
        self._new_step = True
        await self._breathe()

    def progress(self, id: str, output: str) -> None:
        self._check()
        shown = ToolOutput(self.session_id, self._recorded(_clean(id)), _clean(output))
        self._services.hub.publish("updated", shown, growth=True)

    async def step(self) -> None:
        self._check()
        self._check_steps()
        self._end_step()
        self._new_step = True
        await self._breathe()

    async def erase(self) -> None:
        self._check()
        if self._step is not None and not self._new_step:
            for call in self._step.message.tool_calls:
                self._calls.pop(call.id, None)
            self._services.transcript.erase(self._step)

    async def finish(self, reason: str, message: str = "", details: str = "") -> None:
        self._check()
        if reason not in OWN_REASONS:
            # How a run was canceled or failed is the daemon's to say: the record must not differ.
            raise BadRequest(f"finish reason {reason!r}: use one of {', '.join(OWN_REASONS)}")
        self._finish = FinishPart(reason, message=_clean(message), details=_clean(details))

    # For the agent: people -----------------------------------------------------------------------

    async def permission(
        self,
        tool_name: str,
        action: str,
        *,
        description: str = "",
        params: Mapping[str, Any] | None = None,
        path: str = "",
        tool_call_id: str = "",
    ) -> Verdict:
        self._check()
        if self._order.auto_approve:
            return Verdict(True)
        request = PermissionRequest(
            session_id=self.session_id,
            tool_call_id=self._recorded(tool_call_id),
            tool_name=tool_name,
            description=_clean(description),
            action=action,
            params=dict(params or {}),
            path=self._directory(path),
        )
        answer = await self._services.permissions.ask(request, self.run_id)
        if isinstance(answer, Allowed):
            return Verdict(True)
        self.denied += 1
        return Verdict(False, answer.reason)

    async def ask(
        self,
        questions: Sequence[Question | Mapping[str, Any]],
        *,
        tool_call_id: str = "",
        confirm_title: str = "",
    ) -> list[QuestionResponse] | None:
        self._check()
        batch = QuestionBatch(
            session_id=self.session_id,
            tool_call_id=self._recorded(tool_call_id),
            questions=[_typed(Question, question) for question in questions],
            confirm_title=confirm_title,
        )
        return await self._services.questions.ask(batch, self.run_id)

    async def followups(self) -> list[Message]:
        self._check()
        if self._calls.keys() - self._results:
            return []  # between a call and its result nothing may stand: no provider takes that
        if self._out_of_steps:
            return []  # nothing could be said to them any more: they get a turn of their own
        folded = await self._fold()
        # What is said from here on answers them, and stands behind them.
        self._new_step = self._new_step or bool(folded)
        return folded

    # For the agent: commands ---------------------------------------------------------------------

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        read_only: bool = False,
    ) -> Command:
        self._check()
        await self._noted()
        changes = self._services.changes
        watch = None if read_only else await changes.begin()
        try:
            started = await process.start(
                command,
                cwd=cwd or self.path,
                env=self.env if env is None else env,
                clock=self._services.clock,
                on_output=on_output,
            )
        except BaseException:
            if watch is not None:
                changes.drop(watch)
            raise
        self._commands.add(started)
        if watch is not None:
            author = self.session_id, self.run_id
            noting = self._noting[started] = Noting(changes, watch, author, started.done)
            noting.task.add_done_callback(lambda _: self._noting.pop(started, None))
        if self._over:
            started.kill()
            self._check()
        return started

    def keep(self, command: Command) -> str:
        self._check()
        job_id = self._services.background.adopt(self.session_id, command)
        self._commands.discard(command)
        if command in self._noting:
            self._noting[command].let_go()
        return job_id

    def job_output(self, job_id: str) -> JobOutput:
        self._check()
        return self._services.background.output(job_id, self.session_id)

    async def kill_job(self, job_id: str) -> Exit | None:
        self._check()
        return await self._services.background.kill(job_id, self.session_id)

    async def summarize(self) -> None:
        self._check()
        if self._summarize is not None:
            self._end_step()
            self._new_step = True
            await self._summarize()

    # For the agent: bookkeeping ------------------------------------------------------------------

    async def usage(self, usage: Usage) -> None:
        self._check()
        session_rows.check_usage(usage.prompt_tokens, usage.completion_tokens, usage.cost)
        self.spent = usage
        cost = 0.0 if usage.estimated else usage.cost
        self._cost += cost
        owed = min(self._owed + cost, session_rows.MOST_COST)

        def save(conn: Connection, scope: str, now: float) -> Session:
            known = session_rows.get_session(conn, scope, self.session_id)
            # A count that a provider left out must not make a full context look empty.
            prompt = usage.prompt_tokens or known.prompt_tokens
            completion = usage.completion_tokens or known.completion_tokens
            return session_rows.save_usage(
                conn, scope, self.session_id, prompt, completion, owed, now
            )

        self._owed = 0.0 if await self._note("usage", save) else owed
        if self._order.max_cost is not None and self._cost >= self._order.max_cost:
            raise LimitReached(f"stopped at max_cost = {self._order.max_cost}")

    async def todos(self, todos: Sequence[Todo | Mapping[str, Any]]) -> None:
        self._check()
        listed = [_typed(Todo, todo) for todo in todos]
        await self._note(
            "to-do list",
            lambda conn, scope, now: session_rows.set_todos(
                conn, scope, self.session_id, listed, now
            ),
        )

    async def file_read(self, path: str) -> None:
        self._check()
        await self._update(
            lambda conn, scope, now: file_rows.mark_read(conn, scope, self.session_id, path, now)
        )

    async def file_changed(self, path: str, before: str | None, after: str | None) -> None:
        self._check()
        await self._noted()
        mode = await asyncio.to_thread(mode_of, path) if after is not None else None
        # Who changes a content keeps the mode: it was the same before.
        old, new = (FileState(text, None if text is None else mode) for text in (before, after))
        change = file_rows.Change(path, old, new, self.run_id)
        await self._services.changes.record(self.session_id, [change])

    # Inside --------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._over:
            raise TurnOver(f"the turn of run {self.run_id} has ended")

    @property
    def _out_of_steps(self) -> bool:
        limit = self._order.max_steps  # not what the agent may have made of its own copy
        return limit is not None and self._steps >= limit

    def _check_steps(self) -> None:
        if self._out_of_steps:
            raise LimitReached(f"stopped at max_steps = {self._order.max_steps}")

    async def _noted(self) -> None:
        """Wait until what commands that have ended changed is on record: what comes next must not
        be taken for theirs."""
        due = [noting.task for noting in self._noting.values() if noting.due]
        if due:
            await asyncio.wait(due)
            self._check()

    def _recorded(self, call_id: str) -> str:
        """The id on record of what the agent calls by this one."""
        return self._fresh_ids.get(call_id, call_id)

    def _now(self) -> int:
        return int(self._services.clock.now())

    def _piece(self, text: str) -> Live | None:
        self._check()
        return self._current() if text else None

    def _current(self) -> Live:
        if self._new_step:
            self._check_steps()
            self._end_step()
            self._create_step()
        return self.last

    def _create_step(self) -> None:
        self._steps += 1
        self._new_step = False
        self._calls = {}
        now = self._now()
        message = Message(
            str(uuid.uuid4()),
            "assistant",
            self.session_id,
            model=self._selected.model,
            provider=self._selected.provider,
            created_at=now,
            updated_at=now,
            is_summary_message=self._is_summary,
        )
        self._step = self._services.transcript.create(message)
        self._lives.append(self._step)

    def _end_step(self) -> None:
        """Close the step before this one: its calls must all have results by now."""
        if self._step is not None and not self._step.finished:
            self._close_calls(Outcome.COMPLETED)
            finish = FinishPart("tool_use", self._now())
            self._services.transcript.finish(self._step, finish)

    def _result(self, result: ToolResultPart) -> None:
        self._results.add(result.tool_call_id)
        now = self._now()
        message = Message(
            str(uuid.uuid4()),
            "tool",
            self.session_id,
            [result, FinishPart("stop")],
            created_at=now,
            updated_at=now,
        )
        self._lives.append(self._services.transcript.create(message))

    def _directory(self, path: str) -> str:
        """Approving one file covers its folder: the key of a permission is a directory."""
        if path in ("", "."):
            return str(self.path)
        target = Path(self.path, path)
        # Not target.is_file(): it raises for what may not be looked at, which is to be asked for.
        return str(target.parent) if os.path.isfile(target) else path

    async def _update(self, work: Callable[[Connection, str, float], Any]) -> Any:
        scope, now = self._services.scope, self._services.clock.now()
        return await self._services.store.submit(lambda conn: work(conn, scope, now))

    async def _note(self, what: str, work: Callable[[Connection, str, float], Session]) -> bool:
        """Write something about the session that is not worth failing a turn for."""
        try:
            session = await self._update(work)
        except TROUBLE as error:
            log.warning("run %s: its %s could not be written: %s", self.run_id, what, error)
            return False
        self._services.hub.publish("updated", session)
        return True

    async def _breathe(self) -> None:
        """Suspend at least once per coalescing window.

        An agent that streams without ever waiting would otherwise hold the event loop: nobody
        could cancel it. The count bounds that also where time stands still, as in tests.
        """
        self._said += 1
        now = self._services.clock.time()
        if self._said >= BREATHS or now - self._breathed >= self._services.coalesce:
            self._said = 0
            await asyncio.sleep(0)
            self._breathed = self._services.clock.time()
            self._check()


def _fresh_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def _text(value: str | Mapping[str, Any]) -> str:
    """What travels as a string of JSON may be given as the object it stands for."""
    if isinstance(value, str):
        return _clean(value)
    try:
        return dumps(dict(value)).decode("ascii")
    except (TypeError, ValueError) as error:
        raise BadRequest(f"this cannot be written as JSON: {error}") from None


def _typed(cls: type[T], value: T | Mapping[str, Any]) -> T:
    """Our own dataclasses may be given in the shape they have on the wire."""
    return value if isinstance(value, cls) else decode(cls, value, cls.__name__.lower())


def _clean(text: str) -> str:
    """Model output may hold lone surrogates, which neither JSON clients nor SQLite can take."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text
