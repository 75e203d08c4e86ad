"""The configuration files of a workspace, and the way from them to a `Config`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..hosting.plain import own_data_dir
from ..records import dataclass
from .catalogue import CATALOGUE
from .expand import Expander, SecretGuard, variables
from .files import NAME, Source, environment, find, read
from .merge import Merged, check
from .project import ProjectRules, allowed_tools
from .providers import Builder
from .secrets import is_secret_name, literals, looks_like_token
from .view import Config, Loaded
from .warnings import ConfigWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .files import Roots
    from .warnings import Reason, Warn

Layer = tuple[Source, dict[str, Any]]  # a file that exists, and what it holds


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """Where the files of one workspace are. Reads and writes files: call it in a thread."""

    workspace: Path
    env: Mapping[str, str]  # files are found and variables expanded with it
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
    ) -> ConfigFiles:
        """The files of a workspace for a client with this environment. Without `data_dir` the files
        decide on it. Raises ConfigError if one of them cannot be used."""
        env = environment(env, roots)
        wanted = data_dir or data_directory(workspace, env, roots) or own_data_dir(workspace)
        return cls(workspace, env, roots, Path(os.path.realpath(wanted)), allow_commands)

    def file(self, scope: int) -> Path:
        """The file that changes write: of the user (scope 0) or of the workspace (scope 1)."""
        if scope not in (0, 1):
            raise BadRequest(f"scope {scope}: use 0 for the user's file or 1 for the workspace's")
        return (self._folder if scope else self.roots.own_data(self.env)) / NAME

    @property
    def _folder(self) -> Path:
        """The folder of the workspace's own file. A data directory inside the project moves with
        it; in a shared one the folder is named after the workspace."""
        if self.data_dir.parent == self.workspace:
            return self.data_dir
        return self.data_dir / hashlib.sha256(os.fsencode(self.workspace)).hexdigest()[:16]

    def load(self, pending: Mapping[Path, dict[str, Any]] | None = None) -> Config:
        """Read the configuration. A document in `pending` counts instead of what its file holds.
        Raises ConfigError if a file that exists cannot be used."""
        warnings: dict[ConfigWarning, None] = {}  # each once, in order

        def warn(reason: Reason, file: Path, key: str, text: str) -> None:
            warnings[ConfigWarning(reason, file, key, text)] = None

        sources = find(self.workspace, self.env, self.roots, warn)
        sources.append(Source(self.file(1), "data"))
        layers = list(_layers(sources, self.workspace, warn, pending or {}))
        machine, merged = _merged(layers, self.workspace, warn)
        expander = Expander(
            self.env, warn, allow_commands=self.allow_commands, guard=_guard(machine)
        )
        providers = Builder(merged, expander, warn).providers()
        allowed = allowed_tools(layers, warn)
        loaded = Loaded(
            merged,
            allowed_tools=allowed,
            secrets=frozenset({*expander.secrets, *_tokens(self.env)}),
            warnings=tuple(warnings),
            files=tuple(source.path for source, _ in layers),
        )
        return Config(loaded, providers)


def data_directory(workspace: Path, env: Mapping[str, str], roots: Roots) -> Path | None:
    """Where `options.data_directory` wants the database; None if no file says. It cannot wait for
    `load`, which needs the answer to find the last file."""
    sources = find(workspace, env, roots, _drop)
    _, merged = _merged(list(_layers(sources, workspace, _drop, {})), workspace, _drop)
    wanted = merged.get("options", "data_directory")
    if not wanted:
        return None
    home, tail = env.get("HOME"), wanted.removeprefix("~/")
    below_home = home is not None and tail != wanted  # the client's home, not the daemon's
    return Path(home or "", tail) if below_home else workspace / wanted


def _drop(*warning: object) -> None:
    """Do nothing about a warning: `load` gives it again."""


def _layers(
    sources: list[Source], workspace: Path, warn: Warn, pending: Mapping[Path, dict[str, Any]]
) -> Iterator[Layer]:
    for source in sources:
        document = pending.get(source.path)
        if document is None:
            document = read(source, workspace, warn)
        if document is not None:
            check(document, source.path)
            yield source, document


def _merged(layers: list[Layer], workspace: Path, warn: Warn) -> tuple[Merged, Merged]:
    """What the machine's files say alone, and what all files say together."""
    machine, merged = Merged(), Merged()
    for source, document in layers:
        if source.trusted:
            machine.add(document, source)
            merged.add(document, source)
    rules = ProjectRules(merged, workspace, warn)
    for source, document in layers:
        if not source.trusted:
            merged.add(rules.admit(document, source), source)
    return machine, merged


def _guard(machine: Merged) -> SecretGuard:
    """What is a credential because the machine's files use it as one."""
    used: list[Any] = []
    for provider in (machine.get("providers") or {}).values():
        used += [provider.get(key) for key in ("api_key", "extra_headers", "oauth")]
    for server in (machine.get("mcp") or {}).values():
        used += [server.get(key) for key in ("env", "headers")]
    return SecretGuard(
        names=frozenset(
            variables([*used, machine.get("mcp")]) | {known.key for known in CATALOGUE.values()}
        ),
        values=frozenset(literals(used, secret=True)),
        shared=frozenset(machine.get("permissions", "project_variables") or ()),
    )


def _tokens(env: Mapping[str, str]) -> Iterator[str]:
    """Values of the environment that are secrets by name and by shape. The name alone is not enough
    to hide a text everywhere: a password of `postgres` is a common word."""
    for name, value in env.items():
        if is_secret_name(name) and looks_like_token(value):
            yield value
