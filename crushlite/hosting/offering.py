"""What the parts of a workspace offer to its agent: tools and instructions.

A part that fails to say what it offers costs its own offers, not the turn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..agent.base import OfferedTool, Turn
    from ..wing import WorkspacePart

log = logging.getLogger(__name__)


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


def instructions(parts: Sequence[WorkspacePart]) -> list[tuple[str, str]]:
    """The instructions of all parts, in their order."""
    found: list[tuple[str, str]] = []
    for part in parts:
        try:
            found += part.instructions()
        except Exception:
            log.exception("%s could not give its instructions", type(part).__name__)
    return found
