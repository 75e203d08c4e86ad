"""What the parts of a workspace offer to its agent: tools and instructions.

A part that fails to say what it offers costs its own offers, not the turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..clock import time_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import OfferedTool, Turn
    from ..clock import Clock
    from ..wing import WorkspacePart

log = logging.getLogger(__name__)

NOTE_SECONDS = 20.0


async def offered_tools(parts: Sequence[WorkspacePart], turn: Turn) -> list[OfferedTool]:
    """The tools of all parts, in their order, each name once."""
    found: dict[str, OfferedTool] = {}
    for part in parts:
        try:
            offered = await part.tools(turn)
        except Exception:
            log.exception("%s could not offer its tools", type(part).__name__)
            continue
        for tool in offered:
            found.setdefault(tool.name, tool)
    return list(found.values())


async def notes_on_change(
    parts: Sequence[WorkspacePart], turn: Turn, path: str, clock: Clock
) -> list[str]:
    """What the parts have to say of a changed file, in their order. They are asked at the same
    time; one that takes longer than NOTE_SECONDS has nothing to say."""

    async def ask(part: WorkspacePart) -> str:
        try:
            async with time_limit(clock, NOTE_SECONDS):
                return await part.notes_on_change(turn, path)
        except TimeoutError:
            return ""
        except Exception:
            log.exception("%s could not say anything of a change", type(part).__name__)
            return ""

    return [note for note in await asyncio.gather(*map(ask, parts)) if note]


def instructions(parts: Sequence[WorkspacePart]) -> list[tuple[str, str]]:
    """The instructions of all parts, in their order."""
    found: list[tuple[str, str]] = []
    for part in parts:
        try:
            found += part.instructions()
        except Exception:
            log.exception("%s could not give its instructions", type(part).__name__)
    return found
