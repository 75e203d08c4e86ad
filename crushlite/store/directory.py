"""The data directory: making it, and owning it.

One daemon owns a data directory. The owner holds an flock on `crushlite.lock`, which the system
drops when the process dies, however it dies. The file itself is never unlinked: a process that
opened the old file and one that made a new file would both hold "the" lock.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from crushlite.errors import DataDirectoryInUse

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DirectoryLock", "create_database_file", "make_directory"]


def make_directory(path: Path) -> None:
    """Create the directory if it is missing. One that exists keeps its mode and its content."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    (path / ".gitignore").write_text("*\n", encoding="ascii")
    _sync_directory(path)
    _sync_directory(path.parent)


def create_database_file(path: Path) -> None:
    """Create an empty file that only its owner may read, in a directory that others may see too.
    SQLite gives its side files the same mode."""
    if path.exists():
        return
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    # Without it a power cut could take the new name away, and every promise inside with it.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Held from construction to `release`. The file holds the owner's pid, for the message only:
    the flock decides."""

    def __init__(self, directory: Path) -> None:
        path = directory / "crushlite.lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise DataDirectoryInUse(
                f"{directory} is in use by process {owner or 'unknown'}; "
                "stop it, or choose another data directory"
            ) from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        os.close(self._descriptor)
