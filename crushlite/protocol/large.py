"""Reading a large JSON text without keeping other threads from running.

json's scanner is C code that holds the interpreter while it reads a string, however long: one of
28 MiB with many escapes stops the event loop for a second, also from another thread. So the long
strings of a body are cut out first and read in pieces; what is left, the skeleton, is short, and
holds a mark in the place of each.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Any

from ..unique import random_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 1024  # characters of a string that is cut out
MAX_SKELETON = 4 << 20  # characters: what a scanner reads in 50 ms
_PIECE = 16 * 1024
_ESCAPE = 12  # characters of the longest escape, a surrogate pair
# The inside of a string, up to what is no good or incomplete.
_INSIDE = re.compile(
    r'(?:[^"\\]++'
    r'|\\["\\/bfnrt]'
    r"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}(?=[\s\S]{6}))*+"  # lone: not if the other half may follow
)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Cut:
    """A text without its long strings. Raises ValueError if a string is no JSON."""

    def __init__(self, body: bytes) -> None:
        self._text = _decoded(body)
        self._mark = random_hex(8)  # so that no text of the sender is taken for a mark
        self._long: dict[str, str] = {}
        self.commas = 0  # outside strings: one less than there are values
        self.skeleton = "".join(self._pieces())

    def _pieces(self) -> Iterator[str]:
        text, at, size = self._text, 0, 0
        while (opening := text.find('"', at)) >= 0:
            self.commas += text.count(",", at, opening)
            *ends, closing = self._ends(opening + 1)
            size += opening - at
            yield text[at:opening]
            if closing - opening > LONG:
                name = f"{self._mark}{len(self._long)}"
                self._long[name] = self._read(opening + 1, [*ends, closing])
                yield f'"{name}"'
            else:
                size += closing - opening
                yield text[opening : closing + 1]
            if size > MAX_SKELETON:
                break
            at = closing + 1
        if size + len(text) - at > MAX_SKELETON:
            raise ValueError(f"more than {MAX_SKELETON} bytes besides long texts")
        self.commas += text.count(",", at)
        yield text[at:]

    def _ends(self, at: int) -> list[int]:
        """Where the pieces end of the string that has begun before `at`: last its closing quote.
        No piece ends inside an escape."""
        text, ends = self._text, []
        quote = text.find('"', at)
        if quote >= 0 and text.find("\\", at, quote) < 0:
            return [*range(at + _PIECE, quote, _PIECE), quote]
        while True:
            limit = at + _PIECE
            found = _INSIDE.match(text, at, limit)
            at = found.end() if found is not None else at
            ends.append(at)
            if at < len(text) and text[at] == '"':
                return ends
            if at < limit - _ESCAPE or at >= len(text):
                raise ValueError(f"a text is not closed, or no text, at character {at}")

    def _read(self, at: int, ends: list[int]) -> str:
        pieces = []
        for end in ends:
            piece = json.loads(f'"{self._text[at:end]}"')
            if not piece.isascii() and _SURROGATE.search(piece):
                raise ValueError(f"a text holds a lone surrogate before character {end}")
            pieces.append(piece)
            at = end
        return "".join(pieces)

    def restore(self, value: Any) -> Any:
        """The value of the skeleton, whose nesting was checked, with the long strings in it. Raises
        ValueError for a long key."""
        if isinstance(value, str):
            return self._long.get(value, value)
        if isinstance(value, list):
            return [self.restore(item) for item in value]
        if not isinstance(value, dict):
            return value
        if any(key in self._long for key in value):
            raise ValueError(f"a key has more than {LONG} characters")
        return {key: self.restore(item) for key, item in value.items()}


def _decoded(body: bytes) -> str:
    """The text of UTF-8 bytes, decoded in pieces. Raises UnicodeDecodeError,
    whose `start` counts from the beginning of a piece."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    pieces = [decoder.decode(view[at : at + (1 << 20)]) for at in range(0, len(view), 1 << 20)]
    return "".join([*pieces, decoder.decode(b"", final=True)])
