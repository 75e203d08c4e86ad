"""The tools of one step: the coder's own, then those that wings offer.

Descriptions of tools are part of every request. If those that wings offer in numbers take more than
a share of the model's context window, the model gets one tool that searches them instead; what it
has found is offered from the next step on, for the rest of the session.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ...features.offers import offered_tools
from ...records import dataclass
from .arguments import schema, text
from .base import ToolOutcome, failure
from .offered import CoderTool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ...agent.base import Turn
    from ...features.tools import OfferedTool
    from .base import Tool, ToolUse

SHARE = 8  # such tools may take one part in so many of the window
UNKNOWN_WINDOW = 128_000
MOST = 100  # of such tools offered at once, whatever the window: some providers take 128 in all
FOUND = 8  # tools that one search gives
SESSIONS = 1000  # whose finds are remembered
WORDS = 32  # of a query
DESCRIPTION_CHARS = 300  # of a tool among the finds
SEARCH = "find_tools"


@dataclass(frozen=True, slots=True)
class StepTools:
    """All tools by name, and the names of those that are described to the model."""

    by_name: Mapping[str, Tool]
    shown: Sequence[str]


class Toolbox:
    """`own` are the coder's tools. Offered ones are left out if they are `disabled`, have the name
    of one of these or are not admitted."""

    def __init__(
        self,
        own: Sequence[Tool],
        *,
        disabled: Collection[str] = (),
        window: int = 0,
        admits: Callable[[OfferedTool], bool] | None = None,
    ) -> None:
        self.own = {tool.name: tool for tool in own}
        self._disabled = frozenset(disabled)
        self._admits = admits
        self._room = 4 * (window or UNKNOWN_WINDOW) // SHARE  # in characters
        # By the identity of an offered tool; the tool is held, so that none gets its identity.
        self._made: dict[int, tuple[OfferedTool, Tool, int]] = {}
        self._found: dict[str, list[str]] = {}  # by session, in the order of the finds

    async def of_step(self, turn: Turn) -> StepTools:
        """What there is now. Offered tools keep the order in which they were offered."""
        offered = await offered_tools(turn)
        if self._admits is not None:
            offered = [tool for tool in offered if self._admits(tool)]
        made = self._make(offered)
        by_name = dict(self.own)
        shown, many, chars = list(by_name), list[str](), 0
        for each in offered:
            if each.name in by_name or each.name in self._disabled:
                continue
            _, by_name[each.name], size = made[id(each)]
            if each.searchable:
                many.append(each.name)
                chars += size
            else:
                shown.append(each.name)
        if many and (chars > self._room or len(many) > MOST):
            search = ToolSearch([by_name[name] for name in many], self._remember)
            if search.name not in self._disabled:
                by_name[search.name] = search
                shown.append(search.name)
            there = set(many)
            many = [name for name in self._found.get(turn.session_id, ()) if name in there]
        return StepTools(by_name, [*shown, *many])

    def _make(self, offered: Sequence[OfferedTool]) -> dict[int, tuple[OfferedTool, Tool, int]]:
        """The coder's form of each, and how many characters describe it. Those of the step before
        are used again: there may be thousands."""
        self._made = {id(each): self._made.get(id(each)) or self._form(each) for each in offered}
        return self._made

    def _form(self, offered: OfferedTool) -> tuple[OfferedTool, Tool, int]:
        tool = CoderTool(offered)
        size = len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))
        return offered, tool, size

    def _remember(self, session_id: str, names: Sequence[str]) -> None:
        found = self._found.setdefault(session_id, [])
        found += [name for name in names if name not in found]
        del found[: max(0, len(found) - MOST)]
        while len(self._found) > SESSIONS:
            del self._found[next(iter(self._found))]


class ToolSearch:
    """Finds tools by words."""

    name = SEARCH
    read_only = True
    parameters = schema(
        {"query": {"type": "string", "description": "Words from the name or purpose of a tool"}},
        "query",
    )

    def __init__(self, tools: Sequence[Tool], remember: Any) -> None:
        self._tools = tools
        self._remember = remember
        # The same text for the same number only: it is part of every request.
        self.description = (
            f"There are {len(tools)} more tools, of the user's tool servers, too many to describe. "
            f"This finds the {FOUND} that fit a query best, by words or a part of their names; "
            "they can be called from your next step on."
        )

    async def run(self, call: ToolUse) -> ToolOutcome:
        query = text(call, "query")
        names = await call.context.blocking(self._search, query)
        if not names:
            return failure("no tool fits: use other words, or fewer")
        self._remember(call.turn.session_id, names)
        by_name = {tool.name: tool for tool in self._tools}
        lines = [f"- {name}: {by_name[name].description[:DESCRIPTION_CHARS]}" for name in names]
        return ToolOutcome("\n".join(["These can be called now:", *lines]))

    def _search(self, query: str) -> list[str]:
        """The names of the tools that fit best, best first: whole words count more than parts, and
        the name more than the description."""
        wanted = re.findall(r"\w+", query.lower())[:WORDS]
        ranked = []
        for number, tool in enumerate(self._tools):
            name, about = tool.name.lower(), tool.description.lower()
            words = set(re.split(r"[\W_]+", name))
            points = sum(
                8 * (word in words) + 4 * (word in name) + (word in about) for word in wanted
            )
            if query.strip().lower() == name:
                points += 100
            if points:
                ranked.append((-points, number, tool.name))
        return [name for _, _, name in sorted(ranked)[:FOUND]]
