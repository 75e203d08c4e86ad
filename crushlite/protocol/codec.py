"""Dataclass <-> JSON, and the strict JSON reader for everything that comes from outside.

The rules follow the base protocol's decoder where clients rely on it: unknown keys are ignored,
`null` keeps a field's default, an integer field takes no fraction. What that decoder accepts and
should not is refused, with a message that names the place: duplicate keys, NaN, lone surrogates,
UTF-16, deep nesting and integers outside 64 bits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from ..errors import BadRequest
from ..records import is_record

JSON = Any  # a JSON value of unknown shape
T = TypeVar("T")

MAX_DEPTH = 64  # our own deepest document is 9 levels; 64 leaves room for tool parameters
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1  # what a SQLite INTEGER and a Go int64 can hold
_INT_LENGTH = len(str(_INT_MIN))  # no integer that fits is longer (JSON has no leading zeros)
_SHOWN = 40
_INFINITIES = (math.inf, -math.inf)  # what a literal like 1e400 is read as
# Large bodies hold long texts, not many values: millions of numbers would take seconds. Only bodies
# above LARGE are checked; those are to be read in a thread, and in a way that lets others run.
MAX_VALUES = 200_000
LARGE = 64 * 1024
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

# Made once: json.dumps with separators builds a new encoder on every call. It does not look for
# circles, which takes a fifth of its time: what is encoded here has none.
_encoder = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, ensure_ascii=True, check_circular=False
)

_IF_EMPTY, _IF_NONE = "empty", "none"  # when a field is left out: what Go calls omitempty


def wire(*, name: str = "", omit: str = "") -> dict[str, object]:
    """Field metadata: the key on the wire if it differs, and when the field is left out."""
    return {"name": name, "omit": omit}


def tagged(classes: dict[str, type]) -> dict[str, object]:
    """Field metadata for a list of `{"type": ..., "data": {...}}` values of these classes."""
    return {"tags": classes}


def key_of(field: dataclasses.Field[Any]) -> str:
    """The key of a field on the wire."""
    return str(field.metadata.get("name") or field.name)


def has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def without_none(hint: Any) -> Any:
    """The type X of `X | None`; any other type as it is."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(option for option in get_args(hint) if option is not type(None))


# Encoding ---------------------------------------------------------------------------------------


def dumps(value: JSON) -> bytes:
    """Compact ASCII JSON. It has no line breaks, so it can be a line of an event stream."""
    return _encoder.encode(value).encode("ascii")


def encode(value: object) -> JSON:
    """The JSON value of a dataclass, or of a list or dict of some. Raises TypeError for others."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    answer: dict[str, JSON] = {}
    for attribute, key, omit, has_tags in _encode_plan(cast("Any", type(value))):
        item = getattr(value, attribute)
        if omit and (item is None or (omit == _IF_EMPTY and not item)):
            continue
        if has_tags:
            answer[key] = [{"type": part.tag, "data": encode(part)} for part in item]
        elif item.__class__ in _PLAIN:
            answer[key] = item
        else:
            answer[key] = encode(item)
    return answer


_PLAIN = frozenset({str, int, float, bool, type(None)})


@functools.cache
def _encode_plan(cls: Any) -> tuple[tuple[str, str, str, bool], ...]:
    if not is_record(cls):
        raise TypeError(f"{cls.__name__} is not a wire type")
    return tuple(
        (f.name, key_of(f), f.metadata.get("omit", ""), "tags" in f.metadata) for f in fields(cls)
    )


# Reading JSON -----------------------------------------------------------------------------------


class NotJSON(BadRequest):
    """A text is not JSON as it is accepted here. `reason` is for texts that are no requests, such
    as files: it repeats no value of the text, which may be a key."""

    def __init__(self, reason: str, with_value: str = "") -> None:
        super().__init__(f"failed to decode request: {with_value or reason}")
        self.reason = reason


class _IntegerTooLarge(ValueError):
    """Holds the literal."""


def loads(body: bytes) -> JSON:
    """Parse a request body strictly. Raises NotJSON."""
    if len(body) <= LARGE:
        if not body.strip():
            raise NotJSON("the body is empty, JSON was expected")
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotJSON(f"not UTF-8 at byte {error.start}") from None
        return _parse(text)
    from .large import Cut  # only now: most bodies are small

    try:
        cut = Cut(body)
        if cut.commas >= MAX_VALUES:
            raise NotJSON(f"more than {MAX_VALUES} values")
        return cut.restore(_parse(cut.skeleton))
    except UnicodeDecodeError:
        raise NotJSON("not UTF-8") from None
    except ValueError as error:
        raise NotJSON(str(error)) from None


def _parse(text: str) -> JSON:
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJSON(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise NotJSON(f"nested deeper than {MAX_DEPTH}") from None
    except _IntegerTooLarge as error:
        flaw = "does not fit in 64 bits"
        raise NotJSON(f"an integer {flaw}", f"the integer {_shown(str(error))} {flaw}") from None
    except ValueError as error:
        raise NotJSON(str(error)) from None
    _check_tree(value, surrogates=_SURROGATE_ESCAPE.search(text) is not None)
    return value


def _pairs(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    answer = dict(pairs)
    if len(answer) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object has the key {_shown(twice)} twice")
    return answer


def _no_constant(name: str) -> JSON:
    raise ValueError(f"{name} is not a JSON number")


def _integer(text: str) -> int:
    # Length first: int() of a long text takes quadratic time, and past 4,300 digits Python
    # refuses it in words that are no use to the sender.
    if len(text) <= _INT_LENGTH and _INT_MIN <= (value := int(text)) <= _INT_MAX:
        return value
    raise _IntegerTooLarge(text)


_decoder = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_no_constant, parse_int=_integer
)


# Where a value stands: its name, or the place around it and a key or index there. Made a path only
# for an error message: the full paths of a wide and deep body would take more memory than it.
Place = str | tuple["Place", str | int]


def _check_tree(root: JSON, *, surrogates: bool) -> None:
    """Raise NotJSON for nesting deeper than MAX_DEPTH, for infinite numbers and, if `surrogates`,
    for texts that are not Unicode. Not recursive: the parser lets deeper nesting through."""
    looked_at = {dict, list, float, str} if surrogates else {dict, list, float}
    todo: list[tuple[int, Place, JSON]] = [(1, "body", root)]
    while todo:
        depth, place, value = todo.pop()
        if isinstance(value, float):
            if value in _INFINITIES:
                raise NotJSON(f"{_path(place)} is too large a number")
        elif isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise NotJSON(f"nested deeper than {MAX_DEPTH}")
            if surrogates and isinstance(value, dict) and not all(map(_is_text, value)):
                raise NotJSON(f"a key of {_path(place)} holds a lone surrogate")
            for step, item in value.items() if isinstance(value, dict) else enumerate(value):
                if item.__class__ in looked_at:
                    todo.append((depth + 1, (place, step), item))
        elif surrogates and isinstance(value, str) and not _is_text(value):
            raise NotJSON(f"{_path(place)} holds a lone surrogate")


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# Decoding ---------------------------------------------------------------------------------------


def decode(cls: type[T], value: JSON, where: Place = "body") -> T:
    """Build a dataclass from a JSON object; raise BadRequest naming the field that is wrong."""
    if not isinstance(value, dict):
        raise BadRequest(f"{_path(where)} must be an object, not {_kind(value)}")
    arguments: dict[str, JSON] = {}
    for attribute, key, plain, read, required in _decode_plan(cast("Any", cls)):
        item = value.get(key)
        if item.__class__ is plain:
            arguments[attribute] = item
        elif item is not None:
            arguments[attribute] = read(item, where, key)
        elif required:
            raise BadRequest(f"{_path(where)}.{key} is required")
    return cls(**arguments)


# Checks the value at a key or index of a place, and returns it as the field's type.
_Read = Callable[[JSON, Place, "str | int"], JSON]


@functools.cache
def _decode_plan(cls: Any) -> tuple[tuple[str, str, Any, _Read, bool], ...]:
    """Of each field its name and key, the type whose values need not be read, the function that
    reads others, and whether it is required."""
    hints = _hints(cls)
    return tuple(
        (
            f.name,
            key_of(f),
            hint if (hint := without_none(hints[f.name])) in (str, bool) else None,
            _read_tagged(f.metadata["tags"]) if "tags" in f.metadata else _reader(hints[f.name]),
            not has_default(f),
        )
        for f in fields(cls)
    )


def _hints(cls: Any) -> dict[str, Any]:
    """The types of the fields. Evaluating one takes long, and most are plain ones."""
    written = {f.name: f.type for f in fields(cls)}
    plain = {name: _NAMED[kind] for name, kind in written.items() if kind in _NAMED}
    if len(plain) == len(written):
        return plain
    if any(is_record(base) for base in cls.__bases__):  # perhaps with names of another module
        return typing.get_type_hints(cls)
    others = {name: kind for name, kind in written.items() if name not in plain}
    module = vars(sys.modules[cls.__module__])
    return plain | typing.get_type_hints(types.SimpleNamespace(__annotations__=others), module)


_NAMED: dict[Any, Any] = {"str": str, "int": int, "bool": bool, "float": float, "Any": Any}


def _reader(hint: Any) -> _Read:
    """The function that reads a value of this type."""
    hint = without_none(hint)
    origin = get_origin(hint)
    if origin is list:
        return _read_list(_reader(get_args(hint)[0]))
    if origin is dict:
        return _read_dict(_reader(get_args(hint)[1]))
    if is_record(hint):
        return lambda value, where, key: decode(cast("type", hint), value, (where, key))
    return _READ_SCALAR[hint]


def _read_list(read: _Read) -> _Read:
    def read_list(value: JSON, where: Place, key: str | int) -> JSON:
        if not isinstance(value, list):
            raise _mismatch("an array", value, where, key)
        place = where, key
        return [read(item, place, index) for index, item in enumerate(value)]

    return read_list


def _read_dict(read: _Read) -> _Read:
    def read_dict(value: JSON, where: Place, key: str | int) -> JSON:
        if not isinstance(value, dict):
            raise _mismatch("an object", value, where, key)
        place = where, key
        return {name: read(item, place, name) for name, item in value.items()}

    return read_dict


def decode_tagged(classes: dict[str, type], value: JSON, where: str) -> list[Any]:
    """Build a list of these classes, as of a field with `tagged` metadata; raise BadRequest."""
    return cast("list[Any]", _read_tagged(classes)(value, "body", where))


def _read_tagged(classes: dict[str, type]) -> _Read:
    def read_part(value: JSON, where: Place, key: str | int) -> JSON:
        tag = value.get("type") if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in classes:
            known = ", ".join(sorted(classes))
            raise BadRequest(f"{_path((where, key))}.type must be one of {known}")
        return decode(classes[tag], value.get("data"), ((where, key), "data"))

    return _read_list(read_part)


def _read_exact(kind: type, expected: str) -> _Read:
    def read_exact(value: JSON, where: Place, key: str | int) -> JSON:
        if isinstance(value, kind):
            return value
        raise _mismatch(expected, value, where, key)

    return read_exact


def _read_int(value: JSON, where: Place, key: str | int) -> JSON:
    if isinstance(value, int) and not isinstance(value, bool):
        if _INT_MIN <= value <= _INT_MAX:
            return value
        raise BadRequest(f"{_path((where, key))} must fit in 64 bits")
    raise _mismatch("an integer", value, where, key)


def _read_float(value: JSON, where: Place, key: str | int) -> JSON:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(_read_int(value, where, key))  # checked first: float() may overflow
    raise _mismatch("a number", value, where, key)


_READ_SCALAR: dict[Any, _Read] = {
    Any: _read_exact(object, ""),
    str: _read_exact(str, "a string"),
    bool: _read_exact(bool, "true or false"),
    int: _read_int,
    float: _read_float,
}


def _mismatch(expected: str, value: JSON, where: Place, key: str | int) -> BadRequest:
    return BadRequest(f"{_path((where, key))} must be {expected}, not {_kind(value)}")


def _path(place: Place) -> str:
    if isinstance(place, str):
        return place
    where, key = place
    return _path(where) + (f"[{key}]" if isinstance(key, int) else f".{_shown(key)}")


def _kind(value: JSON) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _shown(text: str) -> str:
    # The sender's text for an error message: cut, and escaped, so that line breaks and lone
    # surrogates reach neither a log nor a terminal.
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")[1:-1]


# For the dataclasses.


def omitted(default: Any = "") -> Any:
    """A field that is left out when it is empty or, with None as its default, when it is None. With
    the class `list` or `dict` its default is a new one."""
    metadata = wire(omit=_IF_NONE if default is None else _IF_EMPTY)
    if default in (list, dict):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
