"""The loop of the coder agent: a model that works on the project through tools.

One turn is a loop of steps. A step folds in the prompts that were sent meanwhile, asks the model
with the whole conversation, streams its answer into one assistant message, and runs the tools that
it called. The turn ends when the model calls no tool, when a tool's outcome says stop, when the
model goes in circles, or when a limit is reached: that of the prompt, or the budget of tokens.

The agent keeps no conversation of its own: each request is made from the stored history and from
what briefing.py keeps with the session, so it cannot differ from them after a restart, a cancel or
another client's prompt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Protocol

from ..agent.base import Info, Title, Usage
from ..clock import time_limit
from ..errors import LimitReached, NotFound
from ..features import offers
from ..records import dataclass
from .answers import ModelAnswer
from .briefing import Briefing, Facts
from .calls import ToolRunner, TurnState
from .context import TOTAL_CHARS, bounded, context_files, user_files
from .gitfacts import git_facts
from .history import estimated_tokens, refused_for_image
from .jsontext import LIGHT_CHARS
from .overflow import cut, length, new_tokens
from .prompts import SUMMARY, TITLE, system_prompt
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
from .repeats import STOPPED
from .tools.base import spec_of, view_lines
from .tools.toolbox import Toolbox
from .windows import require_room

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..agent.base import Turn
    from ..clock import Clock
    from ..config.agentfiles import AgentFile
    from ..features.tools import OfferedTool
    from ..protocol.config import Model, SelectedModel
    from ..protocol.messages import Message
    from ..protocol.sessions import Session
    from .context import ContextFile
    from .providers.base import ModelClient, ToolSpec
    from .tools.base import Tool, ToolContext
    from .tools.toolbox import StepTools

log = logging.getLogger(__name__)

FEW_MESSAGES = 64
RETRIES = 3
RETRY_SECONDS = 180.0  # for all pauses between the attempts of a step together
REASON_CHARS = 300  # of an error, where clients are told of a retry
ASKED_CHARS = 4000  # of a prompt that is repeated behind a summary, at least
TITLE_SECONDS = 60.0
TITLE_TOKENS = 100
REASONED_TITLE_TOKENS = 500  # for models that may reason whatever they are asked
NO_REASONING = ("none", "minimal", "low")  # levels, the least first
ANNOUNCED = 32  # tool calls that clients see before the answer is complete
TITLE_CHARS = 10_000  # some models reason before they write the title
BUDGET = 50_000_000  # tokens of one turn, sent and received


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and the provider that serves it. `selected` holds the user's settings for it;
    `system_prefix` comes before the system prompt. `measure` asks how large a context window the
    server has loaded the model with (0: unknown), if that can be smaller than the model's."""

    provider: ModelClient
    model: Model
    selected: SelectedModel
    system_prefix: str = ""
    measure: Callable[[], Awaitable[int]] | None = None


@dataclass(frozen=True, slots=True)
class CoderOptions:
    context_paths: tuple[str, ...] = ()
    global_paths: tuple[str, ...] = ()  # of the user's own context files, absolute
    auto_summarize: bool = True
    commits: str = ""  # what the system prompt says about commit messages
    disabled_tools: tuple[str, ...] = ()  # of those that wings offer
    budget: int = BUDGET
    # Of a sub-agent: what it is told to be, and which of the tools that wings offer it gets.
    instructions: str = ""
    admits: Callable[[OfferedTool], bool] | None = None


class SubAgents(Protocol):
    """The tool that runs sub-agents, as the loop sees it."""

    def read(self) -> dict[str, AgentFile]: ...

    def use(self, found: dict[str, AgentFile]) -> None: ...

    async def aclose(self) -> None: ...


class CoderAgent:
    """The agent. `large` answers prompts, `small` writes titles."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        *,
        context: ToolContext,
        large: ServedModel,
        small: ServedModel,
        tools: Sequence[Tool],
        options: CoderOptions,
        clock: Clock,
        sub_agents: SubAgents | None = None,
    ) -> None:
        self._context = context
        self._large = large
        self._small = small
        self._toolbox = Toolbox(
            tools,
            disabled=options.disabled_tools,
            window=large.model.context_window,
            admits=options.admits,
        )
        self._sub_agents = sub_agents
        self._runner = ToolRunner(context, options.context_paths)
        self._options = options
        self._clock = clock

    def info(self) -> Info:
        return Info(self._large.model, self._large.selected)

    async def aclose(self) -> None:
        await self._large.provider.aclose()
        await self._small.provider.aclose()
        if self._sub_agents is not None:
            await self._sub_agents.aclose()

    # The turn ------------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> None:
        instructions = offers.instructions(turn)
        # One after the other: side by side, the threads of the two would take the interpreter from
        # each other at each system call, and need twice as long together.
        files = await self._read_files(instructions)
        session, history = await turn.conversation()
        prompt_id = _prompt_id(turn, history)
        briefing = await self._brief(turn, session, prompt_id, files)
        if turn.context and prompt_id:
            briefing.add(prompt_id, turn.context)
            await turn.remember(briefing.dump())
        state = TurnState(briefing, await self._toolbox.of_step(turn))
        while True:
            await turn.step()
            if turn.tokens >= self._options.budget:
                words = f"stopped after {turn.tokens} tokens, the budget of a run"
                raise LimitReached(f"{words}: ask again to go on", "tokens")
            # Before the first step too: a conversation without any tool calls grows as well.
            if self._is_full(session, history):
                with contextlib.suppress(NotFound):  # without delegation/ there are no summaries
                    session, history = await self._shorten(turn, state, history)
            folded = await turn.followups()
            if folded:
                history = await turn.history()
                state.briefing = await self._brief(turn, session, folded[0].id)
            answer = await self._answer(turn, state, session, history)
            if not answer.calls and await turn.before_stop():
                await turn.finish(answer.stop)
                return
            outcomes = await self._runner.run(turn, state, answer)
            if turn.halted or any(outcome.stop for outcome in outcomes):
                return
            if state.guard.take(answer, outcomes):
                await turn.say(STOPPED)
                return
            session, history = await turn.conversation()
            state.tools = await self._toolbox.of_step(turn)

    async def _answer(
        self, turn: Turn, state: TurnState, session: Session, history: list[Message]
    ) -> ModelAnswer:
        """Ask the model. If the conversation is too long for it, or holds a damaged image that it
        refuses, it is asked once more: with a summary, or without the image."""
        request = await self._request(turn, state.briefing, state.tools, session, history)
        try:
            return await self._ask(turn, request, state)
        except ProviderError as error:
            answered = any(message.role == "assistant" for message in history)
            if await self._context.blocking(refused_for_image, error, request.messages):
                state.briefing.whole_images_only = True
                await turn.remember(state.briefing.dump())
                await turn.erase()
            elif self._options.auto_summarize and answered and error.overflow:
                await turn.erase()
                try:
                    session, history = await self._shorten(turn, state, history)
                except NotFound:
                    raise error from None
            else:
                raise
        request = await self._request(turn, state.briefing, state.tools, session, history)
        return await self._ask(turn, request, state)

    # What the model is told ----------------------------------------------------------------------

    async def _brief(
        self,
        turn: Turn,
        session: Session,
        message_id: str,
        files: list[ContextFile] | None = None,
    ) -> Briefing:
        """What the model was told about its surroundings, or is told now if the session is new.
        What has changed since then is told in front of this message; if there is no message, it
        waits. `files` are the context files, if they were read just now."""
        kept = await turn.recall()
        light = len(kept) <= LIGHT_CHARS
        briefing = (
            Briefing.load(kept) if light else await self._context.blocking(Briefing.load, kept)
        )
        if files is None:
            files = await self._read_files(offers.instructions(turn))
        now = Facts(
            date=time.strftime("%Y-%m-%d", time.localtime(self._clock.now())),
            watchers=turn.watchers,
            interactive=turn.interactive,
            files=files,
        )
        if briefing is None:
            briefing = Briefing(now, session.summary_message_id)
            if message_id:
                now.git = await git_facts(turn, self._context)
                await turn.remember(briefing.dump())
            return briefing
        changed = briefing.follow(session.summary_message_id)
        note = briefing.news(now, message_id) if message_id else None
        if note is not None:
            briefing.notes.append(note)
        if changed or note is not None:
            await turn.remember(briefing.dump())
        return briefing

    async def _read_files(self, instructions: list[ContextFile]) -> list[ContextFile]:
        """Read the context files and those of named sub-agents, both in one visit to a thread: each
        visit costs a turn more than most of these files."""

        def read() -> tuple[list[ContextFile], dict[str, AgentFile] | None]:
            agents = self._sub_agents.read() if self._sub_agents is not None else None
            return self._context_files(instructions), agents

        files, agents = await self._context.blocking(read)
        if self._sub_agents is not None and agents is not None:
            self._sub_agents.use(agents)
        return files

    def _context_files(self, instructions: list[ContextFile]) -> list[ContextFile]:
        """The context files of the user and of the project as they are now, and after the user's
        the instructions of wings. Blocks."""
        files = [*user_files(self._options.global_paths), *instructions]
        files += context_files(self._context.path, self._options.context_paths, self._context.own)
        window = self._large.model.context_window
        # At four characters to a token, a quarter of the window.
        return bounded(files, min(TOTAL_CHARS, window) if window > 0 else TOTAL_CHARS)

    async def _shorten(
        self, turn: Turn, state: TurnState, history: list[Message]
    ) -> tuple[Session, list[Message]]:
        """Summarize the conversation. Behind the summary the prompt of this turn is repeated, and
        what no step has seen; the prompt only in part if one has: it may be what fills the
        window."""
        part = max(ASKED_CHARS, self._large.model.context_window // 2)
        asked = _asked(turn, history, part)
        await turn.summarize()
        session, history = await turn.conversation()
        briefing = await self._brief(turn, session, session.summary_message_id)
        briefing.asked = asked
        await turn.remember(briefing.dump())
        state.briefing = briefing
        return session, history

    async def _request(
        self,
        turn: Turn,
        briefing: Briefing,
        tools: StepTools,
        session: Session,
        history: list[Message],
    ) -> ModelRequest:
        large = self._large
        convert = functools.partial(
            briefing.conversation,
            history,
            summary_id=session.summary_message_id,
            takes_images=large.model.supports_attachments,
        )
        messages = convert() if _is_light(history) else await self._context.blocking(convert)
        # Not by who is there now: a client that comes or goes in mid-turn would change how the
        # next request begins.
        specs = [
            spec_of(tools.by_name[name])
            for name in tools.shown
            if briefing.interactive or name != "question"
        ]
        system = system_prompt(
            self._context.path,
            briefing.facts,
            tools=self._toolbox.own,
            window=large.model.context_window,
            prefix="\n\n".join(filter(None, (large.system_prefix, self._options.instructions))),
            commits=self._options.commits,
        )
        request = _model_request(large, system, messages, specs)
        request.reason(turn.reasoning_effort, turn.reasoning)
        return request

    async def _ask(
        self, turn: Turn, request: ModelRequest, state: TurnState | None = None
    ) -> ModelAnswer:
        """Ask the model and stream its answer; without `state` its tool calls are left out. Retries
        while the error says that it may help; what a failed attempt streamed is erased before the
        next one, and clients are told. Raises the last ProviderError; what the last attempt
        streamed stays."""
        waited = 0.0
        for attempt in range(RETRIES + 1):
            answer = ModelAnswer(used=set(state.used if state is not None else ()))
            try:
                await self._stream(turn, request, answer, with_calls=state is not None)
            except ProviderError as error:
                delay = error.retry_after or float(2**attempt)
                if not error.retryable or attempt == RETRIES or waited + delay > RETRY_SECONDS:
                    raise
                await turn.erase()
                turn.retrying(_retry_words(delay, attempt + 2, error))
                await self._clock.sleep(delay)
                waited += delay
            else:
                usage = self._usage(self._large, request, answer)
                if state is not None:
                    state.used |= answer.used
                is_last = not answer.calls and state is not None and self._large.measure is None
                await turn.usage(usage, last=is_last)
                if state is not None:
                    await self._measure(request)
                return answer
        raise AssertionError("the last attempt returns or raises")

    async def _measure(self, request: ModelRequest) -> None:
        """Once the model has answered, it is loaded: use the context window that it has then. Until
        that leaves room to work in, ask in each step. Raises ProviderError if it does not."""
        large = self._large
        if large.measure is None:
            return
        known = large.model.context_window
        window = min(await large.measure() or known, known or sys.maxsize)
        require_room(request, window)
        model = dataclasses.replace(large.model, context_window=window)
        self._large = dataclasses.replace(large, model=model, measure=None)
        self._context.view_lines = view_lines(window)

    async def _stream(
        self, turn: Turn, request: ModelRequest, answer: ModelAnswer, *, with_calls: bool = True
    ) -> None:
        answer.used |= {call.id for message in request.messages for call in message.tool_calls}
        # Closed at once when the turn is cancelled, and not when the garbage collector finds it.
        async with contextlib.aclosing(self._large.provider.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, Text):
                    answer.grow(piece.text)
                    answer.text_chars += len(piece.text)
                    await turn.say(piece.text)
                elif isinstance(piece, Thought):
                    answer.grow(piece.text, piece.signature)
                    await turn.think(piece.text, piece.signature)
                elif isinstance(piece, CallPiece):
                    if with_calls:
                        await self._call_piece(turn, answer, piece)
                    answer.called = True
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

    def _is_full(self, session: Session, history: list[Message]) -> bool:
        """Whether the last model call, by its usage, left too little of the context window, or what
        came since will."""
        window = self._large.model.context_window
        if not self._options.auto_summarize or window <= 0:
            return False
        left = window - session.prompt_tokens - session.completion_tokens
        reserve = 20_000 if window > 200_000 else window // 5
        if left <= reserve:
            return True
        # An estimate: so only if it is far beyond what is left.
        return new_tokens(history, session.summary_message_id) > left - reserve // 4

    # Summaries and titles ------------------------------------------------------------------------

    async def summarize(self, turn: Turn) -> None:
        """Stream a summary of the conversation into the turn, which was made for that. The request
        goes on where the last one ended, so that all but the wish is in the provider's cache. If it
        is too long for the model, the longest texts are cut."""
        session, history = await turn.conversation()
        briefing = await self._brief(turn, session, "")
        todos = "\n".join(f"- [{todo.status}] {todo.content}" for todo in session.todos)
        task = SUMMARY + (f"\n\nThe to-do list:\n{todos}" if todos else "")
        tools = await self._toolbox.of_step(turn)
        whole = await self._request(turn, briefing, tools, session, history)
        size, wish = length(whole.messages), ChatMessage("user", task)
        for chars in (size, size // 2, 0):
            request = dataclasses.replace(whole, messages=[*cut(whole.messages, chars), wish])
            try:
                answer = await self._ask(turn, request)
            except ProviderError as error:
                if not chars or not error.overflow:
                    raise
                await turn.erase()
            else:
                break
        if answer.called and not answer.text_chars:  # it called a tool all the same
            await turn.erase()
            await self._ask(turn, dataclasses.replace(request, tools=[]))

    async def title(self, text: str) -> Title:
        """A title written by the small model; by the large one if that fails; the first words of
        the prompt if both fail."""
        messages = [ChatMessage("user", text[:2000])]
        for served in (self._small, self._large):
            answer, title = ModelAnswer(), ""
            request = _title_request(served, messages)
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
        return Title(_one_line(text)[:50], Usage(estimated=True), plain=True)


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


def _title_request(served: ServedModel, messages: list[ChatMessage]) -> ModelRequest:
    """A title is worth few tokens: the answer is capped, and the model reasons as little as it
    can."""
    request = _model_request(served, TITLE, messages, [])
    levels = served.model.reasoning_levels or ()
    request.think = False
    request.reasoning_effort = next((level for level in NO_REASONING if level in levels), "")
    request.max_tokens = REASONED_TITLE_TOKENS if served.model.can_reason else TITLE_TOKENS
    return request


def _retry_words(delay: float, attempt: int, error: ProviderError) -> str:
    """What clients are told while a model call waits for its next attempt."""
    reason = error.said
    if len(reason) > REASON_CHARS:
        reason = f"{reason[:REASON_CHARS]}..."
    return f"retrying in {delay:.3g} s, attempt {attempt} of {RETRIES + 1}, because {reason}"


def _prompt_id(turn: Turn, history: Sequence[Message]) -> str:
    """The id of the message with the prompt of a turn; empty if there is none."""
    users = [message for message in history if message.role == "user"]
    mine = [message for message in users if message.text == turn.prompt]
    return (mine or users)[-1].id if users else ""


def _asked(turn: Turn, history: Sequence[Message], part: int) -> list[tuple[str, int]]:
    """What a summary must not lose, as Briefing.asked has it: the prompt of a turn, and what users
    sent since the model answered last."""
    new: list[str] = []
    for message in reversed(history):
        if message.role == "assistant":
            break
        if message.role == "user":
            new.insert(0, message.id)
    prompt = _prompt_id(turn, history)
    seen = [(prompt, part)] if prompt and prompt not in new else []
    return [*seen, *((each, 0) for each in new)]


def _one_line(text: str) -> str:
    """A title on one line, without quotes, and without the reasoning that some models put first."""
    text = re.sub(r"<think>.*?(</think>|$)", "", text, flags=re.S)
    return " ".join(text.split()).strip("\"' ")
