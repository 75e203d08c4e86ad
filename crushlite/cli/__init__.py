"""The command line: one function per command, exit codes from the error tree."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from crushlite.errors import CrushliteError
from crushlite.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

COMMANDS = ("run", "serve")  # each is a module in here with `add_parser`


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="crushlite",
        description="A small local daemon for AI coding agents.",
        epilog="Exit codes: 0 ok, 1 failure, 2 usage or refused bind, 3 wrong peer, "
        "4 corrupt database, 5 newer schema, 6 data directory in use, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"crushlite {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only what was asked for: a client must not pay for the import of the server.
    given = sys.argv[1:] if argv is None else argv
    for name in [name for name in COMMANDS if given[:1] == [name]] or COMMANDS:
        importlib.import_module(f"crushlite.cli.{name}").add_parser(commands)
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except CrushliteError as error:
        print(f"crushlite: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
