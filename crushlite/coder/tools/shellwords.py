r"""A command line taken apart into words, as a shell would do it, if that is certain.

Certain is a text of plain words, quotes without `$`, `` ` `` and `\`, blanks, the cuts `&&`, `||`,
`;`, `|` and line ends between simple commands, and redirections that write no file. Everything else
(variables, substitutions, globs, here documents, `&`, comments, escapes, invisible characters) may
mean something else than it shows: such a text is not taken apart.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<blank>[ \t]+)"
    r"|(?P<cut>&&|\|\||;|\||\n)"
    # To and from the null device, and one output into the other: no file is written.
    r"|(?P<null>(?:(?:[12]|&)?>[ \t]*/dev/null|<[ \t]*/dev/null|[12]?>&[12])(?=[ \t\n;|&]|\Z))"
    r"|(?P<word>(?:[A-Za-z0-9_./:@%+,=-]+"
    # `HEAD~2` and `HEAD^`. At the beginning of a word, or behind `=` or `:`, `~` is a folder.
    r"|(?<=[A-Za-z0-9_}~^])[~^]"
    # `main@{1}`. With a comma or two dots inside, braces make several words.
    r"|(?<=@)\{[A-Za-z0-9_/-]*\}"
    r"|'[^']*'|\"[^\"$`\\]*\")+)"
)
PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")


class SimpleCommand(NamedTuple):
    """One of the commands of a line."""

    words: list[str]  # with their quotes
    redirections: list[str]  # as written
    cut: str  # what follows it: one of the cuts, empty at the end


def simple_commands(line: str) -> list[SimpleCommand] | None:
    """The simple commands of a line, also empty ones; None if it cannot be taken apart with
    certainty. Linear in the length of the line."""
    parts: list[SimpleCommand] = []
    words: list[str] = []
    redirections: list[str] = []
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None:
            return None
        at = token.end()
        if token.lastgroup == "cut":
            parts.append(SimpleCommand(words, redirections, token[0]))
            words, redirections = [], []
        elif token.lastgroup == "word":
            words.append(token[0])
        elif token.lastgroup == "null":
            redirections.append(token[0])
    parts.append(SimpleCommand(words, redirections, ""))
    shown = line.replace("\n", "").replace("\t", "")
    return parts if shown.isprintable() else None


def unquoted(word: str) -> str:
    """A word as the program gets it."""
    return re.sub(r"'([^']*)'|\"([^\"]*)\"", lambda quoted: quoted[1] or quoted[2] or "", word)
