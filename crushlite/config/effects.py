"""What files say that has no effect: keys of features that do not exist yet, and keys that nobody
knows. Both are reported: a setting that is silently ignored is worse than an error.

When a feature comes, its row leaves the table here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.config import ROLES
from ..wings import has_wing
from .hooks import EVENTS, event_of, is_pre_tool
from .merge import SCHEMA, spell
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .merge import Merged
    from .warnings import Warn

_LSP = "language servers are not used"
_SKILLS = "skills are not read"
_ABOVE = "its key is used, but it is not refreshed: log in with Crush again when it has expired"
# By the path of a key, "*" for any name: why it has no effect.
NO_EFFECT: dict[tuple[str, ...], str] = {
    ("mcp", "*"): "the wing that starts tool servers is not there",
    ("env",): "set the variables in the environment that you start crushlite from",
    ("tools", "*"): "searches have limits of their own",
    ("options", "debug_lsp"): "`crushlite serve --log-level debug` logs more",
    ("options", "debug"): "use `crushlite serve --log-level debug`",
    ("options", "skills_paths"): _SKILLS,
    ("options", "disabled_skills"): _SKILLS,
    ("providers", "*", "oauth"): _ABOVE,
    ("providers", "*", "aws_auth_refresh"): "this kind of provider is not supported",
}
if not has_wing("lsp"):
    NO_EFFECT |= {("lsp", "*"): _LSP, ("options", "auto_lsp"): _LSP}
# Keys that are fine although the schema does not name them, or their objects are free.
_FREE = {("$schema",), ("mcp",), ("lsp",), ("hooks",), ("env",), ("recent_models",)}
_MOST = 20  # keys that nobody knows which are named


def report(merged: Merged, warn: Warn) -> None:
    """Warn of everything in the merged files that has no effect."""

    def say(reason: Reason, path: tuple[str, ...], text: str) -> None:
        above = (merged.source(*path[:count]) for count in range(len(path), 0, -1))
        source = next(filter(None, above), None)
        if source is not None:
            key = spell(path)
            warn(reason, source.path, key, f"{key} {text}")

    for place, why in NO_EFFECT.items():
        if has_wing(place[0]):
            continue
        for path, value in _found(merged.values, place, ()):
            off = isinstance(value, dict) and value.get("disabled")
            known = why is _SKILLS and has_wing("skills")
            if value and not off and not known:
                say(Reason.NO_EFFECT, path, f"has no effect: {why}")
    for event in merged.get("hooks") or {}:
        if (found := _hook_flaw(event)) is not None:
            say(found[0], ("hooks", event), found[1])
    for path in list(_unknown(merged.values, SCHEMA, ()))[:_MOST]:
        say(Reason.KEY_UNKNOWN, path, "has no effect: there is no such key")


def _hook_flaw(event: str) -> tuple[Reason, str] | None:
    """Why hooks of an event have no effect, or not theirs; None if they have."""
    if not has_wing("hooks"):
        if is_pre_tool(event):
            return Reason.TOOLS_REFUSED, "cannot be run: the tools it matches are refused"
        return Reason.NO_EFFECT, "has no effect: hooks are not run"
    if event_of(event):
        return None
    return Reason.NO_EFFECT, f"has no effect: hooks are run for {', '.join(EVENTS)}"


def _found(
    value: Any, place: tuple[str, ...], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values at a place, with their paths."""
    if not place:
        yield path, value
    elif isinstance(value, dict):
        for name in [*value] if place[0] == "*" else [place[0]]:
            if name in value:
                yield from _found(value[name], place[1:], (*path, name))


def _unknown(value: Any, schema: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of keys that the schema does not name, in objects whose keys it names."""
    if path in _FREE:
        return
    if isinstance(value, list) and isinstance(schema, list):
        for index, item in enumerate(value):
            yield from _unknown(item, schema[0], (*path, str(index)))
    if not isinstance(value, dict) or not isinstance(schema, dict) or not schema:
        return
    for name, item in value.items():
        inner = (*path, name)
        known = name in schema or "*" in schema or inner in _FREE or _fits(NO_EFFECT, inner)
        if not known or (path == ("models",) and name not in ROLES):
            yield inner
        else:
            yield from _unknown(item, schema.get(name, schema.get("*")), inner)


def _fits(table: Mapping[tuple[str, ...], str], path: tuple[str, ...]) -> bool:
    return any(
        len(place) == len(path) and all(a in ("*", b) for a, b in zip(place, path, strict=True))
        for place in table
    )
