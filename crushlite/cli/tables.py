"""Tables: on a terminal each row takes one line, however narrow it is. Elsewhere nothing is cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .text import cut, one_line, width

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .text import Style

GAP = 2  # blanks between columns
LEAST = 8  # columns that a cell keeps: an id is never cut
READABLE = 16  # columns that the last cell gets before spare ones are shown
_PIECE = re.compile(r"\x1b\[\d+m|.", re.S)


def table(
    rows: Iterable[Sequence[str]], heads: Sequence[str], style: Style, spare: Sequence[str] = ()
) -> str:
    """A table with a heading; each cell becomes one line of plain text. On a terminal, columns
    named in `spare` are left out if they are empty or, the first one first, if there is no room for
    all; then the widest columns are cut."""
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


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _leave_out(lines: list[list[str]], spare: Sequence[str], columns: int) -> None:
    for head in spare:
        index, widths = lines[0].index(head), _widths(lines)
        full = _total([*widths[:-1], min(widths[-1], READABLE)]) > columns
        if full or not any(line[index] for line in lines[1:]):
            for line in lines:
                del line[index]


def _squeeze(widths: list[int], columns: int) -> None:
    while _total(widths) > columns and max(widths) > LEAST:
        widths[widths.index(max(widths))] -= 1


def _padded(cell: str, wide: int) -> str:
    cell = shorten(cell, wide)
    return cell + " " * (wide - width(cell))


def shorten(text: str, room: int) -> str:
    """What fits of a text: the beginning, of a path the end with its name."""
    if not text.startswith("/"):
        return cut(text, room)
    return text if width(text) <= room else cut(text[::-1], room)[::-1]


def clip(line: str, columns: int | None) -> str:
    """Cut a line, which may have colours, to a number of columns; None is no limit."""
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
