"""Tools that a hook of the user must be asked about, which cannot be done yet: they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...config import ToolHook
    from .base import Tool, ToolOutcome, ToolUse


class RefusedTool:
    """Stands for a tool that must not run. It is described to the model as before: the answer says
    why it did not run, to the model and to the people who look on."""

    read_only = True

    def __init__(self, tool: Tool, hook: ToolHook) -> None:
        self.name = tool.name
        self.description = tool.description
        self.parameters = tool.parameters
        self._hook = hook

    async def run(self, call: ToolUse) -> ToolOutcome:
        return failure(
            f"{self.name} was not run: {self._hook.origin} must be asked first, and hooks cannot "
            "be run yet. Tell the user, who can remove that hook or narrow its matcher; do not try "
            "to do the same with another tool"
        )


def with_hooks(tools: Sequence[Tool], hooks: Sequence[ToolHook]) -> list[Tool]:
    """The tools, with those refused that one of the hooks matches."""
    answer: list[Tool] = []
    for tool in tools:
        hook = next((hook for hook in hooks if hook.matches(tool.name)), None)
        answer.append(tool if hook is None else RefusedTool(tool, hook))
    return answer
