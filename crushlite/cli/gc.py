"""`crushlite gc`: delete the sessions of this directory that were not used for long."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NotFound, SessionBusy
from .common import add_connection, add_json, command, is_there, opened, say, show, show_json
from .databases import session_sizes
from .locations import DATABASE
from .lookup import SHORT
from .person import agreed
from .tables import table
from .text import Style, ago, clean, count, size

if TYPE_CHECKING:
    from ..client import RemoteWorkspace
    from ..protocol.sessions import Session

_UNITS = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}

DESCRIPTION = """\
Delete the sessions of this directory that were not used for some time, with their messages and file
versions, and give the room back to the system. What is running, or shown by some client, is left
alone. What is gone is gone: look with --dry-run first, and keep a copy with `crushlite backup`.

On a terminal it shows what would go, and asks first. Elsewhere it does not ask.
"""
EXAMPLES = """\
  crushlite gc --older 30d --dry-run
  crushlite gc --older 12w             # asks first
  crushlite gc --older 12w --yes
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "gc", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add(
        "--older",
        metavar="AGE",
        type=age,
        required=True,
        help="not used for so long: a number and w, d, h, m or s, for example 30d",
    )
    add("--dry-run", "-n", action="store_true", help="only say what would go")
    add("--yes", "-y", action="store_true", help="do not ask")
    add_json(parser, "what goes")
    add_connection(parser)


def age(text: str) -> float:
    """Read an age, for `type=` of an option; returns seconds."""
    found = re.fullmatch(r"(\d{1,6})([wdhms])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age: use for example 30d, 12w or 6h")
    return float(int(found[1]) * _UNITS[found[2]])


async def run(options: argparse.Namespace) -> int:
    async with opened(options) as workspace:
        before = time.time() - options.older
        old = [session for session in await workspace.sessions() if _is_old(session, before)]
        sizes = await asyncio.to_thread(_sizes, workspace) if old else {}
        asked = bool(old) and is_there() and not (options.yes or options.dry_run)
        if asked and not await _agreed(workspace, old, sizes):
            say("nothing was deleted")
            return 1
        gone = old if options.dry_run else await _delete(workspace, old, before)
        freed = 0
        if gone and not options.dry_run:
            freed = await _compact(workspace)
        if options.json:
            listed = [{"id": s.id, "title": s.title, "bytes": sizes.get(s.id, 0)} for s in gone]
            show_json({"deleted": not options.dry_run, "sessions": listed, "freed": freed})
        else:
            if gone and not asked:
                show(_listed(gone, sizes, Style(sys.stdout)))
            show(_summary(gone, sizes, freed, dry_run=options.dry_run))
        return 0


def _is_old(session: Session, before: float) -> bool:
    used = session.is_busy or session.attached_clients
    return session.updated_at < before and not used


def _sizes(workspace: RemoteWorkspace) -> dict[str, int]:
    """About how many bytes each session takes. Read from the database, which the daemon has open
    too."""
    folder, path = Path(workspace.info.data_dir), os.path.realpath(workspace.info.path)
    # The rows of a workspace with a data directory of its own do not name the workspace.
    scope = "" if str(folder.parent) == path else path
    return session_sizes(folder / DATABASE, scope)


async def _delete(workspace: RemoteWorkspace, old: list[Session], before: float) -> list[Session]:
    gone: list[Session] = []
    for session in old:
        try:
            now = await workspace.session(session.id)  # it may be in use by now
            if _is_old(now, before):
                await workspace.delete(session.id)
                gone.append(session)
        except NotFound:
            pass  # another client has deleted it
    return gone


async def _compact(workspace: RemoteWorkspace) -> int:
    """Make the database file smaller; returns by how many bytes."""
    try:
        space = await workspace.compact()
    except SessionBusy:
        say("something is running: the room is used again, and given back by a later gc")
        return 0
    return max(0, space.before - space.after)


async def _agreed(workspace: RemoteWorkspace, old: list[Session], sizes: dict[str, int]) -> bool:
    print(_listed(old, sizes, Style(sys.stderr)), file=sys.stderr)  # beside the question
    number, total = count(len(old), "session"), size(sum(sizes.get(s.id, 0) for s in old))
    return await agreed(workspace, f"Delete {number}, about {total}?")


def _listed(sessions: list[Session], sizes: dict[str, int], style: Style) -> str:
    now = time.time()
    rows = [
        [s.id[:SHORT], ago(s.updated_at, now), size(sizes.get(s.id, 0)), clean(s.title)]
        for s in sessions
    ]
    return table(rows, ["SESSION", "LAST USED", "SIZE", "TITLE"], style, spare=("SIZE",))


def _summary(gone: list[Session], sizes: dict[str, int], freed: int, *, dry_run: bool) -> str:
    if not gone:
        return "nothing is that old"
    total = size(sum(sizes.get(session.id, 0) for session in gone))
    number = count(len(gone), "session")
    if dry_run:
        return f"{number} would go, about {total}; nothing was deleted"
    return f"{number} deleted, about {total}; the file is {size(freed)} smaller"
