"""`crushlite web`: open the web console of the current directory.

The daemon listens on loopback from then on. It has written a one-time code into a file that only
its owner can read: the browser is started with the path of that file, never with the code, because
every user of the machine sees the arguments of a process.
"""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from ..client import ConnectionFailed
from ..errors import UsageError
from ..launch import join
from .common import add_connection, add_json, command, reached, say, show, show_json, wanted

EXAMPLES = """\
  crushlite web                # of this directory, in the default browser
  crushlite web --no-open      # print what to open, for another browser
  crushlite web --port 4180    # a port that stays the same
  # of another machine, with `ssh -L 4180:127.0.0.1:4180 THERE` at this end:
  crushlite web --no-open --port 4180
  # with `ssh -L 8080:127.0.0.1:4180 THERE`:
  crushlite web --no-open --port 4180 --allow-host 127.0.0.1:8080"""


def add_parser(commands: Any) -> None:
    parser = command(
        commands,
        "web",
        "Open the web console of this directory in a browser. The daemon is found or started, and "
        "made to listen on loopback if it does not yet. The file that is printed opens the console "
        "once, within ten minutes. On a terminal a code is printed as well, to be typed where no "
        "browser can open that file. A page that is in stays in until the daemon leaves.",
        run,
        EXAMPLES,
    )
    add_connection(parser)
    parser.add_argument(
        "--port", type=_port, default=0, help="where to listen (default: where it does, else any)"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME:PORT",
        help="let a daemon that is started now take this Host header, too: for `ssh -L` with "
        "another port at this end",
    )
    parser.add_argument("--no-open", action="store_true", help="print what to open, open nothing")
    add_json(parser, "the address and the code")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    if options.allow_host:
        await _let_in(options)
    workspace = await join(wanted(options, say))
    async with workspace.client as client:
        address = await client.web(options.port, workspace.info.path)
    # The client does not say goodbye: so the workspace stays open until the page has connected.
    page = Path(address.page).as_uri()
    if options.json:
        show_json(address)
    else:
        show(page)
        if sys.stdout.isatty():  # a log or a file may be read by others
            show(f"or open {address.url} and type the code {address.code}")
    if not options.no_open and not webbrowser.open(page):
        say("no browser was found: open the file yourself, within ten minutes")
    return 0


async def _let_in(options: argparse.Namespace) -> None:
    """Have a daemon that is started now accept the host of --allow-host. Raises UsageError if one
    runs already: which hosts it accepts was decided when it started."""
    try:
        async with reached(options):
            raise UsageError(
                "--allow-host is for a daemon that is started now, and one runs already: end it "
                "with `crushlite stop`, or start it with `crushlite serve --allow-host`"
            )
    except ConnectionFailed:
        os.environ["CRUSHLITE_ALLOW_HOST"] = options.allow_host
