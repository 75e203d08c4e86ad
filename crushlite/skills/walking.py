"""Finding files below folders that a repository may have made: bounded in depth, folders and files,
through links, each folder once. All functions here block."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ..errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEPTH = 5
MOST_FOLDERS = 2000  # looked into for one kind of file
MOST_ENTRIES = 2000  # of one folder
FILE_BYTES = 256 * 1024
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv"})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Walk:
    """A search that may look into so many folders altogether, into each once."""

    def __init__(self, most: int = MOST_FOLDERS) -> None:
        self._left = most
        self._seen: set[tuple[int, int]] = set()

    def files(self, top: Path, wanted: Callable[[str], bool], *, stop: bool) -> Iterator[Path]:
        """The files below a folder whose names are wanted, in the order of their names, those of a
        folder before those below it. `stop`: not below a folder that has one."""
        yield from self._files(top, wanted, stop, 0)

    def _files(
        self, folder: Path, wanted: Callable[[str], bool], stop: bool, depth: int
    ) -> Iterator[Path]:
        names, folders = self._entries(folder)
        found = [folder / name for name in names if wanted(name)]
        yield from found
        if depth < DEPTH and not (stop and found):
            for name in folders:
                yield from self._files(folder / name, wanted, stop, depth + 1)

    def _entries(self, folder: Path) -> tuple[list[str], list[str]]:
        """The names of files and of folders in a folder; none if it was seen or cannot be read."""
        files: list[str] = []
        folders: list[str] = []
        try:
            info = os.stat(folder)
            identity = info.st_dev, info.st_ino
            if self._left <= 0 or identity in self._seen or not stat.S_ISDIR(info.st_mode):
                return [], []
            self._left -= 1
            self._seen.add(identity)
            with os.scandir(folder) as entries:
                for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False):
                    if not entry.is_dir():
                        files.append(entry.name)
                    elif entry.name not in _SKIPPED:
                        folders.append(entry.name)
        except (OSError, ValueError):
            pass  # what was seen of it so far counts
        return sorted(files), sorted(folders)


def read_file(path: Path, limit: int = FILE_BYTES) -> bytes:
    """The bytes of a regular file. Raises BadRequest if it is none, too large or unreadable."""
    try:
        # Without blocking: it may be a pipe.
        with open(os.open(path, _FLAGS), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise BadRequest("it is not a regular file")
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadRequest(f"it cannot be read: {reason}") from None
    if len(data) > limit:
        raise BadRequest(f"it is larger than {limit} bytes")
    return data


def git_root(path: Path) -> Path:
    """The folder above with a `.git`, or the folder itself if there is none."""
    above = (folder for folder in (path, *path.parents) if os.path.lexists(folder / ".git"))
    return next(above, path)
