"""`crushlite attach`: follow a run from any terminal, from its beginning, also if it has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import BROKEN_PIPE, CANCELED
from .common import add_connection, command
from .follow import RunPrinter, signals
from .helptext import not_empty
from .outcomes import CODES_HELP, add_output, form_of
from .progress import Progress
from .runs import workspace_of

if TYPE_CHECKING:
    import argparse

DESCRIPTION = f"""\
Print what a run has said and follow it to its end, wherever it was started. The beginning of its
id is enough, if no other run begins so. Ctrl-C leaves the run alone.

{CODES_HELP}"""
EXAMPLES = """\
  id=$(crushlite run --detach "fix all warnings")
  crushlite attach $id
  crushlite attach --json 3f2a | jq .type
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "attach", DESCRIPTION, run, EXAMPLES)
    an_id = "the id of a run, or its beginning"
    parser.add_argument("run_id", type=not_empty, metavar="RUN", help=an_id)
    add_output(parser)
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
                printer = RunPrinter(following, progress, form_of(options))
                printer.stop = interrupt.act
                return await printer.conclude(await printer.until_end())
        except asyncio.CancelledError:
            progress.stop()
            if printer is not None and printer.broken is not None:
                return BROKEN_PIPE
            if not interrupt.received:
                raise
            progress.say("left; the run goes on")
            return CANCELED
