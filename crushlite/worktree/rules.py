"""Patterns of paths, and the rules by which a search leaves out entries: .gitignore, .crushignore.

A file of rules comes with a repository, so everything here takes bounded time, whatever it holds.
Imports only the standard library: it is part of the search program (walk.py).
"""

from __future__ import annotations

import fnmatch
import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_BRACES = 64
# Bounds of the rules that can apply to one entry: about ten times what the longest honest files
# hold. A search, which may read many such files, has bounds of its own (walk.Tree).
RULE_BYTES = 64 * 1024
RULES = 2000
WILD_RULES = 400
RULE_CHARS = 500
SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv"})

Parts = tuple[str, ...]

_WILD = re.compile(r"[*?\[]")


def braces(pattern: str) -> list[str]:
    """The patterns that one with alternatives in braces stands for: `*.{c,h}` -> `*.c`, `*.h`. At
    most about MOST_BRACES of them; braces beyond that are left as they are."""
    done: list[str] = []
    todo = deque([pattern])
    while todo:
        first = todo.popleft()
        found = re.search(r"\{([^{}]*)\}", first)
        if found is None or len(done) + len(todo) >= MOST_BRACES:
            done.append(first)
            continue
        todo += [first[: found.start()] + a + first[found.end() :] for a in found[1].split(",")]
    return done


class Pattern:
    """A pattern of paths: `*`, `?` and `[...]` within a name, `**` for any number of folders.

    Names are matched one by one, with the expressions of fnmatch, which never take exponential
    time, and a set of positions for `**`: the time grows with the product of the two lengths.
    """

    def __init__(self, pattern: str) -> None:
        names = [name for name in pattern.split("/") if name not in ("", ".")]
        self._names = [
            None if name == "**" else re.compile(fnmatch.translate(name)) for name in names
        ]

    def matches(self, parts: Parts) -> bool:
        names = self._names
        at = self._skip({0})
        for part in parts:
            following = set()
            for i in at:
                if i < len(names):
                    name = names[i]
                    if name is None:
                        following.add(i)
                    elif name.match(part):
                        following.add(i + 1)
            at = self._skip(following)
        return len(names) in at

    def _skip(self, at: set[int]) -> set[int]:
        """Add to these positions those behind a `**`, which may also stand for no folder."""
        todo = list(at)
        while todo:
            i = todo.pop()
            if i < len(self._names) and self._names[i] is None and i + 1 not in at:
                at.add(i + 1)
                todo.append(i + 1)
        return at


class _Rules:
    """Neighbouring rules of the same kind: all leave out, or all are exceptions (`!rule`). Their
    order among themselves does not matter."""

    def __init__(self, exception: bool) -> None:
        self.exception = exception
        # By whether they are for folders only: plain names, and expressions for names.
        self._plain: dict[bool, set[str]] = {True: set(), False: set()}
        self._wild: dict[bool, list[str]] = {True: [], False: []}
        self._paths: list[tuple[Pattern, bool]] = []
        self._names: dict[bool, re.Pattern[str]] = {}

    def add(self, body: str) -> None:
        name, only_folders = body.rstrip("/"), body.endswith("/")
        if "/" in name or name in ("", ".", "**"):
            anywhere = "/" not in name
            self._paths.append((Pattern(f"**/{body}" if anywhere else body), only_folders))
        elif _WILD.search(name):
            self._wild[only_folders].append(fnmatch.translate(name))
        else:
            self._plain[only_folders].add(name)

    def compile(self) -> None:
        """Make one expression of all names: it is much faster than one after the other."""
        for is_dir in (True, False):
            wild = [*self._wild[False], *(self._wild[True] if is_dir else ())]
            self._names[is_dir] = re.compile("|".join(wild) or "(?!)")

    def match(self, parts: Parts, is_dir: bool) -> bool:
        name = parts[-1]
        if name in self._plain[False] or (is_dir and name in self._plain[True]):
            return True
        if self._names[is_dir].match(name) is not None:
            return True
        return any(
            (is_dir or not only_folders) and pattern.matches(parts)
            for pattern, only_folders in self._paths
        )


class Ignored:
    """Which entries the text of one file of rules, or one of the `extra` rules, leaves out. Of the
    rules only the simple ones are known.

    A file of rules comes with a repository, so the work for one entry is bounded: at most `most`
    rules are used, `wild` of them with wildcards or folders in them, none longer than RULE_CHARS.
    `dropped` is how many were not used. The `extra` rules come last and are not bounded here."""

    def __init__(
        self,
        rules: str = "",
        extra: Iterable[str] = (),
        *,
        most: int = RULES,
        wild: int = WILD_RULES,
    ) -> None:
        used, self.wild, self.dropped = _bounded(rules, most, wild)
        self.used = len(used)
        self._groups: list[_Rules] = []
        for rule in [*used, *filter(None, map(str.strip, extra))]:
            exception = rule.startswith("!")
            if not self._groups or self._groups[-1].exception != exception:
                self._groups.append(_Rules(exception))
            body = rule.removeprefix("!")
            self._groups[-1].add(body[1:] if body.startswith(("\\#", "\\!")) else body)
        for group in self._groups:
            group.compile()
        self._groups.reverse()

    def covers(self, parts: Parts, is_dir: bool) -> bool:
        """Whether an entry is left out, also because it is named in SKIPPED; `parts` is its path
        below the folder of the rules."""
        return (is_dir and parts[-1] in SKIPPED) or self.decide(parts, is_dir) is True

    def decide(self, parts: Parts, is_dir: bool) -> bool | None:
        """Whether the rules leave out an entry; None if they do not mention it. The last rule that
        matches decides."""
        for group in self._groups:
            if group.match(parts, is_dir):
                return not group.exception
        return None


def _bounded(text: str, most: int, most_wild: int) -> tuple[list[str], int, int]:
    """The rules of a file that are used, how many of them are wild, and how many are not used."""
    used: list[str] = []
    wild = dropped = 0
    for line in text.split("\n"):
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        is_wild = _WILD.search(rule) is not None or "/" in rule.rstrip("/")
        if len(rule) > RULE_CHARS or len(used) >= most or (is_wild and wild >= most_wild):
            dropped += 1
            continue
        wild += is_wild
        used.append(rule)
    return used, wild, dropped


class RulesHere(NamedTuple):
    """The rules that apply in one folder: those of the files in it and in the folders above it.
    Each level is the depth of such a folder and its rules; the deepest one comes first, and decides
    if it mentions an entry. All levels together keep to RULES and WILD_RULES."""

    levels: tuple[tuple[int, Ignored], ...] = ()

    def below(self, depth: int, text: str) -> RulesHere:
        """These rules together with those of a folder that is `depth` levels below the first."""
        used = sum(rules.used for _, rules in self.levels)
        wild = sum(rules.wild for _, rules in self.levels)
        more = Ignored(text, most=RULES - used, wild=WILD_RULES - wild)
        return RulesHere(((depth, more), *self.levels))

    def covers(self, parts: Parts, is_dir: bool) -> bool:
        """Whether an entry is left out; `parts` is its path below the first folder."""
        if is_dir and parts[-1] in SKIPPED:
            return True
        for depth, rules in self.levels:
            decided = rules.decide(parts[depth:], is_dir)
            if decided is not None:
                return decided
        return False
