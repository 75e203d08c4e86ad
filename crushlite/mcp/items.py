"""What a server lists: tools, prompts, resources. Each entry is checked: a bad one is left out, the
others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import dataclass
from .schemas import BadSchema, acceptable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_TOOLS = 6000
MOST_OTHERS = 1000
NAME_CHARS = 256
DESCRIPTION_CHARS = 4000
URI_CHARS = 4000
MOST_ARGUMENTS = 50


@dataclass(frozen=True, slots=True)
class ToolInfo:
    name: str  # the server's own
    description: str
    schema: Mapping[str, Any]
    read_only: bool


@dataclass(frozen=True, slots=True)
class PromptArgument:
    name: str
    title: str
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class PromptInfo:
    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    uri: str
    name: str
    description: str
    mime_type: str


def read_tools(
    items: list[Any], wanted: Callable[[str], bool]
) -> tuple[tuple[ToolInfo, ...], tuple[str, ...]]:
    """The tools that can be offered, sorted by name, and for each of the others a line that says
    why it is left out. Tools that are not `wanted` by their names are in neither."""
    tools: dict[str, ToolInfo] = {}
    left_out: list[str] = []
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS or not name.isprintable():
            left_out.append("a tool without a usable name")
        elif not wanted(name) or name in tools:
            continue
        elif len(tools) >= MOST_TOOLS:
            left_out.append(f"{name}: there are more than {MOST_TOOLS}")
        else:
            try:
                schema = acceptable(item.get("inputSchema"))
            except BadSchema as error:
                left_out.append(f"{name}: {error}")
                continue
            hints = item.get("annotations")
            reads = isinstance(hints, dict) and hints.get("readOnlyHint") is True
            about = _text(item, "description", DESCRIPTION_CHARS) or _text(item, "title", 200)
            tools[name] = ToolInfo(name, about, schema, reads)
    return tuple(tools[name] for name in sorted(tools)), tuple(left_out[:MOST_OTHERS])


def read_prompts(items: list[Any]) -> tuple[PromptInfo, ...]:
    found: dict[str, PromptInfo] = {}
    for item in items[:MOST_OTHERS]:
        name = _text(item, "name", NAME_CHARS)
        if name:
            listed = item.get("arguments")
            given = [
                PromptArgument(
                    _text(each, "name", NAME_CHARS),
                    _text(each, "title", NAME_CHARS),
                    _text(each, "description", DESCRIPTION_CHARS),
                    each.get("required") is True,
                )
                for each in (listed if isinstance(listed, list) else [])[:MOST_ARGUMENTS]
                if _text(each, "name", NAME_CHARS)
            ]
            about = _text(item, "title", NAME_CHARS), _text(item, "description", DESCRIPTION_CHARS)
            found[name] = PromptInfo(name, *about, tuple(given))
    return tuple(found[name] for name in sorted(found))


def read_resources(items: list[Any]) -> tuple[ResourceInfo, ...]:
    found: dict[str, ResourceInfo] = {}
    for item in items[:MOST_OTHERS]:
        uri = _text(item, "uri", URI_CHARS)
        if uri:
            found[uri] = ResourceInfo(
                uri,
                _text(item, "title", NAME_CHARS) or _text(item, "name", NAME_CHARS),
                _text(item, "description", DESCRIPTION_CHARS),
                _text(item, "mimeType", NAME_CHARS),
            )
    return tuple(found[uri] for uri in sorted(found))


def _text(item: Any, key: str, chars: int) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    return value[:chars] if isinstance(value, str) else ""
