"""Skills as clients see them."""

from __future__ import annotations

from dataclasses import field

from ..records import dataclass


@dataclass(slots=True)
class SkillInfo:
    """A skill that can be used. `id` is the path of its SKILL.md, `label` its source and name."""

    id: str
    name: str
    description: str
    label: str
    source: str  # user or project
    user_invocable: bool = False


@dataclass(slots=True)
class SkillSummary:
    name: str = ""
    description: str = ""
    source: str = ""
    builtin: bool = False


@dataclass(slots=True)
class SkillContent:
    """The file of a skill, as base64, and what it says about itself."""

    content: str
    result: SkillSummary = field(default_factory=SkillSummary)
