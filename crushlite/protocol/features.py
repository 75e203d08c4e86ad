"""The events of skills, tool servers and language servers."""

from __future__ import annotations

from dataclasses import field

from ..records import dataclass
from .codec import omitted

NEVER = "0001-01-01T00:00:00Z"  # how the Crush client writes a time that has not been


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
class LSPEvent:
    """`type` is state_changed or diagnostics_changed."""

    type: str
    name: str
    state: int
    error: str = omitted()
    diagnostic_count: int = omitted(0)
