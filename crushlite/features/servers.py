"""Tool servers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..protocol.codec import omitted
from ..protocol.features import NEVER
from ..records import dataclass


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
