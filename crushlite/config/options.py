"""The section `options`: the table of them, and those that the daemon itself reads."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where projects keep notes for agents of any kind.
CONTEXT_FILES = (
    *("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "CRUSH.md", "CRUSH.local.md", "GEMINI.md"),
    *(".cursorrules", ".cursor/rules/", ".github/copilot-instructions.md"),
)


class Rule(enum.Enum):
    """What a project's files may set an option to."""

    ANYTHING = enum.auto()
    TRUE = enum.auto()  # a switch of which this is the safe side
    FALSE = enum.auto()
    INSIDE = enum.auto()  # a path, or paths, inside the workspace
    NOTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    kind: Any  # its type, as merge.SCHEMA has it
    rule: Rule = Rule.ANYTHING
    shown: bool = True  # clients see it as it is written


TRAILERS = ("none", "assisted-by", "co-authored-by")  # of commits that an agent makes

OPTIONS: dict[str, Option] = {
    "attribution": Option(
        {"trailer_style": TRAILERS, "co_authored_by": bool, "generated_with": bool}
    ),
    "auto_lsp": Option(bool, Rule.FALSE),
    "context_paths": Option([str], Rule.INSIDE, shown=False),
    "data_directory": Option(str, Rule.INSIDE, shown=False),
    "debug": Option(bool),
    "debug_lsp": Option(bool),
    "disable_auto_summarize": Option(bool),
    "disable_default_providers": Option(bool, Rule.TRUE, shown=False),
    "disable_metrics": Option(bool, Rule.TRUE, shown=False),
    "disable_provider_auto_update": Option(bool, Rule.TRUE),
    "disabled_skills": Option([str]),
    "disabled_tools": Option([str]),
    "global_context_paths": Option([str], Rule.NOTHING),
    "initialize_as": Option(str, Rule.INSIDE, shown=False),
    "notifications": Option(None),  # of any type: only clients read it
    "progress": Option(bool),
    "skills_paths": Option([str], Rule.INSIDE),
    "tui": Option({}, shown=False),
}
UNKNOWN = Option(None, Rule.NOTHING, shown=False)  # kept as it is, and left to the user's files


@dataclass(frozen=True, slots=True)
class Attribution:
    """What commits say of the agent: nothing, unless a file asks for it."""

    trailer_style: str = "none"  # one of TRAILERS
    generated_with: bool = False  # a line that names the program

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Attribution:
        """From a merged section. `co_authored_by` is an older way to choose the trailer."""
        older = "co-authored-by" if given.get("co_authored_by") else "none"
        return cls(given.get("trailer_style") or older, bool(given.get("generated_with")))


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """The options that the daemon itself reads, with their defaults."""

    context_paths: tuple[str, ...] = CONTEXT_FILES
    global_context_paths: tuple[str, ...] = ()
    skills_paths: tuple[str, ...] = ()
    disabled_tools: tuple[str, ...] = ()
    disabled_skills: tuple[str, ...] = ()
    disable_auto_summarize: bool = False
    auto_lsp: bool = True  # language servers that are installed are used without being named
    disable_metrics: bool = True  # there are none; and the Crush client then sends none either
    debug: bool = False
    data_directory: str = ""  # as written; empty if no file says
    initialize_as: str = "AGENTS.md"
    tui: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    attribution: Attribution = Attribution()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ConfigOptions:
        """From a merged section. Lists hold each entry once; context files are added to ours."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = given.get(field.name)
            if isinstance(value, list):
                value = tuple(dict.fromkeys(filter(None, value)))
            if field.name == "attribution":
                value = Attribution.of(given.get("attribution") or {})
            if value not in (None, ""):
                values[field.name] = value
        paths = {*CONTEXT_FILES, *values.get("context_paths", ())}
        return cls(**values | {"context_paths": tuple(sorted(paths))})
