"""What a model sends as arguments, checked: each helper returns the value or raises BadRequest.

The texts are for the model, which reads them and tries again. A value is taken when it can mean
only one thing (a number or a truth value written as a string, as small models like to do).

Knows nothing of: what the arguments are for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...errors import BadRequest

if TYPE_CHECKING:
    from .base import ToolUse

_SURROGATE = re.compile("[\ud800-\udfff]")
MOST = 10**9  # no argument is a count of anything larger


def schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """A JSON schema of an object with these properties."""
    return {"type": "object", "properties": properties, "required": list(required)}


def plain(value: object, name: str) -> str:
    """A string that can be stored, shown and written to a file."""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string")
    if _SURROGATE.search(value):
        raise BadRequest(f"{name} holds half of a character (a lone surrogate)")
    return value


def text(call: ToolUse, key: str, *, required: bool = True) -> str:
    """A string argument; one that is not required is empty when absent."""
    value = call.input.get(key)
    return "" if value is None and not required else plain(value, key)


def number(call: ToolUse, key: str, default: int) -> int:
    """A whole number that is not negative."""
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
    """A truth value, false when absent."""
    known = {"true": True, "false": False, "none": False}
    found = (
        known.get(str(value).lower()) if value is None or isinstance(value, str | bool) else None
    )
    if found is None:
        raise BadRequest(f"{name} must be true or false")
    return found


def texts(call: ToolUse, key: str) -> list[str]:
    """A list of strings, empty when absent."""
    value = call.input.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(f"{key} must be a list of strings")
    return [plain(item, f"every item of {key}") for item in value]


def objects(call: ToolUse, key: str, most: int) -> list[dict[str, Any]]:
    """A list of objects that is not empty."""
    value = call.input.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise BadRequest(f"{key} must be a list of at least one object")
    if len(value) > most:
        raise BadRequest(f"{key} holds {len(value)} objects, {most} are the most there may be")
    return value
