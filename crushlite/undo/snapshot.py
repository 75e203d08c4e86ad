"""All text files of a project at one moment: what a command changed is told by comparing two.

A command may change anything, and says nothing about it. So the project is looked at before and
after. That must cost next to nothing in a small project, and nothing must depend on it in a large
one: there are limits, and beyond them it is said that nothing is known.

The contents are kept from one snapshot to the next, by what the system says of a file (times, size,
number): only what has changed is read. A file that was changed in the very moment it was read might
change once more without a trace, so it is read again.

Left out are the folders that searches leave out and what the .gitignore of the top folder says.
The rules of the first of two snapshots hold for both, or a new rule would look like deletions.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..store.files import FileState
from ..worktree.walk import Ignored
from .states import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RULE_BYTES = 64 * 1024
_TOO_LARGE = "it is too large to be recorded"
_RACY = 2 * 10**9  # nanoseconds: the coarsest times that file systems in use keep

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    files: int = 5_000
    file_bytes: int = 5 << 20
    total_bytes: int = 16 << 20
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A regular file. `content` is None if it is not kept, and `why` says why."""

    identity: tuple[int, ...]
    mode: int
    content: bytes | None
    why: str = ""
    fresh: bool = False  # it had just been changed when it was read


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`files` by path below the top; `why` is not empty if they are not all of them."""

    files: dict[Parts, _Seen] = field(default_factory=dict)
    rules: str = ""
    why: str = ""
    taken: int = 0  # nanoseconds


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    parts: Parts
    before: FileState
    after: FileState


@dataclass(frozen=True, slots=True)
class Difference:
    """`unknown` are files that have changed, each with the reason why nobody knows how."""

    changes: list[SnapshotChange] = field(default_factory=list)
    unknown: list[tuple[Parts, str]] = field(default_factory=list)


class _TooMuch(Exception):
    """The project is beyond a limit; the argument says which."""


class Snapshots:
    """The snapshots of one project. `skip` are folders that are none of its business."""

    def __init__(
        self, root: Path, skip: tuple[Path, ...] = (), limits: SnapshotLimits | None = None
    ) -> None:
        self._root = root
        self._limits = limits or SnapshotLimits()
        self._skip = {path.relative_to(root).parts for path in skip if root in path.parents}
        self._lock = threading.Lock()  # two commands may begin at the same time
        self._kept: dict[Parts, _Seen] = {}

    def take(self, rules: str | None = None) -> Snapshot:
        """`rules`: those of the snapshot that this one will be compared with."""
        with self._lock:
            now = time.time_ns()
            wanted = rules if rules is not None else self._gitignore()
            try:
                files = self._files(Ignored(wanted))
            except (_TooMuch, OSError) as error:
                self._kept = {}
                return Snapshot(rules=wanted, why=str(error))
            self._kept = files
            return Snapshot(files, wanted, taken=now)

    def _gitignore(self) -> str:
        try:
            with open(os.open(self._root / ".gitignore", _READ), "rb") as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return file.read(_RULE_BYTES).decode("utf-8", "replace")
        except OSError:
            pass  # there is none
        return ""

    def _files(self, ignored: Ignored) -> dict[Parts, _Seen]:
        """First all names, then the contents: a project that is too large is not read at all."""
        limits, room = self._limits, self._limits.total_bytes
        deadline = time.monotonic() + limits.seconds
        found: list[tuple[Parts, os.stat_result]] = []
        for parts, info in self._walk(ignored):
            found.append((parts, info))
            if len(found) > limits.files:
                raise _TooMuch(f"the project has more than {limits.files} files")
            self._in_time(deadline)
        files: dict[Parts, _Seen] = {}
        with _Folders(self._root) as folders:
            for parts, info in found:
                seen = files[parts] = self._seen(parts, info, folders, room)
                room -= len(seen.content or b"")
                self._in_time(deadline)
        return files

    def _in_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise _TooMuch(f"looking at the project takes more than {self._limits.seconds:g} s")

    def _walk(self, ignored: Ignored) -> Iterator[tuple[Parts, os.stat_result]]:
        """Every regular file, the deepest last; no link is followed."""
        todo: list[Parts] = [()]
        with _Folders(self._root) as folders:
            for above in todo:
                try:
                    folder = folders.enter(above)
                except OSError:
                    continue  # gone, or not for us
                with os.scandir(folder) as entries:
                    for entry in entries:
                        parts = (*above, entry.name)
                        is_dir = entry.is_dir(follow_symlinks=False)
                        if parts in self._skip or ignored.covers(parts, is_dir):
                            continue
                        if is_dir:
                            todo.append(parts)
                        elif entry.is_file(follow_symlinks=False):
                            yield parts, entry.stat(follow_symlinks=False)

    def _seen(self, parts: Parts, info: os.stat_result, folders: _Folders, room: int) -> _Seen:
        known = self._kept.get(parts)
        if known is not None and known.identity == _identity(info) and not known.fresh:
            if len(known.content or b"") <= room:
                return known
            return _Seen(known.identity, known.mode, None, _TOO_LARGE)
        mode = stat.S_IMODE(info.st_mode)
        if info.st_size > min(self._limits.file_bytes, room):
            return _Seen(_identity(info), mode, None, _TOO_LARGE)
        try:
            folder = folders.enter(parts[:-1])
            with open(os.open(parts[-1], _READ, dir_fd=folder), "rb") as file:
                info = os.fstat(file.fileno())
                data = file.read(self._limits.file_bytes)
        except OSError as error:
            return _Seen(_identity(info), mode, None, f"it cannot be read: {error.strerror}")
        fresh = info.st_mtime_ns > time.time_ns() - _RACY
        if as_text(data) is None:
            return _Seen(_identity(info), mode, None, "it is a binary file", fresh)
        return _Seen(_identity(info), mode, data, "", fresh)


class _Folders:
    """Descriptors of folders below the top, reached through no link; the last one stays open."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parts: Parts | None = None
        self._descriptor = -1

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def enter(self, parts: Parts) -> int:
        """The descriptor is good until the next call."""
        if parts != self._parts:
            self._close()
            self._descriptor = os.open(self._root, _LIST)
            for name in parts:
                below = os.open(name, _LIST, dir_fd=self._descriptor)
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
    """What lies between two snapshots that are both complete."""
    found = Difference()
    known = {seen.identity[:2] for seen in before.files.values()}
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
        if moved and new and new.identity[4] < before.taken - _RACY:  # to undo it would delete it
            why = why or "it is older than the command: it may come from a place left out"
        states = _state(old), _state(new)
        if not why:
            if states[0] != states[1]:
                found.changes.append(SnapshotChange(parts, *states))
        elif _looks_changed(old, new):
            found.unknown.append((parts, why))
    return found


def _state(seen: _Seen | None) -> FileState:
    if seen is None or seen.content is None:
        return FileState(None)
    return FileState(seen.content.decode("utf-8"), seen.mode)


def _looks_changed(old: _Seen | None, new: _Seen | None) -> bool:
    """By size and time, without the content; not by what a mere chmod or link changes."""
    return old is None or new is None or old.identity[1:4] != new.identity[1:4]
