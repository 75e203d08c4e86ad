"""What the system prompt says about a workspace's repository: branch, status, last commits.

A repository's own files can make git run programs. So git is only run where tools/safe.py finds
none, for a few seconds; elsewhere the branch is read from `.git/HEAD`, and the rest is left out.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError
from ..worktree.paths import locate, read_bytes
from .tools.safe import Surroundings, environment, harmless_words

if TYPE_CHECKING:
    from pathlib import Path

    from ..agent.base import Turn
    from .tools.base import ToolContext

SECONDS = 3.0  # for git to answer
LINES = 20  # of the status
LINE_CHARS = 120
COMMITS = 5
PARENTS = 32  # folders above the workspace that are looked at
_COMMANDS = ("git status -sb", f"git log --oneline -n {COMMITS} --no-decorate")
_HEAD = re.compile(r"ref: refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,200})\n?")


async def git_facts(turn: Turn, context: ToolContext) -> str:
    """Some lines about the repository, or one that says that there is none."""
    top = await context.blocking(_top, context.path)
    if top is None:
        return "Git repository: no"
    if top != context.path:
        return f"Git repository: yes, with {top} as its top folder"
    commands = await context.blocking(_commands, top)
    if commands is None:
        branch = await context.blocking(_branch, top)
        return "Git repository: yes" + (f"\nGit branch: {branch}" if branch else "")
    status, commits = await asyncio.gather(*(_answer(turn, words) for words in commands))
    branch = status[0].removeprefix("## ") if status and status[0].startswith("## ") else ""
    changes = status[1:] if branch else []
    lines = ["Git repository: yes"]
    if branch:
        lines.append(f"Git branch: {branch}")
        lines += ["Git status:", *changes[:LINES]] if changes else ["Git status: clean"]
        if len(changes) > LINES:
            lines.append(f"... and {len(changes) - LINES} more")
    if commits:
        lines += ["Last commits:", *commits[:COMMITS]]
    return "\n".join(lines)


def _top(path: Path) -> Path | None:
    """The folder of the repository that a workspace is in."""
    folders = [path, *path.parents][:PARENTS]
    return next((folder for folder in folders if os.path.lexists(folder / ".git")), None)


def _commands(top: Path) -> list[list[str]] | None:
    """The commands for status and log; None if git cannot be run safely."""
    at = Surroundings(top, top)
    words = [harmless_words(command, at) for command in _COMMANDS]
    return [each for each in words if each is not None] if None not in words else None


async def _answer(turn: Turn, words: list[str]) -> list[str]:
    """The lines that a command prints; none if it fails or takes too long."""
    try:
        command = await turn.command(words, cwd="/", env=environment(), read_only=True)
        ended = await command.wait(SECONDS)
    except CrushliteError:
        return []
    if ended.code != 0:
        return []
    lines = command.output.text().splitlines()
    return ["".join(c for c in line[:LINE_CHARS] if c.isprintable()) for line in lines]


def _branch(top: Path) -> str:
    try:
        place = locate(top, ".git/HEAD")
        data = read_bytes(place, 4096)[0] if place.inside else b""
    except BadRequest:
        return ""
    found = _HEAD.fullmatch(data.decode("utf-8", "replace"))
    return found[1] if found else ""
