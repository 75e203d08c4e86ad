"""The data directory: making it, owning it, and remembering how it was left.

The daemon that owns a data directory holds an flock on `crushlite.lock`, which ends with the
process. The file is never unlinked: a process that opened the old one and one that made a new one
would both hold "the" lock. Its first line is the owner's pid, for the message only. The second is a
note to the next owner: `open BOOT`, the database holds data and was written to in this boot of the
machine; or `closed SIZE MTIME`, as it was when closed in order.

Nothing is written through a link: the directory may have come with a cloned project, which must not
decide which of its user's files are overwritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from ..errors import CorruptDatabase, DataDirectoryInUse, StoreUnusable

_BOOT = Path("/proc/sys/kernel/random/boot_id")
LOCK_FILE = "crushlite.lock"
_LOCK_SIZE = 4096  # bytes: more than an owner writes into it
_NOTE = re.compile(r"open( .+)?|closed [0-9]+ [0-9]+")
_SIDE_FILES = ("", "-wal", "-shm", "-journal")  # of a database, by their suffix
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: Path) -> None:
    """Create the directory if it is missing. One that exists keeps its mode and its content. Raises
    StoreUnusable if there would be too many folders above it."""
    if path.is_dir():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except RecursionError:  # a project may have chosen its name, of a thousand folders
        raise StoreUnusable(f"{path} is too deep for a data directory: choose another") from None
    path.mkdir(mode=0o700, exist_ok=True)
    (path / ".gitignore").write_text("*\n", encoding="ascii")
    sync_directory(path)
    sync_directory(path.parent)


def refuse_links(database: Path) -> None:
    """Raise StoreUnusable if something that is about to be written is a link, or is no file: to
    open a pipe could take for ever."""
    for name in (LOCK_FILE, *(database.name + suffix for suffix in _SIDE_FILES)):
        file = database.with_name(name)
        is_link = file.is_symlink()
        if is_link or (file.exists() and not file.is_file()):
            what = "a symbolic link" if is_link else "not a file"
            raise (StoreUnusable if is_link else CorruptDatabase)(
                f"{file} is {what}, which is not written to: move it away, or choose another "
                "data directory with --data-dir"
            )


def create_database_file(path: Path) -> None:
    """Create an empty file that only its owner may read. SQLite gives side files the same mode."""
    if not path.exists():
        os.close(os.open(path, _FLAGS, 0o600))
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory to disk: else a power cut could take a new file away."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened_note() -> str:
    """The note that a database is in use in this boot of the machine, and holds data."""
    try:
        return f"open {_BOOT.read_text('ascii').strip()}"
    except OSError:  # not every system has an id for each boot
        return "open"


def closed_note(database: Path) -> str:
    """The note that a database was closed in order, as it is now."""
    file = database.stat()
    return f"closed {file.st_size} {file.st_mtime_ns}"


def in_use(directory: Path) -> DataDirectoryInUse:
    """The refusal of a directory that another process owns."""
    owner = lock_lines(directory)[0] or "unknown"  # it may not have come to say so yet
    return DataDirectoryInUse(
        f"{directory} is in use by process {owner}; stop it, or choose another data directory"
    )


def lock_lines(directory: Path) -> tuple[str, str]:
    """The pid and the note in the lock file, '' for what is missing or makes no sense."""
    content = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            content = file.read(_LOCK_SIZE) or b""  # a clone may have brought any file, or a pipe
    lines = content.decode("ascii", "replace").splitlines()
    pid, note, *_ = *map(str.strip, lines), "", ""
    return pid, note if _NOTE.fullmatch(note) else ""


class DirectoryLock:
    """Held from construction to `release`. Raises DataDirectoryInUse if it is held already."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / LOCK_FILE, _FLAGS, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _, self.note = lock_lines(directory)  # of the last owner
            self.write(self.note)  # stays until this owner has something better to say
        except BaseException as error:
            self.release()
            if isinstance(error, BlockingIOError):
                raise in_use(directory) from None
            raise

    def release(self) -> None:
        os.close(self._descriptor)

    def write(self, note: str) -> None:
        """Replace the note to the next owner."""
        content = f"{os.getpid()}\n{note}\n".encode("ascii", "replace")
        os.pwrite(self._descriptor, content, 0)  # before it is cut: the pid is never missing
        os.ftruncate(self._descriptor, len(content))
