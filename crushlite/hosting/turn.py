"""What an agent's calls do: the transcript they grow, the people they ask, the commands they start.

A LiveTurn is made for one run, or below one, for a summary or a sub-agent. The agent can only add
to the turn; how it ends is written by `close`, which its maker calls once, after the agent is gone
or was given up. From `fence` on every call raises TurnOver and publishes nothing, so an agent that
was abandoned cannot reach back into a turn that clients have seen end.

Knows nothing of: how runs are accepted, canceled or recorded; HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..agent.base import Agent, ToolCheck, Usage
from ..errors import BadRequest
from ..protocol.messages import FinishPart, TextPart, ToolCallPart, ToolOutput, ToolResultPart
from ..protocol.runs import AgentEvent
from ..protocol.sessions import Todo
from ..runs import Outcome
from ..store import STORE_ERRORS, sessions as session_rows
from .prompts import Failure, RunLimits, clean
from .transcript import new_message
from .turn_requests import TurnRequests, fresh_call_id, json_text, typed
from .workspace_base import first_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..agent.base import AnyAgent, Delegated
    from ..protocol.messages import Attachment, Message, Part, Prompt
    from ..protocol.sessions import Session
    from ..store import Connection
    from .transcript import LiveMessage
    from .workspace_base import WorkspaceBase

log = logging.getLogger(__name__)


OWN_REASONS = ("end_turn", "max_tokens", "content_filter", "unknown")
# The result of a call that has none when its turn ends.
NO_RESULT = {
    Outcome.COMPLETED: "the agent ended without a result for this tool call",
    Outcome.CANCELED: "the user cancelled this before it had a result",
    Outcome.FAILED: "the turn failed before this tool call had a result",
}
NOT_ALLOWED = {
    **dict.fromkeys(Outcome, "not run: the run ended before it was allowed"),
    Outcome.CANCELED: "not run: the user cancelled before it was allowed",
}
TITLE_CHARS = 200
CHILD_SECONDS = 9.0  # how long sub-agents may take to end, with their commands
PIECES = 64  # calls of say() and the like between two suspensions: see LiveTurn._yield


class LiveTurn(TurnRequests):
    """Implements agent.base.Turn."""

    is_summary = False  # its messages are a summary

    def __init__(
        self,
        workspace: WorkspaceBase,
        request: Prompt,
        agent: Agent,
        *,
        fold: Callable[[LiveTurn], Awaitable[list[Message]]] | None = None,
        parent: LiveTurn | None = None,
    ) -> None:
        """`fold` does what `followups` promises; without it nothing is folded. `parent` is the turn
        of the agent that this one works for: its limits hold for both together."""
        super().__init__(workspace, request, parent)
        self.agent = agent
        self.prompt = request.prompt
        self.attachments: Sequence[Attachment] = request.attachments
        self.path = workspace.path
        self.env = workspace.env
        self.max_steps = request.max_steps
        self.reasoning_effort = request.reasoning_effort
        self.reasoning = request.think
        self.spent = Usage()  # what the last model call used
        self.limits: RunLimits = RunLimits(request) if parent is None else parent.limits
        self._selected = agent.info().selected
        self._fold = fold
        self.parent = parent
        self._counting = self.limits  # what counts its steps
        # What ends each sub-agent that has not ended yet.
        self.children: set[Callable[[Outcome], asyncio.Task[None]]] = set()
        self._new_step = True  # the next piece begins a message of its own
        self._stop_asked = False  # the agent has asked whether the turn may end
        self._owed = 0.0  # cost that no session row holds yet
        # Tokens of the last model call, if its usage is to be saved with the ending.
        self._unsaved: tuple[int, int] | None = None
        self._finish = FinishPart("end_turn")
        self._results: set[str] = set()  # tool calls that have one, of all steps
        self._calls: dict[str, ToolCallPart] = {}  # of this step
        self.messages: list[LiveMessage] = []  # of this turn, for the ending's transaction
        self._notes: str | None = None  # what the agent has kept; None if that was not read yet
        self._pieces = 0  # since it has last suspended: see `_yield`
        self._yielded = workspace.clock.time()

    # For its maker -------------------------------------------------------------------------------

    @property
    def last(self) -> LiveMessage:
        """The last assistant message; there is one after the first step, and after `close`."""
        assert self._step is not None
        return self._step

    @property
    def said(self) -> str:
        """What the agent has said in its last step."""
        return self._step.joined().text if self._step is not None else ""

    def add_child(self, end: Callable[[Outcome], asyncio.Task[None]]) -> None:
        self._check()
        self.children.add(end)

    async def agent_done(self) -> None:
        """The agent has returned: tell the wings that the turn ends, unless it has asked them."""
        if not self._stop_asked:
            await self._wanted_before_stop()
        self.guards.notify("agent_completed", self.said)

    async def _wanted_before_stop(self) -> str:
        """Ask the parts what must be done before the turn ends; empty if it may end."""
        self._stop_asked = True
        if self.guards.hold_stop:
            await self._save_usage()
        return await self.guards.stop(self.said)

    def fence(self) -> None:
        self._over = True

    async def end_children(self) -> None:
        """End the sub-agents that were left behind, and wait some seconds for their records."""
        if self.children:
            endings = [end(Outcome.CANCELED) for end in self.children]
            await asyncio.wait(endings, timeout=CHILD_SECONDS)

    def close(self, outcome: Outcome, failure: Failure | None) -> None:
        """Write how it ended, whatever state the agent left the turn in."""
        self._over = True
        withheld = self.guards.close()
        if self._step is None:
            self._create_step()
        self._close_calls(outcome)
        finish = self._finish
        if outcome is Outcome.CANCELED:
            finish = FinishPart("canceled", message="User canceled request")
        elif outcome is Outcome.FAILED:
            failure = failure or Failure("The agent failed", "no reason was given")
            finish = FinishPart("error", message=failure.title, details=failure.detail)
        finish.time = int(self.workspace.clock.now())
        transcript = self.workspace.transcript
        transcript.finish(self.last, finish, write=False, publish=self._unsaved is None)
        prompt = self.messages[0]
        if withheld and prompt.message.role == "user":
            transcript.finish(prompt, FinishPart("stop", withheld=True), write=False)

    def saving_usage(self) -> Callable[[Connection], Session] | None:
        """What the transaction of the ending must do for usage that is not saved yet, because it
        was the last or could not be written; None if all is."""
        if self._unsaved is None and not self._owed:
            return None
        scope, counts = self.workspace.store.scope, (*(self._unsaved or (0, 0)), self._owed)
        now = self.workspace.clock.now()
        return lambda conn: session_rows.save_usage(conn, scope, self.session_id, counts, now)

    def publish_end(self, session: Session | None) -> None:
        """Publish what `close` has held back, so that clients see the usage of a step before its
        end. `session` is as the ending has left it; None if it could not be stored."""
        if self._unsaved is not None and self._step is not None:
            if session is not None:
                self.workspace.hub.publish("updated", session, more=True)
            self.workspace.transcript.flush(self._step, write=False, more=True)

    def _close_calls(self, outcome: Outcome) -> None:
        """Providers refuse a history with a call that has no result, so none is left behind."""
        if self._step is not None:
            self.workspace.transcript.close_calls(self._step)
        for call in list(self._calls.values()):
            if call.id not in self._results:
                why = (NOT_ALLOWED if call.id in self._unallowed else NO_RESULT)[outcome]
                self._result(ToolResultPart(call.id, call.name, why, is_error=True))

    # For the agent: reading ----------------------------------------------------------------------

    @property
    def interactive(self) -> bool:
        return self.workspace.claims.interactive(self.workspace.id)

    @property
    def watchers(self) -> int:
        return self.workspace.claims.watchers(self.workspace.id)

    @property
    def tokens(self) -> int:
        return self.limits.prompt_tokens + self.limits.completion_tokens

    async def session(self) -> Session:
        self._check()
        return await self.workspace.store.read(session_rows.get_session, self.session_id)

    async def history(self) -> list[Message]:
        return (await self.conversation())[1]

    async def conversation(self) -> tuple[Session, list[Message]]:
        self._check()
        read = await self.workspace.transcript.conversation(self.session_id, self.agent.notes_owner)
        session, messages, self._notes = read
        return session, [m for m in messages if m.finish is None or not m.finish.withheld]

    async def recall(self) -> str:
        self._check()
        if self._notes is None:
            store, owner = self.workspace.store, self.agent.notes_owner
            self._notes = await store.read(session_rows.get_notes, self.session_id, owner)
        return self._notes

    # For the agent: the transcript ---------------------------------------------------------------

    async def say(self, text: str) -> None:
        self._check()
        if text:
            self.workspace.transcript.say(self._current(), clean(text))
        await self._yield()

    async def think(self, text: str, signature: str = "") -> None:
        self._check()
        if text or signature:
            self.workspace.transcript.think(self._current(), clean(text), clean(signature))
        await self._yield()

    async def tool_call(
        self,
        name: str,
        input: str | Mapping[str, Any],
        id: str | None = None,
        finished: bool = True,
    ) -> str:
        self._check()
        call_id = self._stored_id(clean(id)) if id else fresh_call_id()
        known = self._calls.get(call_id)
        if id and call_id in self._results:
            if known is not None and not self._results.issuperset(self._calls):
                raise BadRequest(f"tool call {id!r} has its result, others of its step have none")
            # Some servers count their calls from zero in every answer; in a history an id means
            # one call.
            call_id, known = fresh_call_id(), None
            self._fresh_ids[clean(id)] = call_id
        live = self._current() if known is None else self.last
        call = ToolCallPart(call_id, clean(name), json_text(input), finished=bool(finished))
        self.workspace.transcript.tool_call(live, call)
        self._calls[call_id] = known or call
        if call.finished:
            self._called(call)
        await self._yield()
        return call_id

    def _called(self, call: ToolCallPart) -> None:
        """A tool call has its whole input: the turn of a sub-agent shows it."""

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
        await self._watches_ended()
        self._show_calls()
        call = self._open_call(id)
        texts, failed = (clean(content), json_text(metadata)), bool(is_error)
        try:
            texts = await self.guards.result(call, *texts, is_error=failed)
        finally:  # if the run is canceled meanwhile, too: the tool has run
            if not self._over and call.id not in self._results:
                media = clean(data), clean(mime_type)
                self._result(ToolResultPart(call.id, call.name, *texts, failed, *media))
        self._check()
        self._new_step = True
        await self._yield()

    async def before_tool(self, id: str, name: str, input: Mapping[str, Any]) -> ToolCheck:
        self._check()
        call_id = self._stored_id(clean(id))
        check = await self.guards.tool(call_id, name, input) or ToolCheck(dict(input))
        self._check()
        if check.input != input and call_id in self._calls:
            # What is on record, and shown when permission is asked, is what is run.
            await self.tool_call(name, check.input, call_id)
        return check

    @property
    def context(self) -> str:
        return self.guards.context

    @property
    def halted(self) -> bool:
        return bool(self.guards.halted)

    async def before_stop(self) -> bool:
        self._check()
        if self.parent is not None:
            return True  # the agent that it works for goes on
        wanted = await self._wanted_before_stop()
        self._check()
        if not wanted or self._counting.out_of_steps:
            return True
        await self._save_usage()
        self._check()
        self._end_step()
        self._add("user", TextPart(wanted))
        self._new_step, self._stop_asked = True, False
        return False

    def progress(self, id: str, output: str) -> None:
        self._check()
        shown = ToolOutput(self.session_id, self._stored_id(clean(id)), clean(output))
        self.workspace.hub.publish("updated", shown, growth=True)

    def retrying(self, words: str) -> None:
        self._check()
        event = AgentEvent("retry", self.session_id, run_id=self.run_id, progress=clean(words))
        self.workspace.hub.publish("created", event)

    async def step(self) -> None:
        self._check()
        self._counting.check_steps()
        await self._save_usage()
        self._check()
        if self._counting.steps:  # what sub-agents have cost counts as well
            await self._check_cost()
        self._end_step()
        self._new_step = True
        await self._yield()

    async def erase(self) -> None:
        self._check()
        if self._step is not None and not self._new_step:
            for call in self._step.message.tool_calls:
                self._calls.pop(call.id, None)
            self.workspace.transcript.erase(self._step)

    async def finish(self, reason: str, message: str = "", details: str = "") -> None:
        self._check()
        if reason not in OWN_REASONS:
            # How a run was canceled or failed is the daemon's to say: the record must not differ.
            raise BadRequest(f"finish reason {reason!r}: use one of {', '.join(OWN_REASONS)}")
        self._finish = FinishPart(reason, message=clean(message), details=clean(details))

    async def followups(self) -> list[Message]:
        self._check()
        if self._fold is None or self.guards.hold_prompts:
            return []  # there are none; or they must be asked about first, as a turn begins
        if self._calls.keys() - self._results:
            return []  # between a call and its result nothing may stand: no provider takes that
        if self._counting.out_of_steps:
            return []  # nothing could be said to them any more: they get a turn of their own
        # What is said after them answers them, and stands behind them: also if they could not be
        # stored, as they were shown, and an agent may go on in spite of the error.
        before, self._new_step = self._new_step, True
        folded = await self._fold(self)
        self._new_step = before or bool(folded)
        return folded

    # For the agent: other work -------------------------------------------------------------------

    async def summarize(self) -> None:
        self._check()
        await self._save_usage()
        self._check()
        self._end_step()
        self._new_step = True
        if self.agent.summarizes:
            found = (part.summarizer() for part in self.workspace.parts)
            await first_of(found, "writes no summaries")(self.request, self.agent, self)

    async def delegate(
        self, id: str, prompt: str, agent: AnyAgent, *, title: str = ""
    ) -> Delegated:
        self._check()
        if self.parent is not None or self.is_summary:
            raise BadRequest("a sub-agent cannot start another one: do this yourself")
        delegate = first_of((part.delegate() for part in self.workspace.parts), "has no sub-agents")
        call = self._open_call(id)
        self._show_calls()
        return await delegate(self, call.id, clean(prompt), Agent(agent), clean(title))

    # For the agent: bookkeeping ------------------------------------------------------------------

    async def usage(self, usage: Usage, last: bool = False) -> None:
        self._check()
        session_rows.check_usage(usage.prompt_tokens, usage.completion_tokens, usage.cost)
        self.spent = usage
        cost = 0.0 if usage.estimated else usage.cost
        self.limits.count(cost, usage.prompt_tokens, usage.completion_tokens)
        # Zero means unknown: what an earlier call has reported, and nothing has saved yet, stays.
        prompt, completion = self._unsaved or (0, 0)
        counts = usage.prompt_tokens or prompt, usage.completion_tokens or completion
        # Not if a person is to be asked first, which may take long.
        is_last = last and not self.limits.too_expensive
        if is_last and self.parent is None and not self.is_summary:
            self._owed, self._unsaved = min(self._owed + cost, session_rows.MOST_COST), counts
        else:
            self._unsaved = None
            await self._charge(cost, *counts)
        if self.parent is not None and cost:
            await self.parent._charge(cost)
        await self._check_cost()

    async def _save_usage(self) -> None:
        """Save the usage of the last model call, if that was left to the ending."""
        if self._unsaved is not None:
            counts, self._unsaved = self._unsaved, None
            await self._charge(0.0, *counts)

    async def _check_cost(self) -> None:
        """Raise LimitReached if the run has cost too much, and no part raises its limit."""
        limits = self.limits
        if not limits.too_expensive:
            return
        async with limits.asking:  # sub-agents may get here at once
            for part in self.workspace.parts:
                if limits.too_expensive and not limits.reached:
                    limits.max_cost = await part.more_cost(self, limits.cost, limits.max_cost or 0)
            if limits.too_expensive:
                raise limits.stop_at_cost()
        self._check()

    async def _charge(self, cost: float, prompt: int = 0, completion: int = 0) -> None:
        """Save the usage of a model call; of a sub-agent's, this session gets only the cost."""
        owed, self._owed = min(self._owed + cost, session_rows.MOST_COST), 0.0
        counts, now = (prompt, completion, owed), self.workspace.clock.now()
        if not await self._save("usage", session_rows.save_usage, counts, now):
            self._owed += owed

    async def todos(self, todos: Sequence[Todo | Mapping[str, Any]]) -> None:
        self._check()
        listed = [typed(Todo, todo) for todo in todos]
        await self._save("to-do list", session_rows.set_todos, listed, self.workspace.clock.now())

    async def title(self, text: str) -> None:
        self._check()
        title, now = clean(text).replace("\0", "")[:TITLE_CHARS], self.workspace.clock.now()
        await self._save("title", session_rows.set_title, title, now)

    async def remember(self, notes: str) -> None:
        self._check()
        self._notes = None
        await self._save("notes", session_rows.set_notes, clean(notes), self.agent.notes_owner)

    async def file_read(self, path: str) -> None:
        self._check()
        for part in self.workspace.parts:
            await part.file_read(self.session_id, path)

    async def file_changed(self, path: str, before: str | None, after: str | None) -> None:
        self._check()
        await self._watches_ended()
        for part in self.workspace.parts:
            await part.file_changed(self._author, path, before, after)

    # Inside --------------------------------------------------------------------------------------

    def _open_call(self, call_id: str) -> ToolCallPart:
        call = self._calls.get(self._stored_id(clean(call_id)))
        if call is None or call.id in self._results:
            raise BadRequest(f"there is no open tool call {call_id!r} in this step")
        return call

    def _current(self) -> LiveMessage:
        if self._new_step:
            self._counting.check_steps()
            self._end_step()
            self._create_step()
        return self.last

    def _create_step(self) -> None:
        self._counting.steps += 1
        self._new_step = False
        self._calls = {}
        message = new_message("assistant", self.session_id, (), self.workspace.clock.now())
        message.model, message.provider = self._selected.model, self._selected.provider
        message.is_summary_message = self.is_summary
        self._step = self.workspace.transcript.create(message)
        self.messages.append(self._step)

    def _end_step(self) -> None:
        """Close the step before this one: its calls must all have results by now."""
        if self._step is not None and not self._step.finished:
            self._close_calls(Outcome.COMPLETED)
            finish = FinishPart("tool_use", int(self.workspace.clock.now()))
            self.workspace.transcript.finish(self._step, finish)

    def _result(self, result: ToolResultPart) -> None:
        self._results.add(result.tool_call_id)
        self._add("tool", result)

    def _add(self, role: str, part: Part) -> None:
        """Add a complete message."""
        parts, now = (part, FinishPart("stop")), self.workspace.clock.now()
        message = new_message(role, self.session_id, parts, now)
        self.messages.append(self.workspace.transcript.create(message))

    async def _save(self, what: str, work: Callable[..., Session | None], *values: Any) -> bool:
        """Write and publish what is not worth failing a turn for; False if it was not written."""
        try:
            session = await self.workspace.store.write(work, self.session_id, *values)
        except STORE_ERRORS as error:
            log.warning("run %s: its %s could not be written: %s", self.run_id, what, error)
            return False
        if session is not None:
            self.workspace.hub.publish("updated", session)
        return True

    async def _yield(self) -> None:
        """Suspend at least once per coalescing window: an agent that never waits would hold the
        event loop, and could not be cancelled. The count bounds that where time stands still."""
        self._pieces += 1
        now = self.workspace.clock.time()
        if self._pieces >= PIECES or now - self._yielded >= self.workspace.settings.coalesce:
            self._pieces = 0
            await asyncio.sleep(0)
            self._yielded = self.workspace.clock.time()
            self._check()
