"""The loop of the coder agent: a model that works on the project through tools.

One turn is a loop of steps. A step folds in the prompts that were sent meanwhile, asks the model
with the whole conversation, streams its answer into one assistant message, and runs the tools that
it called. The turn ends when the model calls no tool, when a tool's outcome says stop, or when the
model repeats itself.

The agent keeps no conversation of its own: each request is made from the stored history, so it
cannot differ from it after a restart, a cancel or another client's prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections import Counter, deque
from typing import TYPE_CHECKING

from ..agent.base import Info, Title, Usage
from ..clock import time_limit
from ..errors import CrushliteError, LimitReached
from ..records import dataclass
from .answers import RUN_CALLS, ModelAnswer
from .history import chat_messages, estimated_tokens
from .jsontext import LIGHT_CHARS
from .prompts import SUMMARY, TITLE, context_files, system_prompt
from .providers.base import (
    CallPiece,
    ChatMessage,
    ModelRequest,
    ModelStop,
    ProviderError,
    Text,
    Thought,
    Tokens,
)
from .tools.base import ToolOutcome, ToolUse, failure, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import Turn
    from ..clock import Clock
    from ..protocol.config import Model, SelectedModel
    from ..protocol.messages import Message
    from ..protocol.sessions import Session
    from .answers import ToolRequest
    from .providers.base import ModelClient, ToolSpec
    from .tools.base import Tool, ToolContext

log = logging.getLogger(__name__)

FEW_MESSAGES = 64
RETRIES = 3
RETRY_SECONDS = 180.0  # for all pauses between the attempts of a step together
TITLE_SECONDS = 60.0
MAX_STEPS = 100
# The model repeats itself if one call had the same result more than REPEATS times within the last
# REPEAT_WINDOW steps.
REPEAT_WINDOW = 10
REPEATS = 5


ANNOUNCED = 32  # tool calls that clients see before the answer is complete
PARALLEL = 8  # tools of one run at the same time
RESULT_CHARS = 2_000_000  # of all results of one answer: they are part of every later request
TITLE_CHARS = 10_000  # some models reason before they write the title

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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and the provider that serves it. `selected` holds the user's settings for it;
    `system_prefix` comes before the system prompt."""

    provider: ModelClient
    model: Model
    selected: SelectedModel
    system_prefix: str = ""


@dataclass(frozen=True, slots=True)
class CoderOptions:
    context_paths: tuple[str, ...] = ()
    auto_summarize: bool = True
    commits: str = ""  # what the system prompt says about commit messages; see attribution.py


class CoderAgent:
    """The agent. `large` answers prompts, `small` writes titles."""

    def __init__(
        self,
        *,
        context: ToolContext,
        large: ServedModel,
        small: ServedModel,
        tools: Sequence[Tool],
        options: CoderOptions,
        clock: Clock,
    ) -> None:
        self._context = context
        self._large = large
        self._small = small
        self._tools = {tool.name: tool for tool in tools}
        self._options = options
        self._clock = clock

    def info(self) -> Info:
        return Info(self._large.model, self._large.selected)

    async def aclose(self) -> None:
        await self._large.provider.aclose()
        await self._small.provider.aclose()

    # The turn ------------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> None:
        system = await self._system(turn)
        recent: deque[tuple[int, ...]] = deque(maxlen=REPEAT_WINDOW)
        used: set[str] = set()  # ids of this turn's tool calls, those that were summarized too
        restated: ChatMessage | None = None  # the prompt, once a summary has replaced it
        limit = turn.max_steps or MAX_STEPS
        for step in range(limit):
            await turn.step()
            # Before the first step too: a conversation without any tool calls grows as well.
            session, history = await turn.conversation()
            if self._is_full(session):
                await turn.summarize()
                restated = await self._restated(turn, with_files=step == 0)
                session, history = await turn.conversation()
            if await turn.followups():
                history = await turn.history()
            request = await self._request(turn, session, history, system, restated)
            answer = await self._ask(turn, request, used)
            if not answer.calls:
                await turn.finish(answer.stop)
                return
            outcomes = await self._run_tools(turn, answer)
            if any(outcome.stop for outcome in outcomes):
                return
            recent.append(_signatures(answer, outcomes))
            if _repeats(recent):
                await turn.say("I stopped: the same tool call kept giving the same result.")
                return
        raise LimitReached(f"stopped at max_steps = {limit}: ask again to go on")

    async def _system(self, turn: Turn) -> str:
        return await self._context.blocking(self._read_system, turn.interactive)

    def _read_system(self, interactive: bool) -> str:
        """The system message, with the context files as they are now. Blocks."""
        files = context_files(self._context.path, self._options.context_paths, self._context.own)
        return system_prompt(
            self._context.path,
            files,
            prefix=self._large.system_prefix,
            commits=self._options.commits,
            interactive=interactive,
        )

    async def _restated(self, turn: Turn, *, with_files: bool) -> ChatMessage:
        """The prompt of this turn, to be repeated after a summary. Its files are repeated only if
        no step has seen them: they may be what fills the context window."""
        found: list[ChatMessage] = []
        if with_files:
            users = [m for m in await turn.history() if m.role == "user" and m.text == turn.prompt]
            found = chat_messages(users[-1:], images=self._large.model.supports_attachments)
        return found[0] if found else ChatMessage("user", turn.prompt)

    async def _request(
        self,
        turn: Turn,
        session: Session,
        history: list[Message],
        system: str,
        restated: ChatMessage | None = None,
    ) -> ModelRequest:
        large = self._large
        convert = functools.partial(
            chat_messages,
            history,
            summary_id=session.summary_message_id,
            images=large.model.supports_attachments,
        )
        messages = convert() if _is_light(history) else await self._context.blocking(convert)
        tools = [
            spec_of(tool)
            for tool in self._tools.values()
            if turn.interactive or tool.name != "question"
        ]
        if restated is not None and session.summary_message_id and messages:
            # The summary was made in this turn and has replaced its prompt, too.
            messages[0].text += f"\n\nGo on with what was asked last:\n{restated.text}"
            messages[0].images += restated.images
        request = _model_request(large, system, messages, tools)
        request.reason(turn.reasoning_effort, turn.reasoning)
        return request

    async def _ask(
        self, turn: Turn, request: ModelRequest, used: set[str] | None = None
    ) -> ModelAnswer:
        """Ask the model and stream its answer. Retries while the error says that it may help; what
        a failed attempt streamed is erased before the next one. Raises the last ProviderError; what
        the last attempt streamed stays. `used` gets the ids of the answer's tool calls."""
        waited = 0.0
        for attempt in range(RETRIES + 1):
            answer = ModelAnswer(used=set(used or ()))
            try:
                await self._stream(turn, request, answer)
            except ProviderError as error:
                delay = error.retry_after or float(2**attempt)
                if not error.retryable or attempt == RETRIES or waited + delay > RETRY_SECONDS:
                    raise
                await turn.erase()
                await self._clock.sleep(delay)
                waited += delay
            else:
                await turn.usage(self._usage(self._large, request, answer))
                if used is not None:
                    used |= answer.used
                return answer
        raise AssertionError("the last attempt returns or raises")

    async def _stream(self, turn: Turn, request: ModelRequest, answer: ModelAnswer) -> None:
        answer.used |= {call.id for message in request.messages for call in message.tool_calls}
        # Closed at once when the turn is cancelled, and not when the garbage collector finds it.
        async with contextlib.aclosing(self._large.provider.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, Text):
                    answer.grow(piece.text)
                    await turn.say(piece.text)
                elif isinstance(piece, Thought):
                    answer.grow(piece.text, piece.signature)
                    await turn.think(piece.text, piece.signature)
                elif isinstance(piece, CallPiece):
                    await self._call_piece(turn, answer, piece)
                elif isinstance(piece, Tokens):
                    answer.count(piece)
                elif isinstance(piece, ModelStop):
                    answer.stop = piece.reason
        if answer.is_heavy:
            await self._context.blocking(answer.read_calls)
        else:
            answer.read_calls()
        for call in answer.calls.values():
            call.id = await turn.tool_call(call.name, call.stored, call.id or None)
            answer.used.add(call.id)

    async def _call_piece(self, turn: Turn, answer: ModelAnswer, piece: CallPiece) -> None:
        answer.grow(piece.arguments, piece.id, piece.name)
        call = answer.call(piece.index)
        call.name = call.name or piece.name
        call.pieces.append(piece.arguments)
        # Clients see calls come; after many of them only all together, when the answer is complete.
        if not call.id and call.name and len(answer.calls) <= ANNOUNCED:
            # Some servers number their calls from zero in every answer; in a history an id must
            # belong to one call.
            wanted = piece.id if piece.id not in answer.used else None
            call.id = await turn.tool_call(call.name, "", wanted or None, finished=False)
            answer.used.add(call.id)

    # Tools ---------------------------------------------------------------------------------------

    async def _run_tools(self, turn: Turn, answer: ModelAnswer) -> list[ToolOutcome]:
        """Run the calls of an answer in order; neighbours that only read run at the same time,
        PARALLEL of them. After one that stops the turn, no further call runs: the daemon gives them
        their results. Calls after the first RUN_CALLS are not run, which their results say."""
        calls = list(answer.calls.values())
        batches: list[list[ToolRequest]] = []
        reading = False
        for call in calls[:RUN_CALLS]:
            tool = self._tools.get(call.name)
            reads = tool is not None and tool.read_only
            if not (reads and reading):
                batches.append([])
            batches[-1].append(call)
            reading = reads
        outcomes: list[ToolOutcome] = []
        room = _Room(RESULT_CHARS)
        for batch in batches:
            outcomes += await self._run_batch(turn, batch, room)
            if any(outcome.stop for outcome in outcomes):
                return outcomes
        for call in calls[RUN_CALLS:]:
            await self._report(turn, call, failure(TOO_MANY_CALLS))
        return outcomes

    async def _run_batch(
        self, turn: Turn, batch: list[ToolRequest], room: _Room
    ) -> list[ToolOutcome]:
        if len(batch) == 1:
            return [await self._run_tool(turn, batch[0], room)]
        running = asyncio.Semaphore(PARALLEL)

        async def run(call: ToolRequest) -> ToolOutcome:
            async with running:
                return await self._run_tool(turn, call, room)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in batch]
        return [task.result() for task in tasks]

    async def _run_tool(self, turn: Turn, call: ToolRequest, room: _Room) -> ToolOutcome:
        outcome = await self._outcome(turn, call)
        tool = self._tools.get(call.name)
        room.left -= len(outcome.content)
        # What has changed something is reported in any case.
        if room.left < 0 and tool is not None and tool.read_only and not outcome.stop:
            outcome = failure(TOO_MUCH_OUTPUT)
        await self._report(turn, call, outcome)
        return outcome

    async def _report(self, turn: Turn, call: ToolRequest, outcome: ToolOutcome) -> None:
        await turn.tool_result(
            call.id,
            outcome.content,
            outcome.is_error,
            outcome.metadata,
            outcome.data,
            outcome.mime_type,
        )

    async def _outcome(self, turn: Turn, call: ToolRequest) -> ToolOutcome:
        """Run one tool. Every failure but a cancellation becomes an outcome that the model
        reads."""
        tool = self._tools.get(call.name)
        if tool is None:
            return failure(f"there is no tool {call.name!r}; there are {', '.join(self._tools)}")
        if call.problem:
            return failure(call.problem)
        try:
            return await tool.run(ToolUse(call.id, call.name, call.value, turn, self._context))
        except CrushliteError as error:
            return failure(error.message)
        except OSError as error:
            return failure(str(error))
        except Exception:
            log.exception("tool %s broke", call.name)
            return failure("the tool broke; this is a fault of crushlite, its log says more")

    # Usage and the size of the conversation ------------------------------------------------------

    def _usage(self, asked: ServedModel, request: ModelRequest, answer: ModelAnswer) -> Usage:
        """Tokens and cost of an answer; estimated if the provider reported no usage."""
        if not answer.prompt and not answer.completion:
            texts = [request.system, *(message.text for message in request.messages)]
            texts += [call.input for message in request.messages for call in message.tool_calls]
            return Usage(estimated_tokens(*texts), answer.chars // 4, estimated=True)
        model = asked.model
        prompt, completion = answer.prompt or 0, answer.completion or 0
        cost = (
            prompt * model.cost_per_1m_in
            + completion * model.cost_per_1m_out
            + answer.cache_read * model.cost_per_1m_out_cached
            # Writing costs no less than the tokens themselves where its price is not known.
            + answer.cache_write * (model.cost_per_1m_in_cached or model.cost_per_1m_in)
        ) / 1_000_000
        size = prompt + answer.cache_read + answer.cache_write
        return Usage(size, completion, max(cost, 0.0))  # catalogues write -1 for an unknown price

    def _is_full(self, session: Session) -> bool:
        """Whether the last model call, by its usage, left too little of the context window."""
        window = self._large.model.context_window
        if not self._options.auto_summarize or window <= 0:
            return False
        left = window - session.prompt_tokens - session.completion_tokens
        return left <= (20_000 if window > 200_000 else window // 5)

    # Summaries and titles ------------------------------------------------------------------------

    async def summarize(self, turn: Turn) -> None:
        """Stream a summary of the conversation into the turn, which was made for that."""
        session = await turn.session()
        messages = chat_messages(await turn.history(), summary_id=session.summary_message_id)
        todos = "\n".join(f"- [{todo.status}] {todo.content}" for todo in session.todos)
        task = SUMMARY + (f"\n\nThe to-do list:\n{todos}" if todos else "")
        request = _model_request(
            self._large, "You summarize conversations.", [*messages, ChatMessage("user", task)], []
        )
        await self._ask(turn, request)

    async def title(self, text: str) -> Title:
        """A title written by the small model; by the large one if that fails; "Untitled Session" if
        both fail."""
        messages = [ChatMessage("user", text[:2000])]
        for served in (self._small, self._large):
            answer, title = ModelAnswer(), ""
            request = _model_request(served, TITLE, messages, [])
            try:
                async with (
                    time_limit(self._clock, TITLE_SECONDS),
                    contextlib.aclosing(served.provider.stream(request)) as stream,
                ):
                    async for piece in stream:
                        if isinstance(piece, Text):
                            answer.grow(piece.text)
                            title += piece.text[: TITLE_CHARS - len(title)]
                        elif isinstance(piece, Tokens):
                            answer.count(piece)
            except (ProviderError, TimeoutError):
                continue
            title = _one_line(title) or _one_line(text)[:50]
            return Title(title, self._usage(served, request, answer))
        return Title("Untitled Session", Usage(estimated=True))


def _is_light(history: Sequence[Message]) -> bool:
    """Whether these messages can be converted on the event loop. A thread takes longer to answer
    than a few messages take, but what models have sent may be any amount of small JSON values."""
    if len(history) > FEW_MESSAGES:
        return False
    return sum(len(c.input) for message in history for c in message.tool_calls) <= LIGHT_CHARS


def _model_request(
    served: ServedModel, system: str, messages: list[ChatMessage], tools: list[ToolSpec]
) -> ModelRequest:
    selected = served.selected
    return ModelRequest(
        model=served.model.id,
        system=system,
        messages=messages,
        tools=tools,
        max_tokens=selected.max_tokens or served.model.default_max_tokens,
        temperature=selected.temperature,
        top_p=selected.top_p,
        top_k=selected.top_k,
        frequency_penalty=selected.frequency_penalty,
        presence_penalty=selected.presence_penalty,
        reasoning_effort=selected.reasoning_effort,
        think=selected.think,
    )


def _signatures(answer: ModelAnswer, outcomes: list[ToolOutcome]) -> tuple[int, ...]:
    """For each call that was run: a number that is equal for equal calls with equal results. Not
    the texts themselves, which may be many MiB."""
    return tuple(
        hash((call.name, call.arguments, outcome.content))
        for call, outcome in zip(answer.calls.values(), outcomes, strict=False)
    )


def _repeats(recent: deque[tuple[int, ...]]) -> bool:
    """Whether one call had the same result too often in the recent steps."""
    counts = Counter(signature for step in recent for signature in step)
    return any(count > REPEATS for count in counts.values())


def _one_line(text: str) -> str:
    """A title on one line, without quotes, and without the reasoning that some models put first."""
    text = re.sub(r"<think>.*?(</think>|$)", "", text, flags=re.S)
    return " ".join(text.split()).strip("\"' ")
