"""Changing one value of a `crush.json`, of the user or of a workspace.

A reader sees the old file or the new one, never a part: the new content is written beside it,
synced, and renamed over it. The file is for its owner alone (0600), since keys are written too.
The directory is locked meanwhile, so that two changes at once (threads, or two daemons of one
user) both survive. Keys that crushlite does not know stay where they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .files import MAX_FILE, Source, parse, read
from .merge import check, kind_of, spell, split_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def change(
    file: Path,
    edit: Callable[[dict[str, Any]], None],
    accept: Callable[[dict[str, Any]], None] = lambda document: None,
) -> bool:
    """Edit the document of a file; return whether that changed anything. Raises ConfigError, and
    changes nothing, if the file could not be read afterwards. `accept` is called with the result
    before it is written, and may raise to refuse it."""
    with _locked_folder(file) as folder:
        content = _encoded(file, edited(file, edit))
        if content == _encoded(file, _document(file)):
            return False
        document = parse(file, content)
        check(document, file)
        accept(document)
        _replace(file, content, folder)
        return True


def edited(file: Path, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The document of a file as an edit would leave it; nothing is written. Raises ConfigError if
    the file cannot be used, and what `edit` raises."""
    document = _document(file)
    edit(document)
    return document


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key, making the objects on the way. Raises ConfigError if a value
    of another type is there."""
    steps = split_key(key)
    parent = _parent(document, steps, make=True)
    old = parent.get(steps[-1])
    if old is not None and value is not None and kind_of(old) != kind_of(value):
        raise ConfigError(f"{spell(steps)} is {kind_of(old)} and cannot become {kind_of(value)}")
    parent[steps[-1]] = value


def take(document: dict[str, Any], key: str) -> None:
    """Remove the value at a dotted key, if there is one. Raises ConfigError if a value on the way
    is no object."""
    steps = split_key(key)
    _parent(document, steps, make=False).pop(steps[-1], None)


def _parent(document: dict[str, Any], steps: tuple[str, ...], *, make: bool) -> dict[str, Any]:
    """The object that holds the last step of a key. A missing one is an empty object, which is put
    into the document with `make`. Raises ConfigError if a value on the way is no object."""
    for count, step in enumerate(steps[:-1], 1):
        inner = document.get(step)
        if inner is None:
            inner = {}
            if make:
                document[step] = inner
        if not isinstance(inner, dict):
            raise ConfigError(f"{spell(steps[:count])} is {kind_of(inner)}, not an object")
        document = inner
    return document


def set_value(file: Path, key: str, value: Any) -> bool:
    """Set one value of a file; return whether that changed anything. Raises ConfigError."""
    return change(file, lambda document: put(document, key, value))


def remove_value(file: Path, key: str) -> bool:
    """Remove one value of a file; return whether that changed anything. Raises ConfigError."""
    split_key(key)  # a bad key is an error whether there is a file or not
    return file.exists() and change(file, lambda document: take(document, key))


def _document(file: Path) -> dict[str, Any]:
    # Renaming over a link would break it, and writing through one could change any file that a
    # repository names: neither is what was asked for.
    if file.is_symlink():
        raise ConfigError(f"{file}: is a symbolic link, which is not written to")
    return read(Source(file, "machine"), file.parent, lambda *warning: None) or {}


@contextlib.contextmanager
def _locked_folder(file: Path) -> Iterator[int]:
    """The folder of a file as a locked descriptor. It is made if it is missing."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(file: Path, content: bytes, folder: int) -> None:
    """Put the content in place of the file's, in one step that survives a crash."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with open(descriptor, "wb") as out:  # mkstemp made it 0600
            out.write(content)
            out.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
        temporary = ""
        os.fsync(folder)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    finally:
        if temporary:
            os.unlink(temporary)


def _encoded(file: Path, document: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate is a ValueError too
        raise ConfigError(f"{file}: the value is not JSON") from None
    if len(content) > MAX_FILE:
        raise ConfigError(f"{file}: would be larger than {MAX_FILE} bytes")
    return content
