"""Which `crush.json` files speak for a workspace, and how one is read.

Reading is guarded: the files of a project come from whoever wrote the repository. Only regular
files of a bounded size are read (a pipe with the right name would hold a thread for ever), the
owner is taken from the opened file, and the JSON reader is the strict one of the wire.

Knows nothing of what the keys mean.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import BadRequest, ConfigError
from ..protocol.codec import loads
from ..version import NAME as OWN_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NAME = "crush.json"
MAX_FILE = 1024 * 1024  # bytes; the longest honest file (a full model list) is a tenth of it
_MISSING = {errno.ENOENT, errno.ENOTDIR}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIGITS = re.compile(r"the integer \S+ does")

Kind = Literal["machine", "project", "data"]


@dataclass(frozen=True, slots=True)
class Source:
    """One file that may exist. `machine` files belong to the user or the administrator; those of
    the project and of its data directory may have come with a repository."""

    path: Path
    kind: Kind

    @property
    def trusted(self) -> bool:
        return self.kind == "machine"


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the machine's files are. Without a home, the HOME of the environment at hand. Relative
    values of variables are ignored: they could mean a file of a project."""

    etc: Path = Path("/etc/crush")
    home: Path | None = None

    def config(self, env: Mapping[str, str]) -> Path:
        """The folder of the user's own file."""
        if (named := env.get("CRUSH_GLOBAL_CONFIG", "")).startswith("/"):
            return Path(named)
        return self._base(env, "XDG_CONFIG_HOME", ".config") / "crush"

    def crush_data(self, env: Mapping[str, str]) -> Path:
        """The folder where Crush keeps its machine state: read here, never written."""
        if (named := env.get("CRUSH_GLOBAL_DATA", "")).startswith("/"):
            return Path(named)
        return self._base(env, "XDG_DATA_HOME", ".local/share") / "crush"

    def own_data(self, env: Mapping[str, str]) -> Path:
        return self._base(env, "XDG_DATA_HOME", ".local/share") / OWN_NAME

    @classmethod
    def below(cls, folder: Path) -> Roots:
        """Everything below one folder, whatever variables say."""
        return _FixedRoots(etc=folder / "etc", home=folder)

    def _base(self, env: Mapping[str, str], variable: str, below_home: str) -> Path:
        if (named := env.get(variable, "")).startswith("/"):
            return Path(named)
        named = env.get("HOME", "")
        home = self.home or Path(named if named.startswith("/") else os.path.expanduser("~"))
        return home / below_home


class _FixedRoots(Roots):
    def config(self, env: Mapping[str, str]) -> Path:
        return super().config({})

    def crush_data(self, env: Mapping[str, str]) -> Path:
        return super().crush_data({})

    def own_data(self, env: Mapping[str, str]) -> Path:
        return super().own_data({})


def global_file(env: Mapping[str, str], roots: Roots | None = None) -> Path:
    """The file that mutations of scope 0 write."""
    return (roots or Roots()).own_data(env) / NAME


def find(
    workspace: Path, env: Mapping[str, str], *, data_dir: Path | None, roots: Roots
) -> tuple[list[Source], list[str]]:
    """The files in order of rising priority, whether they exist or not, and warnings."""
    folders = [roots.etc, roots.config(env), roots.crush_data(env), roots.own_data(env)]
    sources = [Source(folder / NAME, "machine") for folder in folders]
    scripts = [roots.config(env) / "crushrc"]
    for folder in _project_folders(workspace):
        sources += [Source(folder / name, "project") for name in (NAME, f".{NAME}")]
        scripts += [folder / "crushrc", folder / ".crushrc"]
    if data_dir is not None:
        sources.append(Source(data_dir / NAME, "data"))
    warnings = [
        f"{script}: ignored: crushrc scripts are not supported, use {NAME}"
        for script in scripts
        if os.path.lexists(script)
    ]
    return sources, warnings


def _project_folders(workspace: Path) -> list[Path]:
    """From the root of the git work tree down to the workspace; alone without one."""
    upwards = [workspace, *workspace.parents]
    for count, folder in enumerate(upwards, 1):
        if os.path.lexists(folder / ".git"):  # a file, in a linked work tree
            return upwards[:count][::-1]
    return [workspace]


# Reading ----------------------------------------------------------------------------------------


def read(
    source: Source, workspace: Path, warn: Callable[[str], None] | None = None
) -> dict[str, Any] | None:
    """The object in a file; None if it is missing, empty, or not to be trusted."""
    content = _content(source, workspace, warn or (lambda _: None))
    return parse(source.path, content) if content is not None and content.strip() else None


def parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        document = loads(content)
    except BadRequest as error:
        reason = str(error).removeprefix("failed to decode request: ")
        # A key that someone forgot to quote is a number too long: it is not to be repeated.
        raise ConfigError(f"{path}: {_DIGITS.sub('an integer does', reason)}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: line 1 column 1: an object was expected")
    return document


def _content(source: Source, workspace: Path, warn: Callable[[str], None]) -> bytes | None:
    path = source.path
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: cannot be read: not a regular file")
        if not source.trusted and not _owned(path, status, source.kind, workspace):
            warn(f"{path}: ignored: it belongs to another user than the workspace")
            return None
        if status.st_size > MAX_FILE:
            raise ConfigError(f"{path}: larger than {MAX_FILE} bytes")
        return _all(descriptor)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _all(descriptor: int) -> bytes:
    content = b""
    # The size was looked at; a file that grows meanwhile is cut, and then is no JSON.
    while len(content) <= MAX_FILE and (piece := os.read(descriptor, MAX_FILE + 1)):
        content += piece
    return content


def _owned(path: Path, status: os.stat_result, kind: Kind, workspace: Path) -> bool:
    """Whoever may put a file (or a link to one) above somebody's workspace is not thereby allowed
    to configure it. A shared data directory is the daemon's own."""
    owners = set(_owners(workspace))
    if kind == "data":
        owners.add(os.geteuid())
    return {status.st_uid, *_owners(path)} <= owners


def _owners(path: Path) -> Iterator[int]:
    try:
        yield os.lstat(path).st_uid
    except OSError:
        pass  # gone in the meantime: then nobody vouches for it
