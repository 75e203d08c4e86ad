"""The `agents` section: programs of other makers that can answer in a session, by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..records import dataclass
from .expand import Refused
from .merge import spell
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .expand import Expander
    from .merge import Merged
    from .warnings import Warn

# What `--agent` takes for one of the agents that need no entry here, or for something else.
RESERVED = frozenset({"auto", "coder", "default", "offline"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """How to start an agent: a program and its arguments, not a line for a shell. `env` is added to
    the environment of the workspace. Everything is expanded."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def agent_programs(merged: Merged, expander: Expander, warn: Warn) -> Mapping[str, AgentProgram]:
    """The usable entries by name. What is put into their environment counts as a secret if its name
    says so."""
    found: dict[str, AgentProgram] = {}
    for name in merged.get("agents") or {}:
        try:
            found[name] = _program(name, merged, expander)
        except Refused as reason:
            key, source = spell(("agents", name)), merged.source("agents", name)
            assert source is not None
            text = f"{key} is left out: {reason}"
            warn(Reason.AGENT_LEFT_OUT, source.path, key, text)
    return found


def _program(name: str, merged: Merged, expander: Expander) -> AgentProgram:
    """The program of an entry. Raises Refused if it cannot be used."""
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise Refused("a name is letters, digits, `_`, `.` and `-`, and none of crushlite's own")
    section = merged.get("agents", name) or {}

    def expanded(text: str, *path: str) -> str:
        source = merged.source("agents", name, *path)
        assert source is not None
        value = expander.expand(text, source, spell(("agents", name, *path)))
        if "\0" in value:
            raise Refused(f"{path[0]} holds a NUL character")
        return value

    command = expanded(section["command"], "command").strip() if section.get("command") else ""
    if not command:
        raise Refused("it has no command")
    args = [expanded(text, "args", str(at)) for at, text in enumerate(section.get("args") or ())]
    env = {key: expanded(text, "env", key) for key, text in (section.get("env") or {}).items()}
    if wrong := [key for key in env if not key or "=" in key]:
        raise Refused(f"{wrong[0]!r} cannot be the name of a variable")
    return AgentProgram(name, command, tuple(args), tuple(sorted(env.items())))
