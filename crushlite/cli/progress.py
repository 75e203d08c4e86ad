"""Standard error while a run is printed: notes, and on a terminal a status line.

A note is a line that stays. The status (a spinner, what is being done, for how long) is one line
that is drawn again and again, and only on a terminal line that is free: never into a file, and
never behind half a line of the answer. The size of the terminal is asked for each time, so a change
of size does no harm.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from .common import say
from .text import Style, elapsed, one_line, shows_unicode, width, window_columns

if TYPE_CHECKING:
    import asyncio

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PLAIN_FRAMES = "|/-\\"
FRAME_SECONDS = 0.1
CLEAR = "\r\x1b[K"


class Progress:
    """Notes and the status line. With `quiet` neither is written."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._style = Style(sys.stderr)
        self._draws = self._style.moves and not quiet
        self._frames = FRAMES if shows_unicode(sys.stderr) else PLAIN_FRAMES
        self._doing = ""
        self._begun = time.monotonic()
        self._frame = 0
        self._drawn = False
        self._hidden = self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str) -> None:
        """Write a note."""
        if not self._quiet:
            self._clear()
            if self._hidden and self._style.terminal:
                self._write("\n")  # the answer has stopped in the middle of a line
                self._hidden = False
            say(text)

    def tool(self, line: str, *, failed: bool) -> None:
        """Write a line about a tool call that is over: in red if it failed, else dim."""
        if not self._quiet:
            self.show_whole([self._style.red(line) if failed else self._style.dim(line)])

    def show_whole(self, lines: list[str]) -> bool:
        """Write lines that the user must see to their last character, with --quiet too; they must
        be harmless already. False if they could not be written."""
        self._clear()
        if self._hidden and self._style.terminal:
            self._write("\n")
            self._hidden = False
        try:
            print(*lines, sep="\n", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return False
        return True

    def doing(self, what: str) -> None:
        """Set what the status line says is being done; the first call begins to draw it."""
        self._doing = what
        if self._draws and self._timer is None:
            self._begun = time.monotonic()
            self._tick()

    def hide(self) -> None:
        """Draw no status: the answer is about to be written."""
        self._hidden = True
        self._clear()

    def show(self) -> None:
        """Draw the status again: the cursor is at the beginning of a line."""
        self._hidden = False

    def pause(self) -> None:
        """Draw no status: the user is typing on that line."""
        self._clear()
        self._paused = True

    def resume(self) -> None:
        """The opposite of `pause`."""
        self._paused = False

    def stop(self) -> None:
        """Remove the status for good."""
        if self._timer is not None:
            self._timer.cancel()
        self._clear()
        self._draws = False

    def _tick(self) -> None:
        if not self._hidden and not self._paused:
            self._draw()
        import asyncio  # only here: a short `run` needs none of it

        self._timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._tick)

    def _draw(self) -> None:
        self._frame = (self._frame + 1) % len(self._frames)
        spent = elapsed(int(time.monotonic() - self._begun) or 1)
        line = one_line(f"{self._doing} ({spent})")
        # The frame, a blank, and the last column, which would wrap.
        room = window_columns(sys.stderr) - 3
        while line and width(line) > room:
            line = line[:-1]
        self._write(f"{CLEAR}{self._style.cyan(self._frames[self._frame])} {self._style.dim(line)}")
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        # If the terminal is gone or stopped, only the status is lost.
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
