"""`crushlite backup`: a copy of the database, also while a daemon uses it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import UsageError
from .common import add_connection, add_json, command, show, show_json
from .databases import backup
from .locations import DATABASE, data_directory
from .lookup import open_here
from .text import count, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine

DESCRIPTION = """\
Write a copy of the database to FILE: all sessions, messages, runs and file versions, as they are at
one moment. A daemon may be using it; none is needed. The copy is checked before it gets its name.
To restore it: stop the daemon, and put FILE into the data directory as crushlite.db.
"""
EXAMPLES = """\
  crushlite backup ~/crushlite-$(date +%F).db
  crushlite backup --data-dir /srv/crushlite /mnt/backup/crushlite.db --force
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "backup", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add("file", metavar="FILE", help="the copy to make")
    add("--force", action="store_true", help="replace FILE if it exists")
    add(
        "--data-dir",
        metavar="D",
        default="",
        help="the data directory to copy from (default: that of this directory's workspace)",
    )
    add_json(parser, "what was copied")
    add_connection(parser, start=False)


def run(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    target = Path(os.path.abspath(options.file))
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"{options.file} is not the name of a file in a directory that exists")
    named = Path(os.path.realpath(options.data_dir)) if options.data_dir else None
    return _backup(options, named, target)


async def _backup(options: argparse.Namespace, named: Path | None, target: Path) -> int:
    folder = named or await _served(options) or data_directory(options)
    copied = await asyncio.to_thread(backup, folder / DATABASE, target, force=options.force)
    if options.json:
        show_json(
            {
                "path": str(copied.path),
                "from": str(folder),
                "bytes": copied.bytes,
                "sessions": copied.sessions,
                "messages": copied.messages,
            }
        )
    else:
        held = f"{count(copied.sessions, 'session')}, {count(copied.messages, 'message')}"
        show(f"{copied.path}: {size(copied.bytes)}, {held}, checked")
    return 0


async def _served(options: argparse.Namespace) -> Path | None:
    """The data directory that a daemon uses for the current directory, if it has it open."""
    try:
        async with open_here(options) as workspace:
            return Path(workspace.info.data_dir) if workspace is not None else None
    except ConnectionFailed:
        return None
