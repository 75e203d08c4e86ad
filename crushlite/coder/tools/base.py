"""What a tool is, and what it may use.

A tool gets a ToolUse and returns a ToolOutcome. It never writes to the transcript: the loop records
calls and results. It asks for permission and runs commands through the turn, so that a cancel and
the end of the run reach all that it started, and resolves paths through worktree/paths.py.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ...records import dataclass
from ..providers.base import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...agent.base import Turn


@dataclass(slots=True)
class ToolContext:
    """What the tools of one workspace share beyond a single call."""

    path: Path  # the workspace, resolved
    env: Mapping[str, str]  # for commands; without secrets
    # By session and resolved path: the digest of a file's content when the model last saw it. A
    # change is refused if the file has another content now.
    seen: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class ToolUse:
    """One tool call."""

    id: str
    name: str
    input: dict[str, Any]
    turn: Turn
    context: ToolContext


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call gives. `content` is for the model, `metadata` (JSON) for clients. `stop`
    ends the turn, after a denied permission or a dismissed question: the model must not try
    again."""

    content: str
    is_error: bool = False
    metadata: str = ""
    stop: bool = False
    data: str = ""
    mime_type: str = ""


class Tool(Protocol):
    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema of an object
    read_only: bool  # it changes nothing: calls of one answer may run at the same time

    async def run(self, call: ToolUse) -> ToolOutcome:
        """Raises BadRequest or another CrushliteError whose message the model reads."""
        ...


def spec_of(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, tool.parameters)


def failure(text: str) -> ToolOutcome:
    """The outcome of a call that failed; the model reads the text."""
    return ToolOutcome(f"Error: {text}", is_error=True)


def denied(reason: str = "", metadata: Mapping[str, Any] | None = None) -> ToolOutcome:
    """The outcome of a call that the user did not permit: it ends the turn."""
    text = f"User denied permission: {reason}" if reason else "User denied permission"
    shown = json.dumps(dict(metadata)) if metadata else ""
    return ToolOutcome(text, is_error=True, metadata=shown, stop=True)
