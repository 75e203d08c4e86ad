"""Requests about skills and tool servers."""

from __future__ import annotations

from typing import Any

from ..records import dataclass
from .codec import omitted


@dataclass(slots=True)
class ReadSkill:
    skill_id: str


@dataclass(slots=True)
class NamedServer:
    """A tool server or, with `uri`, a resource of it."""

    name: str
    uri: str = omitted()


@dataclass(slots=True)
class GetPrompt:
    """A prompt of a tool server, whose name is in `client_id`."""

    client_id: str
    prompt_id: str
    args: dict[str, Any] = omitted(dict)


@dataclass(slots=True)
class McpState:
    """A tool server. What follows `connected_at` only crushlite has: the names of its tools, those
    that cannot be offered with the reason, and the last lines of its log if it has failed."""

    name: str
    state: str  # disabled, starting, connected, error or "needs auth"
    error: str = omitted()
    tool_count: int = omitted(0)
    prompt_count: int = omitted(0)
    resource_count: int = omitted(0)
    connected_at: str = "0001-01-01T00:00:00Z"
    tools: list[str] = omitted(list)
    left_out: list[str] = omitted(list)
    last_lines: str = omitted()


@dataclass(slots=True)
class McpEvent:
    """`type` is state_changed, tools_list_changed, prompts_list_changed or
    resources_list_changed."""

    type: str
    name: str
    state: str
    error: str = omitted()
    tool_count: int = omitted(0)
    prompt_count: int = omitted(0)
    resource_count: int = omitted(0)


@dataclass(slots=True)
class McpPromptArgument:
    id: str
    title: str
    description: str = omitted()
    required: bool = omitted(False)


@dataclass(slots=True)
class McpPrompt:
    """A prompt of a tool server, whose name is in `client_id`."""

    id: str
    prompt_id: str
    client_id: str
    title: str = omitted()
    description: str = omitted()
    arguments: list[McpPromptArgument] = omitted(list)
