"""The configuration of a workspace, as the daemon uses it and as clients see it.

`wire` is built from a list of what clients need, not by taking things away: a key that is not
listed is not sent. What could hold a secret all the same goes through the redactor.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from ..commands.environment import is_secret_name, looks_like_token, without_secrets
from ..errors import BadRequest
from ..hosting.plain import own_provider
from ..protocol.codec import decode, encode
from ..protocol.config import ROLES, Model, SelectedModel
from ..records import dataclass
from .catalogue import CATALOGUE
from .hooks import hook_entries, tool_hooks
from .merge import spell, split_key
from .options import OPTIONS, UNKNOWN, ConfigOptions
from .providers import catalogue_small, select, with_selected
from .secrets import HIDDEN, literals, mask, redact, worth_hiding
from .warnings import ConfigWarning, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from ..protocol.config import AgentInfo
    from ..protocol.permissions import PermissionRule
    from .agentfiles import AgentFile
    from .agents import AgentProgram
    from .hooks import HookEntry, ToolHook
    from .merge import Merged
    from .providers import Provider, Selected
    from .toolservers import ToolServer

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
    tool_servers: Mapping[str, ToolServer] = dataclasses.field(default_factory=dict)
    agents: Callable[[], dict[str, AgentFile]] = dict  # reads the files of named sub-agents
    programs: Mapping[str, AgentProgram] = dataclasses.field(default_factory=dict)


class Config:
    """One workspace's configuration: a value, replaced as a whole when a file changes.

    `large` and `small` are the models in use, None if no provider has any."""

    def __init__(
        self,
        loaded: Loaded,
        providers: Mapping[str, Provider],
        models: Mapping[str, SelectedModel] | None = None,
    ) -> None:
        """`models`, by role, are used instead of those that the files choose."""
        merged = loaded.merged
        self.allowed_tools = loaded.allowed_tools
        self.rules = loaded.rules
        self.tool_servers = loaded.tool_servers  # the section `mcp`, expanded
        self.programs = loaded.programs  # agents that can be chosen for a session, by name
        self.files = loaded.files
        self.own_folders = loaded.own_folders
        self.read_agents = loaded.agents  # the named sub-agents, as their files are now; blocks
        self.options = ConfigOptions.of(merged.get("options") or {})
        self._loaded = loaded
        self._merged = merged
        self._secrets = frozenset(filter(worth_hiding, (*loaded.secrets, *self._literals())))
        self._wanted = {
            role: decode(SelectedModel, merged.get("models", role), f"models.{role}")
            for role in ROLES
            if merged.get("models", role)
        } | dict(models or {})
        self._given = dict(providers)
        self.large, self.small = select(self._given, self._wanted)
        self.providers = with_selected(self._given, self.large, self.small)
        self.warnings = (*loaded.warnings, *self._model_warnings())

    def __repr__(self) -> str:
        return f"<Config providers={list(self.providers)} large={self.large} small={self.small}>"

    def same_as(self, other: Config) -> bool:
        """Whether the two differ in nothing but warnings and the files that were read."""
        same = (self.providers, self.rules) == (other.providers, other.rules)
        return same and self.asks_as(other)

    def asks_as(self, other: Config) -> bool:
        """Whether an agent made of either would be the same."""

        def compared(config: Config) -> tuple[object, ...]:
            models = (_asked(config.large), _asked(config.small))
            return (config._merged.values, config.allowed_tools, models)

        return compared(self) == compared(other)

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
        whole += [agent.get("env") for agent in (self._merged.get("agents") or {}).values()]
        sections = (self._merged.get("providers") or {}).values()
        yield from literals([*whole, *(each.get("oauth") for each in sections)], secret=True)

    def _model_warnings(self) -> Iterator[ConfigWarning]:
        """Choices that cannot be used, and models in use of which little is known."""
        for role, choice in self._wanted.items():
            key = f"models.{role}"
            file = self._merged.source("models", role)
            if file is None:
                continue  # no file has chosen it
            used = self.large if role == "large" else self.small
            if role == "small" and self.large is None:
                continue  # nothing is asked at all
            if used is None or not _is(used, choice):
                text = f"{key} cannot be used: {self._why_unusable(choice)}"
                yield ConfigWarning(Reason.MODEL_UNKNOWN, file.path, key, text)
            elif not used.provider.lists(used.model.id) and not used.provider.discover:
                text = (
                    f"{key} is used as it is written, but its context window and price are not "
                    f"known: they can be given in providers.{spell((used.provider.id,))}.models"
                )
                yield ConfigWarning(Reason.MODEL_UNLISTED, file.path, key, text)

    def _why_unusable(self, choice: SelectedModel) -> str:
        if not choice.provider:
            return "it names no provider, and not exactly one has the model"
        if choice.provider in self._given:
            return "the models of its provider are not known yet"
        if choice.provider in (self._merged.get("providers") or {}):
            return "its provider is left out or disabled"
        if choice.provider in CATALOGUE:
            return f"its provider has no key: set {CATALOGUE[choice.provider].key}"
        return "no provider of that name is configured"

    @property
    def mcp(self) -> dict[str, Any]:
        """The tool servers, not expanded: values may be references or secrets."""
        return dict(self._merged.get("mcp") or {})

    @property
    def lsp(self) -> dict[str, Any]:
        """The language servers. They are of the machine's files only, and not expanded."""
        return dict(self._merged.get("lsp") or {})

    @property
    def tool_hooks(self) -> tuple[ToolHook, ...]:
        """The hooks that must be asked before tools."""
        return tool_hooks(self._merged)

    @property
    def hooks(self) -> tuple[HookEntry, ...]:
        """All hooks, in the order of the files: of the machine's, and of a trusted project's."""
        return hook_entries(self._merged)

    def origin(self, key: str) -> Path | None:
        """The last file that holds a dotted key; None if none does."""
        source = self._merged.source(*split_key(key))
        return source.path if source else None

    def model_origin(self, provider_id: str, model_id: str) -> str:
        """Where an entry of a provider's list is from, in words."""
        listed = self._merged.get("providers", provider_id, "models") or []
        for index, entry in reversed(list(enumerate(listed))):
            source = self._merged.source("providers", provider_id, "models", str(index))
            if entry.get("id") == model_id and source is not None:
                return str(source.path)
        known = CATALOGUE.get(provider_id)
        if known and model_id in (known.large.id, known.small.id):
            return "built in"
        provider = self._given.get(provider_id)
        if provider is None or not provider.lists(model_id):
            return "as it is written"
        return "a server on this machine" if provider.found else "the provider's list"

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

    def redact(self, text: str) -> str:
        """The text without these secrets, for a log or a client."""
        return redact(text, self._secrets)

    def command_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment for commands: without secrets, except for the variables that the user's
        own files name in `permissions.command_variables`."""
        allowed = self._merged.get("permissions", "command_variables") or ()
        return without_secrets(env, secrets=self._secrets, allowed=frozenset(allowed))

    def discovered(self, found: Mapping[str, Iterable[Model]]) -> Config:
        """The same configuration with the models that providers listed when asked. What is known of
        a model already stays."""
        providers = dict(self._given)
        for ident, models in found.items():
            known = providers.get(ident)
            if known is not None and (known.discover or known.extend) and (listed := tuple(models)):
                more = (model for model in listed if not known.lists(model.id))
                providers[ident] = dataclasses.replace(
                    known, models=(*known.models, *more), discover=False, extend=False
                )
        return Config(self._loaded, providers)

    def allows_local(self, provider_id: str) -> bool:
        """Whether a model server that happens to run on this machine may be used: if the files
        disable neither this one nor all defaults, and have no provider of that name."""
        section = self._merged.get("providers", provider_id) or {}
        refused = section.get("disable") or self._merged.get("options", "disable_default_providers")
        return not refused and provider_id not in self._given

    def wants_local(self, provider_id: str) -> bool:
        """Whether such a server must be looked for before anything can be asked: no provider can be
        used, or this one was chosen."""
        chosen = any(choice.provider == provider_id for choice in self._wanted.values())
        return self.allows_local(provider_id) and (chosen or not self._given)

    def served_as(self, name: str) -> Selected | None:
        """The model of this name, `provider/model` or the name alone; None if no usable provider
        lists it."""
        for provider in self.providers.values():
            for model in provider.models:
                if name in (model.id, f"{provider.id}/{model.id}"):
                    choice = SelectedModel(model=model.id, provider=provider.id)
                    return self.with_models({"large": choice}).large
        return None

    def with_models(self, models: Mapping[str, SelectedModel]) -> Config:
        """The same configuration with other models for some roles, used as they are written; one
        that is in use already keeps its settings. Raises BadRequest for one of a provider that
        cannot be used."""
        used = {"large": self.large, "small": self.small}
        other = {
            role: choice
            for role, choice in models.items()
            if not ((now := used[role]) and _is(now, choice))
        }
        for choice in other.values():
            if choice.provider not in self._given:
                why = self._why_unusable(choice)
                raise BadRequest(f"{choice.provider}/{choice.model} cannot be used: {why}")
        return Config(self._loaded, self._given, other) if other else self

    def joined(self, provider: Provider) -> Config:
        """The same configuration with a provider that no file names."""
        return Config(self._loaded, {**self._given, provider.id: provider})

    def choice(self) -> AgentChoice:
        """The coder if there is a model for it, else the offline agent."""
        if self.large is not None:
            name = f"{self.large.provider.id}/{self.large.model.id}"
            return AgentChoice("coder", f"model {name}, {self._why(self.large)}")
        for warning in self.warnings:
            if warning.reason is Reason.MODEL_UNKNOWN and warning.key == "models.large":
                return AgentChoice("offline", f"{warning}; no other model is used instead")
        if waiting := [p.id for p in self.providers.values() if p.discover]:
            names = ", ".join(waiting)
            reason = (
                f"the models of {names} are not known: it was not asked yet, or does not answer"
            )
            return AgentChoice("offline", reason)
        keys = ", ".join(known.key for known in CATALOGUE.values())
        reason = f"no configured provider is usable, and none of {keys} gives a key"
        for warning in self.warnings:
            if warning.reason is Reason.UNTRUSTED:
                reason += f"; {warning}"
        return AgentChoice("offline", reason)

    def _why(self, large: Selected) -> str:
        wanted = self._wanted.get("large")
        if wanted and (wanted.model or wanted.provider):
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


def _is(used: Selected, choice: SelectedModel) -> bool:
    """Whether a model in use is the one that was chosen; a choice may leave a part open."""
    return choice.provider in ("", used.provider.id) and choice.model in ("", used.model.id)


def _asked(used: Selected | None) -> object:
    """All of a selection that an agent is made of. The other models of its provider are not."""
    return used and (dataclasses.replace(used.provider, models=()), used.model, used.choice)


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
