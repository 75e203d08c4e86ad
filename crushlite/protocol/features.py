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
