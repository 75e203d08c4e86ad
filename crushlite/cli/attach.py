"""`crushlite attach`: follow a run from any terminal, from its beginning, also if it has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import BROKEN_PIPE, CANCELED
from .common import add_connection, add_json, command
from .follow import RunPrinter, exit_code, signals
from .progress import Progress
from .runs import workspace_of

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Print what a run has said and follow it to its end, wherever it was started. The beginning of its
id is enough, if no other run begins so. Ctrl-C leaves the run alone.

Exit codes: 0 completed, 1 failed or daemon lost, 130 the run was canceled, or Ctrl-C.
"""
EXAMPLES = """\
  id=$(crushlite run --detach "fix all warnings")
  crushlite attach $id
  crushlite attach --json 3f2a | jq .type
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "attach", DESCRIPTION, run, EXAMPLES)
    parser.add_argument("run_id", metavar="RUN", help="the id of a run, or its beginning")
    add_json(parser, "one event per line, instead of the text,")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="say only errors on standard error"
    )
    add_connection(parser)


async def run(options: argparse.Namespace) -> int:
    progress = Progress(quiet=options.quiet)
    printer: RunPrinter | None = None
    with signals() as interrupt:
        try:
            async with (
                workspace_of(options, options.run_id) as (workspace, run_id),
                workspace.follow(run_id) as following,
            ):
                progress.doing("waiting")
                printer = RunPrinter(following, progress, as_json=options.json)
                printer.stop = interrupt.act
                ending = await printer.until_end()
        except asyncio.CancelledError:
            progress.stop()
            if printer is not None and printer.broken is not None:
                return BROKEN_PIPE
            if not interrupt.received:
                raise
            progress.say("left; the run goes on")
            return CANCELED
    return exit_code(printer, ending, progress)
