"""A copy of a database, taken beside whoever uses it.

The copy is made by SQLite from one moment of the database: everything that was committed before is
in it, nothing that came later is half in it, and writers are not held up. It is checked before it
gets its name, and is a whole database in one file: put into a data directory as `crushlite.db` it
is opened like any other.

Even reading makes SQLite write beside the database. Where nobody uses it that would leave litter
or, after a crash, wipe out what shows that commits were lost; so there a copy of the files is read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Conflict, CorruptDatabase, CrushliteError, NotFound
from .connection import connect, translated
from .directory import Note, is_owned, last_note, sync_directory
from .inspection import check_pages, inspect_owned
from .migrations import version_of

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True, slots=True)
class Copied:
    """`version` is that of the schema."""

    path: Path
    bytes: int
    sessions: int
    messages: int
    version: int


def backup(source: Path, target: Path, *, force: bool = False) -> Copied:
    """Copy the database `source` to a new file that only its owner may read. An existing one is
    replaced only with `force`, and only by a copy that is good."""
    if not source.exists():
        raise NotFound(f"there is no database {source}: name another data directory")
    if target.exists() and target.samefile(source):
        raise Conflict(f"{target} is the database itself; name another file")
    if target.name == source.name and is_owned(target.parent):
        raise Conflict(f"{target} is the database of a daemon that is running; name another file")
    if target.exists() and not force:
        raise Conflict(f"{target} exists already; use --force to replace it")
    half = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with translated(source):
        try:
            os.close(os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            if is_owned(source.parent) or not _copy_at_rest(source, half):
                _copy(source, half)
            copied = _checked(half, target)
            _named(half, target, force=force)
        finally:
            for tail in ("", "-journal", "-wal", "-shm"):
                half.with_name(half.name + tail).unlink(missing_ok=True)
    return copied


def _copy_at_rest(source: Path, half: Path) -> bool:
    """Copy a database that nobody uses; False if somebody began to meanwhile."""
    files = [source.with_name(source.name + tail) for tail in ("", "-wal", "-shm")]
    before = [_identity(file) for file in files]
    with tempfile.TemporaryDirectory(dir=half.parent, prefix=".crushlite-") as folder:
        rest = Path(folder).resolve() / source.name
        for file in files:
            if file.is_file():
                shutil.copyfile(file, rest.with_name(file.name))
        if is_owned(source.parent) or before != [_identity(file) for file in files]:
            return False
        try:
            inspect_owned(rest, connect, _without_times(last_note(source.parent)))
        except CrushliteError as error:
            raise type(error)(error.message.replace(str(rest), str(source))) from error
        _copy(rest, half)
    return True


def _identity(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _without_times(note: Note) -> Note:
    """A copy has times of its own: it is checked fully."""
    return Note(note.holds_data, note.boot)


def _copy(source: Path, half: Path) -> None:
    old, new = connect(source, True), connect(half, False)
    try:
        # All pages in one step: in several, each write in between would start it anew.
        old.backup(new)
        (mode,) = new.execute("PRAGMA journal_mode = DELETE").fetchone()  # one file, no log
        if mode != "delete":
            raise CorruptDatabase(f"the copy {half} cannot be closed ({mode})")
    finally:
        new.close()
        old.close()


def _checked(half: Path, target: Path) -> Copied:
    conn = connect(half, True)
    try:
        verdict = check_pages(conn, "integrity_check")
        if verdict is not None or conn.execute("PRAGMA foreign_key_check").fetchone():
            raise CorruptDatabase(f"the copy is damaged, as the database must be: {verdict}")
        sessions, messages = (_count(conn, table) for table in ("sessions", "messages"))
        size = half.stat().st_size
        return Copied(target, size, sessions, messages, version_of(conn))
    finally:
        conn.close()


def _count(conn: sqlite3.Connection, table: str) -> int:
    return int(conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _named(half: Path, target: Path, *, force: bool) -> None:
    descriptor = os.open(half, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if force:
        half.replace(target)
    else:
        try:
            os.link(half, target)  # unlike a rename it does not replace what has come meanwhile
        except FileExistsError:
            raise Conflict(f"{target} exists already; use --force to replace it") from None
    sync_directory(target.parent)
