"""The `hooks` section of the configuration as a list of hooks.

Both forms are read, under the names of events in any spelling (`PreToolUse`, `pre_tool_use`):

    {"PreToolUse": [{"name": "guard", "matcher": "^bash$", "command": "./guard.sh", "timeout": 10}]}
    {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./guard.sh"}]}]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config.hooks import is_meant
from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..config.hooks import HookEntry

PRE_TOOL = "PreToolUse"
POST_TOOL = "PostToolUse"
POST_TOOL_FAILURE = "PostToolUseFailure"
PROMPT = "UserPromptSubmit"
STOP = "Stop"
SESSION_START = "SessionStart"
SESSION_END = "SessionEnd"
NOTIFICATION = "Notification"
PERMISSION = "PermissionRequest"

TIMEOUT = 30.0  # seconds, if a hook says nothing
MOST_SECONDS = 600.0
MOST_HOOKS = 100  # in one section
_SHOWN = 60  # characters of a command that stands for a missing name


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. `problem` says why it cannot be run, if its entry is none."""

    event: str
    command: str
    matcher: str = ""  # a regular expression; empty: everything
    timeout: float = TIMEOUT
    name: str = ""
    origin: str = ""  # its key and its file
    is_users: bool = True  # not from a file of the project
    problem: str = ""

    @property
    def title(self) -> str:
        """What users and models know it by."""
        return self.name or self.command[:_SHOWN] or self.origin

    def matches(self, subject: str) -> bool:
        """Whether the hook is for this tool, or another thing that its event is about."""
        return is_meant(self.matcher, subject)


def hooks_of(entries: Iterable[HookEntry]) -> tuple[Hook, ...]:
    """All hooks of a configuration, in its order. The same command for the same event counts once,
    unless its matcher differs. If there are too many, one that cannot be run stands for the rest of
    each event: they may have been meant to forbid something."""
    found: dict[tuple[str, str, str], Hook] = {}
    for entry in entries:
        for hook in _hooks(entry):
            key = (hook.event, hook.command or hook.origin, hook.matcher)
            if key not in found and len(found) >= MOST_HOOKS:
                problem = f"there are more than {MOST_HOOKS} hooks: remove some"
                key, hook = (hook.event, "", ""), _broken(entry, "", problem)
            found.setdefault(key, hook)
    return tuple(found.values())


def _hooks(entry: HookEntry) -> Iterator[Hook]:
    value, event = entry.entry, entry.event
    if not isinstance(value, dict):
        yield _broken(entry, "", "it is no object")
        return
    matcher = value.get("matcher")
    # What cannot be understood is for everything: it may have been meant to forbid something.
    pattern = matcher if isinstance(matcher, str) else ""
    inner = value.get("hooks")
    for each in inner if isinstance(inner, list) else [value]:
        command = each.get("command") if isinstance(each, dict) else None
        kind = each.get("type", "command") if isinstance(each, dict) else "command"
        if kind != "command":
            yield _broken(entry, pattern, f"hooks of type {str(kind)[:40]!r} cannot be run")
        elif not isinstance(command, str) or not command.strip():
            yield _broken(entry, pattern, "it has no command")
        else:
            name = each.get("name") or value.get("name")
            yield Hook(
                event,
                command,
                pattern,
                _seconds(each.get("timeout")),
                name if isinstance(name, str) else "",
                entry.origin,
                entry.is_machine,
            )


def _broken(entry: HookEntry, matcher: str, problem: str) -> Hook:
    return Hook(entry.event, "", matcher, 0, "", entry.origin, entry.is_machine, problem)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return TIMEOUT
    return min(float(value), MOST_SECONDS)
