"""The screen of `chat`: output that stays, and below it a live part.

The live part is a few rows: the end of an answer that is not complete, a blank one, a status,
and the input line. It is erased before anything is written and drawn again after it. Its rows are
remembered by their widths, not by their places: a terminal that was made narrower has wrapped them,
so the way back to the first one is counted with the present number of columns.

An answer is Markdown: its blocks are written when they are complete (see markdown_lines.py), what
is not complete yet is shown as it is, in the live part. Text must be harmless before it comes here
(see `text.clean`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from .markdown_lines import TAB, MarkdownLines
from .text import Style, cut, discard_stdout, shows_unicode, width, window_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .chat_lines import LineEditor

TAIL_ROWS = 12  # of an answer whose last block is not complete
NARROW = 10  # columns that are filled even if the window is narrower and wraps the rows
FIRST_ODD = "\u0300"  # every character before it takes one column


class Screen:
    """Writes to a terminal: standard output, or what a caller gives instead."""

    def __init__(
        self,
        editor: LineEditor,
        columns: Callable[[], int] | None = None,
        output: TextIO | None = None,
    ) -> None:
        self._output = output or sys.stdout
        self.style = Style(self._output)
        self.unicode = shows_unicode(self._output)
        self.status = ""
        self.prompt = "> "
        self._editor = editor
        self._columns = columns or (lambda: window_columns(self._output))
        self._answer = MarkdownLines(self.style)
        self._kind = ""  # of what was written last
        self._drawn: list[int] = []  # widths of the live rows
        self._column = 0  # of the cursor, in the last of them

    # Output that stays --------------------------------------------------------------------------

    def lines(self, lines: list[str], kind: str, paint: Callable[[str], str] = str) -> None:
        """Write complete lines, wrapped and painted. A blank line separates them from what was
        written before, unless that was of the same kind."""
        self._put(self._ended() + self._apart(kind) + self._painted(lines, paint))

    def aside(self, lines: list[str], paint: Callable[[str], str] = str) -> None:
        """Write lines that are not part of the conversation. They do not end an answer that
        streams."""
        if not self.streaming:
            return self.lines(lines, "aside", paint)
        self._put(self._painted(lines, paint))

    def stream(self, text: str) -> None:
        """Write more of an answer. Line breaks in front of it are left out."""
        text = text if self.streaming else text.lstrip("\n")
        if not text:
            return
        out = self._apart("answer")
        self._put(out + self._answer.feed(text, self._room))

    def end(self) -> None:
        """The answer is complete; what is streamed next is another one."""
        if self.streaming:
            self._put(self._ended())
            self._kind = "answered"

    @property
    def streaming(self) -> bool:
        """Whether an answer has begun and is not complete."""
        return self._kind == "answer"

    @property
    def _room(self) -> int:
        """How many columns of a row are used. The last one stays free."""
        return max(NARROW, self._columns()) - 1

    def _painted(self, lines: list[str], paint: Callable[[str], str]) -> list[str]:
        rows = [row for line in lines for row in wrapped(line.expandtabs(TAB), self._room)]
        return [paint(row) for row in rows]

    def _ended(self) -> list[str]:
        """What is left of an answer, which is complete now."""
        return self._answer.end(self._room)

    def _apart(self, kind: str) -> list[str]:
        before, self._kind = self._kind, kind
        return [""] if before and before != kind else []

    def _put(self, rows: list[str]) -> None:
        text = "".join(f"{row}\r\n" for row in rows)
        self.write(self._erased() + text + self._live())

    # The live part ------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw the live part again, as it is now."""
        self.write(self._erased() + self._live())

    def clear(self) -> None:
        """Empty the window."""
        self._drawn = []
        self.write("\x1b[H\x1b[2J" + self._live())

    def leave(self) -> None:
        """Remove the live part; what was written above it stays."""
        text = self._erased()
        rest = "".join(f"{row}\r\n" for row in self._ended())
        self.write(text + rest)

    def write(self, text: str) -> None:
        """Write to the terminal. If it is gone, the signal that says so is on its way."""
        try:
            self._output.write(text)
            self._output.flush()
        except OSError:
            discard_stdout()

    def _erased(self) -> str:
        """What removes the live part from the window and puts the cursor at its beginning."""
        if not self._drawn:
            return ""
        columns = self._columns()
        above = sum(max(1, -(-used // columns)) for used in self._drawn[:-1])
        full = self._column == self._drawn[-1] and self._column % columns == 0
        up = above + self._column // columns - (full and self._column > 0)  # at the end of a row
        self._drawn = []
        return f"\r\x1b[{up}A\x1b[J" if up else "\r\x1b[J"

    def _live(self) -> str:
        """What draws the live part."""
        room = self._room
        rows = self._tail(room)
        if self._kind:
            rows.append("")
        if self.status:
            rows.append(cut(self.status, room))
        prompt = cut(self.prompt, max(2, room - NARROW))
        text, column = self._editor.view(room - width(prompt))
        self._drawn = [width(row) for row in rows] + [width(prompt + text)]
        self._column = width(prompt) + column
        painted = [*rows[:-1], self.style.dim(rows[-1])] if self.status else rows
        shown = "".join(f"{row}\r\n" for row in painted)
        right = f"\x1b[{self._column}C" if self._column else ""
        return f"{shown}{self.style.cyan(prompt)}{text}\r{right}"

    def _tail(self, room: int) -> list[str]:
        """The end of what is not complete yet, a few rows of it."""
        lines = [line[-TAIL_ROWS * room :].expandtabs(TAB) for line in self._answer.pending]
        return [row for line in lines[-TAIL_ROWS:] for row in wrapped(line, room)][-TAIL_ROWS:]


def wrapped(line: str, room: int) -> Iterator[str]:
    """Break a line into rows of at most `room` columns, between words where that is possible. At
    least one row."""
    start = used = 0
    space = -1
    for index, c in enumerate(line):
        used += 1 if c < FIRST_ODD else width(c)  # a megabyte must not take seconds
        if used > room:
            stop = space if space > start else index
            yield line[start:stop]
            start = stop + 1 if stop == space else stop
            used = width(line[start : index + 1])
        if c == " ":
            space = index
    yield line[start:]
