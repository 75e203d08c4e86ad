"""Which lines stay when a text is changed.

The time is bounded whatever the texts are, unlike that of difflib. So not every line that could be
said to stay is found: lines that occur once in both texts are matched, as far as they have the same
order, and then the equal lines next to them.
"""

from __future__ import annotations

import bisect
from collections import Counter

Pair = tuple[int, int]  # the place of a line in the old list and in the new one


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its line end, which is LF only."""
    *complete, rest = text.split("\n")
    return [f"{line}\n" for line in complete] + ([rest] if rest else [])


def unchanged(old: list[str], new: list[str]) -> list[Pair]:
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
