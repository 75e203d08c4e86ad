"""Reading a skill, and the prompt that a command stands for."""

from __future__ import annotations

from ..protocol.codec import omitted
from ..records import dataclass


@dataclass(slots=True)
class ReadSkill:
    skill_id: str


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
