"""The configuration files of a workspace, and the way from them to a `Config`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..commands.environment import is_secret_name, is_secret_value, looks_like_token
from ..errors import BadRequest, ConfigError
from ..hosting.plain import own_data_dir
from ..realpath import real_path
from ..records import dataclass
from ..version import __version__
from . import effects
from .agentfiles import agent_files, usable
from .agents import agent_programs
from .catalogue import CATALOGUE
from .crushrc import document_of
from .expand import Expander, SecretGuard, variables
from .files import NAME, Source, environment, find, read
from .merge import Merged, check
from .project import Layer, ProjectRules, allowed_tools, choices, how_to_trust
from .providers import Builder
from .rules import rules_of
from .script import ScriptRuns
from .secrets import literals
from .toolservers import tool_servers
from .trust import Trust, TrustedFiles, TrustStore, resolved
from .view import Config, Loaded
from .warnings import ConfigWarning, Reason
from .writing import change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .agentfiles import AgentFile
    from .files import Content, Roots
    from .warnings import Warn
    from .writing import Edited


class Pending(NamedTuple):
    """A document that is to be written to a file. `trusted`: with the user's trust."""

    document: dict[str, Any]
    trusted: bool


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A file of a project as it is now."""

    path: Path
    content: Content
    trust: Trust


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """Where the files of one workspace are. Reads and writes files: call it in a thread."""

    workspace: Path
    env: Mapping[str, str]  # files are found and variables expanded with it
    roots: Roots
    data_dir: Path
    allow_commands: bool = False
    scripts: ScriptRuns = dataclasses.field(default_factory=ScriptRuns)

    @classmethod
    def find(
        cls,
        workspace: Path,
        env: Mapping[str, str],
        roots: Roots,
        *,
        data_dir: Path | None = None,
        allow_commands: bool = False,
        scripts: ScriptRuns | None = None,
    ) -> ConfigFiles:
        """The files of a workspace for a client with this environment. Without `data_dir` the files
        decide on it. Raises ConfigError if one of them cannot be used."""
        env = environment(env, roots)
        runs = scripts or ScriptRuns()
        wanted = data_dir or data_directory(workspace, env, roots, runs) or own_data_dir(workspace)
        return cls(workspace, env, roots, Path(real_path(wanted)), allow_commands, runs)

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

    @property
    def _script_env(self) -> dict[str, str]:
        """What a crushrc sees: the environment, and where Crush keeps its files."""
        config = self.roots.config(self.env)
        own = {
            "CRUSH_VERSION": __version__,
            "CRUSH_GLOBAL_CONFIG": str(config),
            "CRUSH_GLOBAL_DATA": str(self.roots.crush_data(self.env)),
            "CRUSH_SKILLS_DIR": self.env.get("CRUSH_SKILLS_DIR") or str(config / "skills"),
        }
        return {**self.env, **own}

    @property
    def trust_store(self) -> TrustStore:
        return TrustStore.of(self.roots, self.env)

    def load(self, pending: Mapping[Path, Pending] | None = None) -> Config:
        """Read the configuration. A document in `pending` counts instead of what its file holds.
        Raises ConfigError if a file that exists cannot be used."""
        warnings: dict[ConfigWarning, None] = {}  # each once, in order

        def warn(reason: Reason, file: Path, key: str, text: str) -> None:
            warnings[ConfigWarning(reason, file, key, text)] = None

        layers = self._layers(self._sources(warn), warn, pending or {})
        machine, merged = _merged(layers, self.workspace, warn)
        expander = self._expander(machine, warn)
        providers = Builder(merged, expander, warn).providers()
        servers = tool_servers(merged, expander, warn)
        programs = agent_programs(merged, expander, warn)
        effects.report(merged, warn)
        allowed = allowed_tools(layers, warn)
        rules = rules_of(layers, warn)
        loaded = Loaded(
            merged,
            allowed_tools=allowed,
            rules=rules,
            tool_servers=servers,
            programs=programs,
            secrets=frozenset({*expander.secrets, *_tokens(self.env)}),
            warnings=tuple(warnings),
            files=tuple(layer.source.path for layer in layers),
            own_folders=(self.data_dir, *self.roots.folders(self.env)),
            agents=lambda: usable(self.agent_files()),
        )
        return Config(loaded, providers)

    def _sources(self, warn: Warn) -> list[Source]:
        sources = find(self.workspace, self.env, self.roots, warn)
        return [*sources, Source(self.file(1), "data")]

    def _layers(
        self, sources: list[Source], warn: Warn, pending: Mapping[Path, Pending]
    ) -> list[Layer]:
        """The files that exist. Raises ConfigError if one of them cannot be used."""
        trusted = self._trusted(warn)
        layers: list[Layer] = []
        for source in sources:
            if source.path in pending:
                document, good = pending[source.path]
                trust = Trust.TRUSTED if good else Trust.UNKNOWN
            elif source.is_script:
                calls = self.scripts.calls(source.path, self._script_env)
                if calls is None:
                    continue
                document, trust = document_of(source.path, calls, warn), Trust.TRUSTED
            elif content := read(source, self.workspace, warn):
                document, trust = content.document, trusted.state(source.path, content.digest)
            else:
                continue
            check(document, source.path)
            layers.append(Layer(source, document, trust))
        return layers

    def _trusted(self, warn: Warn) -> TrustedFiles:
        """The trusted files; none if the list of them cannot be used."""
        store = self.trust_store
        try:
            return store.read()
        except ConfigError as error:
            text = error.message.removeprefix(f"{store.file}: ")
            warn(Reason.FILE_SKIPPED, store.file, "", f"no project is trusted: {text}")
            return TrustedFiles({})

    def _expander(self, machine: Merged, warn: Warn) -> Expander:
        guard = _guard(machine)
        return Expander(self.env, warn, allow_commands=self.allow_commands, guard=guard)

    # Trust ---------------------------------------------------------------------------------------

    def project_files(self) -> list[ProjectFile]:
        """The project's files that exist, as they are now. Raises ConfigError if one of them
        cannot be used."""
        trusted = self._trusted(_drop)
        found = []
        for source in self._sources(_drop):
            content = None if source.is_machine else read(source, self.workspace, _drop)
            if content is not None:
                check(content.document, source.path)
                trust = trusted.state(source.path, content.digest)
                found.append(ProjectFile(source.path, content, trust))
        return found

    def agent_files(self) -> list[AgentFile]:
        """The files of named sub-agents, of the user and of the project."""
        return agent_files(self.workspace, self.env, self.roots)

    def trust(self, files: Iterable[ProjectFile]) -> None:
        """Trust these files, with the contents that were read. Raises ConfigError."""
        digests = {file.path: {file.content.digest} for file in files}
        if digests:
            self.trust_store.record(digests)

    def distrust(self) -> list[Path]:
        """Trust no file of this project any more, and none below its folder; return those that
        were trusted. Raises ConfigError."""
        own = {resolved(source.path) for source in self._sources(_drop) if not source.is_machine}
        store = self.trust_store
        known = store.read().paths()
        return store.forget(p for p in known if p in own or p.is_relative_to(self.workspace))

    def withheld(self, names: Iterable[str]) -> set[str]:
        """Those of the variables that this project's files do not get, even if they are trusted.
        Raises ConfigError if a file cannot be used."""
        machine, _ = _merged(self._layers(self._sources(_drop), _drop, {}), self.workspace, _drop)
        expander = self._expander(machine, _drop)
        return {name for name in names if expander.withholds(name)}

    # Changes -------------------------------------------------------------------------------------

    def change(
        self,
        scope: int,
        edit: Callable[[dict[str, Any]], None],
        accept: Callable[[Config], None] | None = None,
    ) -> bool:
        """Edit the file of a scope; return whether that changed anything. `accept` is called with
        the configuration as it would be, and may raise to refuse it. Raises ConfigError, and
        changes nothing, if the file could not be read afterwards.

        What is written at the user's request is trusted. But not together with choices that the
        workspace's file held before and that the user has not seen: then the file stays untrusted,
        and an edit that concerns such choices is refused."""
        file = self.file(scope)

        def accepted(edited: Edited) -> contextlib.AbstractContextManager[object]:
            trusted = scope == 0 or self._may_vouch(file, edited)
            if accept is not None:
                accept(self.load({file: Pending(edited.after.document, trusted)}))
            if scope == 0 or not trusted:
                return contextlib.nullcontext()
            before = edited.before.digest if edited.before else None
            return self.trust_store.following(file, before, edited.after.digest)

        return change(file, edit, accepted)

    def _may_vouch(self, file: Path, edited: Edited) -> bool:
        """Whether an edit of the workspace's file makes it trusted. Raises ConfigError if it cannot
        be made because the file is not trusted."""
        before, after = edited
        unseen = choices(before.document) if before else {}
        if before is None or not unseen:
            return True
        if self._trusted(_drop).state(file, before.digest) is Trust.TRUSTED:
            return True
        if (wanted := choices(after.document)) and wanted != unseen:
            raise ConfigError(
                f"{file} is not trusted: remove it, or see what it asks for and allow that with "
                f"`{how_to_trust(self.workspace)}`"
            )
        return not wanted


def data_directory(
    workspace: Path, env: Mapping[str, str], roots: Roots, scripts: ScriptRuns | None = None
) -> Path | None:
    """Where `options.data_directory` wants the database; None if no file says. It cannot wait for
    `load`, which needs the answer to find the last file."""
    sources = find(workspace, env, roots, _drop)
    files = ConfigFiles(workspace, env, roots, workspace, scripts=scripts or ScriptRuns())
    _, merged = _merged(files._layers(sources, _drop, {}), workspace, _drop)
    wanted = merged.get("options", "data_directory")
    if not wanted:
        return None
    home, tail = env.get("HOME"), wanted.removeprefix("~/")
    below_home = home is not None and tail != wanted  # the client's home, not the daemon's
    return Path(home or "", tail) if below_home else workspace / wanted


def _drop(*warning: object) -> None:
    """Do nothing about a warning: `load` gives it again."""


def _merged(layers: list[Layer], workspace: Path, warn: Warn) -> tuple[Merged, Merged]:
    """What the machine's files say alone, and what all files say together."""
    machine, merged = Merged(), Merged()
    for source, document, _ in layers:
        if source.is_machine:
            machine.add(document, source)
            merged.add(document, source)
    rules = ProjectRules(merged, workspace, warn)
    for layer in layers:
        if not layer.source.is_machine:
            merged.add(rules.admit(layer), layer.source)
    return machine, merged


def _guard(machine: Merged) -> SecretGuard:
    """What is a credential because the machine's files use it as one."""
    used: list[Any] = []
    for provider in (machine.get("providers") or {}).values():
        used += [provider.get(key) for key in ("api_key", "extra_headers", "oauth")]
    for server in (machine.get("mcp") or {}).values():
        used += [server.get(key) for key in ("env", "headers")]
    used += [agent.get("env") for agent in (machine.get("agents") or {}).values()]
    return SecretGuard(
        names=frozenset(
            variables([*used, machine.get("mcp")]) | {known.key for known in CATALOGUE.values()}
        ),
        values=frozenset(literals(used, secret=True)),
        shared=frozenset(machine.get("permissions", "project_variables") or ()),
    )


def _tokens(env: Mapping[str, str]) -> Iterator[str]:
    """Values of the environment that are secrets by their form, or by name and by shape. The name
    alone is not enough to hide a text everywhere: a password of `postgres` is a common word."""
    for name, value in env.items():
        if is_secret_value(value) or (is_secret_name(name) and looks_like_token(value)):
            yield value
