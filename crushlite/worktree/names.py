"""Names that resemble one that does not exist, so that a model that guessed a path can go on.

Only names below the workspace are looked at, no link is followed and nothing is opened but folders.
The work is bounded: a large tree is looked at in part.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from ..version import NAME
from .rules import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .paths import Identity

ENTRIES = 20_000  # of the tree that are looked at
NEAR = 2000  # of the folder where the name is missing
SHOWN = 5
_CUTOFF = 0.6


def similar_paths(root: Path, missing: Path, closed: Iterable[Identity] = ()) -> list[str]:
    """Paths below `root`, relative to it, that may be what `missing` was meant to be: first those
    of the same name in other folders, then similar names in the last folder of the path that
    exists. `missing` is below `root` and resolved. What is `closed` to tools is left out.
    Blocks."""
    import difflib  # only now: most names are right

    hidden = {inode for _, inode in closed}
    wanted = missing.name.casefold()
    found = [
        path for path in _all_files(root, hidden) if os.path.basename(path).casefold() == wanted
    ]
    found.sort(key=lambda path: (path.count("/"), path))
    folder, name = missing.parent, missing.name
    while not folder.is_dir() and folder != root:
        folder, name = folder.parent, folder.name
    near = {entry.name.casefold(): entry.name for entry in _entries(str(folder), NEAR, hidden)}
    close = difflib.get_close_matches(name.casefold(), near, n=SHOWN, cutoff=_CUTOFF)
    found += [os.path.relpath(folder / near[match], root) for match in close]
    return [path for path in dict.fromkeys(found) if path.isprintable()][:SHOWN]


def _all_files(root: Path, hidden: set[int]) -> Iterator[str]:
    """The files below a folder, level by level, as paths relative to it."""
    seen = 0
    todo = deque([""])
    while todo:
        above = todo.popleft()
        for entry in _entries(os.path.join(root, above), ENTRIES - seen, hidden):
            seen += 1
            path = os.path.join(above, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                yield path
            elif entry.name not in SKIPPED:
                todo.append(path)


def _entries(folder: str, most: int, hidden: set[int]) -> list[os.DirEntry[str]]:
    """The first entries of a folder without the daemon's own; none if it cannot be listed."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= most:
                    break
                if not entry.name.startswith(f".{NAME}") and entry.inode() not in hidden:
                    found.append(entry)
    except OSError:
        return []
    return found
