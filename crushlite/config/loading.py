"""From files and environment to a `Config`: the order of events, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .catalogue import CATALOGUE
from .expand import Expander, SecretGuard, variables
from .files import Roots, find, read
from .merge import Merged, check
from .project import Outside, allowed_tools
from .providers import Builder
from .secrets import hidden_values, is_secret_name, looks_like_token
from .view import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .files import Source

Layer = tuple["Source", dict[str, Any]]


def load(
    workspace: Path,
    env: Mapping[str, str],
    *,
    data_dir: Path | None,
    allow_commands: bool = False,
    roots: Roots | None = None,
    instead: Mapping[Path, dict[str, Any]] | None = None,
) -> Config:
    """Read the configuration of a workspace. `env` is its client's environment, `data_dir` the
    folder of its scope 1 file, `instead` holds documents that are about to be written, by file.
    Raise ConfigError if a file that exists cannot be used."""
    sources, warnings = find(workspace, env, data_dir=data_dir, roots=roots or Roots())
    warn = warnings.append
    layers = list(_layers(sources, workspace, warn, instead or {}))
    outside, merged = _merged(layers, workspace, warn)
    expander = Expander(
        env,
        warn,
        allow_commands=allow_commands,
        guard=_guard(outside),
    )
    providers = Builder(merged, expander, warn).providers()
    return Config(
        merged,
        providers,
        allowed_tools=allowed_tools(layers, warn),
        secrets={*expander.secrets, *_tokens(env)},
        notes=(warnings, [source.path for source, _ in layers]),
    )


def data_directory(
    workspace: Path, env: Mapping[str, str], roots: Roots | None = None
) -> Path | None:
    """Where `options.data_directory` wants the database; None if no file says. It cannot wait for
    `load`, which needs the answer to find the last file."""
    sources, warnings = find(workspace, env, data_dir=None, roots=roots or Roots())
    layers = list(_layers(sources, workspace, warnings.append, {}))
    _, merged = _merged(layers, workspace, warnings.append)
    wanted = merged.get("options", "data_directory")
    if not wanted:
        return None
    home, tail = env.get("HOME"), wanted.removeprefix("~/")
    below_home = home is not None and tail != wanted  # the client's home, not the daemon's
    return Path(home or "", tail) if below_home else workspace / wanted


def _layers(
    sources: list[Source],
    workspace: Path,
    warn: Callable[[str], None],
    instead: Mapping[Path, dict[str, Any]],
) -> Iterator[Layer]:
    for source in sources:
        pending = instead.get(source.path)
        document = pending if pending is not None else read(source, workspace, warn)
        if document is not None:
            check(document, source.path)
            yield source, document


def _merged(
    layers: list[Layer], workspace: Path, warn: Callable[[str], None]
) -> tuple[Merged, Merged]:
    """What the machine's files say alone, and what all say together."""
    alone, merged = Merged(), Merged()
    for source, document in layers:
        if source.trusted:
            alone.add(document, source)
            merged.add(document, source)
    outside = Outside(merged, workspace, warn)
    for source, document in layers:
        if not source.trusted:
            merged.add(outside.admit(document, source), source)
    return alone, merged


def _guard(outside: Merged) -> SecretGuard:
    """What is a credential because the machine's files use it as one."""
    used: list[Any] = []
    for provider in (outside.get("providers") or {}).values():
        used += [provider.get(key) for key in ("api_key", "extra_headers", "oauth")]
    for server in (outside.get("mcp") or {}).values():
        used += [server.get(key) for key in ("env", "headers")]
    names = set[str]().union(*map(variables, [*used, outside.get("mcp")]))
    literals = {text for value in used for text in hidden_values(value, below=True)}
    return SecretGuard(
        names=frozenset(names | {known.key for known in CATALOGUE.values()}),
        values=frozenset(text for text in literals if "$" not in text),
        shared=frozenset(outside.get("permissions", "project_variables") or ()),
    )


def _tokens(env: Mapping[str, str]) -> Iterator[str]:
    """Values that are secrets by name and by shape. By name alone is not enough to hide a text
    everywhere: a password of `postgres` is a common word."""
    for name, value in env.items():
        if is_secret_name(name) and looks_like_token(value):
            yield value
