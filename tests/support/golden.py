"""The golden files: each shape of JSON as data, and the check of a value against it.

A file of tests/golden says for its shape

    shape, about          its name, and where it travels
    sent_by               daemon, client, or nobody: it is read but never sent
    class                 the wire class behind it, if it has one
    extends               a shape whose keys it has too
    always                key -> type: there in every value
    omitted_when_empty    key -> type: there exactly if it is not "", 0, false, [] or {}
    omitted_when_unset    key -> type: there only if it was set, and then even if empty
    values, fixed         what a key may be, or must be
    parts                 the types of a message's parts, as a pattern
    added                 keys that the base protocol does not have, with the reason ("*": all)
    examples              values by name

and a type is string, int (no fraction, not even .0), number, bool, uuid, base64, json (a string of
JSON, or empty), object, null, any, [T], {T} (a map), the name of another shape, or keys written
out. Where it says neither null nor any, null is a flaw.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from tests.support.places import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["FIELDS", "KEYS", "TYPES", "Goldens", "exact", "load"]

FOLDER = TESTS / "golden"
KEYS = ("always", "omitted_when_empty", "omitted_when_unset")
FIELDS = {"shape", "about", "sent_by", "class", "extends", *KEYS, "values", "fixed", "parts"}
FIELDS |= {"added", "examples"}


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except binascii.Error:
        return False


def _is_json(value: Any) -> bool:
    try:
        return isinstance(value, str) and (value == "" or json.loads(value) is not None)
    except ValueError:
        return False


# type(), not isinstance(): True is an int to Python, but not on the wire.
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: type(value) is str,
    "int": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "bool": lambda value: type(value) is bool,
    "object": lambda value: type(value) is dict,
    "null": lambda value: value is None,
    "any": lambda value: True,
    "uuid": _is_uuid,
    "base64": _is_base64,
    "json": _is_json,
}


def exact(value: Any) -> str:
    """A value as text in which 1, 1.0 and true differ, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True)


def load() -> dict[str, dict[str, Any]]:
    """The content of the files, by name."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*"))}


class Goldens:
    """The shapes, with the keys that they inherit. `seen` collects those that were checked."""

    def __init__(self) -> None:
        files = load()
        self.answers = files.pop("answers")
        self.shapes = {name: _whole(files, name) for name in files}
        self.seen: set[str] = set()

    def flaws(self, kind: Any, value: Any, where: str = "") -> list[str]:
        """What is wrong with a value of this type; each flaw says where it is."""
        where = where or str(kind)
        if isinstance(kind, dict):
            return list(self._object(kind, value, where))
        if kind in TYPES:
            return [] if TYPES[kind](value) else [f"{where} is no {kind}: {value!r}"]
        if kind == "parts":
            return list(self._parts(value, where))
        if kind[0] == "[":
            if type(value) is not list:
                return [f"{where} is no array: {value!r}"]
            return self._items(kind[1:-1], enumerate(value), where)
        if kind[0] == "{":
            if type(value) is not dict:
                return [f"{where} is no object: {value!r}"]
            return self._items(kind[1:-1], value.items(), where)
        self.seen.add(kind)
        return list(self._object(self.shapes[kind], value, where))

    def _items(self, kind: str, items: Iterable[tuple[Any, Any]], where: str) -> list[str]:
        found = [self.flaws(kind, item, f"{where}[{at!r}]") for at, item in items]
        return [flaw for flaws in found for flaw in flaws]

    def _object(self, spec: dict[str, Any], value: Any, where: str) -> Iterator[str]:
        if type(value) is not dict:
            yield f"{where} is no object: {value!r}"
            return
        always, empty, unset = (spec.get(name, {}) for name in KEYS)
        for key in always.keys() - value.keys():
            yield f"{where}.{key} is missing"
        for key in empty.keys() & value.keys():
            if not value[key]:
                yield f"{where}.{key} is empty and there all the same: {value[key]!r}"
        for key, item in value.items():
            kind = always.get(key) or empty.get(key) or unset.get(key)
            if kind is None:
                yield f"{where}.{key} is not in the golden file"
            else:
                yield from self.flaws(kind, item, f"{where}.{key}")
        yield from _content(spec, value, where)

    def _parts(self, value: Any, where: str) -> Iterator[str]:
        if type(value) is not list:
            yield f"{where} is no list: {value!r}"
            return
        for at, part in enumerate(value):
            if type(part) is not dict or part.keys() != {"type", "data"}:
                yield f"{where}[{at}] is not exactly a type and data: {part!r}"
            elif f"part_{part['type']}" not in self.shapes:
                yield f"{where}[{at}].type is unknown: {part['type']!r}"
            else:
                yield from self.flaws(f"part_{part['type']}", part["data"], f"{where}[{at}].data")


def _content(spec: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    """What is wrong beyond keys and types: values that are not allowed."""
    for key, allowed in spec.get("values", {}).items():
        if key in value and value[key] not in allowed:
            yield f"{where}.{key} is none of {allowed}: {value[key]!r}"
    for key, wanted in spec.get("fixed", {}).items():
        if value.get(key) != wanted:
            yield f"{where}.{key} is not {wanted!r}: {value.get(key)!r}"
    if "parts" in spec and isinstance(value.get("parts"), list):
        order = "".join(f"<{part['type']}>" for part in value["parts"])
        if not re.fullmatch(spec["parts"], order):
            yield f"{where}.parts are not {spec['parts']!r}: {order!r}"


def _whole(files: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """A file with the keys and rules of the shape it extends; its own win."""
    own = files[name]
    if "extends" not in own:
        return own
    base = _whole(files, own["extends"])
    merged = {
        field: {**base.get(field, {}), **own.get(field, {})}
        for field in (*KEYS, "values", "fixed", "added")
    }
    return {**base, **own, **merged}
