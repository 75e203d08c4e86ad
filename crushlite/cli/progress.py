"""What is said on standard error while a run is watched: notes, and on a terminal what goes on.

A note is a line that stays. The status (a spinner, what is being done, for how long) is one line
that is drawn again and again, and only where a line can be: never into a file, and never behind
half a line of the answer. Nothing is remembered about the terminal but what it shows: its size is
asked for each time, so a change of size does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time

from .common import Style, elapsed, one_line, say, width

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"
FRAME_SECONDS = 0.1
CLEAR = "\r\x1b[K"


class Progress:
    """Notes and the status line. `quiet` says nothing and shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._style = Style(sys.stderr)
        self._draws = self._style.moves and not quiet
        encoding = getattr(sys.stderr, "encoding", None) or ""
        self._frames = FRAMES if encoding.lower().startswith("utf") else PLAIN_FRAMES
        self._doing = ""
        self._begun = time.monotonic()
        self._frame = 0
        self._drawn = False
        self._hidden = self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str) -> None:
        """A note that stays."""
        if not self._quiet:
            self._clear()
            if self._hidden and self._style.terminal:
                self._write("\n")  # the answer has stopped in the middle of a line
                self._hidden = False
            say(text)

    def doing(self, what: str) -> None:
        """What is being done now; starts the status line."""
        self._doing = what
        if self._draws and self._timer is None:
            self._begun = time.monotonic()
            self._tick()

    def hide(self) -> None:
        """The answer is about to be written."""
        self._hidden = True
        self._clear()

    def show(self) -> None:
        """The cursor is at the beginning of a line again."""
        self._hidden = False

    def pause(self) -> None:
        """Draw nothing for a while: somebody types at that line."""
        self._clear()
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._clear()
        self._draws = False

    def _tick(self) -> None:
        if not self._hidden and not self._paused:
            self._draw()
        self._timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._tick)

    def _draw(self) -> None:
        self._frame = (self._frame + 1) % len(self._frames)
        spent = elapsed(int(time.monotonic() - self._begun) or 1)
        line = one_line(f"{self._doing} ({spent})")
        room = self._columns() - 3  # the frame, a blank, and the last column, which would wrap
        while line and width(line) > room:
            line = line[:-1]
        self._write(f"{CLEAR}{self._style.cyan(self._frames[self._frame])} {self._style.dim(line)}")
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        # A terminal that is gone, or stopped: what is lost is only how far we were.
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
