"""What the files of a project may say: they can tighten what the user allows, never widen it.

A repository brings its own `crush.json`, and opening it must be safe. So a document from a project,
or from the data directory inside it, goes through `ProjectRules.admit` before it is merged. Only
what is listed here is let through: a key that crushlite does not know is ignored.

Until the user trusts the file (see `trust`), it has no say in who is asked, what is sent and what
is started: all of its providers, models, recent models, agents, hooks, tool servers and language
servers are ignored, and the switch that turns the catalogue off, because taking a provider away
chooses another one. What is left of it is never expanded. That is reported in one warning, which
says what to do.

  permissions   `allowed_tools` of a project only removes: `"-bash"` or `"!bash"` takes back a tool
                with all its actions, `"-bash:execute"` one action (and `bash` as a whole, if that
                is what was allowed: less than a whole cannot be written down), `"-*"` everything.
  options       by the rules in `options`: switches only to their safe side, paths only inside the
                workspace, harmless ones as they like, others not at all.
  models        which model; but no `provider_options`: some gateways let a request name the
                server that it, and the key with it, is passed on to.
  providers     a new one, wholly. Of one that the user or the catalogue has: more models, a key
                of its own, `disable: true`. A new `base_url` makes it the project's: the user's
                key, headers and body fields are dropped. Headers and body fields alone are
                ignored, for the reason given at models.
  agents        new ones only: what the user has named stays as it is.
  mcp           new ones only: one that the user has named can be disabled.
  hooks         of a trusted file: they can forbid and change what tools do, and not allow it.
  lsp           of a trusted file: which language servers start, and how.
  env           ignored: it changes the programs that are started.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from ..realpath import real_path
from .catalogue import CATALOGUE
from .expand import only_variable
from .merge import SCHEMA, spell
from .options import OPTIONS, UNKNOWN, Rule
from .trust import Trust
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .files import Source
    from .merge import Merged
    from .warnings import Warn

# What counts only in a file that the user trusts: sections, and options.
_CHOICES = ("providers", "models", "recent_models", "agents", "mcp", "hooks", "lsp")
_CHOICE_OPTIONS = ("disable_default_providers",)
_NAMED = 5  # keys in a warning

_PASSED = frozenset({"$schema", "tools", "recent_models", "hooks"})
# Of a provider that is not the project's own.
_ADDITIONS = frozenset({"id", "name", "models", "system_prompt_prefix"})
# What goes to the server with a request, or leads it elsewhere.
_SENT = ("api_key", "extra_headers", "extra_body", "provider_options", "oauth")
_NO_SAY = "project files have no say in this"
_NO_KEY = "there is no such key"
_OUT = "it leads out of the workspace"
_TAKEN = "that folder has another use"
_SAFE_SIDE = "project files only set it to the safe side"


class Layer(NamedTuple):
    """A file that exists, what it holds, and whether the user trusts it."""

    source: Source
    document: dict[str, Any]
    trust: Trust


def choices(document: dict[str, Any]) -> dict[str, Any]:
    """The part of a project's document that counts only if the user trusts its file."""
    part = {key: document[key] for key in _CHOICES if document.get(key)}
    options = document.get("options")
    if isinstance(options, dict):
        switches = {key: options[key] for key in _CHOICE_OPTIONS if options.get(key)}
        part |= {"options": switches} if switches else {}
    return part


def choice_keys(document: dict[str, Any]) -> list[str]:
    """The keys of that part, down to the name of a provider or role."""
    keys: list[str] = []
    for section, inner in choices(document).items():
        names = inner if isinstance(inner, dict) else ()
        keys += [spell((section, name)) for name in names] or [section]
    return keys


def _without_choices(document: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in document.items() if key not in _CHOICES}
    options = rest.pop("options", None) or {}
    if kept := {key: value for key, value in options.items() if key not in _CHOICE_OPTIONS}:
        rest["options"] = kept
    return rest


def how_to_trust(workspace: Path) -> str:
    """The command that shows what the files of a workspace ask for, and trusts them."""
    return f"crushlite trust {shlex.quote(str(workspace))}"


def allowed_tools(layers: Iterable[Layer], warn: Warn) -> tuple[str, ...]:
    """The tools that run without asking. Only the machine's files add to them, any file removes."""
    key = "permissions.allowed_tools"
    allowed: dict[str, None] = {}
    for source, document, _ in layers:
        entries = (document.get("permissions") or {}).get("allowed_tools") or []
        for entry in filter(None, map(str.strip, entries)):
            if entry.startswith(("-", "!")):
                _remove(allowed, entry[1:].strip())
            elif source.is_machine:
                allowed[entry] = None
            elif entry not in allowed and entry.partition(":")[0] not in allowed:
                text = f"{key}: project files only remove entries"
                warn(Reason.TOOLS_NOT_ADDED, source.path, key, text)
    return tuple(allowed)


def _remove(allowed: dict[str, None], entry: str) -> None:
    tool, _, action = entry.partition(":")
    for known in list(allowed):
        whole = known.partition(":")[0] == tool and (not action or known == tool)
        if entry in ("*", known) or whole:
            del allowed[known]


class ProjectRules:
    """Decides what is merged of a project's documents. `merged` holds the machine's files, and what
    was admitted so far."""

    def __init__(self, merged: Merged, workspace: Path, warn: Warn) -> None:
        self._merged = merged
        self._workspace = workspace
        self._warn = warn
        self._known = {} if merged.get("options", "disable_default_providers") else CATALOGUE
        self._ids = {*(merged.get("providers") or {}), *self._known}  # not the project's own
        self._servers = set(merged.get("mcp") or {})  # not the project's own
        self._moved: set[str] = set()  # of these, those to which a project gave another address

    def admit(self, layer: Layer) -> dict[str, Any]:
        """What may be merged of a project's document. From a provider to which it gives another
        address, what the user's files would have sent there is dropped."""
        source, document, trust = layer
        if trust is not Trust.TRUSTED:
            self._warn_of_choices(source, document, trust)
            document = _without_choices(document)
        answer: dict[str, Any] = {}
        examined = {
            "options": self._options,
            "models": self._models,
            "providers": self._providers,
            "mcp": self._tool_servers,
            "agents": self._agents,
        }
        for key, value in document.items():
            if key in _PASSED or key == "lsp":
                answer[key] = value
            elif key in examined:
                answer[key] = examined[key](value or {}, source)
            elif key != "permissions":
                self._ignored(source, (key,), _NO_SAY if key in SCHEMA else _NO_KEY)
        for key in set(document.get("permissions") or {}) - {"allowed_tools"}:
            self._ignored(source, ("permissions", key), _NO_SAY)
        return answer

    def _warn_of_choices(self, source: Source, document: dict[str, Any], trust: Trust) -> None:
        keys = choice_keys(document)
        if not keys:
            return
        named = ", ".join(keys[:_NAMED])
        if len(keys) > _NAMED:
            named += f" and {len(keys) - _NAMED} more"
        text = (
            f"{trust.value}: until `{how_to_trust(self._workspace)}` it has no say in models, "
            f"providers, agents, tool servers, hooks and language servers: ignored are {named}"
        )
        self._warn(Reason.UNTRUSTED, source.path, "", text)

    def _ignored(self, source: Source, path: tuple[str, ...], reason: str) -> None:
        key = spell(path)
        self._warn(Reason.NOT_FOR_PROJECTS, source.path, key, f"{key} is ignored: {reason}")

    # Options and models --------------------------------------------------------------------------

    def _options(self, options: dict[str, Any], source: Source) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for key, value in options.items():
            answer[key], reason = self._option(key, value, source)
            if reason:
                self._ignored(source, ("options", key), reason)
        return answer

    def _option(self, key: str, value: Any, source: Source) -> tuple[Any, str]:
        """What is merged of an option, None for nothing, and why the rest is not; that is empty if
        it makes no difference."""
        rule = OPTIONS.get(key, UNKNOWN).rule
        if value is None or rule is Rule.ANYTHING:
            return value, ""
        if rule in (Rule.TRUE, Rule.FALSE):
            safe = rule is Rule.TRUE
            loses = value is not safe and self._merged.get("options", key) is safe
            return safe if value is safe else None, _SAFE_SIDE if loses else ""
        # A data directory cannot say where the data directory is.
        if rule is Rule.NOTHING or (key == "data_directory" and source.kind == "data"):
            return None, _NO_SAY
        if key == "data_directory" and self._is_taken(value):
            return None, _TAKEN
        if isinstance(value, str):
            return (value, "") if self._is_inside(value) else (None, _OUT)
        inside = [path for path in value if self._is_inside(path)]
        return inside, _OUT if len(inside) < len(value) else ""

    def _is_taken(self, path: str) -> bool:
        """Whether a folder holds the project itself, or what git keeps: the daemon's own files,
        among them a `.gitignore` for all, must not go there."""
        if "\0" in path:
            return False
        root = real_path(self._workspace)
        real = real_path(os.path.join(root, path))
        # Some file systems take `.GIT` for the same folder.
        return real == root or ".git" in os.path.relpath(real, root).casefold().split(os.sep)

    def _is_inside(self, path: str) -> bool:
        if path.startswith("~") or "\0" in path:
            return False
        root = real_path(self._workspace)
        return os.path.commonpath([root, real_path(os.path.join(root, path))]) == root

    def _models(self, models: dict[str, Any], source: Source) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for role, selected in models.items():
            answer[role] = dict(selected or {})
            provider = answer[role].get("provider")
            if provider not in (None, self._merged.get("models", role, "provider")):
                # The user wrote them for another provider.
                self._merged.drop("models", role, "provider_options")
            if answer[role].pop("provider_options", None):
                self._ignored(
                    source, ("models", role, "provider_options"), "they can redirect a key"
                )
        return answer

    def _tool_servers(self, servers: dict[str, Any], source: Source) -> dict[str, Any]:
        """Those with a name of their own: a program of the user gets no other arguments, and a
        server of the user no other address."""
        answer: dict[str, Any] = {}
        for name, section in servers.items():
            if name not in self._servers:
                answer[name] = section
            elif (section or {}).get("disabled"):
                answer[name] = {"disabled": True}
            else:
                self._ignored(source, ("mcp", name), "there is a server of that name already")
        return answer

    def _agents(self, agents: dict[str, Any], source: Source) -> dict[str, Any]:
        """Those that have a name of their own: a program of the user gets no other arguments."""
        taken = [name for name in agents if name in (self._merged.get("agents") or {})]
        for name in taken:
            self._ignored(source, ("agents", name), "there is an agent of that name already")
        return {name: section for name, section in agents.items() if name not in taken}

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
        key = spell(("providers", ident))
        text = (
            f"{key} has another base_url than outside the project: the key, headers and body "
            "fields from outside are not sent there"
        )
        self._warn(Reason.PROVIDER_MOVED, source.path, key, text)

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
        """Whether this changes nothing: no key, or the variable that gives the provider its key
        anyway. Many projects write `$OPENAI_API_KEY`, which is no request for a secret there."""
        if not text or text == (outside := self._merged.get("providers", ident, "api_key")):
            return True
        known = self._known.get(ident)
        usual = {known.key, f"CRUSH_{known.key}"} if known else set()
        return only_variable(text) in usual | {only_variable(outside or "")} - {""}


def _same(url: str) -> str:
    return url.strip().rstrip("/")
