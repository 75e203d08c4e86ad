"""Which files of projects the user trusts: by their path and their content.

A project's file may choose a model, or bring a provider to which prompts and files would be sent.
It may have come with a repository, so it does that only after the user has said so with `crushlite
trust DIR`. What is remembered is the path of each file and the SHA-256 of its bytes: a file that
was changed, moved or replaced is not trusted any more. A file is compared by the digest of exactly
the bytes that were parsed, so it cannot be changed between the check and the use.

The list is in a folder of its own in the user's data directory, never in a project. It counts only
if it belongs to the user who runs the daemon, or to root, and no one else can write to it.
"""

from __future__ import annotations

import contextlib
import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..realpath import real_path
from .files import is_private, parse, read_bytes
from .writing import encoded, locked_folder, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from .files import Roots

MOST = 2000  # files in the list; of more the oldest are forgotten, those that are gone first
_FILES = "files"  # the one key of the document
_BYTES = "bytes:"  # begins a path that is no UTF-8; others begin with a slash


class Trust(enum.Enum):
    """Whether the user trusts a file as it is now."""

    TRUSTED = "trusted"
    UNKNOWN = "not trusted"
    CHANGED = "changed since it was trusted"


class TrustedFiles:
    """The digests of a moment, by path."""

    def __init__(self, digests: Mapping[str, Collection[str]]) -> None:
        self._digests = digests

    def state(self, path: Path, digest: str) -> Trust:
        known = self._digests.get(_key(path))
        if known is None:
            return Trust.UNKNOWN
        return Trust.TRUSTED if digest in known else Trust.CHANGED

    def paths(self) -> list[Path]:
        return [_path(key) for key in self._digests]


class TrustStore:
    """The list on disk. Reads and writes files: call it in a thread."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @classmethod
    def of(cls, roots: Roots, env: Mapping[str, str]) -> TrustStore:
        return cls(roots.own_data(env) / "trust" / "files.json")

    def read(self) -> TrustedFiles:
        """The list as it is now. Raises ConfigError if it cannot be used."""
        return TrustedFiles(self._read())

    def record(self, digests: Mapping[Path, Collection[str]]) -> None:
        """Trust these contents of these files, and no others of them. Raises ConfigError."""
        with locked_folder(self.file) as folder:
            known = self._read()
            for path, some in digests.items():
                known.pop(_key(path), None)  # the newest come last
                known[_key(path)] = sorted(some)
            self._write(known, folder)

    def forget(self, paths: Iterable[Path]) -> list[Path]:
        """Trust these files no more; return those that were trusted. Raises ConfigError."""
        if not self.file.exists():
            return []
        with locked_folder(self.file) as folder:
            known = self._read()
            gone = [path for path in paths if known.pop(_key(path), None) is not None]
            if gone:
                self._write(known, folder)
        return gone

    @contextlib.contextmanager
    def following(self, path: Path, before: str | None, after: str) -> Iterator[None]:
        """A context in which a trusted file gets another content. Until its end both are trusted:
        a crash leaves the file trusted, whichever it holds then. Raises ConfigError."""
        old = set() if before is None else {before}
        self.record({path: {*old, after}})
        try:
            yield
        except BaseException:
            with contextlib.suppress(ConfigError):
                self.record({path: old}) if old else self.forget([path])
            raise
        self.record({path: {after}})

    def _read(self) -> dict[str, list[str]]:
        content = read_bytes(self.file, is_private)
        if content is None:
            if os.path.lexists(self.file):
                raise ConfigError(f"{self.file}: other users can write to it: remove it")
            return {}
        files = parse(self.file, content).get(_FILES)
        if not isinstance(files, dict) or not all(map(_are_texts, files.values())):
            raise ConfigError(f"{self.file}: not a list of trusted files: remove it")
        return files

    def _write(self, known: dict[str, list[str]], folder: int) -> None:
        if len(known) > MOST:
            # Sorting is stable: gone ones come first, the oldest of them before the others.
            for key in sorted(known, key=lambda key: _path(key).exists())[: len(known) - MOST]:
                del known[key]
        replace(self.file, encoded(self.file, {_FILES: known}), folder)


def resolved(path: Path) -> Path:
    """The path of a file, without links in the way to it. The file itself may be one: its content
    is compared, wherever it is."""
    return Path(real_path(path.parent), path.name)


def _key(path: Path) -> str:
    """A path in the list. JSON cannot hold one that is no UTF-8: its bytes are spelled out."""
    name = os.fsencode(resolved(path))
    try:
        return name.decode()
    except UnicodeDecodeError:
        return _BYTES + name.hex()


def _path(key: str) -> Path:
    """The path of a key of the list. Raises ConfigError if it is none."""
    if not key.startswith(_BYTES):
        return Path(key)
    try:
        return Path(os.fsdecode(bytes.fromhex(key.removeprefix(_BYTES))))
    except ValueError:
        raise ConfigError(f"not a path in the list of trusted files: {key[:80]!r}") from None


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
