"""Why a text to replace is not in a file, and what to do about it.

Models copy texts with the wrong indentation, with line numbers, or from memory. `explain` says what
is different, so that the next attempt succeeds. A text that differs from exactly one place of the
file in its indentation only is meant, without doubt: `reindented` finds that place.

All texts have plain line ends. The work is linear in the length of the file, but for the search for
similar lines, which is bounded by NEAR_SECONDS.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PLACES = 10  # of an ambiguous text that are named
NEAR_LINES = 20_000  # of a file that are compared
NEAR_CHARS = 200  # of a line that are compared
NEAR_SECONDS = 0.5
SHOWN_LINES = 12
SHOWN_CHARS = 200
_LEAST_RATIO = 0.5
_NUMBER = re.compile(r"[ \t]*\d+[|\t]")  # what view puts in front of a line
_LOOK_ALIKE = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u00a0", "''\"\"-- ")


class Reindented(NamedTuple):
    """A place of a file that differs from the text to replace in its indentation only."""

    old: str  # as it is in the file
    new: str  # the replacement with the indentation of the file
    line: int


# Where a text is --------------------------------------------------------------------------------


def lines_of(content: str, text: str) -> list[int]:
    """The numbers of the lines where a text begins in a file, PLACES of them at most."""
    found: list[int] = []
    line, done = 1, 0
    at = content.find(text)
    while at >= 0 and len(found) < PLACES:
        line += content.count("\n", done, at)
        found.append(line)
        done = at
        at = content.find(text, at + len(text))
    return found


def ambiguous(content: str, text: str, count: int) -> str:
    """What to tell the model about a text that was found several times."""
    numbers = [str(number) for number in lines_of(content, text)]
    more = ", ..." if count > len(numbers) else ""
    return (
        f"old_string was found {count} times, at lines {', '.join(numbers)}{more}: add lines "
        "around it until it is unique, or set replace_all"
    )


def _windows(lines: Sequence[str], wanted: Sequence[str], key: Callable[[str], str]) -> list[int]:
    """The indexes at which the wanted lines begin, compared by what `key` makes of a line; PLACES
    of them at most. Linear: the lines are joined and searched as one text."""
    text = "\n".join(["", *map(key, lines), ""])
    needle = "\n".join(["", *map(key, wanted), ""])
    found: list[int] = []
    line, done = 0, 0
    at = text.find(needle)
    while at >= 0 and len(found) < PLACES:
        line += text.count("\n", done, at)
        found.append(line)
        done = at
        at = text.find(needle, at + 1)
    return found


def _without_indent(line: str) -> str:
    return line.lstrip(" \t")


def _wanted_lines(old: str) -> list[str]:
    lines = old.split("\n")
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


# Another indentation ----------------------------------------------------------------------------


def reindented(content: str, old: str, new: str) -> Reindented | None:
    """The only place of a file that holds the lines of `old` with another indentation, and `new`
    with the indentation that it must have there. None if there is no such place or there are
    several, or if the two indentations do not differ by a rule that `new` can follow."""
    lines, wanted = content.split("\n"), _wanted_lines(old)
    if not any(map(_without_indent, wanted)):
        return None
    places = _windows(lines, wanted, _without_indent)
    if len(places) != 1:
        return None
    there = lines[places[0] : places[0] + len(wanted)]
    pairs = [
        (_indent(mine), _indent(theirs))
        for mine, theirs in zip(wanted, there, strict=True)
        if _without_indent(mine)
    ]
    moved = _moved(pairs, new.split("\n"))
    if moved is None:
        return None
    ended = "\n" if old.endswith("\n") else ""
    found = "\n".join(there) + ended
    if found not in content:  # the last line of the file has no end
        return None
    return Reindented(found, "\n".join(moved), places[0] + 1)


def _indent(line: str) -> str:
    return line[: len(line) - len(_without_indent(line))]


def _moved(pairs: list[tuple[str, str]], new: list[str]) -> list[str] | None:
    """Lines with another indentation, by the first rule that leads from the first of each pair to
    the second one. None if there is no such rule, or if it makes a mixture of tabs and blanks that
    the file does not have."""
    mixed = any(_is_mixed(theirs) for _, theirs in pairs)
    for rule in _rules(*pairs[0]):
        if any(rule(mine) != theirs for mine, theirs in pairs):
            continue
        moved: list[str] = []
        for line in new:
            text = _without_indent(line)
            indent = rule(_indent(line)) if text else ""
            if indent is None or (_is_mixed(indent) and not mixed):
                break
            moved.append(indent + text)
        else:
            return moved
    return None


def _is_mixed(indent: str) -> bool:
    return " " in indent and "\t" in indent


def _rules(mine: str, theirs: str) -> list[Callable[[str], str | None]]:
    """The ways in which one indentation may lead to another one: so much more, so much less, tabs
    for blanks, blanks for tabs, steps of another width, or, if there is only one, that one."""
    found: list[Callable[[str], str | None]] = []
    if theirs.endswith(mine):
        more = theirs[: len(theirs) - len(mine)]
        found.append(lambda indent: more + indent)
    if mine.endswith(theirs):
        less = mine[: len(mine) - len(theirs)]
        found.append(lambda indent: indent[len(less) :] if indent.startswith(less) else None)
    widths = [" " * width for width in (4, 2, 8, 3)]
    steps = [(blanks, "\t") for blanks in widths] + [("\t", blanks) for blanks in widths]
    steps += [(one, other) for one in widths for other in widths if one != other]
    found += [partial(_steps, one=one, other=other) for one, other in steps]
    return [*found, lambda indent: theirs if indent == mine else None]


def _steps(indent: str, one: str, other: str) -> str | None:
    """An indentation in other steps; None if it does not consist of whole ones."""
    count = len(indent) // len(one)
    return other * count if one * count == indent else None


# Why it was not found ---------------------------------------------------------------------------


def explain(content: str, old: str, new: str) -> str:
    """Why a text was not found in a file, and what to do."""
    return (
        _numbered(content, old)
        or _at_the_end(content, old)
        or _respelled(content, old)
        or _blanks(content, old)
        or _done_already(content, new)
        or _nearest(content, old)
    )


def _numbered(content: str, old: str) -> str:
    lines = old.split("\n")
    if not all(_NUMBER.match(line) for line in lines if line.strip()):
        return ""
    plain = "\n".join(_NUMBER.sub("", line, count=1) for line in lines)
    if not plain.strip() or plain not in content:
        return ""
    return "old_string holds line numbers, which are not part of the file: leave out all up to `|`"


def _at_the_end(content: str, old: str) -> str:
    bare = old.rstrip("\n")
    if not bare or bare == old or not content.rstrip("\n").endswith(bare):
        return ""
    has, wanted = len(content) - len(content.rstrip("\n")), len(old) - len(bare)
    if not has:
        return "old_string has a line end that the end of the file does not have: leave it out"
    return f"old_string ends in {wanted} line ends, and the file in {has}: leave the others out"


def _respelled(content: str, old: str) -> str:
    """For texts whose characters were replaced on the way."""
    if "\\" in old and old.replace("\\n", "\n").replace("\\t", "\t") in content:
        return "old_string holds \\n or \\t as two characters: write real line ends and tabs"
    if old.replace("\\\\", "\\").replace('\\"', '"') in content:
        return "old_string has too many backslashes: write the text as it is in the file"
    entities = old.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    if entities in content:
        return "old_string holds &lt;, &gt; or &amp; in place of <, > or &"
    at = content.translate(_LOOK_ALIKE).find(old.translate(_LOOK_ALIKE))
    if at >= 0:
        there = visible(content[at : at + len(old)].split("\n")[0])
        line = content.count("\n", 0, at) + 1
        return f"quotes, dashes or blanks differ: line {line} of the file is {there}"
    at = content.lower().find(old.lower())
    if at >= 0:
        line = content.count("\n", 0, at) + 1
        return f"upper and lower case differ from line {line} of the file"
    return ""


def _blanks(content: str, old: str) -> str:
    """For texts that differ in blanks only."""
    lines, wanted = content.split("\n"), _wanted_lines(old)
    if not "".join(wanted).strip():
        return ""
    for what, key in (
        ("in blanks at the ends of lines", str.rstrip),
        ("in indentation", _without_indent),
        ("in blanks and tabs", lambda line: " ".join(line.split())),
    ):
        places = _windows(lines, wanted, key)
        if places:
            numbers = ", ".join(str(place + 1) for place in places)
            where = f"line{'s' if len(places) > 1 else ''} {numbers}"
            return (
                f"old_string differs from {where} only {what}. {_shown(lines, places[0], wanted)}"
            )
    return ""


def _done_already(content: str, new: str) -> str:
    if len(new.strip()) < 4 or content.count(new) != 1:
        return ""
    [line] = lines_of(content, new)
    return (
        f"new_string is in the file already, at line {line}: the change may have been made before. "
        "View the file to see what is left to do"
    )


def _nearest(content: str, old: str) -> str:
    lines, wanted = content.split("\n"), _wanted_lines(old)
    at = _most_similar(lines, wanted)
    if at is None:
        return "nothing like old_string is in the file: view it, and copy the text from there"
    return f"no such text is in the file. {_shown(lines, at, wanted)}"


def _most_similar(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The index at which the lines of the file resemble the wanted ones most, by the longest one of
    these; None if there is no resemblance, or no time to find it."""
    import difflib  # only now: most edits fit

    anchor = max(range(len(wanted)), key=lambda n: len(wanted[n].strip()))
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(wanted[anchor].strip()[:NEAR_CHARS])
    deadline = time.monotonic() + NEAR_SECONDS
    best, found = _LEAST_RATIO, None
    for number, line in enumerate(lines[:NEAR_LINES]):
        matcher.set_seq1(line.strip()[:NEAR_CHARS])
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        if time.monotonic() > deadline:
            break
        ratio = matcher.ratio()
        if ratio > best:
            best, found = ratio, number
    return None if found is None else max(found - anchor, 0)


def _shown(lines: Sequence[str], at: int, wanted: Sequence[str]) -> str:
    """The lines of the file in the place of the wanted ones, with their numbers."""
    count = min(len(wanted), SHOWN_LINES)
    rows = [f"{at + n + 1:6}|{visible(line)}" for n, line in enumerate(lines[at : at + count])]
    return "\n".join(
        ["The file has there (a blank at either end of a line is shown as ·, a tab as →):", *rows]
    )


def visible(line: str) -> str:
    """A line whose blanks at its ends can be seen."""
    line = line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}..."
    inner = line.strip(" \t")
    if not inner:
        return line.replace(" ", "·").replace("\t", "→")
    first, _, last = line.partition(inner)
    marked = [end.replace(" ", "·").replace("\t", "→") for end in (first, last)]
    return inner.join(marked)
