"""`crushlite web`: open the web console of the current directory.

The daemon listens on loopback from then on. The address that it returns has a one-time code in its
fragment, which a browser does not send; the page exchanges it for a token.
"""

from __future__ import annotations

import argparse
import webbrowser
from typing import Any
from urllib.parse import quote

from ..launch import join
from ..protocol.web import WebAddress
from .common import add_connection, add_json, command, say, show, show_json, wanted

EXAMPLES = """\
  crushlite web                # of this directory, in the default browser
  crushlite web --no-open      # print the address, for another browser
  crushlite web --port 4180    # a port that stays the same: open tabs go on"""


def add_parser(commands: Any) -> None:
    parser = command(
        commands,
        "web",
        "Open the web console of this directory in a browser. The daemon is found or started, and "
        "made to listen on loopback if it does not yet. The address that is printed opens the "
        "console once, within a minute; the browser is remembered until the daemon leaves.",
        run,
        EXAMPLES,
    )
    add_connection(parser)
    parser.add_argument(
        "--port", type=_port, default=0, help="where to listen (default: where it does, else any)"
    )
    parser.add_argument("--no-open", action="store_true", help="print the address, open nothing")
    add_json(parser, "the address")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    workspace = await join(wanted(options, say))
    async with workspace.client as client:
        address = await client.web(options.port)
    # The client does not say goodbye: so the workspace stays open until the page has connected.
    path = quote(workspace.info.path, safe="/")
    address = WebAddress(f"{address.url}&path={path}", address.expires_in)
    if options.json:
        show_json(address)
    else:
        show(address.url)
    if not options.no_open and not webbrowser.open(address.url):
        say("no browser was found: open the address yourself, within a minute")
    return 0
