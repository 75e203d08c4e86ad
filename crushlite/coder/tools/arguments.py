"""Checking the arguments of a tool call: each function returns a value or raises BadRequest.

The model reads the message and tries again. A value of the wrong type is accepted if it can mean
only one thing: small models often write numbers and booleans as strings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest

if TYPE_CHECKING:
    from .base import ToolUse

_SURROGATE = re.compile("[\ud800-\udfff]")
MOST = 10**9  # larger than any sensible count


def schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """A JSON schema of an object with these properties."""
    return {"type": "object", "properties": properties, "required": list(required)}


def plain(value: object, name: str) -> str:
    """A string that can be stored, shown and written to a file. `name` is for the message."""
    if not isinstance(value, str):
        absent = " and is missing" if value is None else ""
        raise BadRequest(f"{name} must be a string{absent}")
    if _SURROGATE.search(value):
        raise BadRequest(f"{name} holds half of a character (a lone surrogate)")
    return value


def text(call: ToolUse, key: str, *, required: bool = True) -> str:
    """A string argument; if it is not required, empty when absent."""
    value = call.input.get(key)
    return "" if value is None and not required else plain(value, key)


def number(call: ToolUse, key: str, default: int) -> int:
    """An argument that is a whole number and not negative; `default` when absent."""
    value = call.input.get(key)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch("[0-9]{1,10}", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadRequest(f"{key} must be a whole number that is not negative")
    return value


def flag(value: object, name: str) -> bool:
    """A boolean; false when absent. `name` is for the message."""
    known = {"true": True, "false": False, "none": False}
    found = (
        known.get(str(value).lower()) if value is None or isinstance(value, str | bool) else None
    )
    if found is None:
        raise BadRequest(f"{name} must be true or false")
    return found


def texts(call: ToolUse, key: str) -> list[str]:
    """An argument that is a list of strings; empty when absent."""
    value = call.input.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(f"{key} must be a list of strings")
    return [plain(item, f"every item of {key}") for item in value]


def objects(call: ToolUse, key: str, most: int) -> list[dict[str, Any]]:
    """An argument that is a list of 1 to `most` objects."""
    value = call.input.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise BadRequest(f"{key} must be a list of at least one object")
    if len(value) > most:
        raise BadRequest(f"{key} holds {len(value)} objects: use at most {most}")
    return value
