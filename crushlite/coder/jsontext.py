"""Reading and writing the JSON of models without holding up the event loop.

`json.loads` and `json.dumps` are single calls into C: no other thread runs before they return. For
long strings they are fast (8 MiB in 30 ms), for many small values they are not (1 MiB of empty
lists: 70 ms), and whoever sends the text decides which it is. So a text with many values is read by
Python's own code, and everything that may be long is written by it. That takes ten times as long
for small values, is the same for strings, and lets other threads run all the time: such calls
belong in a thread.
"""

from __future__ import annotations

import json
import json.scanner
from typing import Any

LIGHT_CHARS = 128 * 1024  # a text of this length takes at most 10 ms, whatever it holds
MANY_VALUES = 20_000  # and so do this many values
DEEP = 64  # levels of lists and objects


class _GentleDecoder(json.JSONDecoder):
    """A decoder in Python; only strings are read in C."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def is_heavy(text: str) -> bool:
    """Whether `loads` may take so long that it belongs in a thread. Characters in strings are
    counted too: then it is called there without need."""
    if len(text) <= LIGHT_CHARS:
        return False
    return text.count(",") + text.count("[") + text.count("{") > MANY_VALUES


def loads(text: str, *, strict: bool = False) -> Any:
    """The value of a JSON text; with `strict`, NaN and the infinities are refused. Raises
    ValueError, also for a text that is nested too deeply."""
    try:
        heavy = is_heavy(text)
        if not strict and not heavy:
            return json.loads(text)  # it keeps its decoder: a stream has one text per word
        decoder = _GentleDecoder if heavy else json.JSONDecoder
        return (decoder(parse_constant=_refuse) if strict else decoder()).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def dumps(value: Any, most: int, *, is_light: bool = False) -> str:
    """A value as JSON without blanks. Raises ValueError if it is longer than `most` characters, or
    cannot be written. `is_light` says that it is not much longer than LIGHT_CHARS: it is written
    in C then."""
    # It does not look for circles, which takes a fifth of its time: one is a RecursionError.
    encoder = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
    )
    if is_light:
        return encoder.encode(value)
    pieces: list[str] = []
    for piece in encoder.iterencode(value):
        most -= len(piece)
        if most < 0:
            raise ValueError("it is too long")
        pieces.append(piece)
    return "".join(pieces)


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than DEEP levels. Python's code takes time in
    proportion to the depth for every value that it writes: 100 ms for 800 levels."""
    level: list[Any] = [[value]]
    for _ in range(DEEP + 1):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def beginning(value: Any, most: int) -> str:
    """A value as JSON, for messages: all of it if it is small, else what is near its beginning and
    not deep in it. `most` is for characters and values. Strings are never cut, so that a secret in
    one can be recognised."""
    return json.dumps(_cut(value, [most], 0))


def _cut(value: Any, room: list[int], depth: int) -> Any:
    """A copy of the first entries of a value, as many as there is room for."""
    room[0] -= len(value) + 2 if isinstance(value, str) else 5
    if not isinstance(value, dict | list):
        return value
    if depth >= 8 and value:
        return "..."
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    kept: list[tuple[Any, Any]] = []
    for key, item in pairs:
        if room[0] < 0:
            break
        kept.append((key, _cut(item, room, depth + 1)))
    return dict(kept) if isinstance(value, dict) else [item for _, item in kept]


def size(text: str) -> int:
    """How many bytes a text takes in the JSON that clients get, which is ASCII."""
    return len(json.encoder.encode_basestring_ascii(text))
