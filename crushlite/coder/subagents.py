"""The `agent` tool: the model gives a part of its work to a sub-agent, which is this coder once
more, with fewer tools, a session of its own, and nothing of the conversation.

Without a name a sub-agent only reads. The files of config/agentfiles.py add named ones, with their
own instructions, tools and model; what they may do without asking is what the agent itself may.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from ..config.hooks import OTHER_NAMES
from ..errors import BadRequest
from ..records import dataclass
from .loop import CoderAgent
from .prompts import SUB_AGENT
from .tools.arguments import schema, text
from .tools.base import ToolOutcome, failure, view_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ..clock import Clock
    from ..config.agentfiles import AgentFile
    from .loop import CoderOptions, ServedModel
    from .tools.base import Tool, ToolContext, ToolUse

NAME = "agent"
AT_ONCE = 4  # sub-agents of one workspace; each may use several tools at a time
ANSWER_CHARS = 60_000  # of a sub-agent's last message
# Those that no sub-agent has: it starts no other, and nobody answers it.
NEVER = frozenset({NAME, "question"})
# What files for Claude Code call the tools, in small letters.
ALIASES = {other.lower(): name for name, others in OTHER_NAMES.items() for other in others}
_LARGE = ("", "inherit", "large", "default", "sonnet", "opus")
_SMALL = ("small", "haiku")

_ABOUT = (
    "Give a task to a sub-agent with a context of its own, and get its answer: for searches and "
    "questions that need many files of which only the result matters. It sees nothing of this "
    "conversation, so say all that it must know, and what it shall answer. It only reads; {more}"
    "Several calls in one answer run at the same time. For a file or a name that you know, use "
    "the other tools yourself."
)


@dataclass(frozen=True, slots=True)
class Ingredients:
    """All that a sub-agent is made of. `files` reads the files of named ones, and blocks; `serve`
    gives the model of a name, None if it is not known."""

    context: ToolContext
    large: ServedModel
    small: ServedModel
    options: CoderOptions
    clock: Clock
    files: Callable[[], dict[str, AgentFile]]
    serve: Callable[[str], ServedModel | None]


class AgentTool:
    """`tools` are those of the agent itself, of which a sub-agent gets some."""

    name = NAME
    read_only = True  # calls may run at once; what a named one may change, it has to ask for

    def __init__(self, made_of: Ingredients, tools: Sequence[Tool]) -> None:
        self._made_of = made_of
        self._tools = list(tools)
        self._named: dict[str, AgentFile] = {}
        self._models: dict[str, ServedModel | None] = {}
        self._running = asyncio.Semaphore(AT_ONCE)
        self._describe()

    def read(self) -> dict[str, AgentFile]:
        """The named sub-agents, by name, as their files are now. Blocks."""
        return self._made_of.files()

    def use(self, found: dict[str, AgentFile]) -> None:
        """Offer these named sub-agents, in the calls that begin from now on."""
        if found != self._named:
            self._named = found
            self._describe()

    def _describe(self) -> None:
        properties: dict[str, Any] = {
            "prompt": {"type": "string", "description": "The whole task, and what to answer"}
        }
        more = ""
        if self._named:
            lines = [f"- {each.name}: {each.description}" for each in self._named.values()]
            more = "\n".join(["these named ones may do more:", *lines, ""])
            properties["agent"] = {
                "type": "string",
                "enum": list(self._named),
                "description": "A named one, if it fits the task",
            }
        self.description = _ABOUT.format(more=more)
        self.parameters = schema(properties, "prompt")

    async def run(self, call: ToolUse) -> ToolOutcome:
        prompt, name = text(call, "prompt"), text(call, "agent", required=False)
        if not prompt.strip():
            raise BadRequest("prompt must say what to do")
        file = self._named.get(name)
        if name and file is None:
            known = ", ".join(self._named) or "none"
            raise BadRequest(f"there is no sub-agent {name!r}; leave agent out, or use: {known}")
        agent = self._agent(file)
        title = f"{name}: {prompt}" if name else prompt
        async with self._running:
            answer = await call.turn.delegate(call.id, prompt, agent, title=title)
        if call.turn.halted:
            return ToolOutcome("the sub-agent was stopped by a hook", is_error=True, stop=True)
        if answer.denied:
            said = f": {answer.text}" if answer.text.strip() else ""
            return ToolOutcome(
                f"the sub-agent stopped, because the user denied it a permission{said}",
                is_error=True,
                stop=True,
            )
        if not answer.text.strip():
            return failure("the sub-agent ended without an answer: do it yourself, or ask for less")
        if len(answer.text) > ANSWER_CHARS:
            return ToolOutcome(f"{answer.text[:ANSWER_CHARS]}\n(cut: ask for a shorter answer)")
        return ToolOutcome(answer.text)

    async def aclose(self) -> None:
        """Close the connections to models that only named ones use."""
        for served in self._models.values():
            if served is not None:
                await served.provider.aclose()

    # Making one ----------------------------------------------------------------------------------

    def _agent(self, file: AgentFile | None) -> CoderAgent:
        made_of = self._made_of
        large = self._model(file.model) if file is not None else made_of.large
        wanted = None if file is None or file.tools is None else _known_as(file.tools)
        instructions = SUB_AGENT + (f"\n\n{file.instructions}" if file is not None else "")
        return CoderAgent(
            context=dataclasses.replace(
                made_of.context,
                view_lines=view_lines(large.model.context_window),
                images=large.model.supports_attachments,
            ),
            large=large,
            small=made_of.small,
            tools=[tool for tool in self._tools if _may_use(tool.name, tool.read_only, wanted)],
            options=dataclasses.replace(
                made_of.options,
                instructions=instructions,
                admits=lambda tool: _may_use(
                    tool.name, tool.read_only and not tool.searchable, wanted
                ),
            ),
            clock=made_of.clock,
        )

    def _model(self, name: str) -> ServedModel:
        """The model that a file names; the agent's own if there is none of that name."""
        if name.lower() in _LARGE:
            return self._made_of.large
        if name.lower() in _SMALL:
            return self._made_of.small
        if name not in self._models:
            self._models[name] = self._made_of.serve(name)
        return self._models[name] or self._made_of.large


def _known_as(names: Sequence[str]) -> frozenset[str]:
    """The names of tools in a file, as they are called here."""
    lowered = (name.lower() for name in names)
    return frozenset(ALIASES.get(name, name) for name in lowered)


def _may_use(name: str, read_only: bool, wanted: Collection[str] | None) -> bool:
    """Whether a sub-agent gets a tool. Without a list it gets what only reads, and none of those
    that wings offer in numbers."""
    if name in NEVER:
        return False
    if wanted is None:
        return read_only
    return name.lower() in wanted or "*" in wanted
