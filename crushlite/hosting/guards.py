"""What the parts of a workspace say about one turn: about its prompt, its tool calls, the
permissions that it asks for, and its end.

A part may refuse, change or comment what an agent is about to do (`WorkspacePart.before_tool` and
its neighbours in wing.py). An agent that asks before it runs a tool (`Turn.before_tool`) can follow
a changed input. Of one that does not, the tools are checked when it asks for a permission; there a
changed input counts as a refusal, because the agent would run what it had in mind.

A part that fails counts as a refusal where it was asked before something is done.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from ..agent.base import ToolCheck, Verdict
from ..errors import CrushliteError, PromptRefused
from ..protocol.codec import NotJSON, dumps, loads
from ..wing import Author, Ruling, ToolUsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..protocol.messages import ToolCallPart
    from ..protocol.permissions import PermissionRequest
    from ..wing import WorkspacePart

log = logging.getLogger(__name__)

MOST_STOPS = 5  # how often a turn goes on because a part wants it to
READ_CHARS = 1_000_000  # of an input or metadata that is read here
CONTEXT_CHARS = 32_000  # that parts may add to one prompt or one result
SHOWN = "hook"  # the key of what parts said in the metadata of a result
_FAILED = "it could not be checked, which counts as a no; the daemon's log says why"


class TurnGuards:
    """Asks the parts on behalf of one turn, and remembers what they said of its calls."""

    def __init__(self, parts: Sequence[WorkspacePart], author: Author) -> None:
        self.context = ""  # what the parts add to the prompt
        self.halted = ""  # why the turn must end; empty if it need not
        self.may_stop = False  # the agent has asked whether the turn may end
        self._parts = parts
        self._author = author
        self._checked: set[str] = set()  # calls that passed `tool`
        self._approved: set[str] = set()  # calls for which nobody need be asked
        self._must_ask: set[str] = set()  # calls for which users must be asked
        self._refused: set[str] = set()  # calls that did not run
        self._context: dict[str, list[str]] = {}  # for the results, by call
        self._shown: dict[str, dict[str, Any]] = {}  # for the metadata of the results, by call
        self._inputs: dict[str, dict[str, Any]] = {}
        self._stops = 0

    @property
    def hold_prompts(self) -> bool:
        """Whether each prompt needs a turn of its own, in which the parts are asked about it."""
        return any(part.guards_prompts for part in self._parts)

    async def prompt(self, text: str) -> None:
        """Ask about the prompt of the turn, before the agent sees it. Raises PromptRefused."""
        context: list[str] = []
        for part in self._parts:
            ruling = await self._asked(part, lambda p: p.before_prompt(self._author, text))
            if ruling is not None and (ruling.denied or ruling.halt):
                raise PromptRefused(ruling.denied or "a hook refused this prompt")
            if ruling is not None and ruling.context:
                context.append(ruling.context)
        self.context = _joined(context)

    async def tool(self, call_id: str, name: str, given: Mapping[str, Any]) -> ToolCheck:
        """Ask about a tool call before it runs: the parts in their order, each with the input as
        the one before left it. The first no ends it. When it has passed, permissions that are asked
        for this call are not checked again: the agent knows what it was checked with."""
        check = await self._check(call_id, name, given)
        if not check.refusal:
            self._checked.add(call_id)
        return check

    async def _check(self, call_id: str, name: str, given: Mapping[str, Any]) -> ToolCheck:
        """Ask the parts about a call. What they said of an earlier one with this id is forgotten:
        it may have been about another input."""
        for some in (self._checked, self._approved, self._must_ask, self._refused):
            some.discard(call_id)
        for noted in (self._context, self._shown, self._inputs):
            noted.pop(call_id, None)
        value = dict(given)
        if self.halted:
            return self._refuse(call_id, value, self.halted, halt=True)
        for part in self._parts:
            used = ToolUsed(self._author, call_id, name, value)
            ruling = await self._asked(part, functools.partial(_before_tool, used))
            if ruling is None:
                continue
            self._note(call_id, ruling)
            if ruling.halt:
                self.halted = ruling.denied or "a hook has halted this turn"
            if ruling.denied or ruling.halt:
                return self._refuse(call_id, value, ruling.denied or self.halted, halt=ruling.halt)
            if ruling.allowed:
                self._approved.add(call_id)
            if ruling.ask:
                self._must_ask.add(call_id)
            if ruling.input is not None and ruling.input != value:
                # What an earlier part allowed was something else.
                value = dict(ruling.input)
                if not ruling.allowed:
                    self._approved.discard(call_id)
        self._inputs[call_id] = value
        return ToolCheck(value)

    def _refuse(self, call_id: str, value: dict[str, Any], why: str, *, halt: bool) -> ToolCheck:
        self._approved.discard(call_id)
        self._refused.add(call_id)
        return ToolCheck(value, why, halt)

    async def permission(self, request: PermissionRequest) -> Verdict | None:
        """What is decided about a permission before anything else is looked at: a refusal of its
        tool call, or the approval of this very call. None: nothing. Unless the call has passed
        `tool`, the parts are asked about each request: an agent may ask again for the same call,
        after a refusal or with another input."""
        call_id = request.tool_call_id
        if call_id not in self._checked or not call_id:
            check = await self._check(call_id, request.tool_name, request.params)
            if check.refusal:
                return Verdict(False, check.refusal)
            if check.input != request.params:
                self._approved.discard(call_id)
                return Verdict(False, "a hook changes the input, which this agent cannot follow")
        if self.halted:
            return Verdict(False, self.halted)
        approved = call_id in self._approved and call_id not in self._must_ask
        return Verdict(True) if call_id and approved else None

    def must_ask(self, call_id: str) -> bool:
        """Whether users must be asked about a call, whatever they have allowed before."""
        return call_id in self._must_ask

    def notify(self, kind: str, text: str) -> None:
        for part in self._parts:
            try:
                part.notified(self._author, kind, text)
            except Exception:
                log.exception("run %s: %s failed", self._author.run_id, type(part).__name__)

    async def answer(self, request: PermissionRequest) -> Verdict | None:
        """What a part answers to a request that users would be asked about; None: they are."""
        for part in self._parts:
            ruling = await self._asked(
                part, lambda p: p.permission_asked(self._author, request), refuse=False
            )
            if ruling is not None and ruling.halt:
                self.halted = ruling.denied or "a hook has halted this turn"
            if ruling is not None and (ruling.denied or ruling.halt):
                return Verdict(False, ruling.denied or self.halted)
            if ruling is not None and ruling.allowed:
                return Verdict(True)
        return None

    async def result(
        self, call: ToolCallPart, content: str, metadata: str, *, is_error: bool
    ) -> tuple[str, str]:
        """Ask about the result of a call; returns content and metadata with what parts add."""
        call_id = call.id
        if call_id not in self._refused:
            given = self._inputs.pop(call_id, None)
            value = _object(call.input) if given is None else given
            used = ToolUsed(self._author, call_id, call.name, value)
            for part in self._parts:
                ruling = await self._asked(
                    part, lambda p: p.after_tool(used, content, is_error), refuse=False
                )
                if ruling is not None:
                    self._note(call_id, ruling)
                    if ruling.denied:
                        self._context.setdefault(call_id, []).append(ruling.denied)
                    if ruling.halt:
                        self.halted = ruling.denied or "a hook has halted this turn"
        context = _joined(self._context.pop(call_id, []))
        shown = self._shown.pop(call_id, None)
        if context:
            content = f"{content}\n\n{context}" if content else context
        return content, _with_shown(metadata, shown) if shown else metadata

    async def stop(self, text: str) -> str:
        """Ask before the turn ends, with the agent's last words. Returns what must be done first;
        empty if it may end."""
        self.may_stop = True
        if self.halted or self._stops >= MOST_STOPS:
            return ""
        wanted: list[str] = []
        again = self._stops > 0
        for part in self._parts:
            ruling = await self._asked(
                part, lambda p: p.before_stop(self._author, text, again), refuse=False
            )
            if ruling is not None and ruling.halt:
                return ""
            if ruling is not None and ruling.denied:
                wanted.append(ruling.denied)
        self._stops += bool(wanted)
        return _joined(wanted)

    def _note(self, call_id: str, ruling: Ruling) -> None:
        if ruling.context:
            self._context.setdefault(call_id, []).append(ruling.context)
        if ruling.shown:
            self._shown.setdefault(call_id, {}).update(ruling.shown)

    async def _asked(
        self,
        part: WorkspacePart,
        ask: Callable[[WorkspacePart], Awaitable[Ruling | None]],
        *,
        refuse: bool = True,
    ) -> Ruling | None:
        """Ask one part. If it fails, that is a refusal, or nothing without `refuse`."""
        try:
            return await ask(part)
        except CrushliteError as error:
            log.warning("run %s: %s failed: %s", self._author.run_id, type(part).__name__, error)
        except Exception:
            log.exception("run %s: %s failed", self._author.run_id, type(part).__name__)
        return Ruling(denied=_FAILED) if refuse else None


def _before_tool(used: ToolUsed, part: WorkspacePart) -> Awaitable[Ruling | None]:
    return part.before_tool(used)


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
