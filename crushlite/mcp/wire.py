"""Prompts of tool servers as clients see them."""

from __future__ import annotations

from dataclasses import field

from ..protocol.codec import omitted
from ..records import dataclass


@dataclass(slots=True)
class McpPromptArgument:
    id: str
    title: str
    description: str = omitted()
    required: bool = False


@dataclass(slots=True)
class McpPrompt:
    """A prompt of a tool server, whose name is in `client_id`."""

    id: str
    prompt_id: str
    client_id: str
    title: str = ""
    description: str = ""
    arguments: list[McpPromptArgument] = field(default_factory=list)
