"""The layout of help: as wide as the terminal, but not wider than is pleasant to read.

Texts are written in paragraphs and broken here. Lines that are indented are examples, to be copied:
a command is broken only after a pipe, where a shell reads on, and a comment that has no room beside
its command goes above it.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

from .text import output_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDEST = 100
EFFORT = "[a-z]{1,20}"  # a level of reasoning, as hosting/prompts.py checks it again
NARROW = 50  # columns: below that there is no room for explanations beside the options
_COMMENTED = r"( +)(.*?) +# (.*)"


def columns() -> int:
    """How wide help may be. The last column of the terminal stays free."""
    return max(20, min(WIDEST, output_columns() - 1))


def fill(text: str, room: int) -> str:
    """Break paragraphs into lines of at most `room` columns; examples are kept."""
    done: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        examples = [line for line in lines if line.startswith(" ")]
        words = " ".join(line for line in lines if not line.startswith(" "))
        done.append("\n".join([*_wrap(words, room), *_examples(examples, room)]))
    return "\n\n".join(done)


def row(name: str, text: str, room: int) -> str:
    """An entry of a list: a name, and beside it a text that may take several lines."""
    return "\n".join(_wrap(text, room, f"  {name:<11} ", " " * 14))


def _wrap(text: str, room: int, first: str = "", later: str = "") -> list[str]:
    import textwrap  # only to show help: every command would wait for it

    return textwrap.wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _examples(lines: list[str], room: int) -> Iterator[str]:
    """All comments are beside their commands or, if one has no room there, all above them."""
    narrow = any(len(line) > room and re.fullmatch(_COMMENTED, line) for line in lines)
    for line in lines:
        if match := re.fullmatch(_COMMENTED, line) if narrow else None:
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
        import textwrap

        return textwrap.indent(fill(text, width), indent)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # the heading says what they are
            return "".join(self._format_action(each) for each in action._get_subactions())
        return super()._format_action(action)


class DefaultsFormatter(Formatter):
    """Adds the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        known = action.option_strings and action.default not in (None, False, "", argparse.SUPPRESS)
        return (action.help or "") + (" (default: %(default)s)" if known else "")


def not_empty(text: str) -> str:
    """Refuse the empty text that a shell makes of a variable that is not set, for `type=` of what
    means something else if it is left out. argparse checks a default that is a text, too."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: is a variable not set?")
    return text


def positive(text: str) -> float:
    """Read a number that is more than 0, for `type=` of an option."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def positive_count(text: str) -> int:
    """Read a whole number that is more than 0, for `type=` of an option."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def level(text: str) -> str:
    """Read how much a model is to reason, for `type=` of an option."""
    if not re.fullmatch(EFFORT, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no word such as none, low, medium or high")
    return text


def seconds(text: str) -> float:
    """Read a number of seconds, for `type=` of an option."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
