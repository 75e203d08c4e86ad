"""The prompts of the coder: the system message, and those for summaries and titles.

Context files, facts about the environment and reminders are all in the system message. So nothing
follows the newest user or tool message, and the text of a user stays exactly as typed.
"""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..worktree.paths import locate, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..worktree.paths import OwnFolders

CONTEXT_BYTES = 64 * 1024  # per file: more would crowd out the conversation

ROLE = """You are a coding agent working in a user's project through tools.

How to work:
- Find out before you act: read the files that matter, search instead of guessing.
- Make the smallest change that does what was asked, in the style of the code around it.
- After a change, run the tests or the program if there is a way to, and report what you saw.
- When a tool fails, read its error and try something else; do not repeat the same call.
- A refused permission is a decision: stop and say what you would have done.
- Never print or store secrets. Do not commit or push unless asked to.

How to answer: short and plain, in the user's language. Name files with their paths. Say clearly
what you did not do or could not check."""

SUMMARY = """Summarize this conversation so that another engineer could continue it without having
seen it: what the user wants and why, decisions made, what was done to which files, what is left to
do, and anything that failed. Be specific: keep names, paths, commands and numbers. Write only the
summary."""

TITLE = """Write a title of at most 8 words for a conversation that begins with the user's message.
ModelAnswer with the title only: no quotes, no full stop, in the language of the message."""


def system_prompt(
    path: Path,
    files: Sequence[tuple[str, str]],
    *,
    prefix: str = "",
    commits: str = "",
    interactive: bool = True,
) -> str:
    """The system message for the project at `path`; `files` are pairs of a name and a text,
    `commits` says what commit messages are to look like."""
    parts = [part for part in (prefix, ROLE, commits) if part]
    facts = [
        f"Working directory: {path}",
        f"Platform: {platform.system().lower()}",
        f"Date: {time.strftime('%Y-%m-%d')}",
        f"Git repository: {'yes' if (path / '.git').exists() else 'no'}",
    ]
    if not interactive:
        facts.append("Nobody is watching: do not ask questions, decide yourself.")
    parts.append("\n".join(facts))
    parts += [f'<context path="{name}">\n{text}\n</context>' for name, text in files]
    return "\n\n".join(parts)


def context_files(
    path: Path, names: Sequence[str], own: OwnFolders | None = None
) -> list[tuple[str, str]]:
    """The context files of a project, as pairs of a name and a text; those that do not exist or
    cannot be read are left out. So are links out of the project: a repository must not decide what
    is read there."""
    found: dict[Path, tuple[str, str]] = {}
    for name in names:
        try:
            if not os.path.lexists(os.path.join(path, os.path.expanduser(name))):
                continue  # most do not exist, and `locate` takes a hundred times as long
            place = locate(path, name, own)
            if place.inside and place.path not in found:
                data, _ = read_bytes(place)
                found[place.path] = (name, data[:CONTEXT_BYTES].decode("utf-8", "replace"))
        except (BadRequest, ValueError):
            continue  # not a readable file
    return list(found.values())
