"""Requests about skills and tool servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .codec import omitted, omitted_dict


@dataclass(slots=True)
class ReadSkill:
    skill_id: str


@dataclass(slots=True)
class NamedServer:
    """A tool server and, where one is meant, a resource of it."""

    name: str
    uri: str = omitted()


@dataclass(slots=True)
class GetPrompt:
    """`client_id` is the name of the tool server here."""

    client_id: str
    prompt_id: str
    args: dict[str, Any] = omitted_dict()
