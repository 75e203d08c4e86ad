"""JSON schemas of tool servers, made such that every provider takes them.

Providers refuse a whole request for one schema that they do not like. They want an object with
named properties at the top, without alternatives there; schemas that are objects, and arrays that
say of what.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_CHARS = 64 * 1024  # of one schema, as JSON
MOST_DEPTH = 40
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_NOT_AT_THE_TOP = (*_BRANCHES, "not", "enum", "const", "if", "then", "else", "$ref")
_DROPPED = frozenset({"$schema", "$id", "$comment", "$anchor", "$dynamicRef", "$dynamicAnchor"})
_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_LISTS = frozenset({*_BRANCHES, "prefixItems"})
_SINGLE = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
)


class BadSchema(ValueError):
    """A schema that no call could be made with; the message says why."""


def acceptable(schema: Any) -> dict[str, Any]:
    """The schema of a tool's arguments as it is sent to providers. Raises BadSchema."""
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise BadSchema("its inputSchema is no object")
    try:
        size = len(json.dumps(schema))
    except (ValueError, RecursionError):
        raise BadSchema("its inputSchema is nested too deeply") from None
    if size > MOST_CHARS:
        raise BadSchema(f"its inputSchema has more than {MOST_CHARS} characters")
    cleaner = _Cleaner(schema)
    whole = cleaner.clean(schema, 0)
    assert isinstance(whole, dict)
    return _top(whole)


def _top(schema: dict[str, Any]) -> dict[str, Any]:
    """The outermost object: alternatives there become optional properties."""
    if schema.get("type", "object") not in ("object", ["object"]):
        raise BadSchema(f"its arguments are no object but {str(schema['type'])[:40]!r}")
    properties: dict[str, Any] = {}
    wanted = _names(schema)
    for key in _BRANCHES:
        for branch in schema.get(key) or ():
            if isinstance(branch.get("properties"), dict):
                properties |= branch["properties"]
                wanted |= _names(branch) if key == "allOf" else {}
    own = schema.get("properties")
    properties |= own if isinstance(own, dict) else {}
    for name in [name for name in properties if not _PROPERTY.fullmatch(name)]:
        if name in wanted:
            raise BadSchema(f"its argument {name[:40]!r} has a name that providers refuse")
        del properties[name]
    rest = {key: value for key, value in schema.items() if key not in _NOT_AT_THE_TOP}
    rest |= {"type": "object", "properties": properties}
    rest.pop("required", None)
    names = [name for name in wanted if name in properties]
    return rest | ({"required": names} if names else {})


def _names(schema: dict[str, Any]) -> dict[str, None]:
    """The names of required properties, each once, in their order."""
    required = schema.get("required")
    return dict.fromkeys(map(str, required)) if isinstance(required, list) else {}


class _Cleaner:
    """`root` is the schema that references are looked up in."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def clean(self, schema: Any, depth: int) -> Any:
        """A schema inside of another: an object in any case."""
        if depth > MOST_DEPTH:
            raise BadSchema("its inputSchema is nested too deeply")
        if not isinstance(schema, dict):
            return {}  # `true`, which allows anything, or nonsense
        if "$ref" in schema and not self._leads_somewhere(schema["$ref"]):
            schema = {key: value for key, value in schema.items() if key != "$ref"}
        answer: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _DROPPED or (value is None and key != "default"):
                continue
            answer[key] = self._value(key, value, depth)
        if answer.get("type") == "array" and "items" not in answer:
            answer["items"] = {}
        return answer

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if key in _MAPS:
            entries = value.items() if isinstance(value, dict) else ()
            return {name: self.clean(each, depth + 1) for name, each in entries}
        if key in _LISTS or (key == "items" and isinstance(value, list)):
            listed = value if isinstance(value, list) else []
            cleaned = [self.clean(each, depth + 1) for each in listed]
            return cleaned if key != "items" else {"anyOf": cleaned} if cleaned else {}
        if key == "additionalProperties" and isinstance(value, bool):
            return value
        if key in _SINGLE:
            return self.clean(value, depth + 1)
        return value

    def _leads_somewhere(self, reference: Any) -> bool:
        """Whether a reference leads to a definition in the same schema."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return bool(reference == "#")
        found: Any = self._root
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        return isinstance(found, dict | bool)
