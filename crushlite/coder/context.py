"""Context files: notes for agents that a project, its folders and the user keep.

Those of a project are what its repository says, so they are read like any other file of a hostile
repository: only regular files inside the workspace, through no link that leaves it, and bounded in
size and number. The user's own, which the configuration of the user names, may be anywhere.

All functions here block.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..worktree.paths import FILE_BYTES, locate, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ..worktree.paths import OwnFolders

FILE_CHARS = 64 * 1024  # of one file: more would crowd out the conversation
TOTAL_CHARS = 128 * 1024  # of all together
FOLDER_FILES = 32  # of a folder of rules, the first by name
FOLDER_ENTRIES = 1000  # that are looked at
DEPTH = 32  # folders between the workspace and a file whose notes are looked for
_RULES = (".md", ".mdc")

ContextFile = tuple[str, str]  # its name, relative to the workspace if it is in it, and its text


def context_files(
    path: Path, names: Sequence[str], own: OwnFolders | None = None
) -> list[ContextFile]:
    """The context files of a project, each once, and the rules in the folders among `names`. Those
    that do not exist or cannot be read are left out. So are links out of the project: a repository
    must not decide what is read there."""
    found: dict[Path, ContextFile] = {}
    for name in names:
        for each in _files_of(path, name, own):
            _read_into(found, path, each, own)
    return list(found.values())


def user_files(paths: Sequence[str]) -> list[ContextFile]:
    """The context files of the user, by absolute paths. Links are followed: they are the user's."""
    found: dict[str, ContextFile] = {}
    for path in paths:
        if not os.path.exists(path):
            continue  # most do not, and `realpath` looks at each folder on the way
        real = os.path.realpath(path)
        text = None if real in found else _user_text(real)
        if text is not None:
            found[real] = (path, text)
    return list(found.values())


def files_above(
    path: Path, file: str, names: Sequence[str], own: OwnFolders | None = None
) -> list[ContextFile]:
    """The context files in the folders between the workspace and a file, from the top down. Not
    those of the workspace's own folder. `names` with a slash are only meant for that folder."""
    relative = os.path.relpath(os.path.join(path, os.path.expanduser(file)), path)
    folders = relative.split(os.sep)[:-1]
    if ".." in folders or "\0" in relative:
        return []
    found: dict[Path, ContextFile] = {}
    for depth in range(1, min(len(folders), DEPTH) + 1):
        for name in names:
            if "/" not in name:
                _read_into(found, path, os.path.join(*folders[:depth], name), own)
    return list(found.values())


def bounded(files: Iterable[ContextFile], limit: int) -> list[ContextFile]:
    """The files, cut so that their texts have at most about `limit` characters together. What was
    cut or left out says so: the model can view it."""
    left = limit
    result = []
    for name, text in files:
        if len(text) > left:
            kept = text[: max(0, left)]
            text = f"{kept}\n(cut: {len(text) - len(kept)} more characters; view the file)".lstrip()
        left -= len(text)
        result.append((name, text))
    return result


def block(name: str, text: str) -> str:
    """A context file as the model reads it. Its text cannot end the block it stands in."""
    shown = text.replace("</context", "<\\/context")
    return f"<context path={json.dumps(name, ensure_ascii=False)}>\n{shown}\n</context>"


def _files_of(path: Path, name: str, own: OwnFolders | None) -> list[str]:
    """The name itself; for a folder the names of the rules in it; nothing if it does not exist."""
    try:
        if not stat.S_ISDIR(os.stat(os.path.join(path, os.path.expanduser(name))).st_mode):
            return [name]
        place = locate(path, name, own)
        if not place.inside or place.path == path:
            return []
        with os.scandir(place.path) as entries:
            names = sorted(e.name for e, _ in zip(entries, range(FOLDER_ENTRIES), strict=False))
    except (BadRequest, OSError, ValueError):
        return []
    rules = [each for each in names if each.endswith(_RULES)]
    return [os.path.join(name, each) for each in rules[:FOLDER_FILES]]


def _read_into(
    found: dict[Path, ContextFile], path: Path, name: str, own: OwnFolders | None
) -> None:
    try:
        if not os.path.lexists(os.path.join(path, os.path.expanduser(name))):
            return  # most do not exist, and `locate` takes a hundred times as long
        place = locate(path, name, own)
        if not place.inside or place.path in found:
            return
        info = os.lstat(place.path)
        if stat.S_ISREG(info.st_mode) and info.st_size > FILE_BYTES:
            text = f"(not shown: the file has {info.st_size} bytes; view parts of it)"
        else:
            text = _text(read_bytes(place)[0])
    except (BadRequest, OSError, ValueError):
        return  # not a readable file
    found[place.path] = (name, text)


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if len(text) <= FILE_CHARS:
        return text
    return f"{text[:FILE_CHARS]}\n(cut: {len(text) - FILE_CHARS} more characters; view the file)"


def _user_text(path: str) -> str | None:
    """The text of a file of the user; None if there is none."""
    try:
        # Without blocking: it may be a FIFO.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return _text(file.read(4 * FILE_CHARS + 1))
    except (OSError, ValueError):
        return None
