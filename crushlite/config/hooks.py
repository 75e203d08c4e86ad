"""The section `hooks`: commands that are run when an agent does something.

The wing `hooks` runs them. Where it is not there, one that must be asked before a tool
(`PreToolUse`) may be the user's way to forbid what the tool would do, so a tool that such a hook
matches is refused, as if the hook had said no: skipping it would allow what the user wanted to have
stopped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .merge import Merged


@dataclass(frozen=True, slots=True)
class ToolHook:
    """A hook that must be asked before certain tools."""

    matcher: str  # a regular expression that is searched for in a tool's name; empty: all tools
    origin: str  # its key and its file

    def matches(self, tool: str) -> bool:
        """Whether it must be asked before this tool."""
        return is_meant(self.matcher, tool)


@dataclass(frozen=True, slots=True)
class HookEntry:
    """An entry of the section, as it is written."""

    event: str  # as in EVENTS
    entry: Any
    origin: str  # its key and its file
    is_machine: bool  # of the user, not of a project


# What Claude Code calls tools that have other names here: matchers and the files of sub-agents were
# written for those.
OTHER_NAMES = {
    "view": ("Read", "NotebookRead"),
    "ls": ("LS",),
    "fetch": ("WebFetch",),
    "web_search": ("WebSearch",),
    "todos": ("TodoWrite",),
    "agent": ("Task", "Agent"),
    "question": ("AskUserQuestion",),
    "job_output": ("BashOutput",),
    "job_kill": ("KillShell", "KillBash"),
}

# The events whose hooks are run.
EVENTS = (
    *("PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "Stop"),
    *("SessionStart", "SessionEnd", "Notification", "PermissionRequest"),
)
_EVENTS = {event.lower(): event for event in EVENTS}


def event_of(name: str) -> str:
    """The event of EVENTS that a name means, in any spelling; empty if none."""
    return _EVENTS.get(name.replace("_", "").replace("-", "").lower(), "")


def is_pre_tool(event: str) -> bool:
    """Whether hooks of an event are asked before a tool: its name in any spelling."""
    return event_of(event) == "PreToolUse"


def is_meant(matcher: str, tool: str) -> bool:
    """Whether a matcher, which is a regular expression, means a tool by one of its names; empty or
    `*` means all. In doubt it does: whatever the case of letters, and if the expression cannot be
    read here."""
    if matcher in ("", "*"):
        return True
    try:
        found = re.compile(matcher, re.I)
    except (re.error, RecursionError, OverflowError):
        return True
    return any(found.search(name) for name in _names(tool))


def _names(tool: str) -> Iterator[str]:
    """The names by which matchers may mean a tool."""
    yield tool
    yield from OTHER_NAMES.get(tool, ())
    if tool.startswith("mcp_"):
        # mcp_SERVER_TOOL is mcp__SERVER__TOOL there; either name may hold more underscores.
        rest = tool.removeprefix("mcp_")
        for found in re.finditer("_", rest[:64]):
            yield f"mcp__{rest[: found.start()]}__{rest[found.end() :]}"


def hook_entries(merged: Merged) -> tuple[HookEntry, ...]:
    """All entries of events that are known. What is no list counts as one entry."""
    found: list[HookEntry] = []
    for name, entries in (merged.get("hooks") or {}).items():
        whole = merged.source("hooks", name)
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            source = merged.source("hooks", name, str(index)) or whole
            if (event := event_of(name)) and source is not None:
                origin = f"hooks.{name} in {source.path}"
                found.append(HookEntry(event, entry, origin, source.is_machine))
    return tuple(found)


def tool_hooks(merged: Merged) -> tuple[ToolHook, ...]:
    """The hooks that must be asked before tools. What is no hook counts as one for all tools."""
    found: list[ToolHook] = []
    for event, entries in (merged.get("hooks") or {}).items():
        source = merged.source("hooks", event)
        if is_pre_tool(event) and source is not None:
            origin = f"hooks.{event} in {source.path}"
            found += [ToolHook(matcher, origin) for matcher in _matchers(entries)]
    return tuple(found)


def _matchers(entries: Any) -> Iterator[str]:
    for entry in entries if isinstance(entries, list) else [entries]:
        matcher = entry.get("matcher") if isinstance(entry, dict) else None
        yield matcher if isinstance(matcher, str) else ""
