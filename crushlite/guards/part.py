"""What the parts of a workspace say about one turn: about its prompt, its tool calls, the
permissions that it asks for, and its end.

An agent that asks before it runs a tool (`Turn.before_tool`) can follow a changed input. Of one
that does not, the tools are checked when it asks for a permission; there a changed input counts as
a refusal, because the agent would run what it had in mind.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from ..agent.base import Scope, ToolCheck, Verdict
from ..clock import resolve_once
from ..errors import CrushliteError, PromptRefused
from ..hosting.workspace_base import tolerated
from ..protocol.codec import NotJSON, dumps, loads
from ..records import dataclass
from ..wing import Guards, WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..hosting.turn_requests import TurnRequests
    from ..protocol.messages import ToolCallPart
    from ..protocol.permissions import PermissionRequest
    from ..wing import Author

log = logging.getLogger(__name__)

MOST_STOPS = 5  # how often a turn goes on because a part wants it to
READ_CHARS = 1_000_000  # of an input or metadata that is read here
CONTEXT_CHARS = 32_000  # that parts may add to one prompt or one result
SHOWN = "hook"  # the key of what parts said in the metadata of a result


@dataclass(frozen=True, slots=True)
class ToolUsed:
    """A tool call of an agent."""

    author: Author
    call_id: str  # as in the transcript; empty if the agent has none
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a part says about what an agent does. Which fields count depends on what was asked."""

    denied: str = ""  # why it must not be done, for the model and the user; empty: it may
    allowed: bool = False  # nobody need be asked for permission
    ask: bool = False  # users must be asked, whatever they have allowed before
    input: Mapping[str, Any] | None = None  # what a tool is to be run with instead
    context: str = ""  # for the model, in addition
    halt: bool = False  # the turn must end
    shown: Mapping[str, Any] | None = None  # for clients, in the metadata of the tool's result


_NOTHING = Ruling()
_REFUSED = Ruling("it could not be checked, which counts as a no; the daemon's log says why")


class GuardPart(WorkspacePart):
    """May refuse, change or comment what agents do. All such parts of a workspace are asked, one
    after the other. Each must answer in a bounded time. One that raises has refused the prompt or
    the tool call that it was asked about; elsewhere it has said nothing."""

    guards_prompts = False  # prompts that were sent to steer a turn get one of their own
    guards_stop = False  # `before_stop` may take long: what a turn has used is saved before it

    async def before_prompt(self, author: Author, text: str) -> Ruling | None:
        """A turn begins: its prompt can be refused, or get context."""
        return None

    async def before_tool(self, used: ToolUsed) -> Ruling | None:
        """A tool is about to run, and nobody was asked yet: it can be refused, allowed, get another
        input (the next part sees that one), or halt the turn. Context goes into its result."""
        return None

    async def after_tool(self, used: ToolUsed, result: str, is_error: bool) -> Ruling | None:
        """A tool has run: the reason of a refusal, and context, are put behind its result."""
        return None

    async def permission_asked(self, author: Author, request: PermissionRequest) -> Ruling | None:
        """Users are about to be asked: `denied` and `allowed` answer instead of them."""
        return None

    def notified(self, author: Author, kind: str, text: str) -> None:
        """What a user who looks away should know: `permission_prompt` and `agent_needs_input`
        (users are asked), or `agent_completed`."""

    async def before_stop(self, author: Author, text: str, again: bool) -> Ruling | None:
        """The agent is done, and `text` is what it said last: the reason of a refusal is given to
        it to go on. `again`: it has gone on like this before in this turn."""
        return None

    def turn_guards(
        self, parts: Sequence[WorkspacePart], author: Author, above: Guards | None
    ) -> Guards:
        return TurnGuards(parts, author, above)


@dataclass(slots=True)
class _CheckedCall:
    """What the parts said of a tool call with this input."""

    input: dict[str, Any]
    passed: bool = False  # `TurnGuards.tool` let it pass: its agent runs it with this input
    refusal: str = ""  # why it must not run; empty if it may
    halt: bool = False  # the refusal ends the turn
    approved: bool = False  # nobody need be asked
    must_ask: bool = False  # users must be asked
    context: list[str] = field(default_factory=list)  # for the result
    shown: dict[str, Any] = field(default_factory=dict)  # for the metadata of the result

    def note(self, ruling: Ruling) -> None:
        """Keep what goes into the result of the call."""
        self.context.append(ruling.context)
        self.shown.update(ruling.shown or {})


class TurnGuards(Guards):
    """Asks the parts on behalf of one turn, and remembers what they said of its calls."""

    def __init__(
        self, parts: Sequence[WorkspacePart], author: Author, above: Guards | None = None
    ) -> None:
        """`above` are the guards of the turn that a sub-agent works for: a halt ends both."""
        self._guards = [part for part in parts if isinstance(part, GuardPart)]
        self._author = author
        self._top = above if isinstance(above, TurnGuards) else self
        # Whether no agent may see the prompt. Assumed until the parts were asked: what they said
        # is known when `_checked` is done.
        self._withheld = above is None and self.hold_prompts
        self._checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._withheld:
            resolve_once(self._checked)
        self._halted = ""
        self._calls: dict[str, _CheckedCall] = {}  # until they have a result, by their ids
        self._stops = 0

    @property
    def halted(self) -> str:  # type: ignore[override]
        return self._top._halted

    @property
    def hold_prompts(self) -> bool:  # type: ignore[override]
        return any(part.guards_prompts for part in self._guards)

    @property
    def hold_stop(self) -> bool:  # type: ignore[override]
        return any(part.guards_stop for part in self._guards)

    async def prompt(self, text: str) -> None:
        context: list[str] = []
        for part in self._guards:
            ruling = await self._asked(part, part.before_prompt, self._author, text)
            if ruling.denied or ruling.halt:
                self._withheld = True
                raise PromptRefused(ruling.denied or "a hook refused this prompt")
            context.append(ruling.context)
        self.context, self._withheld = _joined(context), False
        resolve_once(self._checked)

    async def withheld(self) -> bool:
        await self._checked
        return self._withheld

    def close(self) -> bool:
        resolve_once(self._checked)
        return self._withheld

    async def tool(self, call_id: str, name: str, given: Mapping[str, Any]) -> ToolCheck:
        """Ask about a tool call before it runs. When it has passed, permissions that are asked for
        this call are not checked again: the agent knows what it was checked with."""
        call = await self._check(call_id, name, given)
        call.passed = not call.refusal
        return ToolCheck(call.input, call.refusal, call.halt)

    async def _check(self, call_id: str, name: str, given: Mapping[str, Any]) -> _CheckedCall:
        """Ask the parts about a call, each with the input as the one before left it, until one says
        no. What was said is remembered instead of what was said of an earlier call with this id."""
        self._calls.pop(call_id, None)
        call = _CheckedCall(dict(given), refusal=self.halted, halt=bool(self.halted))
        for part in self._guards if not call.refusal else ():
            used = ToolUsed(self._author, call_id, name, call.input)
            ruling = await self._asked(part, part.before_tool, used)
            call.note(ruling)
            self._heed_halt(ruling)
            if ruling.denied or ruling.halt:
                call.refusal, call.halt = ruling.denied or self.halted, ruling.halt
                break
            call.approved |= ruling.allowed
            call.must_ask |= ruling.ask
            if ruling.input is not None and ruling.input != call.input:
                # What an earlier part allowed was something else.
                call.input = dict(ruling.input)
                call.approved = ruling.allowed
        # Not before: meanwhile the agent may ask about another input under the same id.
        self._calls[call_id] = call
        return call

    async def decide(
        self, request: PermissionRequest, scope: Scope | None, turn: TurnRequests
    ) -> Verdict | None:
        """Parts can always refuse. Unless the prompt approves everything, they can also approve
        instead of the users, or have them asked, whatever they have allowed before."""
        ruled = await self.permission(request)
        if ruled is not None and not ruled:
            return ruled
        if turn.request.auto_approve:
            return None
        permissions, policy = turn.workspace.permissions, turn.workspace.profile
        settled = permissions.skip or policy.allows(request.tool_name, request.action)
        call = self._calls.get(request.tool_call_id)
        always = call is not None and call.must_ask
        if always:
            scope = Scope((), "nothing: a hook wants you to be asked each time")
            request = replace(request, scope=scope.words, rule="")  # which users see
        elif settled or permissions.grants.covers(request, scope):
            return None  # no user would be asked
        ruled = ruled or await self.answer(request)
        if ruled is not None:
            permissions.announce(request, granted=bool(ruled))
            return ruled
        return await permissions.ask(request, turn.run_id, scope, always=always)

    async def permission(self, request: PermissionRequest) -> Verdict | None:
        """The refusal of a tool call, or the approval of this very call; else None. Unless the call
        has passed `tool`, each request is checked: an agent may ask again, after a refusal or with
        another input."""
        call_id = request.tool_call_id
        call = self._calls.get(call_id)
        if call is None or not call.passed or not call_id:
            call = await self._check(call_id, request.tool_name, request.params)
            if call.refusal:
                return Verdict(False, call.refusal)
            if call.input != request.params:
                return Verdict(False, "a hook changes the input, which this agent cannot follow")
        if self.halted:
            return Verdict(False, self.halted)
        return Verdict(True) if call_id and call.approved and not call.must_ask else None

    def notify(self, kind: str, text: str) -> None:
        for part in self._guards:
            with tolerated(part, f"in run {self._author.run_id}"):
                part.notified(self._author, kind, text)

    async def answer(self, request: PermissionRequest) -> Verdict | None:
        """What a part answers to a request that users would be asked about; None: they are."""
        for part in self._guards:
            asking = part.permission_asked
            ruling = await self._asked(part, asking, self._author, request, refuse=False)
            self._heed_halt(ruling)
            if ruling.denied or ruling.halt:
                return Verdict(False, ruling.denied or self.halted)
            if ruling.allowed:
                return Verdict(True)
        self.notify("permission_prompt", request.description)
        return None

    async def result(
        self, call: ToolCallPart, content: str, metadata: str, *, is_error: bool
    ) -> tuple[str, str]:
        checked = self._calls.get(call.id) or _CheckedCall(_object(call.input))
        if not checked.refusal:
            used = ToolUsed(self._author, call.id, call.name, checked.input)
            for part in self._guards:
                asked = used, content, is_error
                ruling = await self._asked(part, part.after_tool, *asked, refuse=False)
                checked.note(ruling)
                checked.context.append(ruling.denied)
                self._heed_halt(ruling)
        self._calls.pop(call.id, None)
        context = _joined(checked.context)
        if context:
            content = f"{content}\n\n{context}" if content else context
        return content, _with_shown(metadata, checked.shown) if checked.shown else metadata

    async def stop(self, text: str) -> str:
        if self.halted or self._stops >= MOST_STOPS:
            return ""
        wanted: list[str] = []
        again = self._stops > 0
        for part in self._guards:
            asked = self._author, text, again
            ruling = await self._asked(part, part.before_stop, *asked, refuse=False)
            if ruling.halt:
                return ""
            if ruling.denied:
                wanted.append(ruling.denied)
        self._stops += bool(wanted)
        return _joined(wanted)

    # Inside --------------------------------------------------------------------------------------

    def _heed_halt(self, ruling: Ruling) -> None:
        if ruling.halt:
            self._top._halted = ruling.denied or "a hook has halted this turn"

    async def _asked(
        self,
        part: WorkspacePart,
        method: Callable[..., Awaitable[Ruling | None]],
        *args: object,
        refuse: bool = True,
    ) -> Ruling:
        """What a method of a part says. A failure is a refusal, or nothing without `refuse`."""
        try:
            return await method(*args) or _NOTHING
        except CrushliteError as error:
            log.warning("run %s: %s failed: %s", self._author.run_id, type(part).__name__, error)
        except Exception:
            log.exception("run %s: %s failed", self._author.run_id, type(part).__name__)
        return _REFUSED if refuse else _NOTHING


def _joined(texts: Sequence[str]) -> str:
    text = "\n\n".join(filter(None, texts))
    return text if len(text) <= CONTEXT_CHARS else f"{text[:CONTEXT_CHARS]}\n(cut)"


def _with_shown(metadata: str, shown: Mapping[str, Any]) -> str:
    """The metadata of a result, an object of JSON, with what parts show to clients."""
    value = _object(metadata) if metadata else {}
    if metadata and not value:
        return metadata
    # At the top, where the base protocol has them, unless the tool has a key of that name; and
    # under one key, where they cannot be mistaken for the tool's own.
    return dumps({**shown, **value, SHOWN: dict(shown)}).decode("ascii")


def _object(text: str) -> dict[str, Any]:
    """An object of JSON; an empty one for what is none, or too long to be read on the way."""
    try:
        value = loads(text.encode("utf-8", "replace")) if len(text) <= READ_CHARS else None
    except NotJSON:
        return {}
    return value if isinstance(value, dict) else {}
