"""The terminal of `chat`: output that stays above, and below it what is live.

The live part is a few rows: the last, incomplete line of a streaming answer, a blank one, a status,
and the input line. It is erased and drawn again around everything that is written. Its rows
are known by their widths, not by where they are: a terminal that was made narrower has wrapped
them, and the way back to the first one is counted with the columns of now.

Prose is wrapped at words. Lines of code are written whole, so that they can be copied, and appear
when they are complete. Text must be clean before it comes here (see `render.clean`).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .common import Style, width
from .render import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .chat_lines import LineEditor

LONGEST = 4000  # characters of an incomplete line of code
NARROW = 10
TAB = 4
FIRST_ODD = "\u0300"  # every character before it takes one column


class Screen:
    def __init__(self, editor: LineEditor, columns: Callable[[], int] | None = None) -> None:
        self.style = Style(sys.stdout)
        self.unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        self.status = ""
        self.prompt = "> "
        self._editor = editor
        self._columns = columns or _columns
        self._partial = ""  # of the streaming answer: not yet complete
        self._code = False  # the stream is inside a fence
        self._blanks = 0  # lines of the stream that wait for one with something in it
        self._kind = ""  # of what was written last: kinds are set apart by a blank line
        self._drawn: list[int] = []  # widths of the live rows
        self._column = 0  # of the cursor, in the last of them

    # Output that stays --------------------------------------------------------------------------

    def lines(self, lines: list[str], kind: str, paint: Callable[[str], str] = str) -> None:
        """Complete lines, wrapped and painted. Those of one kind stand together."""
        room = self._columns() - 1
        self._put(
            self._ended()
            + self._apart(kind)
            + [paint(row) for line in lines for row in wrapped(line.expandtabs(TAB), room)]
        )

    def aside(self, lines: list[str], paint: Callable[[str], str] = str) -> None:
        """Lines that are not part of the conversation. They do not end an answer that streams."""
        if not self.streaming:
            return self.lines(lines, "aside", paint)
        room = self._columns() - 1
        self._put([paint(row) for line in lines for row in wrapped(line.expandtabs(TAB), room)])

    def stream(self, text: str) -> None:
        """More of the answer."""
        out = self._apart("answer")
        *complete, self._partial = (self._partial + text).split("\n")
        for line in complete:
            out += self._complete(line)
        room = self._columns() - 1
        if self._is_code(self._partial):
            if len(self._partial) > LONGEST:
                out += self._complete(self._partial)
                self._partial = ""
        elif width(self._partial) + self._partial.count("\t") * TAB > room:
            self._partial = self._partial.expandtabs(TAB)
            *rows, self._partial = wrapped(self._partial, room)
            out += [""] * self._blanks + rows
            self._blanks = 0
        self._put(out)

    def end(self) -> None:
        """The streaming text is complete; what is streamed next is another one."""
        if self.streaming:
            self._put(self._ended())
            self._kind = "answered"

    @property
    def streaming(self) -> bool:
        return self._kind == "answer"

    def _ended(self) -> list[str]:
        rest, self._partial = self._partial, ""
        rows = self._complete(rest) if rest else []
        self._code, self._blanks = False, 0
        return rows

    def _complete(self, line: str) -> list[str]:
        if not line.strip():
            self._blanks += 1
            return []
        blanks, self._blanks = [""] * self._blanks, 0
        return blanks + self._rows(line)

    def _rows(self, line: str) -> list[str]:
        code = self._is_code(line)
        if line.lstrip().startswith("```"):
            self._code = not self._code
            return [self.style.dim(line)]
        if code:
            return [line]
        bold = line.startswith("#")
        rows = wrapped(line.expandtabs(TAB), self._columns() - 1)
        return [self.style.bold(row) for row in rows] if bold else list(rows)

    def _is_code(self, line: str) -> bool:
        return self._code or line.startswith(("    ", "\t"))

    def _apart(self, kind: str) -> list[str]:
        before, self._kind = self._kind, kind
        return [""] if before and before != kind else []

    def _put(self, rows: list[str]) -> None:
        text = "".join(f"{row}\r\n" for row in rows)
        put_out(self._erased() + text + self._live())

    # The live part ------------------------------------------------------------------------------

    def draw(self) -> None:
        put_out(self._erased() + self._live())

    def clear(self) -> None:
        self._drawn = []
        put_out("\x1b[H\x1b[2J" + self._live())

    def leave(self) -> None:
        """Take the live part away; what was said stays."""
        text = self._erased()
        rest = "".join(f"{row}\r\n" for row in self._ended())
        put_out(text + rest)

    def _erased(self) -> str:
        if not self._drawn:
            return ""
        columns = self._columns()
        above = sum(max(1, -(-used // columns)) for used in self._drawn[:-1])
        full = self._column == self._drawn[-1] and self._column % columns == 0
        up = above + self._column // columns - (full and self._column > 0)  # at the end of a row
        self._drawn = []
        return f"\r\x1b[{up}A\x1b[J" if up else "\r\x1b[J"

    def _live(self) -> str:
        room = self._columns() - 1
        rows = [""] * self._blanks + [self._tail(room)] if self._partial else []
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

    def _tail(self, room: int) -> str:
        """Of an incomplete line that is too long for its row, the end."""
        text = self._partial.expandtabs(TAB)
        return text if width(text) <= room else "…" + cut(text[::-1], room)[-2::-1]


def put_out(text: str) -> None:
    """Write to the terminal. If that is gone, the signal that says so is on its way."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Else the interpreter would try again when it exits, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _columns() -> int:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(NARROW, columns or 80)


def wrapped(line: str, room: int) -> Iterator[str]:
    """The rows of a line: broken between words where that is possible. At least one row."""
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
