"""The difference between two versions of a file, as a unified diff."""

from __future__ import annotations

from ...hosting.difference import ROUNDS, Row, compared

DIFF_LINES = 20_000  # of both versions together: of more, all between the equal ends is replaced
DIFF_CHARS = 200_000  # of the text: what follows is left out, which the text says
CONTEXT = 3  # equal lines around a change


def differences(name: str, old: list[str], new: list[str]) -> tuple[str, int, int]:
    """A unified diff of two lists of lines, and how many lines it adds and removes. Takes up to a
    second: call it in a thread."""
    rows = compared(old, new, ROUNDS if len(old) + len(new) <= DIFF_LINES else 0)
    changed = [at for at, (sign, _) in enumerate(rows) if sign != " "]
    removed = sum(rows[at][0] == "-" for at in changed)
    return _text(name, rows, _hunks(changed, len(rows))), len(changed) - removed, removed


def _hunks(changed: list[int], end: int) -> list[tuple[int, int]]:
    """Where the rows begin and end that are shown: the changed ones and those around."""
    hunks: list[tuple[int, int]] = []
    for at in changed:
        start, stop = max(0, at - CONTEXT), min(end, at + CONTEXT + 1)
        if hunks and start <= hunks[-1][1]:
            start, _ = hunks.pop()
        hunks.append((start, stop))
    return hunks


def _text(name: str, rows: list[Row], hunks: list[tuple[int, int]]) -> str:
    """The rows of the hunks as a unified diff of at most about DIFF_CHARS characters."""
    lines = [f"--- a/{name}", f"+++ b/{name}"]
    room = DIFF_CHARS
    added = removed = 0  # rows before the hunk, which one of the versions does not count
    for start, stop in hunks:
        signs = [sign for sign, _ in rows[start:stop]]
        come, gone = signs.count("+"), signs.count("-")
        of_old = _range(start - added, len(signs) - come)
        of_new = _range(start - removed, len(signs) - gone)
        lines.append(f"@@ -{of_old} +{of_new} @@")
        added, removed = added + come, removed + gone
        for sign, line in rows[start:stop]:
            room -= len(line) + 2
            if room < 0:
                return "\n".join([*lines, "... the rest of this diff is left out"])
            lines.append(sign + line)
    return "\n".join([*lines, ""]) if hunks else ""


def _range(start: int, count: int) -> str:
    """A range of lines as diffs write it."""
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"
