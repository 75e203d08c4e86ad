"""What changes between two texts, line by line, for a user who is asked to allow the change.

Every line that goes or comes is shown, and a missing line end at the end of a text is, too. Lines
end with LF only: a form feed or a carriage return is part of its line. The time is bounded whatever
the texts are, unlike that of difflib: lines that occur equally often in both texts are matched
first, as far as they have the same order, then the equal lines next to them. What is between is
compared in the same way, ROUNDS times at most; what has no match then was removed or added.
"""

from __future__ import annotations

import bisect
from collections import Counter

CONTEXT = 2  # unchanged lines shown around a change
ROUNDS = 8
NO_LINE_END = "\\ no line end here"

Row = tuple[str, str]  # "+", "-" or " ", and the line with its line end
Pair = tuple[int, int]  # the place of a line in the old list and in the new one


def difference(old: str, new: str) -> list[str]:
    """The changed lines behind + and -, with those around them; `@@` where some are left out."""
    rows = compared(_lines(old), _lines(new))
    changed = [at for at, (sign, _) in enumerate(rows) if sign != " "]
    near = {at + by for at in changed for by in range(-CONTEXT, CONTEXT + 1)}
    shown: list[str] = []
    for at, (sign, line) in enumerate(rows):
        if at in near:
            if at - 1 not in near or not shown:
                shown.append("@@")
            shown.append(sign + line.removesuffix("\n"))
            if not line.endswith("\n"):
                shown.append(NO_LINE_END)
    return shown


def compared(old: list[str], new: list[str], rounds: int = ROUNDS) -> list[Row]:
    """All lines of two lists. Equal ones at both ends are not compared: of a long file that is
    edited, these are most. Between two anchors it is done again, `rounds` times at most."""
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    most -= head
    tail = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    rows = [(" ", line) for line in old[:head]]
    i = j = 0
    for at_old, at_new in _anchors(gone, come) if rounds else []:
        if i < at_old or j < at_new:
            rows += compared(gone[i:at_old], come[j:at_new], rounds - 1)
        rows.append((" ", gone[at_old]))
        i, j = at_old + 1, at_new + 1
    if i or j:
        rows += compared(gone[i:], come[j:], rounds - 1)
    else:
        rows += [("-", line) for line in gone] + [("+", line) for line in come]
    return rows + [(" ", line) for line in old[len(old) - tail :]]


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its line end, which is LF only."""
    *complete, rest = text.split("\n")
    return [f"{line}\n" for line in complete] + ([rest] if rest else [])


def _anchors(old: list[str], new: list[str]) -> list[Pair]:
    """The longest series of lines that occur equally often, and in this order, in both lists."""
    in_old, in_new = Counter(old), Counter(new)
    places = {key: at for at, key in enumerate(_numbered(new))}
    ends: list[int] = []  # by length of a series: the first place in `new` that one can end with
    last: list[tuple[Pair, object]] = []  # by length: its last pair, with all before it
    for at, (line, number) in enumerate(_numbered(old)):
        if in_old[line] == in_new[line]:
            place = places[line, number]
            length = bisect.bisect_left(ends, place)
            ends[length : length + 1] = [place]
            last[length : length + 1] = [((at, place), last[length - 1] if length else None)]
    series: list[Pair] = []
    rest: object = last[-1] if last else None
    while isinstance(rest, tuple):
        pair, rest = rest
        series.append(pair)
    return series[::-1]


def _numbered(lines: list[str]) -> list[tuple[str, int]]:
    """Each line with how often it has come before."""
    seen: Counter[str] = Counter()
    numbered = []
    for line in lines:
        numbered.append((line, seen[line]))
        seen[line] += 1
    return numbered
