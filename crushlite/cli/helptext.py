"""How help looks: as wide as the terminal, but not wider than is pleasant to read.

Texts are written in paragraphs and broken here. Lines that are indented are examples, to be copied:
a command is broken only behind a pipe, where a shell reads on, and a comment that has no room goes
above its command.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDEST = 100
NARROW = 50  # below that there is no room for explanations beside the options
_COMMENTED = re.compile(r"( +)(.*?) +# (.*)")


def columns() -> int:
    """How wide help may be: COLUMNS, else the terminal, else 80. The last column stays free."""
    return max(20, min(WIDEST, shutil.get_terminal_size().columns - 1))


def fill(text: str, room: int) -> str:
    """Paragraphs broken anew, examples kept."""
    done: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        examples = [line for line in lines if line.startswith(" ")]
        words = " ".join(line for line in lines if not line.startswith(" "))
        done.append("\n".join([*_wrap(words, room), *_examples(examples, room)]))
    return "\n\n".join(done)


def row(name: str, text: str, room: int) -> str:
    """A line of a list, the second and later ones below the first."""
    return "\n".join(_wrap(text, room, f"  {name:<10} ", " " * 13))


def _wrap(text: str, room: int, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _examples(lines: list[str], room: int) -> Iterator[str]:
    """All comments are beside their commands, or all above them."""
    narrow = any(len(line) > room and _COMMENTED.fullmatch(line) for line in lines)
    for line in lines:
        if match := _COMMENTED.fullmatch(line) if narrow else None:
            indent, command, comment = match.groups()
            yield from _wrap(comment, room, f"{indent}# ", f"{indent}# ")
            line = f"{indent}{command}"
        first, pipe, rest = line.partition(" | ")
        yield from [f"{first} |", f"    {rest}"] if pipe and len(line) > room else [line]


class Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        room = columns()
        super().__init__(prog, **{"width": room, "max_help_position": 24, **options})
        if room < NARROW:
            self._max_help_position = 8

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent(fill(text, width), indent)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # their heading says what they are
            return "".join(self._format_action(each) for each in action._get_subactions())
        return super()._format_action(action)


class DefaultsFormatter(Formatter):
    """And the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        known = action.option_strings and action.default not in (None, False, "", argparse.SUPPRESS)
        return (action.help or "") + (" (default: %(default)s)" if known else "")
