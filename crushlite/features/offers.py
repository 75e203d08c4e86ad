"""What the parts of a workspace offer: tools, instructions and notes for the models of agents, and
commands for users. An agent asks for it with these functions, a wing offers it as an OfferingPart.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

from ..clock import time_limit
from ..hosting.workspace_base import tolerated
from ..wing import WorkspacePart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import Turn
    from ..hosting.turn import LiveTurn
    from .tools import OfferedTool
    from .wire import OfferedCommand

NOTE_SECONDS = 20.0  # that a part may take to say something of a changed file


class OfferingPart(WorkspacePart):
    """Every method has a default that offers nothing."""

    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        """Tools for agents. Asked for at each step, in one order (a change costs a provider's
        cache). May wait for what is slow, for a bounded time, only if nobody attends
        (`turn.interactive`). Raising costs the tools of one step."""
        return ()

    def instructions(self) -> Sequence[tuple[str, str]]:
        """Pairs of a short name and a text for the system prompt, as few as possible. Asked for at
        each prompt; the model is told what has changed since the last one. Must not block."""
        return ()

    async def notes_on_change(self, turn: Turn, path: str) -> str:
        """What to tell the model with the result of a tool that has just changed a file, by its
        absolute path; empty if nothing. The agent waits for it: a second or two while somebody
        attends (`turn.interactive`), some more else."""
        return ""

    async def commands(self) -> Sequence[OfferedCommand]:
        """Commands for the users of the workspace. Must not wait for what may be slow. Of two with
        one name the later has its id for a name."""
        return ()


async def offered_tools(turn: Turn) -> list[OfferedTool]:
    """The tools that wings offer now, each name once, in the same order as long as they do not
    change: a provider may have cached the beginning of a request."""
    found: dict[str, OfferedTool] = {}  # in the order of the parts
    for part in _parts(turn):
        with tolerated(part, "to offer its tools"):
            for tool in await part.tools(turn):
                found.setdefault(tool.name, tool)
    return list(found.values())


def instructions(turn: Turn) -> list[tuple[str, str]]:
    """What wings tell a model about themselves: pairs of a short name and a text, for the system
    prompt. The same as long as nothing has changed."""
    found: list[tuple[str, str]] = []
    for part in _parts(turn):
        with tolerated(part, "to give its instructions"):
            found += part.instructions()
    return found


async def notes_on_change(turn: Turn, path: str) -> list[str]:
    """What wings say of a file that a tool has just changed, by its absolute path: texts for the
    model, to be put behind the result of the tool."""
    clock = cast("LiveTurn", turn).workspace.clock

    async def ask(part: OfferingPart) -> str:
        with tolerated(part, "at a change"), contextlib.suppress(TimeoutError):
            async with time_limit(clock, NOTE_SECONDS):
                return await part.notes_on_change(turn, path)
        return ""

    return [note for note in await asyncio.gather(*map(ask, _parts(turn))) if note]


def _parts(turn: Turn) -> list[OfferingPart]:
    parts = cast("LiveTurn", turn).workspace.parts
    return [part for part in parts if isinstance(part, OfferingPart)]
