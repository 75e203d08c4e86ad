"""Skills, commands, tool servers and language servers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..records import dataclass
from .codec import omitted

NEVER = "0001-01-01T00:00:00Z"  # how the Crush client writes a time that has not been


@dataclass(slots=True)
class ReadSkill:
    skill_id: str


@dataclass(slots=True)
class NamedServer:
    """A tool server or, with `uri`, a resource of it."""

    name: str
    uri: str = omitted()


@dataclass(slots=True)
class ClientServer:
    """A tool server that a client names. Its values are used as they are: `$VAR` is no variable."""

    name: str
    type: str = "stdio"  # or http, sse
    command: str = ""
    args: list[str] = field(default_factory=list, repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    url: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class WantServers:
    servers: list[ClientServer] = field(default_factory=list)


@dataclass(slots=True)
class UsedServers:
    """Which tool servers of a client are used, by name, and why others are not."""

    used: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class GetPrompt:
    """A prompt of a tool server, whose name is in `client_id`."""

    client_id: str
    prompt_id: str
    args: dict[str, Any] = omitted(dict)


# Skills -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class SkillState:
    """A SKILL.md that was found. `state` is 0 if it can be used; if it is 1, `error` says why it
    cannot. `warning` says what was overlooked in one that can."""

    name: str
    path: str
    state: int
    error: str = omitted()
    warning: str = omitted()


@dataclass(slots=True)
class SkillsEvent:
    """All skills that were found, after that has changed."""

    states: list[SkillState] = field(default_factory=list)


# Commands ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class CommandArgument:
    name: str
    description: str = omitted()
    required: bool = omitted(False)


@dataclass(slots=True)
class CommandInfo:
    """A text that a user can send by its name. `source` is user, project, skill or mcp."""

    id: str
    name: str  # what a user types behind a slash; no two in a list are the same
    description: str = ""
    source: str = ""
    arguments: list[CommandArgument] = field(default_factory=list)


@dataclass(slots=True)
class ExpandCommand:
    """A command by its id or name, and what its arguments are: by name, or as the text that was
    typed behind its name, or both."""

    command: str
    arguments: dict[str, str] = omitted(dict)
    text: str = omitted()


@dataclass(slots=True)
class ExpandedCommand:
    """The prompt that a command stands for. It was not sent."""

    prompt: str


# Tool servers -----------------------------------------------------------------------------------


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
    connected_at: str = NEVER
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


# Language servers -------------------------------------------------------------------------------


@dataclass(slots=True)
class LSPEvent:
    """`type` is state_changed or diagnostics_changed."""

    type: str
    name: str
    state: int
    error: str = omitted()
    diagnostic_count: int = omitted(0)
