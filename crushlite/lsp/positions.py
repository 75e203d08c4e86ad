"""Places in a text, and changes of it, as the protocol has them: lines from 0 on, and columns in
UTF-16 units. For people and models both begin with 1."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..errors import BadRequest
from ..records import dataclass
from ..worktree.paths import PATH_CHARS

MOST_EDITS = 10_000  # of one file
URI_CHARS = 3 * PATH_CHARS + 100  # each byte of a path may be written as three characters
MOST_NUMBER = 2**31 - 1  # of a line or column, by the protocol: clients may read no larger one


@dataclass(frozen=True, slots=True)
class Position:
    line: int
    column: int  # in UTF-16 units


def uri_of(path: Path) -> str:
    return "file://" + quote(str(path))


def path_of(uri: object) -> Path | None:
    """The path of a file URI; None for any other, and for one that is too long."""
    if not isinstance(uri, str) or not uri.startswith("file:") or len(uri) > URI_CHARS:
        return None
    try:
        path = unquote(urlsplit(uri).path)
    except ValueError:
        return None
    return Path(path) if path.startswith("/") and "\0" not in path else None


def position_of(value: Any) -> Position:
    """A position as a server sends it; the beginning for what is none."""
    if isinstance(value, dict):
        line, column = value.get("line"), value.get("character")
        if isinstance(line, int) and isinstance(column, int):
            return Position(*(min(max(each, 0), MOST_NUMBER) for each in (line, column)))
    return Position(0, 0)


def start_of(value: Any) -> Position:
    """The beginning of a range."""
    return position_of(value.get("start") if isinstance(value, dict) else None)


def units(text: str) -> int:
    """The length of a text in UTF-16 units."""
    return len(_encoded(text)) // 2


def _encoded(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def find_symbol(text: str, symbol: str, line: int) -> Position:
    """Where a symbol stands first in a text as a whole word, from this line (from 1 on; 0: any) on,
    else anywhere. Of `a.b` the last part is meant. Raises BadRequest if it is not there."""
    name = re.split(r"\.|::|->", symbol.strip())[-1]
    if not name:
        raise BadRequest("symbol must be a name that stands in the file")
    found = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    lines = text.split("\n")
    first = min(max(line - 1, 0), len(lines))
    for number in (*range(first, len(lines)), *range(first)):
        if match := found.search(lines[number]):
            return Position(number, units(lines[number][: match.start()]))
    raise BadRequest(f"{name} does not stand in that file: view it, and give a name that does")


def apply_edits(text: str, edits: list[Any]) -> str:
    """A text with the edits of a server, which all are about the text as it is. Takes linear time.
    Raises BadRequest for edits that overlap or make no sense."""
    if len(edits) > MOST_EDITS:
        raise BadRequest(f"the server wants {len(edits)} changes of one file: too many")
    data = _encoded(text)  # two bytes for each column
    lines = [units(line) for line in text.split("\n")]
    starts = [0, *itertools.accumulate(length + 1 for length in lines)]

    def offset(value: Any) -> int:
        place = position_of(value)
        if place.line >= len(lines):
            return len(data)
        return 2 * (starts[place.line] + min(place.column, lines[place.line]))

    places = []
    for edit in edits:
        where = edit.get("range") if isinstance(edit, dict) else None
        if not isinstance(where, dict) or not isinstance(edit.get("newText"), str):
            raise BadRequest("the server sent a change that cannot be read")
        places.append((offset(where.get("start")), offset(where.get("end")), edit["newText"]))
    pieces, at = [], 0
    for begin, end, new in sorted(places, key=lambda place: place[:2]):
        if begin < at or end < begin:
            raise BadRequest("the server sent changes that overlap")
        pieces += [data[at:begin], _encoded(new)]
        at = end
    try:
        return b"".join([*pieces, data[at:]]).decode("utf-16-le")
    except UnicodeDecodeError:
        raise BadRequest("the server sent a change that cuts a character in two") from None
