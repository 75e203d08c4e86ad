"""`crushlite acp`: an editor's agent, on the standard streams."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

from ..acp.editor import Editor
from ..acp.stdio import standard_streams
from .common import add_connection, command, say, wanted

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Speak the Agent Client Protocol on standard input and output, for an editor that starts this as its
agent: Zed, JetBrains, Neovim, Emacs and others. docs/editors.md has their settings.

The sessions are the daemon's: they are also in the web console and in `crushlite chat`, and a turn
goes on when the editor is closed. The daemon is started when the editor first needs it.
"""
EXAMPLES = """\
  crushlite acp                        # as the command of an agent in the editor's settings
  crushlite acp --host unix:///run/user/1000/other.sock
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "acp", DESCRIPTION, run, EXAMPLES)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log what happens on standard error"
    )
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if options.verbose else logging.WARNING,
        format="crushlite: %(message)s",
    )
    with standard_streams() as (reader, writer):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, reader.end)
        await Editor(reader, writer, wanted(options, say)).run()
    return 0
