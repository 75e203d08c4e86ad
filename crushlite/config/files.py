"""Which `crush.json` files configure a workspace, and how one is read.

Reading is guarded, because the author of a repository wrote the files of the project. Only regular
files of a bounded size are read (a pipe with the right name would hold a thread for ever), the
owner is taken from the opened file, and the JSON reader is the strict one of the wire.

Knows nothing of what the keys mean.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import ConfigError
from ..protocol.codec import NotJSON, loads
from ..records import dataclass
from ..version import NAME as OWN_NAME
from .warnings import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .warnings import Warn

NAME = "crush.json"
SCRIPT = "crushrc"  # Bash that configures; only the user's own is run, see `script`
MAX_FILE = 1024 * 1024  # bytes; the longest honest file (a full model list) is a tenth of it
# The variables that say where the machine's files are.
VARIABLES = (
    *("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("CRUSH_GLOBAL_CONFIG", "CRUSH_GLOBAL_DATA"),
)
_MISSING = {errno.ENOENT, errno.ENOTDIR}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

Kind = Literal["machine", "project", "data"]


@dataclass(frozen=True, slots=True)
class Source:
    """One file that may exist. `machine` files belong to the user or the administrator; those of
    the project and of its data directory may have come with a repository."""

    path: Path
    kind: Kind

    @property
    def is_machine(self) -> bool:
        return self.kind == "machine"

    @property
    def is_script(self) -> bool:
        return self.path.name == SCRIPT


class Content(NamedTuple):
    """What a file holds."""

    document: dict[str, Any]
    digest: str  # of exactly the bytes that the document was parsed from


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of the machine's files. Variables of the environment move them; relative values
    are ignored, because they could mean a file of a project."""

    etc: Path = Path("/etc/crush")
    home: Path | None = None  # None: the HOME of the environment
    fixed: bool = False  # True: no variable counts

    @classmethod
    def below(cls, folder: Path) -> Roots:
        """All of them below one folder, whatever variables say."""
        return cls(folder / "etc", folder, fixed=True)

    def config(self, env: Mapping[str, str]) -> Path:
        """The folder of the file that the user writes by hand."""
        named = self._named(env, "CRUSH_GLOBAL_CONFIG")
        return named or self.config_home(env) / "crush"

    def config_home(self, env: Mapping[str, str]) -> Path:
        """The folder in which programs have a folder each for what the user writes."""
        return self._base(env, "XDG_CONFIG_HOME", ".config")

    def home_folder(self, env: Mapping[str, str]) -> Path:
        return self.home or self._named(env, "HOME") or Path(os.path.expanduser("~"))

    def skills_dir(self, env: Mapping[str, str]) -> Path | None:
        """The folder of skills that is used instead of the usual ones, if the user names one."""
        return self._named(env, "CRUSH_SKILLS_DIR")

    def crush_data(self, env: Mapping[str, str]) -> Path:
        """The folder where Crush keeps its machine state: read here, never written."""
        named = self._named(env, "CRUSH_GLOBAL_DATA")
        return named or self._base(env, "XDG_DATA_HOME", ".local/share") / "crush"

    def own_data(self, env: Mapping[str, str]) -> Path:
        """The folder of the user's file that changes of scope 0 write."""
        return self._base(env, "XDG_DATA_HOME", ".local/share") / OWN_NAME

    def files(self, env: Mapping[str, str]) -> list[Path]:
        """The user's files, in order of rising priority, whether they exist or not."""
        written, *others = (folder / NAME for folder in self.folders(env))
        return [written, written.with_name(SCRIPT), *others]

    def folders(self, env: Mapping[str, str]) -> tuple[Path, ...]:
        """The folders of the user's files."""
        return self.config(env), self.crush_data(env), self.own_data(env)

    def _base(self, env: Mapping[str, str], variable: str, below_home: str) -> Path:
        if named := self._named(env, variable):
            return named
        return self.home_folder(env) / below_home

    def _named(self, env: Mapping[str, str], variable: str) -> Path | None:
        value = "" if self.fixed else env.get(variable, "")
        return Path(value) if value.startswith("/") else None


def environment(env: Mapping[str, str], roots: Roots) -> Mapping[str, str]:
    """The environment for finding files and expanding variables: the client's, with the daemon's
    own for what the client left out. The variables that say where the files are go together: they
    are the client's if it named any, unless there is no file at its places and one at the daemon's,
    whose user is the same."""
    both = {**os.environ, **env}
    rest = {name: value for name, value in both.items() if name not in VARIABLES}
    theirs = rest | {name: env[name] for name in VARIABLES if name in env}
    ours = rest | {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if theirs != rest and (_any_file(theirs, roots) or not _any_file(ours, roots)):
        return theirs
    return ours


def _any_file(env: Mapping[str, str], roots: Roots) -> bool:
    return any(file.exists() for file in roots.files(env))


def find(workspace: Path, env: Mapping[str, str], roots: Roots, warn: Warn) -> list[Source]:
    """The files of the machine and of the project, in order of rising priority, whether they exist
    or not. Warns of a project's scripts, which Crush would run."""
    sources = [Source(file, "machine") for file in (roots.etc / NAME, *roots.files(env))]
    scripts = []
    for folder in _project_folders(workspace):
        sources += [Source(folder / name, "project") for name in (NAME, f".{NAME}")]
        scripts += [folder / SCRIPT, folder / f".{SCRIPT}"]
    own = roots.config(env) / SCRIPT
    for script in filter(os.path.lexists, scripts):
        if script == own:
            continue  # the workspace is the folder of the user's own files
        text = f"ignored: the script of a project is never run, use {NAME} and `crushlite trust`"
        warn(Reason.FILE_SKIPPED, script, "", text)
    return sources


def _project_folders(workspace: Path) -> list[Path]:
    """The folders from the root of the git work tree down to the workspace; outside of a work tree
    the workspace alone."""
    upwards = [workspace, *workspace.parents]
    for count, folder in enumerate(upwards, 1):
        if os.path.lexists(folder / ".git"):  # a file, in a linked work tree
            return upwards[:count][::-1]
    return [workspace]


# Reading ----------------------------------------------------------------------------------------


def read(source: Source, workspace: Path, warn: Warn) -> Content | None:
    """The content of a file; None if the file is missing, empty, or another user's. Raises
    ConfigError if it cannot be read or holds anything but an object."""

    def accept(status: os.stat_result) -> bool:
        accepted = source.is_machine or _owned(source.path, status, source.kind, workspace)
        if not accepted:
            text = "ignored: it belongs to another user than the workspace"
            warn(Reason.FILE_SKIPPED, source.path, "", text)
        return accepted

    content = read_bytes(source.path, accept)
    if content is None or not content.strip():
        return None
    return Content(parse(source.path, content), digest(content))


def digest(content: bytes) -> str:
    """The SHA-256 of the content of a file, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def parse(path: Path, content: bytes) -> dict[str, Any]:
    """The object in the content of a file. Raises ConfigError."""
    try:
        document = loads(content)
    except NotJSON as error:
        raise ConfigError(f"{path}: {error.reason}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: line 1 column 1: an object was expected")
    return document


def read_bytes(path: Path, accept: Callable[[os.stat_result], bool]) -> bytes | None:
    """The bytes of a file; None if it is missing, or if `accept` returns False for the status of
    the opened file. Raises ConfigError if it is no regular file, too large or unreadable."""
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
        if not accept(status):
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


def is_private(status: os.stat_result) -> bool:
    """Whether a file is the user's own, or root's, and nobody else can write to it."""
    return status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & 0o022


def _owned(path: Path, status: os.stat_result, kind: Kind, workspace: Path) -> bool:
    """Whether a project's file, and the link to it if it is one, belong to the workspace's owner:
    another user who can write to a folder above a workspace must not configure it. The file of a
    data directory may also be the daemon's own."""
    owners = set(_owners(workspace))
    if kind == "data":
        owners.add(os.geteuid())
    return {status.st_uid, *_owners(path)} <= owners


def _owners(path: Path) -> Iterator[int]:
    try:
        yield os.lstat(path).st_uid
    except OSError:
        pass  # gone in the meantime: it has no owner
