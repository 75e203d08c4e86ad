"""Rules that users have granted for good: `permissions.rules` in their own files.

    {"tool": "bash", "action": "execute", "path": "/home/kim/demo",
     "parts": ["starts with npm test"], "words": "commands that start with `npm test`, ..."}

They are written when a user answers a permission request like that, and removed when it is taken
back. A project's file cannot hold any; with `"-bash"` in its `allowed_tools` it switches those for
that tool off.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..protocol.permissions import PermissionRule
from .merge import spell
from .warnings import Reason
from .writing import put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .project import Layer
    from .warnings import Warn

KEY = "permissions.rules"
_NEEDED = ("tool", "action", "path", "parts")


def rules_of(layers: Iterable[Layer], warn: Warn) -> tuple[PermissionRule, ...]:
    """The rules of the machine's files, without those that a project switches off. Warns of entries
    that allow nothing."""
    rules: dict[str, PermissionRule] = {}
    refused: set[str] = set()
    for source, document, _ in layers:
        section = document.get("permissions") or {}
        if not source.is_machine:
            tools = map(str.strip, section.get("allowed_tools") or ())
            refused |= {tool[1:].strip() for tool in tools if tool.startswith(("-", "!"))}
            continue
        for number, entry in enumerate(section.get("rules") or ()):
            if missing := [key for key in _NEEDED if not entry.get(key)]:
                text = f"{KEY}[{number}] allows nothing: it has no {', '.join(missing)}"
                at = spell(("permissions", "rules", str(number)))
                warn(Reason.RULE_INCOMPLETE, source.path, at, text)
            else:
                rule = _rule(entry)
                rules[rule.id] = rule
    return tuple(
        rule
        for rule in rules.values()
        if refused.isdisjoint({"*", rule.tool_name, f"{rule.tool_name}:{rule.action}"})
    )


def add_rule(document: dict[str, Any], rule: PermissionRule) -> None:
    """Put a rule into the document of the user's file, unless it is there. Raises ConfigError."""
    entry = {
        "tool": rule.tool_name,
        "action": rule.action,
        "path": rule.path,
        "parts": list(rule.parts),
        "words": rule.words,
    }
    if _entry_id(entry) not in map(_entry_id, _entries(document)):
        put(document, KEY, [*_entries(document), entry])


def drop_rule(document: dict[str, Any], rule_id: str) -> None:
    """Remove a rule from the document of the user's file. Raises BadRequest if it is not there."""
    left = [entry for entry in _entries(document) if _entry_id(entry) != rule_id]
    if len(left) == len(_entries(document)):
        raise BadRequest(
            "this rule was written by hand into another file: `crushlite config show "
            f"{KEY}` names it, remove it there"
        )
    put(document, KEY, left)


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    return (document.get("permissions") or {}).get("rules") or []


def _entry_id(entry: dict[str, Any]) -> str:
    """The id of a rule: entries that allow the same have the same."""
    said = [entry.get(key) for key in _NEEDED]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _rule(entry: dict[str, Any]) -> PermissionRule:
    return PermissionRule(
        id=_entry_id(entry),
        tool_name=entry["tool"],
        action=entry["action"],
        path=entry["path"],
        words=entry.get("words") or " and ".join(entry["parts"]),
        parts=list(entry["parts"]),
    )
