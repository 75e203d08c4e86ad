"""Tools that wings offer (features/tools.py), as tools of the coder.

Their permission is asked here, long results are cut and kept in a file, and images are checked as
`view` checks them.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from ..images import image_type
from .base import ToolOutcome, denied, image_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...features.tools import OfferedTool, ToolAnswer, ToolMedia
    from .base import ToolUse

METADATA_CHARS = 256 * 1024  # clients get it with the result: more is left out


class CoderTool:
    """An offered tool. Its parameters are copied once: every request holds them."""

    def __init__(self, tool: OfferedTool) -> None:
        self.name = tool.name
        self.description = tool.description
        self.parameters: dict[str, Any] = dict(tool.parameters)
        self.read_only = tool.read_only
        self._tool = tool

    async def run(self, call: ToolUse) -> ToolOutcome:
        question = self._tool.question(call.input)
        if question is not None:
            verdict = await call.turn.permission(
                question.tool_name,
                question.action,
                description=question.description,
                params=question.params,
                path=question.path,
                tool_call_id=call.id,
                scope=question.scope,
            )
            if not verdict:
                return denied(verdict.reason)
        return await _outcome(call, await self._tool.call(call.turn, call.input, call.id))


async def _outcome(call: ToolUse, answer: ToolAnswer) -> ToolOutcome:
    """An answer as the model and clients get it."""
    text = await call.context.blocking(call.context.results.bounded, answer.text)
    metadata = answer.metadata
    if not isinstance(metadata, str):
        metadata = json.dumps(dict(metadata))
    shown, notes = await _shown(call, answer.media)
    return ToolOutcome(
        "\n".join(part for part in (text, *notes) if part),
        is_error=answer.is_error,
        metadata=metadata if len(metadata) <= METADATA_CHARS else "",
        stop=answer.stop,
        data=shown.data if shown is not None else "",
        mime_type=shown.mime_type if shown is not None else "",
    )


async def _shown(call: ToolUse, media: Sequence[ToolMedia]) -> tuple[ToolMedia | None, list[str]]:
    """The first image that the model can look at, and what it is told of all others: a result
    holds one."""
    shown: ToolMedia | None = None
    notes = []
    for each in media:
        problem = "only one image is shown with a result"
        if shown is None:
            problem = await _problem(call, each)
        if problem:
            notes.append(f"({each.mime_type or 'data'}: not shown, {problem})")
        else:
            shown = each
    return shown, notes


async def _problem(call: ToolUse, media: ToolMedia) -> str:
    """Why the model cannot look at this; empty if it can."""
    try:
        data = base64.b64decode(media.data, validate=True)
    except ValueError:
        return "it is damaged"
    if not image_type(data) or image_type(data) != media.mime_type:
        return "it is no image of a kind that models take"
    return await image_refusal(call, data)
