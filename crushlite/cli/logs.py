"""`crushlite logs`: print the end of a daemon's log, or where it is."""

from __future__ import annotations

import datetime
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import CrushliteError, UsageError
from ..launch import log_path
from .common import add_connection, add_json, address_of, command, say, show, show_json
from .text import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

LOOK_SECONDS = 0.25  # between two checks whether the log has grown
BLOCK = 64 * 1024
_RECORD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) +([\w.]+): (.*)")

DESCRIPTION = """\
Print the end of the log of the daemon that commands have started by themselves. A daemon that was
started by hand (`crushlite serve`) logs to its own terminal instead.
"""
EXAMPLES = """\
  crushlite logs
  crushlite logs -f                  # and go on as it grows; Ctrl-C ends it
  crushlite logs --json -n 0 | jq -r 'select(.level == "warning").message'
  grep WARNING "$(crushlite logs --path)"
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "logs", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add("-n", "--lines", metavar="N", type=int, default=50, help="how many (default 50; 0: all)")
    add("-f", "--follow", action="store_true", help="go on as it grows")
    add("--path", action="store_true", help="print only where it is")
    add_json(parser, "each line")
    add_connection(parser, start=False)


def run(options: argparse.Namespace) -> int:
    path = log_path(address_of(options))
    if options.path:
        show_json({"path": str(path)}) if options.json else show(str(path))
        return 0
    if options.lines < 0:
        raise UsageError(f"--lines {options.lines}: not less than 0")
    try:
        log = path.open("rb")
    except FileNotFoundError:
        raise CrushliteError(
            f"no log at {path}: no daemon was started by a command at {address_of(options)}; "
            "one that was started with `crushlite serve` logs to its terminal"
        ) from None
    except OSError as error:
        raise CrushliteError(f"cannot read {path}: {error.strerror}") from None
    with log:
        say(str(path))
        write = _write_json if options.json else _write
        for line in _tail(log, options.lines):
            write(line)
        for line in _grown(log, path) if options.follow else ():
            write(line)
    return 0


def _tail(log: BinaryIO, lines: int) -> list[bytes]:
    """The last lines (all if `lines` is 0), without reading more of a long file than is needed."""
    size = log.seek(0, os.SEEK_END)
    start = 0 if not lines else max(0, size - BLOCK)
    while True:
        log.seek(start)
        data = log.read(size - start)
        found = data.splitlines(keepends=True)
        if not start or len(found) > lines:
            return found[-lines:]
        start = max(0, start - 4 * BLOCK)


def _grown(log: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines that are added to a log, for ever. If the next daemon has emptied a log that was
    too long, it is read from its start."""
    line = b""
    while True:
        if os.fstat(log.fileno()).st_size < log.tell():
            say(f"{path} begins anew")
            log.seek(0)
            line = b""
        line += log.readline()
        if line.endswith(b"\n"):
            yield line
            line = b""
        else:
            time.sleep(LOOK_SECONDS)


def _write(line: bytes) -> None:
    text = line.decode("utf-8", "replace")
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _write_json(line: bytes) -> None:
    """Print a line in the shape of `serve --log-format json`. A line that is no record, as in a
    traceback, has only a message."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    found = _RECORD.fullmatch(text)
    if found is None:
        return show_json({"message": text})
    at, millis, level, logger, message = found.groups()
    instant = datetime.datetime.fromisoformat(at).astimezone(datetime.UTC)
    when = f"{instant:%Y-%m-%dT%H:%M:%S}.{millis}Z"
    return show_json({"time": when, "level": level.lower(), "logger": logger, "message": message})
