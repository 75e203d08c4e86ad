"""What changes between two texts, line by line, for a user who is asked to allow the change.

Every line that goes or comes is shown, and a missing line end at the end of a text is, too. Lines
end with LF only: a form feed or a carriage return is part of its line. The time is bounded whatever
the texts are, unlike that of difflib: lines that occur once in both texts are matched first, and
what is between them is compared line by line only as long as CELLS allows. What is not compared is
shown as removed and added.
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


def difference(old: str, new: str) -> list[str]:
    """The changed lines behind + and -, with those around them; `@@` where some are left out."""
    rows = _Comparison(_lines(old), _lines(new)).rows()
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


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its line end."""
    *complete, rest = text.split("\n")
    return [f"{line}\n" for line in complete] + ([rest] if rest else [])


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


class _Comparison:
    """Two lists of lines that are compared once."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        self._old, self._new = old, new
        self._cells = CELLS  # comparisons that are left
        self._rows: list[Row] = []

    def rows(self) -> list[Row]:
        old = new = 0
        for anchor_old, anchor_new in [*self._anchors(), (len(self._old), len(self._new))]:
            if anchor_old < old or anchor_new < new:
                continue  # within what was matched behind the anchor before
            self._between(self._old[old:anchor_old], self._new[new:anchor_new])
            old, new = anchor_old, anchor_new
            while old < len(self._old) and self._old[old : old + 1] == self._new[new : new + 1]:
                self._rows.append((" ", self._old[old]))
                old, new = old + 1, new + 1
        return self._rows

    def _anchors(self) -> list[tuple[int, int]]:
        """Places of lines that occur once in both lists: the longest series of them that has the
        same order in both. The first and the last lines are anchors if they are equal."""
        once_old = {line for line, number in Counter(self._old).items() if number == 1}
        places = {line: at for at, line in enumerate(self._new)}
        once_new = {line for line, number in Counter(self._new).items() if number == 1}
        pairs = [
            (at, places[line])
            for at, line in enumerate(self._old)
            if line in once_old and line in once_new
        ]
        if self._old[:1] == self._new[:1]:
            pairs.insert(0, (0, 0))
        return _ascending(pairs)

    def _between(self, old: list[str], new: list[str]) -> None:
        """Compare what is between two anchors."""
        tail: list[Row] = []
        while old and new and old[-1] == new[-1]:
            tail.append((" ", old.pop()))
            new.pop()
        cells = len(old) * len(new)
        if 0 < cells <= self._cells:
            self._cells -= cells
            self._rows += _common(old, new)
        else:
            self._rows += [("-", line) for line in old] + [("+", line) for line in new]
        self._rows += reversed(tail)


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest series of pairs whose second numbers rise; their first ones do already."""
    ends: list[int] = []  # by length of a series: the smallest number that one ends with
    chosen: list[int] = []  # by length: the index of its last pair
    before: list[int] = []  # by pair: the index of the pair before it in its series
    for index, (_, place) in enumerate(pairs):
        length = bisect.bisect_left(ends, place)
        before.append(chosen[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        chosen[length : length + 1] = [index]
    series = []
    at = chosen[-1] if chosen else -1
    while at >= 0:
        series.append(pairs[at])
        at = before[at]
    return series[::-1]


def _common(old: list[str], new: list[str]) -> list[Row]:
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
