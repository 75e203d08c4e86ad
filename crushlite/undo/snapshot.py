"""Snapshots of all text files of a project. Comparing two shows what a command changed.

A command may change any file and reports nothing, so a snapshot is taken before it and another one
after it. In a small project that costs next to nothing. A large project is beyond the limits: then
there is no snapshot, and what its commands changed is recorded as not known.

Contents are kept from one snapshot to the next. A file is read again only if its stat (times, size,
inode) has changed; and a file that was changed just before it was read is read again next time,
since another change within the resolution of the clock would not show in its stat.

Left out are the folders that searches leave out, and what the .gitignore of the top folder names.
The rules of the first of two snapshots apply to both, or a new rule would look like deletions.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING

from ..filehistory.queries import FileState
from ..hosting.plain import OWN_DATA_DIR
from ..records import dataclass
from ..worktree.rules import RULE_BYTES, Ignored
from ..worktree.walk import LIST, READ
from .states import MISSING, as_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DEPTH = 64  # as in searches; opening a folder costs one call for each folder above it
_TOO_LARGE = "it is too large to be recorded"
_RACY = 2 * 10**9  # nanoseconds: the coarsest resolution of times in the file systems in use

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    files: int = 5_000
    file_bytes: int = 5 << 20
    total_bytes: int = 16 << 20
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class _FileEntry:
    """A regular file in a snapshot. `content` is None if it is not kept; `why` is the reason."""

    identity: tuple[int, ...]
    mode: int
    content: bytes | None
    why: str = ""
    fresh: bool = False  # changed just before it was read: read it again next time


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`files` by path below the project's folder. If the project is beyond a limit there are none,
    and `why` is the reason."""

    files: dict[Parts, _FileEntry] = field(default_factory=dict)
    rules: str = ""  # of .gitignore
    why: str = ""
    taken: int = 0  # nanoseconds


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """One file that differs between two snapshots."""

    parts: Parts
    before: FileState
    after: FileState


@dataclass(frozen=True, slots=True)
class Difference:
    """`unknown` are files that have changed and whose content was not kept, each with the
    reason."""

    changes: list[SnapshotChange] = field(default_factory=list)
    unknown: list[tuple[Parts, str]] = field(default_factory=list)


class _LimitExceeded(Exception):
    """The project is beyond a limit; the argument says which."""


class Snapshots:
    """Takes the snapshots of one project. `skip` are folders to leave out."""

    def __init__(
        self, root: Path, skip: tuple[Path, ...] = (), limits: SnapshotLimits | None = None
    ) -> None:
        self._root = root
        self._limits = limits or SnapshotLimits()
        self._skip = {path.relative_to(root).parts for path in skip if root in path.parents}
        self._lock = threading.Lock()  # snapshots of two commands may be taken in two threads
        self._kept: dict[Parts, _FileEntry] = {}
        self._compiled: tuple[str, Ignored] | None = None  # the rules of the last snapshot

    def take(self, rules: str | None = None) -> Snapshot:
        """Take a snapshot; blocks. `rules` are those of the snapshot to compare this one with;
        without them, those of the .gitignore are read."""
        with self._lock:
            now = time.time_ns()
            wanted = rules if rules is not None else self._gitignore()
            try:
                files = self._files(self._ignored(wanted))
            except (_LimitExceeded, OSError) as error:
                self._kept = {}
                return Snapshot(rules=wanted, why=str(error))
            self._kept = files
            return Snapshot(files, wanted, taken=now)

    def _ignored(self, rules: str) -> Ignored:
        if self._compiled is None or self._compiled[0] != rules:
            self._compiled = rules, Ignored(rules, [f"{OWN_DATA_DIR}/"])
        return self._compiled[1]

    def _gitignore(self) -> str:
        try:
            with open(os.open(self._root / ".gitignore", READ), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file.read(RULE_BYTES).decode("utf-8", "replace")
        except OSError:
            pass  # there is none
        return ""

    def _files(self, ignored: Ignored) -> dict[Parts, _FileEntry]:
        """All files that are not ignored. Lists all names before it reads any content, so that
        nothing is read of a project that is too large. Raises _LimitExceeded."""
        limits, room = self._limits, self._limits.total_bytes
        deadline = time.monotonic() + limits.seconds
        found: list[tuple[Parts, os.stat_result]] = []
        for parts, info in self._walk(ignored, deadline):
            found.append((parts, info))
            if len(found) > limits.files:
                raise _LimitExceeded(f"the project has more than {limits.files} files")
        files: dict[Parts, _FileEntry] = {}
        with _Folders(self._root) as folders:
            for parts, info in found:
                entry = files[parts] = self._entry(parts, info, folders, room)
                room -= len(entry.content or b"")
                self._check_time(deadline)
        return files

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise _LimitExceeded(
                f"looking at the project takes more than {self._limits.seconds:g} s"
            )

    def _walk(self, ignored: Ignored, deadline: float) -> Iterator[tuple[Parts, os.stat_result]]:
        """Every regular file that is not ignored, with its stat; the deepest come last. The time is
        checked for every entry, also for those that are ignored. Raises _LimitExceeded."""
        todo: list[Parts] = [()]
        with _Folders(self._root) as folders:
            for above in todo:
                try:
                    folder = folders.enter(above)
                except OSError:
                    continue  # removed meanwhile, or not allowed
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._check_time(deadline)
                        parts = (*above, entry.name)
                        is_dir = entry.is_dir(follow_symlinks=False)
                        if parts in self._skip or ignored.covers(parts, is_dir):
                            continue
                        if is_dir and len(parts) >= _DEPTH:
                            raise _LimitExceeded(f"its folders are more than {_DEPTH} levels deep")
                        if is_dir:
                            todo.append(parts)
                        elif entry.is_file(follow_symlinks=False):
                            yield parts, entry.stat(follow_symlinks=False)

    def _entry(
        self, parts: Parts, info: os.stat_result, folders: _Folders, room: int
    ) -> _FileEntry:
        """The file with its content: from the last snapshot if its stat is the same, else read. At
        most `room` bytes are kept."""
        known = self._kept.get(parts)
        if known is not None and known.identity == _identity(info) and not known.fresh:
            if len(known.content or b"") <= room:
                return known
            return _FileEntry(known.identity, known.mode, None, _TOO_LARGE)
        mode = stat.S_IMODE(info.st_mode)
        if info.st_size > min(self._limits.file_bytes, room):
            return _FileEntry(_identity(info), mode, None, _TOO_LARGE)
        try:
            folder = folders.enter(parts[:-1])
            with open(os.open(parts[-1], READ, dir_fd=folder), "rb") as file:
                info = os.fstat(file.fileno())
                if not stat.S_ISREG(info.st_mode):
                    return _FileEntry(_identity(info), mode, None, "it is not a regular file")
                data = file.read(self._limits.file_bytes)
        except OSError as error:
            return _FileEntry(_identity(info), mode, None, f"it cannot be read: {error.strerror}")
        fresh = info.st_mtime_ns > time.time_ns() - _RACY
        if as_text(data) is None:
            return _FileEntry(_identity(info), mode, None, "it is a binary file", fresh)
        return _FileEntry(_identity(info), mode, data, "", fresh)


class _Folders:
    """Opens folders below the project's, through no link. The last one stays open, since files are
    read folder by folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parts: Parts | None = None
        self._descriptor = -1

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def enter(self, parts: Parts) -> int:
        """A descriptor of a folder, valid until the next call."""
        if parts != self._parts:
            self._close()
            self._descriptor = os.open(self._root, LIST)
            for name in parts:
                below = os.open(name, LIST, dir_fd=self._descriptor)
                os.close(self._descriptor)
                self._descriptor = below
            self._parts = parts
        return self._descriptor

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._parts = -1, None


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def differences(before: Snapshot, after: Snapshot) -> Difference:
    """Compare two snapshots that both have files."""
    found = Difference()
    known = {entry.identity[:2] for entry in before.files.values()}
    for parts in sorted({*before.files, *after.files}):
        old, new = before.files.get(parts), after.files.get(parts)
        if old is new or (
            old and new and old.identity == new.identity and old.content == new.content
        ):
            continue
        try:
            "/".join(parts).encode("utf-8")
        except UnicodeEncodeError:
            found.unknown.append((parts, "its name is not UTF-8"))
            continue
        why = next((one.why for one in (old, new) if one and one.content is None), "")
        moved = old is None and new is not None and new.identity[:2] not in known
        # A new file that is older than the command was moved here; undoing would delete it.
        if moved and new and new.identity[4] < before.taken - _RACY:
            why = why or "it is older than the command: it may come from a place left out"
        states = _state(old), _state(new)
        if not why:
            if states[0] != states[1]:
                found.changes.append(SnapshotChange(parts, *states))
        elif _looks_changed(old, new):
            found.unknown.append((parts, why))
    return found


def _state(entry: _FileEntry | None) -> FileState:
    if entry is None or entry.content is None:
        return MISSING
    return FileState(entry.content.decode("utf-8"), entry.mode)


def _looks_changed(old: _FileEntry | None, new: _FileEntry | None) -> bool:
    """Whether inode, size or modification time differ: not what a chmod or a link changes."""
    return old is None or new is None or old.identity[1:4] != new.identity[1:4]
