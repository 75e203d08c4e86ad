"""What the files of a project may say: they can tighten what the user allows, never widen it.

A repository brings its own `crush.json`, and opening it must not be an act of trust. So a document
from a project, or from the data directory inside it, goes through `Outside.admit` before it is
merged. It works by a list of what is let through; anything new is out until someone thought of it.

  permissions   `allowed_tools` of a project only removes: `"-bash"` or `"!bash"` takes back a tool
                with all its actions, `"-bash:execute"` one action (and `bash` as a whole, if that
                is what was allowed: less than a whole cannot be written down), `"-*"` everything.
  options       switches only in the safe direction, paths only inside the workspace, the rest of
                a list of harmless ones.
  models        which model; but no `provider_options`: some gateways let a request name the
                server that it, and the key with it, is passed on to.
  providers     a new one, wholly. Of one that the user or the catalogue has: more models, a key
                of its own, `disable: true`. A new `base_url` makes it the project's: the user's
                key, headers and body fields are dropped. Headers and body fields alone are
                ignored, for the reason given at models.
  mcp, lsp, hooks, env    ignored: they start programs, or change those that are started.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from .catalogue import CATALOGUE
from .merge import spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from .files import Source
    from .merge import Merged

_PASSED = frozenset({"$schema", "tools", "recent_models"})
_PASSED_OPTIONS = frozenset(
    {
        *("attribution", "debug", "debug_lsp", "disable_auto_summarize", "disabled_skills"),
        *("disabled_tools", "notifications", "progress", "tui"),
    }
)
# The one value of a switch that a project may choose.
_SAFE_SIDE = {
    "auto_lsp": False,
    "disable_default_providers": True,
    "disable_metrics": True,
    "disable_provider_auto_update": True,
}
_PATHS = frozenset({"context_paths", "skills_paths"})
# Of a provider that is not the project's own.
_ADDITIONS = frozenset({"id", "name", "models", "system_prompt_prefix"})
# What goes to the server with a request, or leads it elsewhere.
_SENT = ("api_key", "extra_headers", "extra_body", "provider_options", "oauth")
_NO_SAY = "project files have no say in this"
_OUT = "it leads out of the workspace"
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def allowed_tools(
    layers: Iterable[tuple[Source, dict[str, Any]]], warn: Callable[[str], None]
) -> tuple[str, ...]:
    """The tools that run unasked. Only the machine's files add to them, any file removes."""
    allowed: dict[str, None] = {}
    for source, document in layers:
        entries = (document.get("permissions") or {}).get("allowed_tools") or []
        for entry in filter(None, map(str.strip, entries)):
            if entry.startswith(("-", "!")):
                _remove(allowed, entry[1:].strip())
            elif source.trusted:
                allowed[entry] = None
            elif entry not in allowed and entry.partition(":")[0] not in allowed:
                warn(f"{source.path}: permissions.allowed_tools: project files only remove entries")
    return tuple(allowed)


def _remove(allowed: dict[str, None], entry: str) -> None:
    tool, _, action = entry.partition(":")
    for known in list(allowed):
        whole = known.partition(":")[0] == tool and (not action or known == tool)
        if entry in ("*", known) or whole:
            del allowed[known]


class Outside:
    """The machine's files as they stand before a project has spoken."""

    def __init__(self, merged: Merged, workspace: Path, warn: Callable[[str], None]) -> None:
        self._merged = merged
        self._workspace = workspace
        self._warn = warn
        self._known = {} if merged.get("options", "disable_default_providers") else CATALOGUE
        self._ids = {*(merged.get("providers") or {}), *self._known}
        self._moved: set[str] = set()  # of these, what a project made its own

    def admit(self, document: dict[str, Any], source: Source) -> dict[str, Any]:
        """What may be merged of a project's document. A provider that it moves elsewhere loses
        what the user's files would have sent there."""
        answer: dict[str, Any] = {}
        for key, value in document.items():
            if key in _PASSED:
                answer[key] = value
            elif key == "options":
                answer[key] = self._options(value or {}, source)
            elif key == "models":
                answer[key] = self._models(value or {}, source)
            elif key == "providers":
                answer[key] = self._providers(value or {}, source)
            elif key != "permissions":
                self._ignored(source, (key,), _NO_SAY)
        for key in set(document.get("permissions") or {}) - {"allowed_tools"}:
            self._ignored(source, ("permissions", key), _NO_SAY)
        return answer

    def _ignored(self, source: Source, path: tuple[str, ...], reason: str) -> None:
        self._warn(f"{source.path}: {spell(path)} is ignored: {reason}")

    # Options and models --------------------------------------------------------------------------

    def _options(self, options: dict[str, Any], source: Source) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for key, value in options.items():
            if value is None or key in _PASSED_OPTIONS:
                answer[key] = value
                continue
            place = ("options", key)
            if key in _SAFE_SIDE:
                reason = self._switch(place, value, answer)
            elif key in _PATHS:
                answer[key] = [path for path in value if self._is_inside(path)]
                reason = _OUT if len(answer[key]) < len(value) else ""
            elif key == "initialize_as" or (key == "data_directory" and source.kind == "project"):
                reason = "" if self._is_inside(value) else _OUT
                answer |= {} if reason else {key: value}
            else:
                reason = _NO_SAY
            if reason:
                self._ignored(source, place, reason)
        return answer

    def _switch(self, place: tuple[str, str], value: bool, answer: dict[str, Any]) -> str:
        safe = _SAFE_SIDE[place[1]]
        if value is safe:
            answer[place[1]] = value
        loses = value is not safe and self._merged.get(*place) is safe
        return "project files only set it to the safe side" if loses else ""

    def _is_inside(self, path: str) -> bool:
        if path.startswith("~") or "\0" in path:
            return False
        root = os.path.realpath(self._workspace)
        return os.path.commonpath([root, os.path.realpath(os.path.join(root, path))]) == root

    def _models(self, models: dict[str, Any], source: Source) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for role, selected in models.items():
            answer[role] = dict(selected or {})
            provider = answer[role].get("provider")
            if provider not in (None, self._merged.get("models", role, "provider")):
                # They were written for the provider before.
                self._merged.drop("models", role, "provider_options")
            if answer[role].pop("provider_options", None):
                self._ignored(
                    source, ("models", role, "provider_options"), "they can redirect a key"
                )
        return answer

    # Providers -----------------------------------------------------------------------------------

    def _providers(self, providers: dict[str, Any], source: Source) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for ident, section in providers.items():
            section = dict(section or {})
            if section.get("disable") is False and self._merged.get("providers", ident, "disable"):
                del section["disable"]
                self._ignored(source, ("providers", ident, "disable"), "it was disabled before")
            if ident in self._ids and ident not in self._moved:
                if self._moves(ident, section):
                    self._move(ident, source)
                else:
                    section = self._additions(ident, section, source)
            answer[ident] = section
        return answer

    def _moves(self, ident: str, section: dict[str, Any]) -> bool:
        wanted = section.get("base_url")
        return wanted is not None and _same(wanted) != _same(self._base_url(ident))

    def _base_url(self, ident: str) -> str:
        known = self._known.get(ident)
        default = known.base_url if known else ""
        return str(self._merged.get("providers", ident, "base_url") or default)

    def _move(self, ident: str, source: Source) -> None:
        self._moved.add(ident)
        for key in (*_SENT, "system_prompt_prefix"):
            self._merged.drop("providers", ident, key)
        # An explicit empty key: without one, the catalogue's variable would be looked up.
        self._merged.add({"providers": {ident: {"api_key": ""}}}, source)
        self._warn(
            f"{source.path}: {spell(('providers', ident))} has another base_url than outside the "
            "project: the key, headers and body fields from outside are not sent there"
        )

    def _additions(self, ident: str, section: dict[str, Any], source: Source) -> dict[str, Any]:
        answer = {key: section[key] for key in section if key in _ADDITIONS}
        if section.get("disable"):
            answer["disable"] = True
        if section.get("models"):
            listed = self._model_ids(ident)
            answer["models"] = [
                {key: value for key, value in model.items() if key != "options"}
                for model in section["models"]
                if model.get("id") not in listed
            ]
        if not self._is_own_key(ident, section.get("api_key")):
            answer["api_key"] = section["api_key"]
        for key in ("type", "discover_models", "flat_rate", *_SENT[1:]):
            if section.get(key) not in (None, {}, self._merged.get("providers", ident, key)):
                reason = "the provider is not the project's own"
                self._ignored(source, ("providers", ident, key), reason)
        return answer

    def _model_ids(self, ident: str) -> set[str]:
        known = self._known.get(ident)
        models = self._merged.get("providers", ident, "models") or []
        return {m.get("id") for m in models} | (
            {known.large.id, known.small.id} if known else set()
        )

    def _is_own_key(self, ident: str, text: str | None) -> bool:
        """None, or the reference that gives the provider its key anyway: many projects spell out
        `$OPENAI_API_KEY`, and there it is no request for a secret."""
        if not text or text == (outside := self._merged.get("providers", ident, "api_key")):
            return True
        known = self._known.get(ident)
        usual = {known.key, f"CRUSH_{known.key}"} if known else set()
        return _reference(text) in usual | {_reference(outside or "")} - {""}


def _reference(text: str) -> str:
    """The variable of which a text is nothing but the value; empty if it is more, or less."""
    found = _REFERENCE.fullmatch(text.strip())
    return found[1] or found[2] if found else ""


def _same(url: str) -> str:
    return url.strip().rstrip("/")
