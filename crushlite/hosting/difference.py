"""What changes between two texts, line by line, for a user who is asked to allow the change.

Every line that goes or comes is shown, and a missing line end at the end of a text is, too. Lines
end with LF only: a form feed or a carriage return is part of its line. The time is bounded whatever
the texts are, unlike that of difflib: lines that occur once in both texts are matched first, as far
as they have the same order, then the equal lines next to them, and what is between is compared line
by line only as long as CELLS allows. What is not compared is shown as removed and added.
"""

from __future__ import annotations

import bisect
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT = 2  # unchanged lines shown around a change
CELLS = 500_000  # comparisons of two lines in one diff: about a quarter of a second
NO_LINE_END = "\\ no line end here"

Row = tuple[str, str]  # "+", "-" or " ", and the line with its line end
Pair = tuple[int, int]  # the place of a line in the old list and in the new one


def difference(old: str, new: str) -> list[str]:
    """The changed lines behind + and -, with those around them; `@@` where some are left out."""
    rows = _rows(_lines(old), _lines(new))
    shown: list[str] = []
    end = 0
    for first, last in _changes(rows):
        if first > end or not shown:
            shown.append("@@")
        for sign, line in rows[max(first, end) : last]:
            shown.append(sign + line.removesuffix("\n"))
            if not line.endswith("\n"):
                shown.append(NO_LINE_END)
        end = last
    return shown


def _changes(rows: list[Row]) -> Iterator[tuple[int, int]]:
    """Where to show rows, from and to: each change with the rows around it."""
    first = last = -1
    for index, (sign, _) in enumerate(rows):
        if sign == " ":
            continue
        if first >= 0 and index - CONTEXT > last + CONTEXT:
            yield first, min(last + CONTEXT, len(rows))
            first = -1
        if first < 0:
            first = max(0, index - CONTEXT)
        last = index + 1
    if first >= 0:
        yield first, min(last + CONTEXT, len(rows))


def _rows(old: list[str], new: list[str]) -> list[Row]:
    """All lines of both texts."""
    rows: list[Row] = []
    left = CELLS
    i = j = 0
    for at_old, at_new in [*_unchanged(old, new), (len(old), len(new))]:
        gone, come = old[i:at_old], new[j:at_new]
        cells = len(gone) * len(come)
        if 0 < cells <= left:
            left -= cells
            rows += _compared(gone, come)
        else:
            rows += [("-", line) for line in gone] + [("+", line) for line in come]
        rows += [(" ", line) for line in old[at_old : at_old + 1]]
        i, j = at_old + 1, at_new + 1
    return rows


def _compared(old: list[str], new: list[str]) -> list[Row]:
    """The rows of two lists, with a longest common subsequence unchanged."""
    # By suffixes of `old` and `new`: how long their longest common subsequence is.
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        row, below = table[i], table[i + 1]
        for j in range(len(new) - 1, -1, -1):
            row[j] = below[j + 1] + 1 if old[i] == new[j] else max(below[j], row[j + 1])
    rows: list[Row] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            rows.append((" ", old[i]))
            i, j = i + 1, j + 1
        elif j == len(new) or (i < len(old) and table[i + 1][j] >= table[i][j + 1]):
            rows.append(("-", old[i]))
            i += 1
        else:
            rows.append(("+", new[j]))
            j += 1
    return rows


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its line end, which is LF only."""
    *complete, rest = text.split("\n")
    return [f"{line}\n" for line in complete] + ([rest] if rest else [])


def _unchanged(old: list[str], new: list[str]) -> list[Pair]:
    """The places of lines that stay, rising in both lists."""
    found: list[Pair] = []
    i = j = 0
    for end_old, end_new in [*_anchors(old, new), (len(old), len(new))]:
        while i < end_old and j < end_new and old[i] == new[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        back = 0
        most = min(end_old - i, end_new - j)
        while back < most and old[end_old - back - 1] == new[end_new - back - 1]:
            back += 1
        i, j = end_old, end_new
        found += zip(range(i - back, i), range(j - back, j), strict=True)
    return found


def _anchors(old: list[str], new: list[str]) -> list[Pair]:
    """The places of lines that occur once in both lists: the longest series of them that has the
    same order in both."""
    in_old, in_new = Counter(old), Counter(new)
    places = {line: at for at, line in enumerate(new)}
    ends: list[int] = []  # by length of a series: the first place in `new` that one can end with
    last: list[tuple[Pair, object]] = []  # by length: its last pair, with all before it
    for at, line in enumerate(old):
        if in_old[line] == in_new[line] == 1:
            place = places[line]
            length = bisect.bisect_left(ends, place)
            ends[length : length + 1] = [place]
            last[length : length + 1] = [((at, place), last[length - 1] if length else None)]
    series: list[Pair] = []
    rest: object = last[-1] if last else None
    while isinstance(rest, tuple):
        pair, rest = rest
        series.append(pair)
    return series[::-1]
