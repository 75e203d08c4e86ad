"""What a tool is, and what it may use.

A tool gets a Call and returns an Outcome. It never touches the transcript: the loop records calls
and results. It asks for permission through the turn, resolves paths through `paths.py`, and runs
commands through the turn, so that cancellation and the end of the run reach everything it started.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..providers.base import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...agent.base import Turn


@dataclass(slots=True)
class ToolContext:
    """What the tools of one workspace share beyond a single call."""

    path: Path  # the workspace, resolved
    env: Mapping[str, str]  # for commands: secrets are stripped already
    # By session and resolved path: digest of the content the model has last seen of a file. An
    # edit needs it to be the current one.
    seen: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class ToolUse:
    id: str
    name: str
    input: dict[str, Any]
    turn: Turn
    context: ToolContext


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """`metadata` is for clients (a string of JSON), `content` for the model. `stop` ends the turn:
    a refused permission or a dismissed question must not provoke another try."""

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
    read_only: bool  # several of one answer may run at the same time

    async def run(self, call: ToolUse) -> ToolOutcome: ...


def spec_of(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, tool.parameters)


def failure(text: str) -> ToolOutcome:
    """An error the model can act on."""
    return ToolOutcome(f"Error: {text}", is_error=True)


def denied(reason: str = "", metadata: Mapping[str, Any] | None = None) -> ToolOutcome:
    """The user said no: the turn stops."""
    text = f"User denied permission: {reason}" if reason else "User denied permission"
    shown = json.dumps(dict(metadata)) if metadata else ""
    return ToolOutcome(text, is_error=True, metadata=shown, stop=True)
