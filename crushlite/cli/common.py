"""What commands share: parsers, the way to a daemon, and how things look on a terminal.

Standard output is for answers, standard error for everything that is said about them. Both may be
files or pipes: then there are no colours and nothing moves. NO_COLOR takes the colours away.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import math
import os
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..client import Client
from ..errors import UsageError
from ..launch import Wanted, default_address, goodbye, here, join
from ..listen import default_socket, parse_address
from ..protocol.codec import dumps, encode
from .helptext import Formatter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ..client import RemoteWorkspace

NOTE_CHARS = 200

# A terminal obeys these; what a model or another client writes must not command it.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
# These turn the direction of what follows, so that a line says something else than it shows.
CONTROLS |= dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))


# Parsers ----------------------------------------------------------------------------------------


def command(
    commands: Any,
    name: str,
    description: str,
    run: Callable[..., int],
    examples: str = "",
    short: str = "",
) -> argparse.ArgumentParser:
    """The parser of a command. `examples` are lines to type, with a comment where it helps;
    `short` is for the list of actions that the command's parent shows."""
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
    """Which daemon to talk to, and about which directory. `start`: one may be started."""
    group = parser.add_argument_group("which daemon and directory")
    add = group.add_argument
    add("--cwd", metavar="DIR", default="", help="as if started in this directory")
    add(
        "--host",
        metavar="URL",
        default=next(iter(os.environ.get("CRUSHLITE_HOST", "").split()), None),
        help="unix:///path or tcp://127.0.0.1:PORT (default: our unix socket)",
    )
    add(
        "--token-file",
        metavar="FILE",
        help="for TCP (default: CRUSHLITE_TOKEN, else where a daemon of ours put it)",
    )
    if start:
        add(
            "--agent",
            metavar="A",
            default=os.environ.get("CRUSHLITE_AGENT") or "auto",
            help="for a daemon that is started now: auto, coder, offline, or module:attr",
        )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON, for programs")


def seconds(text: str) -> float:
    """For `type=` of an option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


# The daemon -------------------------------------------------------------------------------------


def perform(coroutine: Coroutine[Any, Any, int]) -> int:
    """Run the coroutine of a command; what it prints is never refused for its characters."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as it is when we were started with it closed
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return asyncio.run(coroutine)


@contextlib.asynccontextmanager
async def opened(
    options: argparse.Namespace, tell: Callable[[str], None] | None = None
) -> AsyncIterator[RemoteWorkspace]:
    """The workspace of the directory, in a daemon that is found or started. Says goodbye."""
    workspace = await join(wanted(options, tell or say))
    async with workspace.client:
        try:
            yield workspace
        finally:
            await goodbye(workspace.client)


@contextlib.asynccontextmanager
async def reached(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A client of a daemon that runs already; ConnectionFailed if none does. Opens nothing."""
    async with Client(address_of(options), token=_token(options)) as client:
        await client.health()
        yield client


def wanted(options: argparse.Namespace, tell: Callable[[str], None]) -> Wanted:
    return Wanted(
        url=options.host,
        token=_token(options),
        agent=getattr(options, "agent", "auto"),
        path=_directory(options),
        yolo=getattr(options, "yolo", False),
        say=tell,
    )


def address_of(options: argparse.Namespace) -> str:
    return options.host or default_address()


def _directory(options: argparse.Namespace) -> str:
    path = os.path.join(here(), options.cwd) if options.cwd else here()
    if not os.path.isdir(path):
        raise UsageError(f"--cwd {options.cwd}: there is no such directory")
    return path


def _token(options: argparse.Namespace) -> str:
    path = Path(options.token_file) if options.token_file else None
    if path is None and (options.host or "").startswith("tcp://"):
        if token := os.environ.get("CRUSHLITE_TOKEN", ""):
            return token.strip()
        # Our own token is for our own machine only.
        with contextlib.suppress(UsageError):
            port = parse_address(options.host).port
            own = default_socket().parent / f"tcp-{port}.token"
            path = own if own.exists() else None
    try:
        return path.read_text("utf-8").strip() if path is not None else ""
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the token in {path}: {error}") from None


# What is said and shown -------------------------------------------------------------------------


def say(text: str) -> None:
    """One line on standard error; if nobody can read it, so be it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"crushlite: {one_line(text)}", file=sys.stderr, flush=True)


def say_nothing(text: str) -> None:
    """What --quiet says."""


def show(text: str) -> None:
    """Lines on standard output. What others wrote goes through `one_line` or `printable` first."""
    if sys.stdout is not None:
        print(text, flush=True)


def show_json(value: object) -> None:
    """A dataclass of the protocol, or a list of them, or plain data: one JSON value on a line."""
    plain = [encode(item) for item in value] if isinstance(value, list) else encode(value)
    show(dumps(plain).decode("ascii"))


class Style:
    """Colours for one stream, none where they are not wanted or not understood."""

    def __init__(self, stream: TextIO | None) -> None:
        self.terminal = stream is not None and stream.isatty()
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self.moves = self.terminal and not dumb  # whether a line can be drawn again
        self._colours = self.moves and not os.environ.get("NO_COLOR")

    @property
    def columns(self) -> int | None:
        """How much fits into a line; None where there is no terminal, and so no limit."""
        return shutil.get_terminal_size().columns if self.terminal else None

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def red(self, text: str) -> str:
        return self._paint("31", text)

    def green(self, text: str) -> str:
        return self._paint("32", text)

    def yellow(self, text: str) -> str:
        return self._paint("33", text)

    def cyan(self, text: str) -> str:
        return self._paint("36", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours and text else text


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def one_line(text: str) -> str:
    """Fit for a note: no line breaks, nothing that a terminal would obey, not too long."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return shown if len(shown) <= NOTE_CHARS else shown[: NOTE_CHARS - 3] + "..."


def printable(text: str) -> str:
    """Text of several lines for a terminal: without what would command it."""
    return text.translate(CONTROLS)


# Time -------------------------------------------------------------------------------------------


def elapsed(duration: float) -> str:
    """A duration in one or two units: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if duration < 1:
        return f"{max(0.0, duration):.1f} s"
    whole = int(duration)
    for size, unit, rest, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // rest} {small}"
    return f"{whole} s"


def ago(instant: float, now: float) -> str:
    """How long ago, in one unit; both in seconds since the epoch."""
    past = max(0, int(now - instant))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            return f"{past // size} {unit} ago"
    return "now" if past < 2 else f"{past} s ago"


def when(instant: float) -> str:
    """An instant as a local date and time."""
    local = datetime.datetime.fromtimestamp(instant).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")
