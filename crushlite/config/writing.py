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
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError
from .files import MAX_FILE, Content, Source, digest, parse, read
from .merge import check, kind_of, spell, split_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Edited(NamedTuple):
    """A file before and after an edit."""

    before: Content | None  # None: it was missing or empty
    after: Content


def _accept(change: Edited) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


def change(
    file: Path,
    edit: Callable[[dict[str, Any]], None],
    accept: Callable[[Edited], contextlib.AbstractContextManager[object]] = _accept,
) -> bool:
    """Edit the document of a file; return whether that changed anything. Raises ConfigError, and
    changes nothing, if the file could not be read afterwards. `accept` is called with the result
    before it is written, and may raise to refuse it; the file is written inside of the context that
    it returns."""
    with locked_folder(file) as folder:
        before = _stored(file)
        content = encoded(file, edited(file, edit))
        if content == encoded(file, before.document if before else {}):
            return False
        document = parse(file, content)
        check(document, file)
        with accept(Edited(before, Content(document, digest(content)))):
            replace(file, content, folder)
        return True


def edited(file: Path, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The document of a file as an edit would leave it; nothing is written. Raises ConfigError if
    the file cannot be used, and what `edit` raises."""
    stored = _stored(file)
    document = stored.document if stored else {}
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


def _stored(file: Path) -> Content | None:
    # Renaming over a link would break it, and writing through one could change any file that a
    # repository names: neither is what was asked for.
    if file.is_symlink():
        raise ConfigError(f"{file}: is a symbolic link, which is not written to")
    return read(Source(file, "machine"), file.parent, lambda *warning: None)


@contextlib.contextmanager
def locked_folder(file: Path) -> Iterator[int]:
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


def replace(file: Path, content: bytes, folder: int) -> None:
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


def encoded(file: Path, document: dict[str, Any]) -> bytes:
    """The content of a file with this document. Raises ConfigError if it is no JSON, or too
    large."""
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate is a ValueError too
        raise ConfigError(f"{file}: the value is not JSON") from None
    if len(content) > MAX_FILE:
        raise ConfigError(f"{file}: would be larger than {MAX_FILE} bytes")
    return content
