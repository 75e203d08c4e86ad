"""The configuration of a workspace, as the daemon uses it and as clients see it.

`wire` is built from a list of what clients need, not by taking things away: a key that is not
listed is not sent. What could hold a secret all the same goes through the redactor.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from ..commands.environment import is_secret_name, looks_like_token, without_secrets
from ..hosting.plain import own_provider
from ..protocol.codec import decode, encode
from ..protocol.config import Model, SelectedModel
from ..records import dataclass
from .catalogue import CATALOGUE
from .merge import split_key
from .options import OPTIONS, UNKNOWN, ConfigOptions
from .providers import ROLES, catalogue_small, select
from .secrets import HIDDEN, literals, mask, redact, worth_hiding
from .warnings import ConfigWarning, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ..protocol.config import AgentInfo
    from ..protocol.permissions import PermissionRule
    from .merge import Merged
    from .providers import Provider, Selected

_SHOWN_SERVER = ("type", "disabled", "timeout", "disabled_tools", "enabled_tools", "filetypes")


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """Which of the built-in agents a workspace gets, and why."""

    agent: Literal["coder", "offline"]
    reason: str

    def __str__(self) -> str:
        return f"{self.agent}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read from files and environment, apart from providers."""

    merged: Merged
    allowed_tools: tuple[str, ...]
    secrets: frozenset[str]  # of the environment, and those that were expanded
    warnings: tuple[ConfigWarning, ...]
    files: tuple[Path, ...]  # that exist, in order of rising priority
    own_folders: tuple[Path, ...] = ()  # of the daemon and its user: closed to tools
    rules: tuple[PermissionRule, ...] = ()  # granted for good


class Config:
    """One workspace's configuration: a value, replaced as a whole when a file changes.

    `large` and `small` are the models in use, None if no provider has any."""

    def __init__(self, loaded: Loaded, providers: Mapping[str, Provider]) -> None:
        merged = loaded.merged
        self.providers = dict(providers)
        self.allowed_tools = loaded.allowed_tools
        self.rules = loaded.rules
        self.files = loaded.files
        self.own_folders = loaded.own_folders
        self.options = ConfigOptions.of(merged.get("options") or {})
        self._loaded = loaded
        self._merged = merged
        self._secrets = frozenset(filter(worth_hiding, (*loaded.secrets, *self._literals())))
        self._wanted = {
            role: decode(SelectedModel, merged.get("models", role), f"models.{role}")
            for role in ROLES
            if merged.get("models", role)
        }
        self.large, self.small = select(self.providers, self._wanted)
        self.warnings = (*loaded.warnings, *self._unknown_models())

    def __repr__(self) -> str:
        return f"<Config providers={list(self.providers)} large={self.large} small={self.small}>"

    def same_as(self, other: Config) -> bool:
        """Whether the two differ in nothing but warnings and the files that were read."""
        mine, its = (c._merged.values for c in (self, other))
        return (mine, self.providers, self.allowed_tools, self.rules) == (
            its,
            other.providers,
            other.allowed_tools,
            other.rules,
        )

    def small_of(self, provider_id: str) -> SelectedModel | None:
        """The small model that goes with a provider: the catalogue's choice, else the large one
        in use if it is this provider's, else its first. None if it has none."""
        provider = self.providers.get(provider_id)
        if provider is None or not provider.models:
            return None
        used = self.large
        large = used.model if used and used.provider is provider else provider.models[0]
        small = catalogue_small(provider) or large
        return SelectedModel(model=small.id, provider=provider_id)

    def _literals(self) -> Iterator[str]:
        """The secrets that are spelled out in the files."""
        yield from literals(self._merged.values)
        whole = [server.get(key) for server in self.mcp.values() for key in ("env", "headers")]
        sections = (self._merged.get("providers") or {}).values()
        yield from literals([*whole, *(each.get("oauth") for each in sections)], secret=True)

    def _unknown_models(self) -> Iterator[ConfigWarning]:
        """Choices that do not count, because no provider has the model."""
        for role, choice in self._wanted.items():
            found = self.large if role == "large" else self.small
            if found is None or _pair(found.choice) != _pair(choice):
                key = f"models.{role}"
                file = self._merged.source("models", role)
                assert file is not None  # no file, no choice
                text = f"{key} names no usable model"
                yield ConfigWarning(Reason.MODEL_UNKNOWN, file.path, key, text)

    @property
    def mcp(self) -> dict[str, Any]:
        """The tool servers. They are of the machine's files only, and not expanded: values may be
        references or secrets."""
        return dict(self._merged.get("mcp") or {})

    @property
    def lsp(self) -> dict[str, Any]:
        """The language servers, as `mcp`."""
        return dict(self._merged.get("lsp") or {})

    def origin(self, key: str) -> Path | None:
        """The last file that holds a dotted key; None if none does."""
        source = self._merged.source(*split_key(key))
        return source.path if source else None

    def entries(self) -> Iterator[tuple[tuple[str, ...], Any, Path]]:
        """Every single value with its path of keys and its file. As it is written there: not
        expanded, and secrets are not hidden."""
        for path, value in _leaves(self._merged.values, ()):
            # What is inside an entry of a list has come with the entry.
            above = (self._merged.source(*path[:count]) for count in range(len(path), 0, -1))
            source = next(filter(None, above))
            yield path, value, source.path

    def secrets(self) -> frozenset[str]:
        """Every text that must not be logged, sent to a client or given to a command."""
        return self._secrets

    def command_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment for commands: without secrets, except for the variables that the user's
        own files name in `permissions.command_variables`."""
        allowed = self._merged.get("permissions", "command_variables") or ()
        return without_secrets(env, secrets=self._secrets, allowed=frozenset(allowed))

    def discovered(self, found: Mapping[str, Iterable[Model]]) -> Config:
        """The same configuration with the models that providers listed when asked."""
        providers = dict(self.providers)
        for ident, models in found.items():
            known = providers.get(ident)
            if known is not None and known.discover and (listed := tuple(models)):
                # Not every server lists all that it serves: a chosen model counts as listed.
                ids = {model.id for model in listed}
                chosen = (c.model for c in self._wanted.values() if c.provider == ident)
                more = (Model(id=name, name=name) for name in dict.fromkeys(chosen))
                models = (*listed, *(model for model in more if model.id not in ids))
                providers[ident] = dataclasses.replace(known, models=models, discover=False)
        return Config(self._loaded, providers)

    def wants_local(self, provider_id: str) -> bool:
        """Whether a model server that happens to run on this machine may be used: only if no
        provider can be, and the files disable neither this one nor all defaults."""
        section = self._merged.get("providers", provider_id) or {}
        refused = section.get("disable") or self._merged.get("options", "disable_default_providers")
        return not self.providers and not refused

    def joined(self, provider: Provider) -> Config:
        """The same configuration with a provider that no file names."""
        return Config(self._loaded, {**self.providers, provider.id: provider})

    def choice(self) -> AgentChoice:
        """The coder if there is a model for it, else the offline agent."""
        if self.large is not None:
            name = f"{self.large.provider.id}/{self.large.model.id}"
            return AgentChoice("coder", f"model {name}, {self._why(self.large)}")
        if waiting := [p.id for p in self.providers.values() if p.discover]:
            names = ", ".join(waiting)
            return AgentChoice("offline", f"the models of {names} are not known yet")
        keys = ", ".join(known.key for known in CATALOGUE.values())
        reason = f"no configured provider is usable, and none of {keys} gives a key"
        for warning in self.warnings:
            if warning.reason is Reason.UNTRUSTED:
                reason += f"; {warning}"
        return AgentChoice("offline", reason)

    def _why(self, large: Selected) -> str:
        wanted = self._wanted.get("large")
        if wanted and _pair(wanted) == _pair(large.choice):
            return f"chosen in {self.origin('models.large')}"
        source = self._merged.source("providers", large.provider.id)
        if source:
            return f"the first usable one, from {source.path}"
        if large.provider.id not in CATALOGUE:
            return f"found on this machine at {large.provider.base_url}"
        return f"the first usable one, with the key in {CATALOGUE[large.provider.id].key}"

    # The wire ------------------------------------------------------------------------------------

    def wire(self, data_dir: Path | str, agent: AgentInfo | None = None) -> dict[str, Any]:
        """The configuration for clients. The Crush client reads `options`, `options.tui` and
        `providers` without a check, so these are always there. An agent that needs no provider
        (offline, or one's own) is shown as one: that client does not start without any."""
        given = self._merged.get("options") or {}
        options = {
            "data_directory": str(data_dir),
            "disable_default_providers": True,
            **{key: value for key, value in given.items() if OPTIONS.get(key, UNKNOWN).shown},
            "context_paths": list(self.options.context_paths),
            "disable_metrics": self.options.disable_metrics,
            "initialize_as": self.options.initialize_as,
            "tui": dict(self.options.tui),
        }
        if agent is None:
            providers = {p.id: _wire_provider(p) for p in self.providers.values()}
            chosen = zip(ROLES, (self.large, self.small), strict=True)
            models = {role: encode(selected.choice) for role, selected in chosen if selected}
        else:
            own = agent.model_cfg.provider
            providers = {own: own_provider(agent)}
            models = dict.fromkeys(ROLES, encode(agent.model_cfg))
        answer = {
            "options": options,
            "models": models,
            "providers": providers,
            "mcp": {name: _wire_server(server) for name, server in self.mcp.items()},
            "lsp": {name: _wire_server(server) for name, server in self.lsp.items()},
            "permissions": {"allowed_tools": list(self.allowed_tools)},
        }
        for section in ("recent_models", "tools"):
            if value := self._merged.get(section):
                answer[section] = value
        return {key: _hidden(value, self._secrets) for key, value in answer.items()}


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no object, with its path. A list of plain values is one value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, str(index)))
    else:
        yield path, value


def _pair(choice: SelectedModel) -> tuple[str, str]:
    return choice.provider, choice.model


def _wire_provider(provider: Provider) -> dict[str, Any]:
    answer = {
        "id": provider.id,
        "name": provider.name,
        "type": provider.type,
        "base_url": _wire_url(provider.base_url),
        "discover_models": provider.discover,
        "models": encode(provider.models),
    }
    if provider.api_key:
        answer["api_key"] = mask(provider.api_key)
    if provider.extra_headers:
        answer["extra_headers"] = dict.fromkeys(provider.extra_headers, mask(""))
    if provider.flat_rate:
        answer["flat_rate"] = True
    return answer


def _wire_url(url: str) -> str:
    """The address without what gateways use as a password: the query, and path segments that look
    like tokens."""
    scheme, host, path, _, _ = urlsplit(url)
    segments = [HIDDEN if looks_like_token(part) else part for part in path.split("/")]
    return urlunsplit((scheme, host, "/".join(segments), "", ""))


def _wire_server(server: dict[str, Any]) -> dict[str, Any]:
    # No command, address, arguments or environment: clients show the name and the state.
    return {key: server[key] for key in _SHOWN_SERVER if key in server}


def _hidden(value: Any, secrets: frozenset[str], name: str = "") -> Any:
    """A copy of a value without secrets: those known, and texts under keys with secret names."""
    if isinstance(value, dict):
        return {key: _hidden(item, secrets, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item, secrets, name) for item in value]
    if not isinstance(value, str):
        return value
    if name != "api_key" and is_secret_name(name):
        return mask("")
    return redact(value, secrets)
