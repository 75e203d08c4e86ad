"""A file at one moment, and putting it back into that state.

Only text counts: what is binary, too large, or no regular file is refused with the reason. A file
is changed only if it is exactly what the caller believes it to be.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import BadRequest, Conflict
from ..store.files import FileState
from ..worktree.paths import Place, exists, read_bytes, remove, write_bytes

MISSING = FileState(None)


def as_text(data: bytes) -> str | None:
    """The content of a file as it is recorded; None if it is not text."""
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def place_of(root: Path, path: str) -> Place:
    """A recorded path: absolute, never followed through a link. BadRequest outside of `root`."""
    found = Path(path)
    if root not in found.parents or ".." in found.parts:
        raise BadRequest(f"{path} is not in the workspace")
    return Place(found, True, str(found.relative_to(root)))


def look(place: Place) -> tuple[FileState, os.stat_result | None]:
    """What is there now, and what it was when it was read. BadRequest for what is no text file."""
    if not exists(place):
        return MISSING, None
    if not stat.S_ISREG(os.lstat(place.path).st_mode):
        raise BadRequest(f"{place.shown} is not a regular file")
    data, info = read_bytes(place)
    content = as_text(data)
    if content is None:
        raise BadRequest(f"{place.shown} is a binary file")
    return FileState(content, stat.S_IMODE(info.st_mode)), info


def put(place: Place, was: FileState, wanted: FileState) -> None:
    """Turn a file from one state into another. Conflict if it is not what it was; the mode counts
    only where the two states differ in it, else it stays as it is."""
    now, info = look(place)
    changes_mode = None not in (was.mode, wanted.mode) and was.mode != wanted.mode
    if now.content != was.content or (changes_mode and now.mode != was.mode):
        raise Conflict(f"{place.shown} has changed meanwhile")
    if wanted.content is None:
        if info is not None:
            remove(place, info)
        return
    mode = wanted.mode if changes_mode or info is None else None
    write_bytes(place, wanted.content.encode("utf-8"), info, mode)
