"""The command line: a table of commands, each a module of its own, exit codes from the error tree.

To add a command: a row in COMMANDS, and a module of that name here with `add_parser(commands)`,
which makes the parser (see `common.command`). Only the module of the command that was asked for is
imported: a client must not pay for the server.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc as collector  # `gc` is a command, and a module of this package
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ..errors import CrushliteError, UsageError
from ..version import __version__
from ..wings import has_wing
from .helptext import Formatter, columns, fill, row
from .text import discard_stdout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "CommandRow", "main", "process"]

CANCELED = 130  # what a shell reports for a program that was interrupted
BROKEN_PIPE = 141  # and for one that died of SIGPIPE


class CommandRow(NamedTuple):
    """A row of the table. The module is named like the command. A command with a `wing` is offered
    only if that wing is there."""

    group: str
    name: str
    help: str
    wing: str = ""


# Groups and their commands in the order in which the help shows them.
COMMANDS = (
    CommandRow("Ask", "run", "ask once and print the answer"),
    CommandRow("Ask", "chat", "a conversation in the terminal"),
    CommandRow("Ask", "attach", "follow a run from any terminal, from its beginning"),
    CommandRow("Ask", "runs", "list runs and how they ended"),
    CommandRow("Look", "ps", "what the daemon is doing"),
    CommandRow("Look", "watch", "print what happens in a workspace, live"),
    CommandRow("Look", "sessions", "list, show, export, rename, delete sessions"),
    CommandRow("Act", "cancel", "end what runs"),
    CommandRow("Act", "grant", "answer permission requests"),
    CommandRow("Act", "permissions", "what is allowed unasked, and taking it back"),
    CommandRow("Act", "undo", "put back the files that a run changed", "undo"),
    CommandRow("Care", "models", "models that can be used, with window and price", "config"),
    CommandRow("Care", "config", "effective configuration, and changing it", "config"),
    CommandRow("Care", "mcp", "tool servers, their states and tools", "mcp"),
    CommandRow("Care", "trust", "let the files of a project choose models", "config"),
    CommandRow("Care", "doctor", "what works, what does not, what to do"),
    CommandRow("Care", "logs", "the daemon's log"),
    CommandRow("Care", "backup", "copy the database, also while a daemon uses it"),
    CommandRow("Care", "gc", "delete sessions that were not used for long"),
    CommandRow("Serve", "serve", "run the daemon in the foreground"),
    CommandRow("Serve", "stop", "ask the daemon to leave"),
    CommandRow("Serve", "web", "open the web console in a browser", "console"),
    CommandRow("Serve", "acp", "the agent of an editor, on standard input and output", "acp"),
)

BEGIN = """\
usage: crushlite COMMAND [OPTION ...]

A small local daemon for AI coding agents.
"""
END = """\
Begin in the directory of a project:
  crushlite run "what is this project about?"
  git diff | crushlite run "review this"

`crushlite COMMAND --help` explains a command and shows examples; --version prints the version.

Exit codes: 0 ok, 1 failure, 2 usage or refused bind, 3 wrong peer, 4 corrupt database,
5 newer schema, 6 data directory in use, 7 something was denied, 8 a limit was reached,
9 no model, 130 interrupted.
"""


def process() -> NoReturn:
    """The whole life of a process that is this command: carry out its command line, and exit.

    What was registered for the exit is done, and what was written is flushed. But the interpreter
    is not taken apart: the system takes the memory back at once, and does not need 8 to 25 ms. Nor
    is garbage looked for while modules are loaded, which took a twentieth of a start."""
    collector.disable()
    code = main(loaded=_collect_garbage)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if we were started with it closed
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter flushes them again, and reports the error
    if sys.getprofile() is not None or sys.gettrace() is not None:
        sys.exit(code)  # a profiler writes its file after this
    os._exit(code)


def _collect_garbage() -> None:
    collector.freeze()  # what was loaded stays for good, and need not be looked through
    collector.enable()


def main(argv: Sequence[str] | None = None, *, loaded: Callable[[], object] = lambda: None) -> int:
    """Carry out a command line (that of the process if none is given); returns the exit code.
    `loaded` is called when the module of the command is loaded, before it does anything.

    Errors are reported on standard error. Raises SystemExit where argparse does: for --help, and
    for arguments that it refuses."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(given, loaded)
    except CrushliteError as error:
        print(f"crushlite: {error.message}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        discard_stdout()
        print(f"crushlite: cannot write the answer: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return CANCELED


def _main(given: list[str], loaded: Callable[[], object]) -> int:
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    if given[:1] in (["--help"], ["-h"]):
        print(_help(), end="", flush=True)
        return 0
    if given == ["--version"]:
        print(f"crushlite {__version__}", flush=True)
        return 0
    command = _find(given)
    parser = argparse.ArgumentParser(
        prog="crushlite", allow_abbrev=False, formatter_class=Formatter
    )
    commands = parser.add_subparsers(prog="crushlite", metavar="COMMAND", required=True)
    importlib.import_module(f".{command.name}", __name__).add_parser(commands)
    options, unknown = parser.parse_known_args(given)
    if unknown:  # by the command's own parser, which shows the usage of the command
        _refuse(commands.choices[command.name], unknown)
    # Whatever characters a command writes, none is refused by the encoding of the stream.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if we were started with it closed
            stream.reconfigure(errors="replace")
    loaded()
    outcome = options.run(options)
    if isinstance(outcome, int):
        return outcome
    import asyncio  # only here: not every command needs it

    return int(asyncio.run(outcome))


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """Exit with an error about arguments that a command does not have, and what may be meant."""
    import difflib  # only here: every command would wait for it

    names = [name[2:] for name in parser._option_string_actions if name.startswith("--")]
    near = difflib.get_close_matches(unknown[0].partition("=")[0].lstrip("-"), names, 1, 0.75)
    guess = f"; did you mean --{near[0]}?" if near else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{guess}")


def _find(given: list[str]) -> CommandRow:
    if not given:
        raise UsageError("which command? `crushlite --help` lists them")
    known = {command.name: command for command in _commands()}
    if given[0] in known:
        return known[given[0]]
    import difflib  # only here: every command would wait for it

    near = difflib.get_close_matches(given[0], known, 1)
    guess = f" did you mean {near[0]}?" if near else ""
    raise UsageError(f"{given[0]!r} is no command;{guess} `crushlite --help` lists them")


def _commands() -> list[CommandRow]:
    """The commands that this installation has: not those whose wing was taken off."""
    return [command for command in COMMANDS if not command.wing or has_wing(command.wing)]


def _help() -> str:
    room, commands = columns(), _commands()
    parts = [fill(BEGIN, room)]
    for group in dict.fromkeys(command.group for command in commands):
        rows = [row(each.name, each.help, room) for each in commands if each.group == group]
        parts.append("\n".join([f"{group}:", *rows]))
    return "\n\n".join([*parts, fill(END, room)]) + "\n"
