"""Text for a terminal: made harmless, measured, cut, painted; and numbers and times in words.

There are two ways to treat characters that a terminal would obey. Text that is only read goes
through `clean`, which removes them. What a user is asked to allow goes through `visible`, which
spells them out: there nothing may be hidden.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

NOTE_CHARS = 200  # of a line made by one_line
DEFAULT_COLUMNS = 80

# Control characters, except tab and line feed.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
# Marks that change the direction of the text after them, so that a line reads as another one.
_CONTROLS |= dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
# Characters that count as printable, but show nothing or an empty place: joiners, fillers,
# variation selectors, a braille pattern without dots.
_BLANK = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x1D159}
_BLANK |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
_BLANK_TAGS = range(0xE0000, 0xE1000)
# Escape sequences: CSI, OSC and other strings, two-byte ones. A string: compiled on first use.
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
)


# Harmless text ----------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Remove what a terminal would obey: escape sequences as a whole, then control characters.
    Line breaks and tabs stay."""
    return re.sub(_SEQUENCES, "", text).translate(_CONTROLS)


def visible(text: str) -> str:
    """Spell out every character that does not show itself. Line breaks stay, tabs become blanks."""
    return "".join(
        c
        if (c.isprintable() and ord(c) not in _BLANK and ord(c) not in _BLANK_TAGS) or c == "\n"
        else c.encode("unicode_escape").decode("ascii")
        for c in text.expandtabs(4)
    )


def one_line(text: str) -> str:
    """Make one line of at most NOTE_CHARS characters: white space becomes one blank, every other
    character that cannot be printed a question mark."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return shown if len(shown) <= NOTE_CHARS else shown[: NOTE_CHARS - 3] + "..."


# Columns ----------------------------------------------------------------------------------------


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, room: int) -> str:
    """The beginning of a text that fits into `room` columns. If something is missing, the last
    character is an ellipsis."""
    if width(text) <= room:
        return text
    kept, used = [], 0
    for c in text:
        used += width(c)
        if used > room - 1:
            break
        kept.append(c)
    return "".join(kept) + "…" if room > 0 else ""


def cut_front(text: str, room: int) -> str:
    """The end of a text that fits into `room` columns. If something is missing, the first character
    is an ellipsis."""
    return cut(text[::-1], room)[::-1]


def window_columns(stream: TextIO) -> int:
    """The present width of the terminal behind a stream; 80 if it cannot be found out."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except (OSError, ValueError):
        return DEFAULT_COLUMNS


def output_columns() -> int:
    """How wide a table or help text may be: COLUMNS, else the width of standard output's terminal,
    else 80. As shutil.get_terminal_size does it, but shutil takes 5 ms to import."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return window_columns(sys.__stdout__) if sys.__stdout__ is not None else DEFAULT_COLUMNS


class Style:
    """Colours for one stream. They are left out where it is no terminal, TERM names none that can
    show them, or NO_COLOR is set."""

    def __init__(self, stream: TextIO | None) -> None:
        self.terminal = stream is not None and stream.isatty()
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self.moves = self.terminal and not dumb  # whether a line can be drawn again
        self.colours = self.moves and not os.environ.get("NO_COLOR")

    @property
    def columns(self) -> int | None:
        """How much fits into a line; None where there is no terminal, and so no limit."""
        return output_columns() if self.terminal else None

    def bold(self, text: str) -> str:
        return self.paint("1", text)

    def dim(self, text: str) -> str:
        return self.paint("2", text)

    def red(self, text: str) -> str:
        return self.paint("31", text)

    def green(self, text: str) -> str:
        return self.paint("32", text)

    def yellow(self, text: str) -> str:
        return self.paint("33", text)

    def cyan(self, text: str) -> str:
        return self.paint("36", text)

    def paint(self, codes: str, text: str) -> str:
        """A text with these codes of a terminal, several with semicolons between them."""
        return f"\x1b[{codes}m{text}\x1b[0m" if self.colours and text else text


def diff_row(line: str, style: Style) -> str:
    """A line of a diff in its colour."""
    if line.startswith(("+++", "---")):
        return style.bold(line)
    if line.startswith("@@"):
        return style.cyan(line)
    return {"+": style.green, "-": style.red}.get(line[:1], str)(line)


def shows_unicode(stream: TextIO) -> bool:
    """Whether characters beyond ASCII can be written to a stream."""
    return (getattr(stream, "encoding", None) or "").lower().startswith("utf")


def discard_stdout() -> None:
    """Send what is still written to standard output nowhere, after a write to it has failed. Else
    the interpreter would try again when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Numbers and times ------------------------------------------------------------------------------


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(number: int) -> str:
    """A number of bytes in the largest unit that fits: `5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number //= 1024
    return f"{number} GiB"


def elapsed(duration: float) -> str:
    """A duration in one or two units: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if duration < 1:
        return f"{max(0.0, duration):.1f} s"
    whole = int(duration)
    for length, unit, rest, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // rest} {small}"
    return f"{whole} s"


def ago(instant: float, now: float) -> str:
    """How long ago an instant was, in one unit; both in seconds since the epoch."""
    past = max(0, int(now - instant))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if past >= length:
            return f"{past // length} {unit} ago"
    return "now" if past < 2 else f"{past} s ago"
