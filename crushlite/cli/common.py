"""What commands share: parsers, the way to a daemon, and the two streams.

Standard output is for answers, standard error for everything that is said about them. Either may be
a file or a pipe: then there are no colours and nothing moves.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, CrushliteError, NotFound, UsageError
from ..itself import here
from ..listen import default_address, default_socket, parse_address
from .helptext import Formatter, not_empty
from .text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from ..client import Client, RemoteWorkspace
    from ..launch import Wanted
    from ..protocol.sessions import Session

    # Carries out a command with its options; returns the exit code.
    Run = Callable[[argparse.Namespace], Coroutine[Any, Any, int] | int]

OF_DAEMON = ("auto", "coder", "offline")  # values of --agent that a whole daemon is started with
TITLE_CHARS = 60


# Parsers ----------------------------------------------------------------------------------------


def command(
    commands: Any, name: str, description: str, run: Run, examples: str = "", short: str = ""
) -> argparse.ArgumentParser:
    """Make the parser of a command, or of an action of one. `run` carries it out and returns the
    exit code. `examples` are lines to type, with a comment where it helps; `short` is for the list
    of actions that the help of the parent shows."""
    listed = {"help": short} if short else {}
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        description=description,
        epilog=f"examples:\n{examples.rstrip()}" if examples else None,
        formatter_class=Formatter,
        allow_abbrev=False,
        **listed,
    )
    parser.set_defaults(run=run)
    return parser


def add_connection(parser: argparse.ArgumentParser, *, start: bool = True) -> None:
    """Add the options that say which daemon to talk to and about which directory. `start`: the
    command may start one."""
    group = parser.add_argument_group("which daemon and directory")
    add = group.add_argument
    add("--cwd", type=not_empty, metavar="DIR", help="as if started in this directory")
    add(
        "--host",
        type=not_empty,
        metavar="URL",
        default=next(iter(os.environ.get("CRUSHLITE_HOST", "").split()), None),
        help="unix:///path or tcp://127.0.0.1:PORT (default: our unix socket)",
    )
    add(
        "--token-file",
        type=not_empty,
        metavar="FILE",
        help="for TCP (default: CRUSHLITE_TOKEN, else where a daemon of ours put it)",
    )
    if start:
        add(
            "--agent",
            metavar="A",
            default="",
            help="for the session: a name of `agents` in crush.json, acp:'COMMAND ARGS', or "
            "default; for the daemon: auto, coder, offline, or module:attr (default: what it "
            "serves; for one that is started now CRUSHLITE_AGENT, else auto)",
        )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON, for programs")


def inherit(parser: argparse.ArgumentParser, action: argparse.ArgumentParser) -> None:
    """Let the parser of an action keep what was given before the action's name: an option that
    both parsers know gets no default in the second one, which would replace it."""
    known = {option.dest for option in parser._actions}
    for option in action._actions:
        if option.option_strings and option.dest in known:
            option.default = argparse.SUPPRESS


# The daemon -------------------------------------------------------------------------------------


def opened(
    options: argparse.Namespace, tell: Callable[[str], None] | None = None
) -> contextlib.AbstractAsyncContextManager[RemoteWorkspace]:
    """A context with the workspace of the directory, in a daemon that is found or started. `tell`
    is called with what is being waited for."""
    from ..launch import joined  # only here: a short `run` uses neither asyncio nor the client

    return joined(wanted(options, tell or say))


@contextlib.asynccontextmanager
async def reached(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client of a daemon that runs already. Raises ConnectionFailed if none does. Opens no
    workspace."""
    from ..client import Client  # only here: see `opened`

    async with Client(address_of(options), token=_token(options)) as client:
        await client.health()
        yield client


def wanted(options: argparse.Namespace, tell: Callable[[str], None]) -> Wanted:
    """What the options ask for, in the words of launch.py."""
    from ..launch import Wanted  # only here: see `opened`

    return Wanted(
        url=options.host,
        token=_token(options),
        agent="" if session_agent(options) else getattr(options, "agent", ""),
        path=directory_of(options),
        yolo=getattr(options, "yolo", False),
        say=tell,
    )


def session_agent(options: argparse.Namespace) -> str:
    """The agent that --agent chooses for a session: `acp:COMMAND`, a name in crush.json, or
    `default`. Empty if it names one that a whole daemon is started with."""
    name: str = getattr(options, "agent", "")
    of_daemon = not name or name in OF_DAEMON or ":" in name
    return name if name.startswith("acp:") or not of_daemon else ""


async def new_session(workspace: RemoteWorkspace, title: str, agent: str) -> Session:
    """Create a session in which an agent answers, that of the workspace if the name is empty. None
    is left if there is no such agent."""
    session = await workspace.create_session(title)
    if agent:
        try:
            await choose_agent(workspace, session.id, agent)
        except CrushliteError:
            await workspace.delete(session.id)
            raise
    return session


async def choose_agent(workspace: RemoteWorkspace, session_id: str, name: str) -> None:
    """Let an agent answer in a session. Raises UsageError if there is no such agent."""
    from ..features import requests  # only here: most commands ask for none of it

    try:
        await requests.choose_agent(workspace, session_id, name)
    except BadRequest as error:
        import difflib  # only here: every command would wait for it

        near = difflib.get_close_matches(name, OF_DAEMON, 1)
        guess = f". Did you mean --agent {near[0]}?" if near else ""
        raise UsageError(f"{error.message}{guess}") from None


async def chosen_agent(workspace: RemoteWorkspace, session_id: str) -> str:
    """The agent that was chosen for a session; empty if it is that of the daemon."""
    from ..features import requests  # only here: most commands ask for none of it

    try:
        return await requests.session_agent(workspace, session_id)
    except NotFound:
        return ""  # this daemon has no others


def address_of(options: argparse.Namespace) -> str:
    return options.host or default_address()


def directory_of(options: argparse.Namespace) -> str:
    """The directory that a command is about. Raises UsageError if there is none."""
    path = os.path.join(here(), options.cwd) if options.cwd else here()
    if not os.path.isdir(path):
        is_file = os.path.exists(path)
        problem = "is not a directory" if is_file else "there is no such directory"
        raise UsageError(f"{options.cwd}: {problem}")
    return path


def _token(options: argparse.Namespace) -> str:
    path: str | Path = options.token_file or ""
    if not path and (options.host or "").startswith("tcp://"):
        if token := os.environ.get("CRUSHLITE_TOKEN", ""):
            return token.strip()
        # Addresses that cannot be parsed are reported by the connection. Our own token is used for
        # our own machine only, the one kind of TCP address that can be parsed.
        with contextlib.suppress(UsageError):
            port = parse_address(options.host).port
            own = default_socket().parent / f"tcp-{port}.token"
            path = own if own.exists() else ""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(f"cannot read the token in {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"cannot read the token in {path}: it is not a text") from None


def is_there() -> bool:
    """Whether a user can read a question and answer it: standard input and error are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def title_of(text: str) -> str:
    """The title of a session that begins with this prompt."""
    return one_line(text)[:TITLE_CHARS]


# The two streams --------------------------------------------------------------------------------


def say(text: str) -> None:
    """Write one line to standard error. What cannot be written is lost."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"crushlite: {one_line(text)}", file=sys.stderr, flush=True)


def say_nothing(text: str) -> None:
    """In place of `say`, for --quiet."""


def show(text: str) -> None:
    """Write lines to standard output. What others wrote goes through `one_line` or `clean` of
    text.py first."""
    if sys.stdout is not None:
        print(text, flush=True)


def show_json(value: object) -> None:
    """Write a JSON value on a line: of a dataclass of the protocol, a list of them, or plain
    data."""
    from ..protocol.codec import dumps, encode  # only here: most commands print text

    plain = [encode(item) for item in value] if isinstance(value, list) else encode(value)
    show(dumps(plain).decode("ascii"))
