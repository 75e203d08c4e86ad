"""`crushlite backup`: a copy of the database, also while a daemon uses it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client import ConnectionFailed
from ..errors import UsageError
from ..store.backup import backup
from .common import add_connection, add_json, command, perform, reached, show, show_json
from .gc import size
from .locations import data_directory
from .lookup import is_here
from .render import count

if TYPE_CHECKING:
    import argparse

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


def run(options: argparse.Namespace) -> int:
    target = Path(os.path.abspath(options.file))
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"{options.file} is not the name of a file in a directory that exists")
    return perform(_backup(options, target))


async def _backup(options: argparse.Namespace, target: Path) -> int:
    folder = _named(options) or await _served(options) or data_directory(options)
    database = folder / "crushlite.db"
    copied = await asyncio.to_thread(backup, database, target, force=options.force)
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


# Where the database is ---------------------------------------------------------------------------


def _named(options: argparse.Namespace) -> Path | None:
    return Path(os.path.realpath(options.data_dir)) if options.data_dir else None


async def _served(options: argparse.Namespace) -> Path | None:
    """Where a daemon has the data of this directory, if one has it open."""
    try:
        async with reached(options) as client:
            for info in await client.workspaces():
                if is_here(client.attach(info), options):
                    return Path(info.data_dir)
    except ConnectionFailed:
        pass  # nobody serves
    return None
