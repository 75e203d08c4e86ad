"""Files by path, without being led astray by links.

A path is *located* once: links resolved, and inside the workspace or not. What is then done with it
walks the resolved path from the root directory, one component at a time, and follows no link at
all. So whatever was located, and shown to the user if it is outside, is what is used: a link that
is slipped in between makes the operation fail, it cannot redirect it.

Only regular files are opened, without blocking: a FIFO or a device is refused at once. A file is
replaced by another one under its name, never written into, so that a hard link to a file elsewhere
is cut and not written through.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadRequest, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_BYTES = 5 * 1024 * 1024  # larger files are not for a model to read or rewrite
PATH_CHARS = 4096

# O_PATH where there is one: a folder above may be one that we can pass through, but not read.
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECTORY = _THROUGH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    path: Path  # absolute, links resolved
    inside: bool  # in the workspace
    shown: str  # as short as it can be said: relative to the workspace if inside


def locate(root: Path, raw: str) -> Place:
    """Where a path leads. `root` is the workspace, resolved; relative paths start there."""
    if not raw or "\0" in raw:
        raise BadRequest("a path must not be empty or contain NUL")
    if len(raw) > PATH_CHARS:
        raise BadRequest(f"a path has at most {PATH_CHARS} characters")
    try:
        path = Path(os.path.realpath(os.path.join(root, os.path.expanduser(raw))))
        str(path).encode("utf-8")  # a name of other bytes could be neither shown nor recorded
    except (OSError, ValueError) as error:
        raise BadRequest(f"{raw!r} cannot be resolved: {error}") from None
    inside = path == root or root in path.parents
    return Place(path, inside, str(path.relative_to(root)) if inside else str(path))


@contextlib.contextmanager
def _parent(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the directory that holds `path`, reached without following a link."""
    descriptor = os.open("/", _DIRECTORY)
    try:
        for name in path.parts[1:-1]:
            try:
                following = os.open(name, _DIRECTORY, dir_fd=descriptor)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                following = os.open(name, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = following
        yield descriptor
    except OSError as error:
        raise _explained(error, path) from None
    finally:
        os.close(descriptor)


def exists(place: Place) -> bool:
    """Whether there is anything under this name. Nothing is opened and nothing is read."""
    try:
        os.lstat(place.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _explained(error, place.path) from None
    return True


def read_bytes(place: Place, limit: int = FILE_BYTES) -> tuple[bytes, os.stat_result]:
    """A regular file's content, and what it was when it was opened."""
    path = place.path
    with _parent(path) as parent:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        # Looked at before it is opened: opening a device can do something already.
        _regular(place, os.stat(path.name or ".", dir_fd=parent, follow_symlinks=False))
        with open(os.open(path.name or ".", flags, dir_fd=parent), "rb") as file:
            info = os.fstat(file.fileno())
            _regular(place, info)
            data = file.read(limit + 1)
    if len(data) > limit:
        raise BadRequest(f"{place.shown} is larger than {limit} bytes")
    return data, info


def _regular(place: Place, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise BadRequest(f"{place.shown} is a directory: use ls")
    if not stat.S_ISREG(info.st_mode):
        raise BadRequest(f"{place.shown} is not a regular file")


def write_bytes(
    place: Place, data: bytes, before: os.stat_result | None, mode: int | None = None
) -> None:
    """Replace a file, or create one, as one step: readers see the old content or the new, never
    half. `before` is what the file was when it was read, None if there was none; Conflict if that
    is not so any more. Missing folders are made; a file that is replaced keeps its owner, and its
    mode unless another one is given."""
    path = place.path
    if not path.name:
        raise BadRequest(f"{place.shown} is a directory")
    with _parent(path, make=True) as parent:
        temporary = f".crushlite-{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                if before is not None:
                    _imitate(file.fileno(), before)  # before there is anything to read in it
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
    """Take a file away if it is still what it was; Conflict if not. Folders that are empty then go
    with it, up to the workspace, which stays: whoever made the file may have made them for it."""
    with _parent(place.path) as parent:
        _require_same(place, parent, before)
        os.unlink(place.path.name, dir_fd=parent)
    depth = len(Path(place.shown).parts) - 1 if place.inside else 0
    for folder in place.path.parents[:depth]:
        try:
            with _parent(folder) as parent:
                os.rmdir(folder.name, dir_fd=parent)
        except BadRequest:
            return  # it holds something else


def _imitate(descriptor: int, before: os.stat_result) -> None:
    info = os.fstat(descriptor)
    if (info.st_uid, info.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.fchown(descriptor, before.st_uid, before.st_gid)
    # Without set-uid and set-gid: the kernel takes them from every file that is written, too.
    os.fchmod(descriptor, before.st_mode & 0o1777)


def _create(temporary: str, place: Place, parent: int) -> None:
    """Give a new file its name, unless somebody else has taken it meanwhile."""
    try:
        os.link(temporary, place.path.name, src_dir_fd=parent, dst_dir_fd=parent)
    except FileExistsError:
        raise Conflict(f"{place.shown} exists now: view it first") from None
    except OSError as error:
        # A file system without hard links. ENOENT and the like are real failures.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        _require_same(place, parent, None)
        os.rename(temporary, place.path.name, src_dir_fd=parent, dst_dir_fd=parent)


def _require_same(place: Place, parent: int, before: os.stat_result | None) -> None:
    try:
        now = os.stat(place.path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if (now and _identity(now)) != (before and _identity(before)):
        raise Conflict(f"{place.shown} has changed meanwhile: view it again")


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns


def digest(data: bytes) -> str:
    """Names a file's content: an edit is refused if it is not what the model has seen."""
    return hashlib.sha256(data).hexdigest()


def _explained(error: OSError, path: Path) -> BadRequest:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return BadRequest(f"{path} changed while it was used, or is not what it seemed: try again")
    return BadRequest(f"{path}: {os.strerror(error.errno or 0)}")
