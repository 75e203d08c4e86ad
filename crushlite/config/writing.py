"""Changing one value of a `crush.json`, for the config mutations of both scopes.

A reader sees the old file or the new one, never a part: the new content is written beside it,
synced, and renamed over it. The file is for its owner alone (0600), since keys are written too.
The directory is locked meanwhile, so that two changes at once (threads, or two daemons of one
user) both survive. Keys that crushlite does not know stay where they are.
"""

from __future__ import annotations

import contextlib
import copy
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
    """Edit the document of a file; say whether that changed anything. Raise ConfigError, and
    change nothing, if the file could not be read afterwards or `accept` refuses the result."""
    with _locked(file):
        before = _document(file)
        document = copy.deepcopy(before)
        edit(document)
        content = _encoded(file, document)
        if content == _encoded(file, before):
            return False
        accept(_checked(file, content))
        _replace(file, content)
        return True


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key, making the objects on the way. Raise ConfigError if a value
    of another type is there."""
    steps = split_key(key)
    parent = document
    for count, step in enumerate(steps[:-1], 1):
        if parent.get(step) is None:
            parent[step] = {}
        parent = _object(parent[step], steps[:count])
    old = parent.get(steps[-1])
    if old is not None and value is not None and kind_of(old) != kind_of(value):
        raise ConfigError(f"{spell(steps)} is {kind_of(old)} and cannot become {kind_of(value)}")
    parent[steps[-1]] = value


def take(document: dict[str, Any], key: str) -> None:
    """Remove the value at a dotted key, if there is one."""
    steps = split_key(key)
    parent = document
    for count, step in enumerate(steps[:-1], 1):
        if parent.get(step) is None:
            return
        parent = _object(parent[step], steps[:count])
    parent.pop(steps[-1], None)


def set_value(file: Path, key: str, value: Any) -> bool:
    return change(file, lambda document: put(document, key, value))


def remove_value(file: Path, key: str) -> bool:
    split_key(key)  # a bad key is an error whether there is a file or not
    return file.exists() and change(file, lambda document: take(document, key))


def _object(value: Any, path: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{spell(path)} is {kind_of(value)}, not an object")
    return value


def _document(file: Path) -> dict[str, Any]:
    # Renaming over a link would break it, and writing through one could change any file that a
    # repository names: neither is what was asked for.
    if file.is_symlink():
        raise ConfigError(f"{file}: is a symbolic link, which is not written to")
    return read(Source(file, "machine"), file.parent) or {}


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _checked(file: Path, content: bytes) -> dict[str, Any]:
    document = parse(file, content)
    check(document, file)
    return document


def _replace(file: Path, content: bytes) -> None:
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with open(descriptor, "wb") as out:  # mkstemp made it 0600
            out.write(content)
            out.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
        temporary = ""
        _sync(file.parent)
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


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
