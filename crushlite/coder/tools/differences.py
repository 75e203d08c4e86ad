"""The difference between two versions of a file, found in bounded time.

difflib takes quadratic time and more for texts of few different lines: 100 s for 300 KB were seen.
So the equal lines at both ends are taken off first, and difflib gets DIFF_SECONDS for the rest. If
that is not enough, the rest is shown as replaced as a whole, which is also a true difference.
"""

from __future__ import annotations

import difflib
import time

DIFF_SECONDS = 0.5
DIFF_LINES = 20_000  # between the equal ends, of both versions together: more is not compared
DIFF_CHARS = 200_000  # of the text: what follows is left out, which the text says
CONTEXT = 3  # equal lines around a change

Block = tuple[str, int, int, int, int]  # as in SequenceMatcher.get_opcodes


class _TooSlow(Exception):
    """The time for the comparison is over."""


class _Matcher(difflib.SequenceMatcher[str]):
    """Checks the time before each search for a common block. One search takes at most a fraction of
    a second: at most one in a hundred lines of the other text is looked at for a line."""

    deadline = 0.0

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        if time.monotonic() > self.deadline:
            raise _TooSlow
        return super().find_longest_match(alo, ahi, blo, bhi)


class _Grouped(difflib.SequenceMatcher[str]):
    """Groups blocks that were found before."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self._blocks = blocks

    def get_opcodes(self) -> list[Block]:  # type: ignore[override]  # a tag is any text here
        return self._blocks


def differences(name: str, old: list[str], new: list[str]) -> tuple[str, int, int]:
    """A unified diff of two lists of lines, and how many lines it adds and removes. Takes up to a
    second: call it in a thread."""
    blocks = _blocks(old, new)
    changed = [block for block in blocks if block[0] != "equal"]
    removed = sum(i2 - i1 for _, i1, i2, _, _ in changed)
    added = sum(j2 - j1 for _, _, _, j1, j2 in changed)
    return _text(name, old, new, blocks), added, removed


def _blocks(old: list[str], new: list[str]) -> list[Block]:
    """What is equal and what is replaced, in the order of the lines."""
    shorter = min(len(old), len(new))
    first = 0
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    end, new_end = len(old) - last, len(new) - last
    blocks: list[Block] = [("equal", 0, first, 0, first)] if first else []
    for tag, i1, i2, j1, j2 in _compared(old[first:end], new[first:new_end]):
        blocks.append((tag, i1 + first, i2 + first, j1 + first, j2 + first))
    if last:
        blocks.append(("equal", end, len(old), new_end, len(new)))
    return blocks


def _compared(old: list[str], new: list[str]) -> list[Block]:
    whole: list[Block] = [("replace", 0, len(old), 0, len(new))] if old or new else []
    if not old or not new or len(old) + len(new) > DIFF_LINES:
        return whole
    matcher = _Matcher(None, old, new)
    matcher.deadline = time.monotonic() + DIFF_SECONDS
    try:
        return list(matcher.get_opcodes())
    except _TooSlow:
        return whole


def _text(name: str, old: list[str], new: list[str], blocks: list[Block]) -> str:
    """The blocks as a unified diff of at most about DIFF_CHARS characters."""
    lines: list[str] = []
    room = DIFF_CHARS
    for hunk in _Grouped(blocks).get_grouped_opcodes(CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        head = f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@"
        lines += [head] if lines else [f"--- a/{name}", f"+++ b/{name}", head]
        for tag, a1, a2, b1, b2 in hunk:
            for sign, source, start, stop in (
                (" ", old, a1, a2 if tag == "equal" else a1),
                ("-", old, a1, a1 if tag == "equal" else a2),
                ("+", new, b1, b1 if tag == "equal" else b2),
            ):
                for at in range(start, stop):
                    room -= len(source[at]) + 2
                    if room < 0:
                        return "\n".join([*lines, "... the rest of this diff is left out"])
                    lines.append(sign + source[at])
    return "\n".join([*lines, ""]) if lines else ""


def _range(start: int, stop: int) -> str:
    """A range of lines as diffs write it."""
    count = stop - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"
