"""What `crushlite serve` logs, and how: text for people, or one JSON object per line for programs.

Code that logs never waits for the reader of the log: a full pipe or a stopped terminal at standard
error would otherwise stop the event loop, and with it every client. Lines wait in a bounded queue
for a thread of their own; when the queue is full they are counted and dropped.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from typing import TextIO

from ..itself import PACKAGE

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

WAITING = 1000  # lines: more than any burst, and a bound for the memory of a stopped reader
PATIENCE = 1.0  # seconds that an exit waits, first for room in the queue, then for the last lines


class TextFormatter(logging.Formatter):
    """One line per record, then the lines of a traceback, indented. Messages quote what others
    wrote: a character that cannot be printed is spelt out, so that no text can pass for another
    record, or be obeyed by the terminal that shows it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _spelt_out(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join([first, *(f"  {_spelt_out(line)}" for line in others)])


def _spelt_out(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


class JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class QueuedHandler(logging.Handler):
    """Writes records to a stream from a thread of its own."""

    def __init__(self, stream: TextIO, *, waiting: int = WAITING) -> None:
        super().__init__()
        self.dropped = 0  # records that found the queue full
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record) + "\n")
        except queue.Full:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - a record with bad arguments must not cost its sender
            self.handleError(record)

    def close(self) -> None:
        """Write the lines that wait, for at most 2 seconds. Later records are lost."""
        try:
            self._lines.put(None, timeout=PATIENCE)
        except queue.Full:
            pass  # the stream is not read: waiting longer would not help
        else:
            self._thread.join(PATIENCE)
        super().close()

    def _write_all(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            dropped = self.dropped  # read once: it grows meanwhile
            if dropped > reported:
                line = f"({dropped - reported} log records were dropped)\n" + line
                reported = dropped
            try:
                self._write(line)
            except (OSError, ValueError):
                pass  # the reader is gone, or the stream closed

    def _write(self, line: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (OSError, AttributeError):
            self._stream.write(line)  # not a file
            return
        # Not through the stream, which has a lock: a thread that hangs while it holds that lock
        # would keep the interpreter from exiting.
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send the records of this package and of asyncio to a stream, standard error if none is
    given. `level` is one of LEVELS, `form` one of FORMATS."""
    handler = QueuedHandler(stream or sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    for name in (PACKAGE, "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
