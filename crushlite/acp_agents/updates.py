"""What an agent reports during a turn, as calls of the Turn.

A tool call may be seen first in a permission request, in an update or when it is complete, so every
report of it adds to what is known. In a Turn all calls of a step have their results before the next
step begins, while an agent may talk and begin other calls while one still runs: so results are kept
back until no call is open.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Any

from ..agent.base import Usage
from ..jsonrpc.values import size_of
from .content import (
    INPUT_CHARS,
    block_text,
    bounded,
    cut,
    diffs,
    listed,
    object_of,
    result_text,
    shortened,
    text_of,
)
from .failures import shown

if TYPE_CHECKING:
    from ..agent.base import Turn

SAID_CHARS = 1_000_000  # in one turn; more is no answer but a flood
MOST_CALLS = 10_000  # in one turn
CALL_CHARS = 2 << 20  # of the input, the content or the output of one call
INPUTS_CHARS = 6_000_000  # of the inputs of all calls of a turn, as they are written
RESULTS_CHARS = 50_000_000  # of the results of all calls of a turn, as they are written
_MOST_TOKENS = 10**9
_DIFF_CHARS = 100_000  # of a changed file that is kept with the result
_PLAN = 200  # entries
_LEFT_OUT = "\n\n[crushlite: the agent has said too much; the rest of this turn is left out]"
_ENDED = ("completed", "failed")
_STATUSES = ("pending", "in_progress", "completed")
_INPUT_FIELDS = {"title", "rawInput", "locations"}  # of a report: see ReportedCall.arguments
_MOST_ITEMS = 1000  # in the content of a call


class CostMeter:
    """The cost of an agent's session. Agents report what it has cost so far: since the session
    began, or since the process did, so that the number may begin again."""

    def __init__(self, last: float = 0.0) -> None:
        self.last = last

    def added(self, cost: Any) -> float:
        """What has been added by a report, in US dollars. Other currencies count as nothing."""
        cost = object_of(cost)
        amount = cost.get("amount")
        if cost.get("currency") != "USD" or isinstance(amount, bool):
            return 0.0
        if (
            not isinstance(amount, int | float)
            or not 0 <= amount < 1e6
            or not math.isfinite(amount)
        ):
            return 0.0
        added = amount - self.last if amount >= self.last else amount
        self.last = float(amount)
        return float(added)


class ReportedCall:
    """What is known of a tool call."""

    def __init__(self) -> None:
        self.id = ""  # ours
        self.name = ""
        self.kind = ""
        self.title = ""
        self.input: Any = None
        self.content: list[dict[str, Any]] = []
        self.locations: list[dict[str, Any]] = []
        self.output: Any = None
        self.status = "pending"
        self.left_out: set[str] = set()  # fields that were too large to be kept whole
        self.size = 0  # of its input, as far as it counts for INPUTS_CHARS
        self.shown: tuple[str, Any, bool] | None = None  # as the Turn has it
        self.ended = False

    def add(self, report: dict[str, Any]) -> None:
        """Add what a report says. Fields that it does not have stay as they are."""
        self.name = text_of(report.get("name"))[:200] or self.name
        self.kind = text_of(report.get("kind"))[:50] or self.kind
        self.status = text_of(report.get("status"))[:50] or self.status
        if title := text_of(report.get("title")):
            self.title = title if self._fits("title", title) else cut(title, 500)
        if (given := report.get("rawInput")) not in (None, {}):
            self.input = given if self._fits("input", given) else None
        if (output := report.get("rawOutput")) is not None:
            self.output = output if self._fits("output", output) else shortened([], output)
        if isinstance(content := report.get("content"), list):
            self.content = listed(content, _MOST_ITEMS)
            if not self._fits("content", content, len(content) <= _MOST_ITEMS):
                text = {"type": "text", "text": shortened(self.content, None)}
                self.content = [{"type": "content", "content": text}]
        if isinstance(report.get("locations"), list):
            self.locations = listed(report["locations"], _MOST_ITEMS)

    def _fits(self, field: str, value: Any, few: bool = True) -> bool:
        """Whether a value is small enough to be kept, and its items are `few`. `left_out` has the
        field if not."""
        fits = few and size_of(value, CALL_CHARS) <= CALL_CHARS
        self.left_out = self.left_out - {field} if fits else self.left_out | {field}
        return fits

    @property
    def is_whole(self) -> bool:
        """Whether all that was said of it before it ran is known, and can be shown."""
        return not self.left_out & {"title", "input", "content"}

    @property
    def tool_name(self) -> str:
        """A name that every model provider accepts, should the session go on with another agent."""
        return re.sub(r"[^A-Za-z0-9_-]", "_", self.name or self.kind)[:64] or "tool"

    @property
    def arguments(self) -> dict[str, Any]:
        """The input of the call; its title, if the agent does not say more."""
        if isinstance(self.input, dict):
            return self.input
        if self.input is not None:
            return {"input": self.input}
        found: dict[str, Any] = {"title": self.title} if self.title else {}
        paths = [text_of(place.get("path")) for place in self.locations]
        return found | ({"paths": paths} if any(paths) else {})

    def forget(self) -> None:
        """Drop what is large, once the call has ended and its result is made."""
        self.title = ""
        self.input = self.output = self.shown = None
        self.content, self.locations = [], []


# The arguments of Turn.tool_result: id, text, whether it failed, metadata.
_Result = tuple[str, str, bool, dict[str, Any]]


class TurnWriter:
    """Writes one turn. Methods raise what the Turn raises: TurnOver, LimitReached."""

    def __init__(self, turn: Turn, cost: CostMeter) -> None:
        self._turn = turn
        self._cost = cost
        self._calls: dict[str, ReportedCall] = {}  # by the agent's id
        self._open: set[str] = set()
        self._held: list[_Result] = []  # of calls that have ended, in this order
        self._begun = 0  # calls; an id may be that of several
        self._said = 0
        self._inputs = 0  # characters and values in the inputs of calls
        self._results = 0  # characters in the results of calls
        self._message = ""  # the id of the message that text belongs to
        self._used = 0  # tokens in the agent's context
        self._writing = asyncio.Lock()  # updates and permission requests come at the same time
        self.wrote = False  # anything at all

    async def apply(self, update: dict[str, Any]) -> None:
        """Write one `session/update`. Kinds that are not known are ignored."""
        async with self._writing:
            match update.get("sessionUpdate"):
                case "agent_message_chunk":
                    await self._say(update)
                case "agent_thought_chunk":
                    if text := self._within(block_text(update.get("content"))):
                        await self._turn.think(text)
                        self.wrote = True
                case "tool_call" | "tool_call_update":
                    await self._report(update)
                case "plan":
                    await self._plan(update)
                case "usage_update":
                    await self._usage(update)
                case "session_info_update":
                    if title := shown(text_of(update.get("title")), 200):
                        await self._turn.title(title)

    async def call_of(self, report: dict[str, Any]) -> ReportedCall | None:
        """The call that a permission request is about; the Turn has it then. None if it has no
        id, or if there are too many calls. If the call of this id has ended, the request is about
        another one that uses the id again: what was known of the first must not be shown."""
        async with self._writing:
            return await self._report({**report, "sessionUpdate": "tool_call", "status": None})

    async def finish(self, answer: dict[str, Any]) -> None:
        """The prompt was answered: write what is held back, and the tokens."""
        async with self._writing:
            await self._write_results()
            usage = object_of(answer.get("usage"))
            quota = object_of(
                object_of(object_of(answer.get("_meta")).get("quota")).get("token_count")
            )
            given = _count(usage.get("inputTokens")) or _count(quota.get("input_tokens"))
            taken = _count(usage.get("outputTokens")) or _count(quota.get("output_tokens"))
            # What is in the agent's context says more than what all its model calls were given.
            if self._used or given or taken:
                await self._turn.usage(Usage(self._used or given, taken))

    # Text ---------------------------------------------------------------------------------------

    def _within(self, text: str) -> str:
        """As much of a text as may still be written."""
        room = SAID_CHARS - self._said
        self._said += len(text)
        if len(text) <= room:
            return text
        return text[:room] + _LEFT_OUT if room >= 0 else ""

    async def _say(self, update: dict[str, Any]) -> None:
        text = self._within(block_text(update.get("content")))
        if not text:
            return
        message = text_of(update.get("messageId"))
        if self._message and message != self._message:
            text = f"\n\n{text}"
        self._message = message
        await self._turn.say(text)
        self.wrote = True

    # Tool calls ---------------------------------------------------------------------------------

    async def _report(self, report: dict[str, Any]) -> ReportedCall | None:
        key = text_of(report.get("toolCallId"))[:1000]
        known = self._calls.get(key)
        if known is not None and known.ended:
            if report.get("sessionUpdate") != "tool_call":
                return known  # it was complete before
            known = None  # the id is used again
        if not key or (known is None and self._begun >= MOST_CALLS):
            return None
        if known is None:
            self._begun += 1
        call = self._calls[key] = known or ReportedCall()
        call.add(report)
        await self._show(call, report)
        self._open.add(key)
        if call.status in _ENDED:
            call.ended = True
            self._open.discard(key)
            self._held.append(self._result(call))
            call.forget()
            if not self._open:
                await self._write_results()
        elif call.status == "in_progress" and (text := result_text(call.content, None)):
            self._turn.progress(call.id, text)
        return call

    async def _show(self, call: ReportedCall, report: dict[str, Any]) -> None:
        """Let the Turn have what a report has added to a call."""
        if call.shown is None or report.keys() & _INPUT_FIELDS:
            arguments = self._input(call)
        else:
            arguments = call.shown[1]
        finished = call.status != "pending"
        new = call.tool_name, arguments, finished
        if new != call.shown:
            name, arguments, _ = call.shown = new
            call.id = await self._turn.tool_call(name, arguments, call.id or None, finished)
            self._message = ""
            self.wrote = True

    def _input(self, call: ReportedCall) -> dict[str, Any]:
        """The input of a call as it is written: its title, if INPUTS_CHARS has no room for more.
        All calls of a step are in one message, which must be small enough to be read again."""
        arguments: dict[str, Any] = bounded(call.arguments, INPUT_CHARS)
        others = self._inputs - call.size
        call.size = size_of(arguments, INPUTS_CHARS)
        if others + call.size > INPUTS_CHARS:
            call.size, arguments = 0, {"title": cut(call.title, 200)}
        self._inputs = others + call.size
        return arguments

    def _result(self, call: ReportedCall) -> _Result:
        """The result of a call that has ended: short, if RESULTS_CHARS has no room for more."""
        text, metadata = result_text(call.content, call.output), _metadata(call)
        size = len(text) + size_of(metadata, RESULTS_CHARS)
        if self._results + size > RESULTS_CHARS:
            text, metadata = cut(text, 500), {}
            size = len(text)
        self._results += size
        return call.id, text, call.status == "failed", metadata

    async def _write_results(self) -> None:
        held, self._held = self._held, []
        for result in held:
            await self._turn.tool_result(*result)

    # The rest -----------------------------------------------------------------------------------

    async def _plan(self, update: dict[str, Any]) -> None:
        entries = listed(update.get("entries"), _PLAN)
        todos = [
            {
                "content": cut(text_of(entry.get("content")), 500),
                "status": status if (status := entry.get("status")) in _STATUSES else "pending",
            }
            for entry in entries
        ]
        await self._turn.todos(todos)

    async def _usage(self, update: dict[str, Any]) -> None:
        self._used = _count(update.get("used")) or self._used
        if added := self._cost.added(update.get("cost")):
            await self._turn.usage(Usage(cost=added))


def _count(value: Any) -> int:
    """A number of tokens; 0 if it is none."""
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS
    return value if good else 0


def _metadata(call: ReportedCall) -> dict[str, Any]:
    found: dict[str, Any] = {"title": cut(call.title, 500), "kind": cut(call.kind, 50)}
    changed = diffs(call.content)
    if len(changed) == 1 and sum(map(len, changed[0])) <= _DIFF_CHARS:
        found["file_path"], found["old_content"], found["new_content"] = changed[0]
    return found
