"""One command: a Markdown file whose text is a prompt, with `$NAME` for what the user fills in.

`$NAME` (capital letters, digits, `_`) is an argument that must be given. `$ARGUMENTS` is all that
was typed behind the command, `$1` to `$9` are single words of it; they may be empty. Front matter,
as Claude Code and opencode have it, describes the command and is not sent. Nothing in the text is
run or included.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..features.wire import CommandArgument, CommandInfo
from ..records import dataclass
from ..worktree.frontmatter import split, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MOST_ARGUMENTS = 32
DESCRIPTION_CHARS = 200
MOST_CHARS = 4 * 1024 * 1024  # of all values in the prompt: each stands there as often as its name
ALL = "ARGUMENTS"  # everything that was typed
_ARGUMENT = re.compile(r"\$([A-Z][A-Z0-9_]*|[1-9](?![0-9]))")
_KNOWN = {"description", "argument-hint", "allowed-tools", "model", "agent", "name", "title"}


@dataclass(frozen=True, slots=True)
class FileCommand:
    """Implements features.wire.OfferedCommand."""

    info: CommandInfo
    path: Path
    text: str

    async def expand(self, arguments: Mapping[str, str], text: str) -> str:
        named = _ARGUMENT.findall(self.text)
        if sum(len(arguments.get(name, "")) for name in named) > MOST_CHARS:
            raise BadRequest(f"{self.info.name} would be longer than {MOST_CHARS} characters")
        filled = _ARGUMENT.sub(lambda found: arguments.get(found[1], ""), self.text).strip()
        return f"{filled}\n\n{text}" if text else filled


def read_command(path: Path, data: bytes, source: str, steps: Sequence[str]) -> FileCommand:
    """A command from the bytes of its file. `steps` are its folders below the folder of commands,
    and its name. Raises BadRequest, which says what is wrong with it."""
    text = data.decode("utf-8", "replace")
    page = split(text)
    described = page.closed and not _KNOWN.isdisjoint(key.lower() for key in page.fields)
    body = page.body if described else text.removeprefix("\ufeff")
    if not body.strip():
        raise BadRequest("it is empty")
    names = list(dict.fromkeys(_ARGUMENT.findall(body)))
    if len(names) > MOST_ARGUMENTS:
        raise BadRequest(f"it has more than {MOST_ARGUMENTS} arguments")
    hint = text_of(page.fields.get("argument-hint")) if described else ""
    about = text_of(page.fields.get("description")) if described else ""
    first = next(line for line in body.splitlines() if line.strip())
    name = ":".join(re.sub(r"[^\w.-]+", "-", step) for step in steps)
    info = CommandInfo(
        id=f"{source}:{name}",
        name=name,
        description=" ".join((about or first.strip("# ")).split())[:DESCRIPTION_CHARS],
        source=source,
        arguments=[_argument(each, hint) for each in names],
    )
    return FileCommand(info, path, body)


def _argument(name: str, hint: str) -> CommandArgument:
    optional = name == ALL or name.isdecimal()
    return CommandArgument(name, hint if name == ALL else "", required=not optional)


def assign(info: CommandInfo, given: Mapping[str, str], text: str) -> tuple[dict[str, str], str]:
    """The value of each argument of a command, and what is left of the text that was typed behind
    its name. A command with one argument gets all of the text. Of several, each takes a word, or
    what is in quotes, in their order; `NAME=VALUE` names one, and the last takes the rest. Raises
    BadRequest if one that is required is missing, or one is given that it does not have."""
    known = {argument.name: argument for argument in info.arguments}
    if unknown := [name for name in given if name not in known]:
        has = ", ".join(known) or "none"
        raise BadRequest(f"{info.name} has no argument {unknown[0][:80]!r}: it has {has}")
    values, text = dict(given), text.strip()
    if text and ALL in known:
        values.setdefault(ALL, text)
    open_names = [name for name in known if name not in values]
    if text and len(open_names) == 1 and ALL not in known:
        values[open_names[0]], text = text, ""
    elif text and open_names:
        _take_words(values, open_names, text)
    missing = [name for name, each in known.items() if each.required and not values.get(name)]
    if missing:
        raise BadRequest(f"{info.name} needs {', '.join(missing)}")
    return values, "" if known else text


def _take_words(values: dict[str, str], names: list[str], text: str) -> None:
    words = _words(text)
    for word in list(words):
        name, equals, value = word.partition("=")
        if equals and name in names:
            values[name] = value
            names.remove(name)
            words.remove(word)
    for position, name in enumerate(names):
        last = position == len(names) - 1
        if words[position:]:
            values[name] = " ".join(words[position:]) if last else words[position]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()  # a quote that does not end, as in "don't"
