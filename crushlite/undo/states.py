"""Reading the state of a file, and changing a file from one state into another.

Only text files have a state: what is binary, too large, or no regular file is refused with the
reason. A file is changed only if it is exactly in the state that the caller expects.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import BadRequest, Conflict
from ..filehistory.queries import FileState
from ..worktree.paths import Place, exists, read_bytes, remove, write_bytes

MISSING = FileState(None)


def as_text(data: bytes) -> str | None:
    """The content of a file as text; None if it is binary."""
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def place_of(root: Path, path: str) -> Place:
    """The place of a recorded path, which is absolute and free of links. Raises BadRequest if it is
    not below `root`."""
    found = Path(path)
    if root not in found.parents or ".." in found.parts:
        raise BadRequest(f"{path} is not in the workspace")
    return Place(found, True, str(found.relative_to(root)))


def read_state(place: Place) -> tuple[FileState, os.stat_result | None]:
    """The present state of a file, and its stat (None if it does not exist). Raises BadRequest if
    it is no text file."""
    if not exists(place):
        return MISSING, None
    if not stat.S_ISREG(os.lstat(place.path).st_mode):
        raise BadRequest(f"{place.shown} is not a regular file")
    data, info = read_bytes(place)
    content = as_text(data)
    if content is None:
        raise BadRequest(f"{place.shown} is a binary file")
    return FileState(content, stat.S_IMODE(info.st_mode)), info


def change_state(place: Place, was: FileState, wanted: FileState) -> None:
    """Change a file from the state `was` into the state `wanted`. Raises Conflict if it is not in
    the state `was`. The mode is compared and changed only if it differs between the two."""
    now, info = read_state(place)
    changes_mode = None not in (was.mode, wanted.mode) and was.mode != wanted.mode
    if now.content != was.content or (changes_mode and now.mode != was.mode):
        raise Conflict(f"{place.shown} has changed meanwhile")
    if wanted.content is None:
        if info is not None:
            remove(place, info)
        return
    mode = wanted.mode if changes_mode or info is None else None
    write_bytes(place, wanted.content.encode("utf-8"), info, mode)
