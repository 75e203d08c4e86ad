"""Running the tool calls of an answer, and reporting their results."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from ..errors import CrushliteError
from ..features import offers
from ..records import dataclass
from .answers import RUN_CALLS
from .briefing import digest
from .context import TOTAL_CHARS, block, bounded, files_above
from .repeats import RepeatGuard
from .tools.base import ToolOutcome, ToolUse, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import Turn
    from .answers import ModelAnswer, ToolRequest
    from .briefing import Briefing
    from .tools.base import ToolContext
    from .tools.toolbox import StepTools

log = logging.getLogger(__name__)

PARALLEL = 8  # tools of one run at the same time
RESULT_CHARS = 2_000_000  # of all results of one answer: they are part of every later request
FILE_TOOLS = ("view", "edit", "multiedit", "write")  # those with a file_path

TOO_MANY_CALLS = (
    f"this call was not run: of one answer only {RUN_CALLS} are. Ask for it again if it is needed"
)
TOO_MUCH_OUTPUT = (
    f"the results of this answer are over {RESULT_CHARS} characters together, so this one was left "
    "out: ask for less at a time"
)


@dataclass(slots=True)
class _Room:
    """How many characters the results of one answer may still have."""

    left: int


@dataclass(slots=True)
class TurnState:
    """What the steps of one turn share."""

    briefing: Briefing
    tools: StepTools
    guard: RepeatGuard = dataclasses.field(default_factory=RepeatGuard)
    # The ids of its tool calls, of those that were summarized too.
    used: set[str] = dataclasses.field(default_factory=set)


class ToolRunner:
    """`context_paths` are the names of context files."""

    def __init__(self, context: ToolContext, context_paths: Sequence[str]) -> None:
        self._context = context
        self._context_paths = context_paths

    async def run(self, turn: Turn, state: TurnState, answer: ModelAnswer) -> list[ToolOutcome]:
        """Run the calls of an answer in order; neighbours that only read run at the same time,
        PARALLEL of them. After one that stops the turn, no further call runs: the daemon gives them
        their results. Calls after the first RUN_CALLS are not run, which their results say."""
        calls = list(answer.calls.values())
        batches: list[list[ToolRequest]] = []
        reading = False
        for call in calls[:RUN_CALLS]:
            tool = state.tools.by_name.get(call.name)
            reads = tool is not None and tool.read_only
            if not (reads and reading):
                batches.append([])
            batches[-1].append(call)
            reading = reads
        outcomes: list[ToolOutcome] = []
        room = _Room(RESULT_CHARS)
        for batch in batches:
            outcomes += await self._run_batch(turn, state, batch, room)
            if any(outcome.stop for outcome in outcomes):
                return outcomes
        for call in calls[RUN_CALLS:]:
            await self._report(turn, call, failure(TOO_MANY_CALLS))
        return outcomes

    async def _run_batch(
        self, turn: Turn, state: TurnState, batch: list[ToolRequest], room: _Room
    ) -> list[ToolOutcome]:
        if len(batch) == 1:
            return [await self._run_tool(turn, state, batch[0], room)]
        running = asyncio.Semaphore(PARALLEL)

        async def run(call: ToolRequest) -> ToolOutcome:
            async with running:
                return await self._run_tool(turn, state, call, room)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in batch]
        return [task.result() for task in tasks]

    async def _run_tool(
        self, turn: Turn, state: TurnState, call: ToolRequest, room: _Room
    ) -> ToolOutcome:
        tool = state.tools.by_name.get(call.name)
        outcome = await self._outcome(turn, call, state.tools)
        room.left -= len(outcome.content)
        # What has changed something is reported in any case.
        if room.left < 0 and tool is not None and tool.read_only and not outcome.stop:
            outcome = failure(TOO_MUCH_OUTPUT)
        more = [state.guard.warning()]
        if call.name in FILE_TOOLS and not outcome.is_error:
            more += await self._files_on_the_way(turn, state.briefing, call)
            if tool is not None and not tool.read_only:
                more += await self._notes_on_change(turn, call)
        await self._report(turn, call, outcome, [text for text in more if text])
        return outcome

    async def _files_on_the_way(
        self, turn: Turn, briefing: Briefing, call: ToolRequest
    ) -> list[str]:
        """The context files of the folders down to the file of a call, each told once."""
        look = functools.partial(
            files_above, self._context.path, str(call.value.get("file_path", ""))
        )
        names = self._context_paths
        try:
            found = await self._context.blocking(look, names, self._context.own)
        except CrushliteError:
            return []  # the file system hangs: the call itself has come through
        new = briefing.untold(found)
        if new:
            briefing.told |= {name: digest(text) for name, text in new}
            await turn.remember(briefing.dump())
        return [block(name, text) for name, text in bounded(new, TOTAL_CHARS // 4)]

    async def _notes_on_change(self, turn: Turn, call: ToolRequest) -> list[str]:
        """What wings say of the file that a call has changed."""
        try:
            place = await self._context.locate(str(call.value.get("file_path", "")))
        except CrushliteError:
            return []
        return await offers.notes_on_change(turn, str(place.path))

    async def _report(
        self, turn: Turn, call: ToolRequest, outcome: ToolOutcome, more: Sequence[str] = ()
    ) -> None:
        """Record the outcome of a call, and what else the model is to be told with it."""
        await turn.tool_result(
            call.id,
            "\n\n".join([outcome.content, *more]),
            outcome.is_error,
            outcome.metadata,
            outcome.data,
            outcome.mime_type,
        )

    async def _outcome(self, turn: Turn, call: ToolRequest, tools: StepTools) -> ToolOutcome:
        """Run one tool. Every failure but a cancellation becomes an outcome that the model
        reads."""
        tool = tools.by_name.get(call.name)
        if tool is None:
            return failure(f"there is no tool {call.name!r}; there are {', '.join(tools.shown)}")
        if call.problem:
            return failure(call.problem)
        check = await turn.before_tool(call.id, call.name, call.value)
        call.value = check.input  # what is run is what was shown
        if check.refusal:
            text = f"{call.name} was not run: {check.refusal}"
            return ToolOutcome(text, is_error=True, stop=check.halt)
        try:
            return await tool.run(ToolUse(call.id, call.name, call.value, turn, self._context))
        except CrushliteError as error:
            return failure(error.message)
        except OSError as error:
            return failure(str(error))
        except Exception:
            log.exception("tool %s broke", call.name)
            return failure("the tool broke; this is a fault of crushlite, its log says more")
