"""Markdown in a terminal: rows of text, painted, no wider than the window.

Nested lists keep their numbers and their depth, tables their columns, links their addresses. Code
is written as it is, however long its lines are, so that it can be copied. Where there are no
colours, the marks of emphasis and headings stay. Text must be harmless before it comes here (see
`text.clean`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .markdown_tree import MarkdownParser, Tree
from .text import diff_row, width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .text import Style

BULLETS = ("•", "◦", "▪")
LONGEST = 20_000  # characters of a line that is not complete
LEAST_COLUMN = 3  # of a table, in columns of the terminal
TAB = 4  # columns from one tab stop to the next
NARROWEST = 20  # columns that a block gets, however deep it is
MARKS = {"strong": "**", "em": "*", "del": "~~", "code": "`"}
# How inlines are painted, as a terminal numbers it.
CODES = {"strong": "1", "em": "3", "del": "9", "code": "36", "link": "4", "address": "2"}

Cell = tuple[str, str]  # a character and its codes


class MarkdownLines:
    """Turns an answer that grows into rows. What was returned once is never taken back: a block is
    returned when it is complete, items of a list one by one, code line by line."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._begin()

    def _begin(self) -> None:
        self._parser = MarkdownParser(keeps_definitions=True)
        self._held: list[str] = []  # lines that no returned row shows
        self._rest = ""  # a line that is not complete
        self._code = False  # inside a block of code, whose lines are returned as they come
        self._language = ""  # of that block
        self._began = False  # something was returned
        self._list = ""  # the kind of list that the last rows were items of, if more may come

    @property
    def pending(self) -> list[str]:
        """The lines that no returned row shows yet, as they were written; in front of them a blank
        one if there will be one in front of their block."""
        lines = [*self._held, self._rest] if self._rest else self._held
        apart = lines and self._began and not self._code and not self._list
        return ["", *lines] if apart else lines

    def feed(self, text: str, room: int) -> list[str]:
        """Take more of the text; returns the rows that are complete."""
        *lines, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        if len(self._rest) > LONGEST:
            lines.append(self._rest)
            self._rest = ""
        return [row for line in lines for row in self._line(line, room)]

    def end(self, room: int) -> list[str]:
        """The text is complete; returns the rows that are left."""
        rows = self._line(self._rest, room) if self._rest else []
        if self._code:
            rows.append(self._style.dim("```"))
        else:
            rows += self._blocks(self._parser.finish(), room)
        self._begin()
        return rows

    def _line(self, line: str, room: int) -> list[str]:
        rows = self._rows(line, room)
        if rows:
            self._held = []
        if self._parser.is_open and not self._code:
            self._held.append(line)
        return rows

    def _rows(self, line: str, room: int) -> list[str]:
        self._parser.feed(line)
        if self._code:
            if self._parser.in_code:
                return [_code_row(line, self._language, self._style)]
            self._code = False
            self._parser.take()  # it is written already
            return [self._style.dim("```")]
        if not self._parser.in_code:
            return self._blocks(self._parser.take(), room)
        rows = self._blocks(self._parser.take(), room)
        self._code, self._language = True, self._parser.language
        blank = [""] if self._began else []
        self._began, self._list = True, ""
        return [*rows, *blank, self._style.dim(f"```{self._language}")]

    def _blocks(self, blocks: Tree, room: int) -> list[str]:
        rows: list[str] = []
        for number, block in enumerate(blocks):
            kind = block[0] if block[0] in ("ul", "ol") else ""
            goes_on = kind and kind == self._list and not number
            if self._began and not goes_on:
                rows.append("")
            rows += block_rows(block, room, self._style)
            self._began = True
            self._list = kind if self._parser.list_open and number == len(blocks) - 1 else ""
        return rows


def markdown_rows(text: str, style: Style) -> list[str]:
    """The rows of a whole text, for the window of a stream."""
    lines, room = MarkdownLines(style), (style.columns or 80) - 1
    return lines.feed(text, room) + lines.end(room)


def block_rows(block: list[Any], room: int, style: Style, depth: int = 0) -> list[str]:
    """The rows of one block of a tree, at most `room` columns wide, code apart."""
    kind, room = block[0], max(room, NARROWEST)
    if kind == "p":
        return inline_rows(block[1:], room, style)
    if kind[0] == "h" and kind != "hr":
        marked = [f"{'#' * int(kind[1])} ", *block[1:]]
        return inline_rows([["strong", *block[1:]]] if style.colours else marked, room, style)
    if kind == "pre":
        code = [_code_row(line, block[1], style) for line in block[2].split("\n")[:-1]]
        return [style.dim(f"```{block[1]}"), *code, style.dim("```")]
    if kind == "hr":
        return [style.dim("─" * min(room, 40))]
    if kind == "quote":
        inner = nested_rows(block[1:], room - 2, style, depth)
        if room - 2 < NARROWEST:
            return inner
        return [f"{style.dim('│')} {row}".rstrip() for row in inner]
    if kind == "table":
        return table_rows(block[1], block[2:], room, style)
    return _list_rows(block, room, style, depth)


def nested_rows(blocks: Tree, room: int, style: Style, depth: int) -> list[str]:
    """The rows of blocks in another one: a blank row only between two paragraphs or quotes."""
    rows: list[str] = []
    before = ""
    for block in blocks:
        if before in ("p", "quote") and block[0] in ("p", "quote"):
            rows.append("")
        rows += block_rows(block, room, style, depth)
        before = block[0]
    return rows


def _list_rows(block: list[Any], room: int, style: Style, depth: int) -> list[str]:
    if block[0] == "ul":
        items, marks = block[1:], [BULLETS[depth % len(BULLETS)]] * (len(block) - 1)
    else:
        items = block[2:]
        marks = [f"{block[1] + number}." for number in range(len(items))]
    indent = max((len(mark) for mark in marks), default=1) + 1
    rows: list[str] = []
    for mark, item in zip(marks, items, strict=True):
        inner = nested_rows(item, room - indent, style, depth + 1) or [""]
        rows.append(f"{mark.rjust(indent - 1)} {inner[0]}".rstrip())
        # Where there is no room, what is deeper is not moved further.
        shift = indent if room - indent >= NARROWEST else 0
        rows += [f"{' ' * shift}{row}".rstrip() for row in inner[1:]]
    return rows


def _code_row(line: str, language: str, style: Style) -> str:
    return diff_row(line, style) if language in ("diff", "patch") else line


# Inlines ----------------------------------------------------------------------------------------


def inline_rows(inlines: list[Any], room: int, style: Style) -> list[str]:
    """Inlines as rows, wrapped between words."""
    return [_painted(row, style) for row in _wrapped(_cells(inlines, style), room)] or [""]


def _cells(inlines: list[Any], style: Style, codes: tuple[str, ...] = ()) -> list[Cell]:
    """Inlines as characters, each with the codes that paint it. A line break is a cell."""
    cells: list[Cell] = []
    joined = ";".join(codes)

    def say(text: str, *more: str) -> None:
        painted = ";".join((*codes, *more)) if more else joined
        cells.extend((c, painted) for c in text.replace("\n", " "))

    for inline in inlines:
        if isinstance(inline, str):
            say(inline)
        elif inline[0] == "br":
            cells.append(("\n", ""))
        elif inline[0] == "code":
            mark = "" if style.colours else "`"
            say(f"{mark}{inline[1]}{mark}", CODES["code"])
        elif inline[0] == "image":
            say(f"[image: {inline[2] or inline[1]}]", CODES["address"])
        elif inline[0] == "link":
            text = _cells(inline[2:], style, (*codes, CODES["link"]))
            cells += text
            if inline[1] and inline[1].removeprefix("mailto:") != "".join(c for c, _ in text):
                say(f" ({inline[1]})", CODES["address"])
        else:
            mark = "" if style.colours else MARKS[inline[0]]
            say(mark)
            cells += _cells(inline[1:], style, (*codes, CODES[inline[0]]))
            say(mark)
    return cells


def _wrapped(cells: list[Cell], room: int) -> list[list[Cell]]:
    """Break cells into rows of at most `room` columns, between words where that is possible."""
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    used, space = 0, -1  # columns of the row; where its last blank is
    for cell in _without_tabs(cells):
        if cell[0] == "\n":
            rows.append(row)
            row, used, space = [], 0, -1
            continue
        size = width(cell[0])
        if used + size > room and row:
            if cell[0] == " ":
                rows.append(row)
                row, used, space = [], 0, -1
                continue
            cut = space if space > 0 else len(row)
            rows.append(row[:cut])
            row = row[cut + 1 :] if space > 0 else []
            used, space = sum(width(c) for c, _ in row), -1
        if cell[0] == " ":
            space = len(row)
        row.append(cell)
        used += size
    return [*rows, row] if row or not rows else rows


def _without_tabs(cells: list[Cell]) -> Iterator[Cell]:
    """The same cells, with blanks up to the next tab stop instead of a tab."""
    used = 0  # columns since the last line break
    for cell in cells:
        blanks = TAB - used % TAB if cell[0] == "\t" else 0
        used = 0 if cell[0] == "\n" else used + (blanks or width(cell[0]))
        yield from [(" ", cell[1])] * blanks or [cell]


def _painted(row: list[Cell], style: Style) -> str:
    parts: list[str] = []
    run, codes = "", ""
    for c, painted in [*row, ("", "end")]:
        if painted != codes:
            parts.append(style.paint(codes, run) if codes and run else run)
            run, codes = "", painted
        run += c
    return "".join(parts).rstrip()


# Tables -----------------------------------------------------------------------------------------


def table_rows(aligns: list[str], lines: list[Any], room: int, style: Style) -> list[str]:
    """A table with its columns side by side; a cell that is too wide goes on below."""
    bold = [[["strong", *cell]] for cell in lines[0]]
    content = [
        [list(_without_tabs(_cells(cell, style))) for cell in line] for line in (bold, *lines[1:])
    ]
    widths = _widths(content, room - 3 * (len(aligns) - 1))
    if widths is None:  # so many columns that none has room
        plain = [[part for cell in line for part in (*cell, " | ")][:-1] for line in lines]
        return [row for line in plain for row in inline_rows(line, room, style)]
    rows: list[str] = []
    for number, line in enumerate(content):
        parts = [_wrapped(cell, wide) for cell, wide in zip(line, widths, strict=True)]
        for at in range(max(len(part) for part in parts)):
            cells = [
                _aligned(part[at] if at < len(part) else [], wide, align, style)
                for part, wide, align in zip(parts, widths, aligns, strict=True)
            ]
            rows.append(f" {style.dim('│')} ".join(cells).rstrip())
        if not number:
            rows.append(style.dim("─┼─".join("─" * wide for wide in widths)))
    return rows


def _widths(content: list[list[list[Cell]]], room: int) -> list[int] | None:
    """How wide each column is; None if they do not fit. The widest give way first."""
    widths = [
        max(LEAST_COLUMN, *(sum(width(c) for c, _ in line[column]) for line in content))
        for column in range(len(content[0]))
    ]
    if len(widths) * LEAST_COLUMN > room:
        return None
    while (over := sum(widths) - room) > 0:
        widest = max(widths)
        most = [at for at, wide in enumerate(widths) if wide == widest]
        second = max((wide for wide in widths if wide < widest), default=LEAST_COLUMN)
        step = max(1, min(widest - second, -(-over // len(most))))
        for at in most:
            widths[at] = max(LEAST_COLUMN, widest - step)
    return widths


def _aligned(cells: list[Cell], wide: int, align: str, style: Style) -> str:
    used = sum(width(c) for c, _ in cells)
    left = {"right": wide - used, "center": (wide - used) // 2}.get(align, 0)
    return " " * left + _painted(cells, style) + " " * (wide - used - left)
