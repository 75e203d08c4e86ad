"""Which options of a program are harmless: only those that are written down, spelled exactly.

Programs accept abbreviations of long options (`--outp=x`), clusters of short ones (`-no x`) and
values in the same word or in the next one. So an option counts only if it is known whether it takes
a value, and if the value is of the given form; all others are refused. The value is handed over in
the same word as the option: the program cannot take it for an operand.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from ...records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGITS = r"\d{1,9}"
TEXT = r"[\s\S]*"


class Arguments(NamedTuple):
    """The arguments of a program, sorted."""

    options: list[str]  # with their values, in order
    operands: list[str]
    given: frozenset[str]  # the names of the options, without dashes
    behind: list[str] | None  # the operands behind a `--`; None without one


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a program. Values are regular expressions that must match the whole value."""

    flags: str = ""  # short ones without a value
    values: Mapping[str, str] = field(default_factory=dict)  # short ones with a value
    long_flags: str = ""  # separated by blanks
    long_values: Mapping[str, str] = field(default_factory=dict)
    number: bool = False  # `-5` is an option
    attached: str = ""  # names whose value is part of the same word, or else none: --color=always

    def sort(self, words: list[str]) -> Arguments | None:
        """Sort the arguments into options and operands; None if one of them is not known."""
        options: list[str] = []
        operands: list[str] = []
        given: set[str] = set()
        rest = list(reversed(words))
        while rest:
            word = rest.pop()
            if word == "--":
                return Arguments(options, operands, frozenset(given), rest[::-1])
            if not word.startswith("-") or word == "-":
                operands.append(word)
                continue
            taken = self._long(word, rest) if word.startswith("--") else self._short(word, rest)
            if taken is None:
                return None
            names, spelled = taken
            given |= names
            options += spelled
        return Arguments(options, operands, frozenset(given), None)

    def _long(self, word: str, rest: list[str]) -> tuple[set[str], list[str]] | None:
        """The name of a long option, and how to write it with its value, which may be the next
        word; None if it is unknown."""
        name, equals, value = word[2:].partition("=")
        if not equals and name in self.long_flags.split():
            return {name}, [word]
        if name not in self.long_values:
            return None
        if not equals:
            if not rest or name in self.attached.split():
                return None
            value = rest.pop()
        fits = re.fullmatch(self.long_values[name], value)
        return ({name}, [f"--{name}={value}"]) if fits else None

    def _short(self, word: str, rest: list[str]) -> tuple[set[str], list[str]] | None:
        """The names in a cluster of short options, and how to write it with the value of the last
        one, which may be the next word; None if one is unknown."""
        if self.number and re.fullmatch(f"-{DIGITS}", word):
            return {"number"}, [word]
        names: set[str] = set()
        for at, letter in enumerate(word[1:], 2):
            names.add(letter)
            if letter in self.values:
                value = word[at:]
                if not value:
                    if not rest or letter in self.attached.split():
                        return None
                    value = rest.pop()
                if not re.fullmatch(self.values[letter], value):
                    return None
                return names, [f"{word[:at]}{value}"] if value else [word[:at], ""]
            if letter not in self.flags:
                return None
        return names, [word]
