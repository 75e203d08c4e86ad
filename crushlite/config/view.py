"""The configuration of a workspace, as the daemon uses it and as clients see it.

`wire` is built from a list of what clients need, not by taking things away: a key that nobody
thought of is not sent. What could hold a secret all the same goes through the redactor.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from ..protocol.codec import decode, encode
from ..protocol.config import Model, SelectedModel
from .catalogue import CATALOGUE
from .merge import split_key
from .providers import Provider, Selected, select
from .secrets import (
    HIDDEN,
    hidden_values,
    is_secret_name,
    looks_like_token,
    mask,
    redact,
    worth_hiding,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ..protocol.config import AgentInfo
    from .merge import Merged

# Where projects keep notes for agents, whichever agent they had in mind.
CONTEXT_FILES = (
    *("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", "CRUSH.md", "CRUSH.local.md", "GEMINI.md"),
    *(".cursorrules", ".cursor/rules/", ".github/copilot-instructions.md"),
)
_SHOWN_OPTIONS = (
    *("attribution", "auto_lsp", "debug", "debug_lsp", "disable_auto_summarize"),
    *("disable_provider_auto_update", "disabled_skills", "disabled_tools", "notifications"),
    *("progress", "skills_paths", "global_context_paths"),
)
_SHOWN_SERVER = ("type", "disabled", "timeout", "disabled_tools", "enabled_tools", "filetypes")


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """The `options` that the daemon itself reads, with their defaults."""

    context_paths: tuple[str, ...] = CONTEXT_FILES
    global_context_paths: tuple[str, ...] = ()
    skills_paths: tuple[str, ...] = ()
    disabled_tools: tuple[str, ...] = ()
    disabled_skills: tuple[str, ...] = ()
    disable_auto_summarize: bool = False
    disable_metrics: bool = True  # there are none; and the Crush client then sends none either
    debug: bool = False
    data_directory: str = ""  # as written; empty if no file says
    initialize_as: str = "AGENTS.md"
    tui: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def options_of(merged: Merged) -> ConfigOptions:
    given = merged.get("options") or {}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(ConfigOptions):
        value = given.get(field.name)
        if value not in (None, ""):
            values[field.name] = _unique(value) if isinstance(value, list) else value
    paths = {*CONTEXT_FILES, *values.get("context_paths", ())}
    return ConfigOptions(**values | {"context_paths": tuple(sorted(paths))})


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """Which of the built-in agents a workspace gets, and why, in one sentence."""

    agent: Literal["coder", "offline"]
    reason: str


class Config:
    """One workspace's configuration: a value, replaced as a whole when a file changes."""

    def __init__(
        self,
        merged: Merged,
        providers: Mapping[str, Provider],
        *,
        allowed_tools: tuple[str, ...] = (),
        secrets: Iterable[str] = (),
        notes: tuple[Iterable[str], Iterable[Path]] = ((), ()),
    ) -> None:
        """`notes`: the warnings of loading, and the files that were read."""
        self.providers = dict(providers)
        self.allowed_tools = allowed_tools
        self.options = options_of(merged)
        self.files = tuple(notes[1])
        self._merged = merged
        self._secrets = frozenset(filter(worth_hiding, (*secrets, *self._literals())))
        self._wanted = {
            role: decode(SelectedModel, merged.get("models", role), f"models.{role}")
            for role in ("large", "small")
            if merged.get("models", role)
        }
        self.large, self.small = select(self.providers, self._wanted)
        self._notes = tuple(dict.fromkeys(notes[0]))

    def __repr__(self) -> str:
        return f"<Config providers={list(self.providers)} large={self.large} small={self.small}>"

    def same_as(self, other: Config) -> bool:
        """Whether nobody could tell the two apart, but for warnings."""
        mine, its = (c._merged.values for c in (self, other))
        return (mine, self.providers, self.allowed_tools) == (
            its,
            other.providers,
            other.allowed_tools,
        )

    def small_of(self, provider_id: str) -> SelectedModel | None:
        """The small model that goes with a provider: the catalogue's choice, else the large one
        in use if it is this provider's, else its first. None if it has none."""
        provider = self.providers.get(provider_id)
        if provider is None or not provider.models:
            return None
        known = CATALOGUE.get(provider_id)
        ids = [model.id for model in provider.models]
        large = self.large.model.id if self.large and self.large.provider is provider else ids[0]
        small = known.small.id if known and known.small.id in ids else large
        return SelectedModel(model=small, provider=provider_id)

    def _literals(self) -> set[str]:
        """What the files hold in plain sight. References are no secrets."""
        found = set(hidden_values(self._merged.values))
        whole = [server.get(key) for server in self.mcp.values() for key in ("env", "headers")]
        whole += [
            section.get("oauth") for section in (self._merged.get("providers") or {}).values()
        ]
        found |= set(hidden_values(whole, below=True))
        return {text for text in found if "$" not in text}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was ignored, and why: for the log, once per loading."""
        selected = {"large": self.large, "small": self.small}
        unknown = [
            f"{self.origin(f'models.{role}')}: models.{role} names no usable model"
            for role, choice in self._wanted.items()
            if (found := selected[role]) is None or _pair(found.choice) != _pair(choice)
        ]
        return (*self._notes, *unknown)

    @property
    def mcp(self) -> dict[str, Any]:
        """Of the machine's files only, and not expanded: values may be references or secrets."""
        return dict(self._merged.get("mcp") or {})

    @property
    def lsp(self) -> dict[str, Any]:
        """As `mcp`."""
        return dict(self._merged.get("lsp") or {})

    def origin(self, key: str) -> Path | None:
        """The file that last spoke at a dotted key; None if none did."""
        source = self._merged.source(*split_key(key))
        return source.path if source else None

    def entries(self) -> Iterator[tuple[tuple[str, ...], Any, Path]]:
        """Every single value, where it stands and which file it is from. As it is written there:
        not expanded, and secrets are not hidden."""
        for path, value in _leaves(self._merged.values, ()):
            # What is inside an entry of a list has come with the entry.
            above = (self._merged.source(*path[:count]) for count in range(len(path), 0, -1))
            source = next(filter(None, above))
            yield path, value, source.path

    def secrets(self) -> frozenset[str]:
        """Every text that must not be logged, sent to a client or given to a command."""
        return self._secrets

    def discovered(self, found: Mapping[str, Iterable[Model]]) -> Config:
        """The same configuration with the models that providers listed when asked."""
        providers = dict(self.providers)
        for ident, models in found.items():
            known = providers.get(ident)
            if known is not None and known.discover and (listed := tuple(models)):
                # Not every server lists all that it serves: what somebody chose counts.
                ids = {model.id for model in listed}
                chosen = (c.model for c in self._wanted.values() if c.provider == ident)
                more = (Model(id=name, name=name) for name in dict.fromkeys(chosen))
                models = (*listed, *(model for model in more if model.id not in ids))
                providers[ident] = dataclasses.replace(known, models=models, discover=False)
        return self._with(providers)

    def _with(self, providers: Mapping[str, Provider]) -> Config:
        return Config(
            self._merged,
            providers,
            allowed_tools=self.allowed_tools,
            secrets=self._secrets,
            notes=(self._notes, self.files),
        )

    def wants_local(self, provider_id: str) -> bool:
        """Whether a model server that happens to run on this machine may be used: only if nothing
        else can be, and nobody has said no to it or to all defaults."""
        section = self._merged.get("providers", provider_id) or {}
        refused = section.get("disable") or self._merged.get("options", "disable_default_providers")
        return not self.providers and not refused

    def joined(self, provider: Provider) -> Config:
        """The same configuration with a provider that no file names."""
        return self._with({**self.providers, provider.id: provider})

    def choice(self) -> AgentChoice:
        if self.large is not None:
            name = f"{self.large.provider.id}/{self.large.model.id}"
            return AgentChoice("coder", f"coder: model {name}, {self._why(self.large)}")
        if waiting := [p.id for p in self.providers.values() if p.discover]:
            names = ", ".join(waiting)
            return AgentChoice("offline", f"offline: the models of {names} are not known yet")
        keys = ", ".join(known.key for known in CATALOGUE.values())
        reason = f"no configured provider is usable, and none of {keys} gives a key"
        return AgentChoice("offline", f"offline: {reason}")

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
            **{key: given[key] for key in _SHOWN_OPTIONS if key in given},
            "context_paths": list(self.options.context_paths),
            "disable_metrics": self.options.disable_metrics,
            "initialize_as": self.options.initialize_as,
            "tui": dict(self.options.tui),
        }
        if agent is None:
            providers = {p.id: _wire_provider(p) for p in self.providers.values()}
            chosen = {"large": self.large, "small": self.small}
            models = {role: encode(s.choice) for role, s in chosen.items() if s}
        else:
            own = agent.model_cfg.provider
            providers = {own: _own_provider(agent)}
            models = dict.fromkeys(("large", "small"), encode(agent.model_cfg))
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


def _own_provider(agent: AgentInfo) -> dict[str, Any]:
    name = agent.model_cfg.provider
    return {"id": name, "name": name, "type": "openai-compat", "models": [encode(agent.model)]}


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
    """The address without what gateways use as a password: a query, or a long path segment."""
    scheme, host, path, _, _ = urlsplit(url)
    segments = [HIDDEN if looks_like_token(part) else part for part in path.split("/")]
    return urlunsplit((scheme, host, "/".join(segments), "", ""))


def _wire_server(server: dict[str, Any]) -> dict[str, Any]:
    # No command, address, arguments or environment: clients show the name and the state.
    return {key: server[key] for key in _SHOWN_SERVER if key in server}


def _hidden(value: Any, secrets: frozenset[str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _hidden(item, secrets, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item, secrets, name) for item in value]
    if not isinstance(value, str):
        return value
    if name != "api_key" and is_secret_name(name):
        return mask("")
    return redact(value, secrets)
