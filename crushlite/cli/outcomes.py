"""What `run` and `attach` write to standard output, and what their exit codes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import CANCELED

if TYPE_CHECKING:
    import argparse

FORMS = ("text", "final", "json", "stream-json")
EXIT_CODES = {
    "completed": 0,
    "failed": 1,
    "denied": 7,  # completed, but without something that it asked for
    "limit": 8,
    "no_model": 9,
    "canceled": CANCELED,
}
CODES_HELP = """\
Exit codes: 0 completed, 1 failed or daemon lost, 2 usage, 7 something was denied, by a person or
for want of one, even if the agent went on without it, 8 a limit was reached (--max-cost,
--max-steps, --timeout), 9 no model can answer, 130 canceled.
"""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what standard output gets. `form_of` reads them."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--output",
        metavar="FORM",
        choices=FORMS,
        default="text",
        help="text: the answer as it grows (default); final: only the last message; json: one "
        "document about the result; stream-json: one event per line, the result last",
    )
    which.add_argument(
        "--json", action="store_true", help="one event per line, for programs, without the result"
    )


def form_of(options: argparse.Namespace) -> str:
    return "events" if options.json else str(options.output)
