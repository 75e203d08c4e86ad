"""`crushlite web`: open the web console, at the directory we stand in.

The daemon listens on loopback from then on. The address it hands out has a one-time code in its
fragment, which a browser sends to nobody; the page exchanges it for a token.
"""

from __future__ import annotations

import argparse
import webbrowser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..launch import join
from ..protocol.web import WebAddress
from .common import add_connection, add_json, command, perform, say, show_json, wanted

if TYPE_CHECKING:
    from collections.abc import Callable

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
        web,
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


def web(options: argparse.Namespace) -> int:
    return perform(_web(options, webbrowser.open))


async def _web(options: argparse.Namespace, browse: Callable[[str], bool]) -> int:
    workspace = await join(wanted(options, say))
    async with workspace.client as client:
        address = await client.web(options.port)
    # No goodbye: for a while the workspace waits for the page, which takes it over.
    path = quote(workspace.info.path, safe="/")
    address = WebAddress(f"{address.url}&path={path}", address.expires_in)
    if options.json:
        show_json(address)
    else:
        print(address.url, flush=True)
    if not options.no_open and not browse(address.url):
        say("no browser was found: open the address yourself, within a minute")
    return 0
