"""What a `crush.json` may hold, and how several become one.

Objects merge key by key, later scalars win, arrays are concatenated, null changes nothing, and a
value of another type than the one before it is an error. The file of every value is kept, because
the rules for keys and expansion depend on it.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .options import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from .files import Source

MAX_ITEMS = 1000  # entries of one array or object
MAX_TEXT = 32 * 1024  # characters of one string
MAX_COUNT = 100_000_000  # tokens, items, levels
_SHOWN = 60  # characters of a key in a message
# What no server accepts is refused where it is written, not in the middle of a turn.
_BOUNDS = {
    "temperature": (0, 5),
    "top_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}

_TEXTS = [str]
_SAMPLING = {
    "top_k": int,
    **dict.fromkeys(("temperature", "top_p", "frequency_penalty", "presence_penalty"), float),
    "provider_options": {},
}
_MODEL = {
    **dict.fromkeys(("id", "name", "default_reasoning_effort"), str),
    **dict.fromkeys(("context_window", "default_max_tokens"), int),
    **dict.fromkeys(("can_reason", "supports_attachments"), bool),
    **dict.fromkeys(("cost_per_1m_in", "cost_per_1m_out"), float),
    **dict.fromkeys(("cost_per_1m_in_cached", "cost_per_1m_out_cached"), float),
    "reasoning_levels": _TEXTS,
    "options": _SAMPLING,
}
_SELECTED = {
    **dict.fromkeys(("model", "provider", "reasoning_effort"), str),
    **_SAMPLING,
    "max_tokens": int,
    "think": bool,
}
_PROVIDER = {
    **dict.fromkeys(("id", "name", "type", "base_url", "api_key", "system_prompt_prefix"), str),
    **dict.fromkeys(("disable", "discover_models", "flat_rate"), bool),
    **{key: {} for key in ("extra_body", "provider_options", "oauth")},
    "extra_headers": {"*": str},
    "models": [_MODEL],
}
_RULE = {
    **dict.fromkeys(("tool", "action", "path", "words"), str),
    "parts": _TEXTS,
}
_SERVER = {
    **dict.fromkeys(("type", "command", "url"), str),
    **{key: {"*": str} for key in ("env", "headers")},
    **dict.fromkeys(("args", "disabled_tools", "enabled_tools", "filetypes"), _TEXTS),
    "root_markers": _TEXTS,
    "timeout": int,
    "disabled": bool,
}
# The types of the keys that are used or passed on. `{}` is an object with anything in it, "*" any
# key, a tuple the texts that are possible. Keys that are not named here are kept as they are.
SCHEMA: dict[str, Any] = {
    "options": {name: option.kind for name, option in OPTIONS.items()},
    "providers": {"*": _PROVIDER},
    "models": {"*": _SELECTED},
    "permissions": {
        **dict.fromkeys(("allowed_tools", "project_variables", "command_variables"), _TEXTS),
        "rules": [_RULE],
    },
    "mcp": {"*": _SERVER},
    "lsp": {"*": _SERVER},
    "agents": {"*": {"command": str, "args": _TEXTS, "env": {"*": str}}},
    "tools": {"*": {"max_depth": int, "max_items": int}},
    "recent_models": {"*": [_SELECTED]},
    "env": {"*": str},
    "hooks": {},
}

# Sections that a program keeps: their lists are not concatenated, the last file has all entries.
_REPLACED = frozenset({"recent_models"})
_WORDS = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}


# Checking ---------------------------------------------------------------------------------------


def check(document: dict[str, Any], file: Path) -> None:
    """Raise ConfigError if a known key has the wrong type or an absurd size."""
    _check(document, SCHEMA, (), file)


def _check(value: Any, schema: Any, path: tuple[str, ...], file: Path) -> None:
    if value is None:
        return
    expected = _expected(value, schema)
    if expected:
        other = "" if isinstance(schema, tuple) else f", not {kind_of(value)}"
        raise ConfigError(f"{file}: {spell(path)} must be {expected}{other}")
    if size := _excess(value, schema) or ("is negative" if schema is int and value < 0 else ""):
        raise ConfigError(f"{file}: {spell(path) or 'the file'} {size}")
    low, high = _BOUNDS.get(path[-1], (value, value)) if schema is float else (value, value)
    if schema is float and not low <= value <= high:
        raise ConfigError(f"{file}: {spell(path)} must be between {low} and {high}")
    if isinstance(value, dict):
        known = schema if isinstance(schema, dict) else {}
        for key, item in value.items():
            _check(item, known.get(key, known.get("*")), (*path, key), file)
    elif isinstance(value, list):
        inner = schema[0] if isinstance(schema, list) else None
        for index, item in enumerate(value):
            if item is None and inner is not None:
                raise ConfigError(f"{file}: {spell(path)}[{index}] must not be null")
            _check(item, inner, (*path, str(index)), file)


def _expected(value: Any, schema: Any) -> str:
    """What the schema wants instead of this value, in words; empty if the value fits."""
    if schema is None:
        return ""
    if isinstance(schema, dict):
        return "" if isinstance(value, dict) else "an object"
    if isinstance(schema, list):
        return "" if isinstance(value, list) else "an array"
    if isinstance(schema, tuple):
        return "" if value in schema else f"one of {', '.join(schema)}"
    if schema in (int, float):
        kinds = (int,) if schema is int else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool)
    else:
        good = isinstance(value, schema)
    return "" if good else _WORDS[schema]


def _excess(value: Any, schema: Any) -> str:
    """In what way a value is too large, in words; empty if it is not."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    if isinstance(value, dict | list) and len(value) > MAX_ITEMS:
        return f"has more than {MAX_ITEMS} entries"
    # Only where the meaning is known: elsewhere a large number may be a time, such as the expiry of
    # a token or a limit in nanoseconds.
    if schema in (int, float) and not -MAX_COUNT <= value <= MAX_COUNT:
        return f"is out of range (at most {MAX_COUNT})"
    return ""


def kind_of(value: Any) -> str:
    """The JSON type of a value, in words."""
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")


# Key paths --------------------------------------------------------------------------------------


def split_key(dotted: str) -> tuple[str, ...]:
    r"""The steps of a dotted key. `\.` is a dot inside a step: model and host names have some.
    Raises ConfigError if a step is empty."""
    steps = tuple(step.replace(r"\.", ".") for step in re.split(r"(?<!\\)\.", dotted))
    if not all(steps):
        raise ConfigError(f"the key {_brief(dotted)} has an empty step")
    return steps


def spell(path: tuple[str, ...]) -> str:
    """A path of keys as one dotted key, short enough to be shown."""
    return ".".join(_brief(step.replace(".", r"\.")) for step in path)


def _brief(text: str) -> str:
    # Keys come from files: they must not bring line breaks or a megabyte into a log.
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return shown if shown.isprintable() and shown.isascii() else ascii(shown)[1:-1]


# Merging ----------------------------------------------------------------------------------------


class Merged:
    """The merged documents. No part of a document that was added is shared with it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        # The last file that wrote each object, array, array entry (by its index) and scalar.
        self._sources: dict[tuple[str, ...], Source] = {}

    def __repr__(self) -> str:
        return f"<Merged keys={sorted(self.values)}>"

    def add(self, document: dict[str, Any], source: Source) -> None:
        """Merge a document over those before it. Raises ConfigError if types clash."""
        self._merge(self.values, document, (), source)

    def get(self, *path: str) -> Any:
        """The value at a path of keys; None if there is none."""
        value: Any = self.values
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def source(self, *path: str) -> Source | None:
        """The file that the value at a path is from; None if there is no value."""
        return self._sources.get(path)

    def drop(self, *path: str) -> None:
        """Forget the value at a path, as if no file had it."""
        parent = self.get(*path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        for known in [known for known in self._sources if known[: len(path)] == path]:
            del self._sources[known]

    def _merge(
        self, into: dict[str, Any], document: dict[str, Any], path: tuple[str, ...], source: Source
    ) -> None:
        for key, value in document.items():
            if value is None:
                continue
            place = (*path, key)
            old = into.get(key)
            if old is not None and kind_of(old) != kind_of(value):
                raise ConfigError(
                    f"{source.path}: {spell(place)} is {kind_of(value)}, "
                    f"but {kind_of(old)} in {self._sources[place].path}"
                )
            if isinstance(value, list) and place[0] in _REPLACED:
                self.drop(*place)
            if path == ("models",) and _names_other(value, old):
                self.drop(*place)
            self._sources[place] = source
            if isinstance(value, dict):
                self._merge(into.setdefault(key, {}), value, place, source)
            elif isinstance(value, list):
                entries = into.setdefault(key, [])
                for index in range(len(entries), len(entries) + len(value)):
                    self._sources[(*place, str(index))] = source
                entries.extend(copy.deepcopy(value))
            else:
                into[key] = value


def _names_other(choice: dict[str, Any], old: dict[str, Any] | None) -> bool:
    """Whether a choice names another model or provider than the one before. Limits and temperatures
    were chosen for that one, and are not inherited."""
    return any(
        choice.get(key, was) != was
        for key in ("provider", "model")
        if (was := (old or {}).get(key))
    )
