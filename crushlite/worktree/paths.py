"""Reading and writing one file by its path, without being redirected by links.

`locate` resolves the links of a path once and says whether it is inside the workspace. Every later
operation walks the resolved path from the root directory, one component at a time, and follows no
link at all. So the file that was located, and shown to the user if it is outside, is the file that
is used: a link that is put there in between makes the operation fail, but cannot redirect it.

Only regular files are opened, without blocking: a FIFO or a device is refused at once. A file is
replaced by a new one of the same name, never written into: a hard link elsewhere keeps the old
content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import BadRequest, Conflict
from ..realpath import real_path
from ..records import dataclass
from ..unique import random_hex
from ..version import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILE_BYTES = 5 * 1024 * 1024  # larger files are not for a model to read or rewrite
PATH_CHARS = 4096
CLOSED = "closed to tools: it holds the daemon's own data or those of processes"
_PROCESSES = Path("/proc")
_OWN_ENTRIES = 1000  # of the daemon's own files whose hard links are recognised

# O_PATH where it exists: we may be allowed to pass through a folder above, but not to list it.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


Identity = tuple[int, int]  # device and inode


class OwnFolders:
    """The daemon's own folders (data, configuration, runtime), which tools must neither read nor
    change: they hold keys, tokens and the conversations. `root` is the workspace; of a folder that
    contains it only the daemon's own files are meant."""

    def __init__(self, root: Path | None = None, folders: Iterable[Path] = ()) -> None:
        found = dict.fromkeys(Path(real_path(folder)) for folder in folders)
        self._around = [f for f in found if root is not None and root.is_relative_to(f)]
        self._folders = [folder for folder in found if folder not in self._around]

    def refuse(self, path: Path) -> None:
        """Raise BadRequest for a resolved path in one of the folders, and for one below /proc: the
        environment of a process holds keys as well."""
        closed = any(path.is_relative_to(folder) for folder in (*self._folders, _PROCESSES))
        if closed or (path.parent in self._around and _is_own(path.name)):
            raise BadRequest(f"{path} is {CLOSED}")

    def inside(self, root: Path) -> list[Path] | None:
        """Those of the folders that are below the workspace; None if it has files of the daemon
        among its own."""
        if any(folder.is_relative_to(root) for folder in self._around):
            return None
        return [folder for folder in self._folders if folder.is_relative_to(root)]

    def identities(self) -> frozenset[Identity]:
        """Device and inode of the folders, and of the files in them: by these they are recognised
        when they are reached through a mount or a hard link. Blocks."""
        found: set[Identity] = set()
        todo = [(folder, 2) for folder in self._folders] + [(folder, 0) for folder in self._around]
        for folder, depth in todo:
            if len(found) > _OWN_ENTRIES:
                break
            try:
                if depth:
                    found.add(_inode(os.stat(folder, follow_symlinks=False)))
                with os.scandir(folder) as entries:
                    for entry in itertools.islice(entries, _OWN_ENTRIES):
                        if depth or _is_own(entry.name):
                            found.add(_inode(entry.stat(follow_symlinks=False)))
                        if depth > 1 and entry.is_dir(follow_symlinks=False):
                            todo.append((Path(entry.path), depth - 1))
            except OSError:
                continue  # it does not exist
        return frozenset(found)


def _is_own(name: str) -> bool:
    """Whether a file is the daemon's own, by its name: the database, its companions, its lock and
    the configuration."""
    return name.startswith(("crushlite.", f".{NAME}")) or name in ("crush.json", ".crush.json")


def _inode(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads."""

    path: Path  # absolute, links resolved
    inside: bool  # of the workspace
    shown: str  # for messages: relative to the workspace if inside
    closed: frozenset[Identity] = field(default=frozenset(), compare=False, repr=False)


def locate(root: Path, raw: str, own: OwnFolders | None = None) -> Place:
    """Resolve a path. `root` is the workspace, resolved; relative paths start there. Raises
    BadRequest for a path that cannot exist, and for one in the folders of `own`."""
    if not raw or "\0" in raw:
        raise BadRequest("a path must not be empty or contain NUL")
    if len(raw) > PATH_CHARS:
        raise BadRequest(f"a path has at most {PATH_CHARS} characters")
    try:
        path = Path(real_path(os.path.join(root, os.path.expanduser(raw))))
        str(path).encode("utf-8")  # other names could be neither shown nor recorded
    except (OSError, ValueError) as error:
        raise BadRequest(f"{raw!r} cannot be resolved: {error}") from None
    if own is not None:
        own.refuse(path)
    inside = path.is_relative_to(root)
    shown = str(path.relative_to(root)) if inside else str(path)
    return Place(path, inside, shown, own.identities() if own is not None else frozenset())


@contextlib.contextmanager
def _parent(
    path: Path, closed: frozenset[Identity] = frozenset(), *, make: bool = False
) -> Iterator[int]:
    """A descriptor of the directory that holds `path`, reached without following a link. With
    `make`, missing directories are created. Raises BadRequest for any OSError, in the block too,
    and if one of the directories is `closed`."""
    descriptor = os.open("/", _PASS)
    try:
        for name in path.parts[1:-1]:
            try:
                following = os.open(name, _PASS, dir_fd=descriptor)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                following = os.open(name, _PASS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = following
            if closed and _inode(os.fstat(descriptor)) in closed:
                raise BadRequest(f"{path} is {CLOSED}")
        yield descriptor
    except OSError as error:
        raise _explained(error, path) from None
    finally:
        os.close(descriptor)


def exists(place: Place) -> bool:
    """Whether there is anything of this name; nothing is opened. Raises BadRequest if that cannot
    be found out."""
    try:
        os.lstat(place.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _explained(error, place.path) from None
    return True


def read_bytes(place: Place, limit: int = FILE_BYTES) -> tuple[bytes, os.stat_result]:
    """The content of a regular file, and its stat at that moment. Raises BadRequest for any other
    kind of file, and for more than `limit` bytes."""
    with opened(place) as (file, info):
        data = file.read(limit + 1) or b""  # None: it would block, as some of /proc and /sys do
    if len(data) > limit:
        raise BadRequest(f"{place.shown} is larger than {limit} bytes")
    return data, info


@contextlib.contextmanager
def opened(place: Place) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A regular file, to be read, and its stat. Raises BadRequest for any other kind of file, and
    for any OSError, in the block too."""
    path = place.path
    with _parent(path, place.closed) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        # Checked before it is opened: merely opening a device can have an effect.
        _require_regular(place, os.stat(path.name or ".", dir_fd=parent, follow_symlinks=False))
        with open(os.open(path.name or ".", flags, dir_fd=parent), "rb") as file:
            info = os.fstat(file.fileno())
            _require_regular(place, info)
            if _inode(info) in place.closed:
                raise BadRequest(f"{place.shown} is {CLOSED}")
            yield file, info


def _require_regular(place: Place, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise BadRequest(f"{place.shown} is a directory: use ls")
    if not stat.S_ISREG(info.st_mode):
        raise BadRequest(f"{place.shown} is not a regular file")


def write_bytes(
    place: Place, data: bytes, before: os.stat_result | None, mode: int | None = None
) -> None:
    """Replace a file, or create one, as one step: readers see the old content or the new one, never
    half of it. `before` is the stat of the file when it was read, None if it did not exist; raises
    Conflict if it has changed since. Missing folders are created. A file that is replaced keeps its
    owner, and its mode unless `mode` is given."""
    path = place.path
    if not path.name:
        raise BadRequest(f"{place.shown} is a directory")
    with _parent(path, place.closed, make=True) as parent:
        temporary = f".{NAME}-{random_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                if before is not None:
                    _copy_rights(file.fileno(), before)  # while there is nothing to read in it
                if mode is not None:
                    os.fchmod(file.fileno(), mode & 0o1777)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if before is None:
                _create(temporary, place, parent)
            else:
                _require_same(place, parent, before)
                os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)


def remove(place: Place, before: os.stat_result) -> None:
    """Delete a file. `before` is its stat when it was read; raises Conflict if it has changed.
    Folders of the workspace that are empty then are deleted too: they may have been created for
    this file. The workspace itself stays."""
    with _parent(place.path) as parent:
        _require_same(place, parent, before)
        os.unlink(place.path.name, dir_fd=parent)
    depth = len(Path(place.shown).parts) - 1 if place.inside else 0
    for folder in place.path.parents[:depth]:
        try:
            with _parent(folder) as parent:
                os.rmdir(folder.name, dir_fd=parent)
        except BadRequest:
            return  # not empty


def _copy_rights(descriptor: int, before: os.stat_result) -> None:
    """Give a new file the owner and the mode of the one it replaces."""
    info = os.fstat(descriptor)
    if (info.st_uid, info.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.fchown(descriptor, before.st_uid, before.st_gid)
    # Without set-uid and set-gid: the kernel clears them from every file that is written, too.
    os.fchmod(descriptor, before.st_mode & 0o1777)


def _create(temporary: str, place: Place, parent: int) -> None:
    """Give a new file its name. Raises Conflict if another file has it meanwhile."""
    try:
        os.link(temporary, place.path.name, src_dir_fd=parent, dst_dir_fd=parent)
    except FileExistsError:
        raise Conflict(f"{place.shown} exists now: view it first") from None
    except OSError as error:
        # These mean a file system without hard links; ENOENT and the like are real failures.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        _require_same(place, parent, None)
        os.rename(temporary, place.path.name, src_dir_fd=parent, dst_dir_fd=parent)


def _require_same(place: Place, parent: int, before: os.stat_result | None) -> None:
    """Raise Conflict unless the file is the one of this stat (None: does not exist)."""
    try:
        now = os.stat(place.path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if (now and _identity(now)) != (before and _identity(before)):
        raise Conflict(f"{place.shown} has changed meanwhile: view it again")


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns


def digest(data: bytes) -> str:
    """A digest of a file's content, to find out whether it has changed."""
    return hashlib.sha256(data).hexdigest()


def _explained(error: OSError, path: Path) -> BadRequest:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return BadRequest(f"{path}: it, or a folder above it, is a link or no folder: look again")
    return BadRequest(f"{path}: {os.strerror(error.errno or 0)}")
