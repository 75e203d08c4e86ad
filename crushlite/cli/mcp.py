"""`crushlite mcp`: the tool servers of this directory, their states and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..clock import SystemClock
from ..features import requests
from .common import add_connection, add_json, command, opened, say, show, show_json
from .render import in_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..client import RemoteWorkspace
    from ..features.wire import McpState

DESCRIPTION = """\
List the tool servers that the section `mcp` of your crush.json names: whether each is connected,
the tools that it offers and those that it cannot, and the last lines of its log if it has failed.
The workspace of this directory is opened for that, and servers that start are waited for.
"""
EXAMPLES = """\
  crushlite mcp
  crushlite mcp tickets              # one of them
  crushlite mcp --json | jq -r '.[] | select(.state == "error").name'
"""
WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.2
SHOWN = 40  # tools of a server that are listed, unless one is named


def add_parser(commands: Any) -> None:
    parser = command(commands, "mcp", DESCRIPTION, run, EXAMPLES)
    parser.add_argument("server", nargs="?", default="", metavar="NAME", help="only this server")
    add_json(parser, "them")
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    async with opened(options) as workspace:
        states = await _settled(workspace)
    if options.server:
        states = [state for state in states if state.name == options.server]
    if options.json:
        show_json(states)
    for state in () if options.json else states:
        show("\n".join(_lines(state, whole=bool(options.server))))
    if not states:
        named = f" of the name {options.server}" if options.server else ""
        say(f"no tool server{named} is configured: add one to `mcp` in your crush.json")
    failed = any(state.state in ("error", "needs auth") for state in states)
    return 1 if failed or (options.server and not states) else 0


async def _settled(workspace: RemoteWorkspace) -> list[McpState]:
    """The states when no server is starting any more, or the time is up."""
    clock = SystemClock()
    until = clock.time() + WAIT_SECONDS
    while True:
        states = await requests.tool_servers(workspace)
        if clock.time() > until or all(state.state != "starting" for state in states):
            return states
        await clock.sleep(PAUSE_SECONDS)


def _lines(state: McpState, *, whole: bool) -> Iterator[str]:
    counts = [
        f"{number} {what}"
        for number, what in (
            (state.tool_count, "tools"),
            (state.prompt_count, "prompts"),
            (state.resource_count, "resources"),
        )
        if number
    ]
    yield in_line(f"{state.name}: {', '.join([state.state, *counts])}")
    if state.error:
        yield f"  {in_line(state.error)}"
    for line in state.last_lines.splitlines():
        yield f"  | {in_line(line)}"
    shown = state.tools if whole else state.tools[:SHOWN]
    if shown:
        more = f" and {len(state.tools) - len(shown)} more" if len(shown) < len(state.tools) else ""
        yield f"  {in_line(', '.join(shown))}{more}"
    for line in state.left_out if whole else state.left_out[:3]:
        yield f"  not offered: {in_line(line)}"
