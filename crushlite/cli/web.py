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

from ..features import requests
from ..launch import join
from .common import add_connection, add_json, command, say, show, show_json, wanted

EXAMPLES = """\
  crushlite web                # of this directory, in the default browser
  crushlite web --no-open      # print what to open, for another browser
  crushlite web --port 4180    # a port that stays the same

Over ssh, the second line there; then open what it prints here:
  ssh -L 4180:127.0.0.1:4180 there
  crushlite web --port 4180

If the port here is another one, 5000:
  ssh -L 5000:127.0.0.1:4180 there
  crushlite web --port 4180 --allow-host localhost:5000"""


def add_parser(commands: Any) -> None:
    parser = command(
        commands,
        "web",
        "Open the web console of this directory in a browser. The daemon is found or started, and "
        "made to listen on loopback if it does not yet. The file that is printed opens the console "
        "once, within ten minutes. On a terminal a code is printed as well, to be typed where "
        "no browser can open that file. A page that is in stays in, also when the daemon is "
        "started again.",
        run,
        EXAMPLES,
    )
    add_connection(parser)
    parser.add_argument(
        "--port", type=_port, default=0, help="where to listen (default: where it does, else any)"
    )
    parser.add_argument(
        "--allow-host",
        default="",
        metavar="NAME:PORT",
        help="where the browser sees the console, if a tunnel or a proxy leads there",
    )
    parser.add_argument("--no-open", action="store_true", help="print what to open, open nothing")
    add_json(parser, "the address and the code")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    workspace = await join(wanted(options, say))
    async with workspace.client as client:
        address = await requests.web(client, options.port, workspace.info.path, options.allow_host)
    # The client does not say goodbye: so the workspace stays open until the page has connected.
    page = Path(address.page).as_uri()
    if options.json:
        show_json(address)
    else:
        show(page)
        if sys.stdout.isatty():  # a log or a file may be read by others
            show(f"or open {address.url} and type the code {address.code}")
            if os.environ.get("SSH_CONNECTION") and not options.allow_host:
                port = address.url.rstrip("/").rpartition(":")[2]
                show(f"from your own machine, first: ssh -L {port}:127.0.0.1:{port} HERE")
    # A file of this machine opens nothing where a tunnel leads to.
    if options.no_open or options.allow_host:
        return 0
    if not webbrowser.open(page):
        say("no browser was found: open the file yourself, within ten minutes")
    return 0
