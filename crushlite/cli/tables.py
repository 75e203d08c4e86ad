"""Lists on a terminal: each row is one line of it, however narrow. Anywhere else nothing is cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .common import one_line, width
from .render import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .common import Style

GAP = 2  # blanks between columns
LEAST = 8  # columns that a cell keeps: an id is never cut
READABLE = 16  # of the last column, before others give way to it
_PIECE = re.compile(r"\x1b\[\d+m|.", re.S)


def table(
    rows: Iterable[Sequence[str]], heads: Sequence[str], style: Style, spare: Sequence[str] = ()
) -> str:
    """Columns of one-line cells; the cells are plain text. On a terminal the columns in `spare` are
    left out if they are empty or, the first one first, if it is too narrow for all of them; then
    what is widest is cut."""
    lines = [list(heads), *([one_line(cell) for cell in row] for row in rows)]
    if style.columns is not None:
        _leave_out(lines, spare, style.columns)
    widths = _widths(lines)
    if style.columns is not None:
        _squeeze(widths, style.columns)
    shown = [
        (" " * GAP).join(_padded(cell, wide) for cell, wide in zip(line, widths, strict=True))
        for line in lines
    ]
    fitting = [clip(line.rstrip(), style.columns) for line in shown]
    return "\n".join([style.dim(fitting[0]), *fitting[1:]])


def _widths(lines: list[list[str]]) -> list[int]:
    return [max(width(cell) for cell in column) for column in zip(*lines, strict=True)]


def _whole(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _leave_out(lines: list[list[str]], spare: Sequence[str], columns: int) -> None:
    for head in spare:
        index, widths = lines[0].index(head), _widths(lines)
        full = _whole([*widths[:-1], min(widths[-1], READABLE)]) > columns
        if full or not any(line[index] for line in lines[1:]):
            for line in lines:
                del line[index]


def _squeeze(widths: list[int], columns: int) -> None:
    while _whole(widths) > columns and max(widths) > LEAST:
        widths[widths.index(max(widths))] -= 1


def _padded(cell: str, wide: int) -> str:
    cell = shorten(cell, wide)
    return cell + " " * (wide - width(cell))


def shorten(text: str, room: int) -> str:
    """What fits; of a path its end, where its name is."""
    if not text.startswith("/"):
        return cut(text, room)
    return text if width(text) <= room else cut(text[::-1], room)[::-1]


def clip(line: str, columns: int | None) -> str:
    """A line that may have colours, not wider than so many columns."""
    pieces = _PIECE.findall(line)
    if columns is None or sum(_room(piece) for piece in pieces) <= columns:
        return line
    kept, left, whole = [], columns - 1, True
    for piece in pieces:
        left -= _room(piece)
        if left >= 0 or piece.startswith("\x1b"):
            kept.append(piece)
        elif whole:
            kept.append("…")
            whole = False
    return "".join(kept)


def _room(piece: str) -> int:
    return 0 if piece.startswith("\x1b") else width(piece)
