"""How one workspace is configured: where its files are, what they say now, and how that changes.

A client changes the configuration by writing one of two files: the user's own (scope 0) or the
workspace's (scope 1). What it asks for is checked before it is written: a file that would make the
configuration unreadable, or a model that does not exist, is refused and changes nothing.

Reads and writes files: everything but the plain fields is for a thread.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, ConfigError
from ..hosting.plain import own_data_dir
from ..protocol.codec import encode
from . import Config, change, data_directory, global_file, load, put, take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..agent.base import Agent, AgentFactory
    from ..protocol.config import AgentInfo, ModelChoice, ProviderKey
    from . import Roots

ROLES = ("large", "small")
RECENT = 5  # models that are remembered for each role
# The variables that say where the machine's configuration files are.
VARIABLES = (
    *("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("CRUSH_GLOBAL_CONFIG", "CRUSH_GLOBAL_DATA"),
)


@dataclass(frozen=True, slots=True)
class FileLocations:
    """Where the files of one workspace are."""

    workspace: Path
    env: Mapping[str, str]  # what configuration is found and expanded with
    roots: Roots
    data_dir: Path
    allow_commands: bool = False

    @classmethod
    def find(
        cls,
        workspace: Path,
        env: Mapping[str, str],
        roots: Roots,
        *,
        data_dir: Path | None = None,
        allow_commands: bool = False,
    ) -> FileLocations:
        """`data_dir`: if somebody decided on it already; else the files are asked."""
        env = _environment(env, roots)
        wanted = data_dir or data_directory(workspace, env, roots) or own_data_dir(workspace)
        return cls(workspace, env, roots, Path(os.path.realpath(wanted)), allow_commands)

    @property
    def shared(self) -> bool:
        """Whether the data directory serves other workspaces too. One inside the project moves
        with it; in a shared one everything must say whose it is."""
        return self.data_dir.parent != self.workspace

    @property
    def folder(self) -> Path:
        """Of the workspace's own file."""
        if not self.shared:
            return self.data_dir
        return self.data_dir / hashlib.sha256(os.fsencode(self.workspace)).hexdigest()[:16]

    def file(self, scope: int) -> Path:
        if scope not in (0, 1):
            raise BadRequest(f"scope {scope}: use 0 for the user's file or 1 for the workspace's")
        return self.folder / "crush.json" if scope else global_file(self.env, self.roots)

    def load(self, instead: Mapping[Path, dict[str, Any]] | None = None) -> Config:
        return load(
            self.workspace,
            self.env,
            data_dir=self.folder,
            allow_commands=self.allow_commands,
            roots=self.roots,
            instead=instead,
        )


class _OutOfReach(Exception):
    """What is about to be written would not reach the provider it is for."""


class FileProfile:
    """The configuration in force, and changing it. A newer one is put here on the event loop.
    Implements wing.Profile."""

    def __init__(
        self, workspace: Path, locations: FileLocations, config: Config, agents: AgentFactory
    ) -> None:
        self.locations = locations
        self.config = config
        self.data_dir = locations.data_dir
        self.agents = agents
        self._workspace = workspace

    def make_agent(self, env: Mapping[str, str]) -> Agent | None:
        return self.agents(self._workspace, env, self.config)

    def wire(self, agent: AgentInfo) -> dict[str, Any]:
        """An agent that is not one of the configured models is shown as a provider of its own."""
        own = agent.is_ready and agent.model_cfg.provider not in self.config.providers
        return self.config.wire(self.data_dir, agent if own else None)

    def allows(self, tool: str, action: str) -> bool:
        """Whether a tool may run without asking."""
        return not {tool, f"{tool}:{action}"}.isdisjoint(self.config.allowed_tools)

    # Changes: each says whether it changed a file ------------------------------------------------

    def set_value(self, scope: int, key: str, value: Any) -> bool:
        return self._change(scope, lambda document: put(document, key, value))

    def remove_value(self, scope: int, key: str) -> bool:
        return self._change(scope, lambda document: take(document, key))

    def choose_model(self, wanted: ModelChoice) -> bool:
        role, choice = wanted.model_type, wanted.model
        if role not in ROLES:
            raise BadRequest(f"model_type {role!r}: use large or small")
        if not choice.model or not choice.provider:
            raise BadRequest("model must name a provider and a model")
        providers = self.config.providers
        provider = providers.get(choice.provider)
        # Without any provider there is nothing to hold it against: the file may come before them.
        if providers and (provider is None or provider.model(choice.model) is None):
            known = ", ".join(providers)
            raise BadRequest(
                f"no model {choice.model!r} of a provider {choice.provider!r}: "
                f"configured are {known}"
            )

        def edit(document: dict[str, Any]) -> None:
            put(document, f"models.{role}", encode(choice))
            put(document, f"recent_models.{role}", self._recent(document, wanted))

        return self._change(wanted.scope, edit)

    def _recent(self, document: dict[str, Any], wanted: ModelChoice) -> list[dict[str, Any]]:
        newest = wanted.model.model, wanted.model.provider
        before = (document.get("recent_models") or {}).get(wanted.model_type) or []
        others = [one for one in before if (one.get("model"), one.get("provider")) != newest]
        return [encode(wanted.model), *others][:RECENT]

    def set_key(self, wanted: ProviderKey) -> bool:
        if not wanted.provider_id:
            raise BadRequest("provider_id must not be empty")
        ident = wanted.provider_id.replace(".", r"\.")
        values = _credentials(wanted)
        file = self.locations.file(0)

        def edit(document: dict[str, Any]) -> None:
            for name, value in values.items():
                put(document, f"providers.{ident}.{name}", value)

        def arrives(config: Config) -> None:
            known = wanted.provider_id in config.providers
            if known and config.origin(f"providers.{ident}.api_key") != file:
                raise _OutOfReach

        if wanted.scope == 0:
            try:
                changed = self._change(0, edit, arrives)
                arrives(self.locations.load())  # what stood there already may not arrive either
                return changed
            except _OutOfReach:
                # A provider that the project brought gets nothing from the user's file, so that no
                # project can draw a key to itself. Here a person gave it one: it goes to its file.
                return self._change(1, edit)
        return self._change(wanted.scope, edit)

    def _change(
        self,
        scope: int,
        edit: Callable[[dict[str, Any]], None],
        check: Callable[[Config], None] = lambda config: None,
    ) -> bool:
        file = self.locations.file(scope)

        def accept(document: dict[str, Any]) -> None:
            config = self.locations.load(instead={file: document})
            # What a project's files have no say in would be written, and never heard of again.
            for warning in config.warnings if scope else ():
                if " is ignored: " in warning and warning not in self.config.warnings:
                    raise ConfigError(f"{warning}; the user's own file is scope 0")
            check(config)

        return change(file, edit, accept)


def _credentials(wanted: ProviderKey) -> dict[str, Any]:
    """What is written."""
    key = wanted.api_key
    if wanted.kind == "string":
        if not isinstance(key, str):
            raise BadRequest("decode api key: a string was expected")
        return {"api_key": key}
    if wanted.kind == "oauth":
        if not isinstance(key, dict) or not isinstance(key.get("access_token"), str):
            raise BadRequest("decode api key: an object with an access_token was expected")
        return {"api_key": key["access_token"], "oauth": key}
    raise BadRequest(f'unsupported api key kind "{wanted.kind}": use string or oauth')


def _environment(env: Mapping[str, str], roots: Roots) -> Mapping[str, str]:
    """What configuration is found and expanded with: the client's environment, and the daemon's own
    for what the client left out. The variables that say where the files are go together: they are
    the client's if it named any, unless there is no configuration and the user who started the
    daemon, who is the same user, has one."""
    both = {**os.environ, **env}
    rest = {name: value for name, value in both.items() if name not in VARIABLES}
    theirs = rest | {name: env[name] for name in VARIABLES if name in env}
    ours = rest | {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if theirs == rest:
        return ours
    return ours if not _configured(theirs, roots) and _configured(ours, roots) else theirs


def _configured(env: Mapping[str, str], roots: Roots) -> bool:
    folders = (roots.config(env), roots.crush_data(env), roots.own_data(env))
    return any((folder / "crush.json").exists() for folder in folders)
