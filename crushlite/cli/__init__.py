"""The command line: a table of commands, each a module of its own, exit codes from the error tree.

To add a command: a row in COMMANDS, and a module here with `add_parser(commands)`, which makes the
parser (see `common.command`) and sets `run` to a function from options to an exit code. Only the
module of the command that was asked for is imported: a client must not pay for the server.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CrushliteError, UsageError
from ..version import __version__
from .helptext import columns, fill, row

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "Command", "main"]

BROKEN_PIPE = 141  # what a shell reports for a program that died of SIGPIPE


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table. The module is named like the command unless it says otherwise."""

    group: str
    name: str
    help: str
    module: str = ""


# Groups and their commands in the order in which the help shows them.
COMMANDS = (
    Command("Ask", "run", "ask once and print the answer"),
    Command("Ask", "chat", "a conversation in the terminal"),
    Command("Ask", "attach", "follow a run from any terminal, from its beginning"),
    Command("Ask", "runs", "list runs and how they ended"),
    Command("Look", "ps", "what the daemon is doing"),
    Command("Look", "watch", "tell what happens in a workspace, live"),
    Command("Look", "sessions", "list, show, export, rename, delete sessions"),
    Command("Act", "cancel", "end what runs"),
    Command("Act", "grant", "answer permission requests"),
    Command("Act", "undo", "put back the files that a run changed"),
    Command("Care", "config", "effective configuration, and changing it"),
    Command("Care", "doctor", "what works, what does not, what to do"),
    Command("Care", "logs", "the daemon's log"),
    Command("Care", "backup", "copy the database, also while a daemon uses it"),
    Command("Care", "gc", "delete sessions that were not used for long"),
    Command("Serve", "serve", "run the daemon in the foreground"),
    Command("Serve", "stop", "ask the daemon to leave"),
    Command("Serve", "web", "open the web console in a browser"),
)

BEGIN = """\
usage: crushlite COMMAND [OPTION ...]

A small local daemon for AI coding agents.
"""
END = """\
Begin in the directory of a project:
  crushlite run "what is this project about?"
  git diff | crushlite run "review this"

`crushlite COMMAND --help` explains a command and shows examples; --version tells the version.

Exit codes: 0 ok, 1 failure, 2 usage or refused bind, 3 wrong peer, 4 corrupt database,
5 newer schema, 6 data directory in use, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(given)
    except CrushliteError as error:
        print(f"crushlite: {error.message}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Else the interpreter would try again when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"crushlite: cannot write the answer: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _main(given: list[str]) -> int:
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    if given[:1] in (["--help"], ["-h"]):
        print(_help(), end="", flush=True)
        return 0
    if given == ["--version"]:
        print(f"crushlite {__version__}", flush=True)
        return 0
    command = _find(given)
    parser = argparse.ArgumentParser(prog="crushlite", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    module = command.module or command.name
    importlib.import_module(f".{module}", __name__).add_parser(commands)
    options = parser.parse_args(given)
    return int(options.run(options))


def _find(given: list[str]) -> Command:
    if not given:
        raise UsageError("which command? `crushlite --help` lists them")
    for command in COMMANDS:
        if command.name == given[0]:
            return command
    near = difflib.get_close_matches(given[0], [command.name for command in COMMANDS], 1)
    guess = f" did you mean {near[0]}?" if near else ""
    raise UsageError(f"{given[0]!r} is no command;{guess} `crushlite --help` lists them")


def _help() -> str:
    room = columns()
    parts = [fill(BEGIN, room)]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        rows = [row(each.name, each.help, room) for each in COMMANDS if each.group == group]
        parts.append("\n".join([f"{group}:", *rows]))
    return "\n\n".join([*parts, fill(END, room)]) + "\n"
