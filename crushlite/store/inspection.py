"""Looking at a file before it is opened for writing. One that is refused stays as it is.

Refused, each time and with what to do about it, are a file of a newer crushlite, one that is no
database of ours or declares more than ours do (see declarations.py), and one that is damaged: no
user gets an empty history without having decided so. All is looked at through a read-only
connection, as closing a read-write one would merge the log into the file.

A file is read through, and every index compared with its table, which takes about 3 seconds for a
gigabyte. Only a large file that was closed in order and not written to since is spared that.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase, NewerSchema
from ..itself import PACKAGE, pasted_command
from .connection import says_damage
from .declarations import compare, declared
from .directory import Note, this_boot
from .migrations import VERSION, version_of
from .walfile import lost_commits

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    from .connection import ConnectionFactory

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names another file
_JOURNAL_HEADER = 28  # bytes
_ONE_PAGE = 4096  # bytes
_INDEX_SIZE = 64 * 2**20  # bytes of an index that are kept: enough for a log of 30 GB
_REPLACE = (
    "move the file away together with its -wal, -shm and -journal files, and put the saved one in "
    "its place or none for a new one"
)
_SALVAGE = f"{PACKAGE}.repair.salvage"  # a program of its own, which may be left out
SMALL = 32 * 2**20  # bytes of a file that is read through at every opening: some 0.1 seconds


def inspect(path: Path, connect: ConnectionFactory, note: Note) -> None:
    """Return if the database may be opened for writing, or made if it is missing; else raise
    CorruptDatabase or NewerSchema. `note` is what the last owner of its directory left behind.

    For the owner of the directory: SQLite writes beside a database even to read it. `no_litter`
    around the opening clears that away."""
    log, index = side_files(path)
    has_log = bool(_size(log))
    if _check_journal(path):
        return
    if not _size(path):
        if has_log:
            # SQLite would take the file for a new one and delete the log: maybe all there is.
            raise damaged(path, f"it is empty but its log {log.name} is not")
        if path.exists() and note.holds_data:  # one that is missing was taken away on purpose
            raise damaged(path, "it is empty but held data when it was last used")
        return
    read_through = has_log or _size(path) <= SMALL or not note.fits(path.stat())
    before = _content(index)
    try:
        _check_content(path, connect, read_through)
        if note.boot in ("", this_boot()):
            loss = lost_commits(log, before, _content(index))
            if loss is not None:
                raise damaged(path, loss)
    except BaseException as error:
        if before:
            index.write_bytes(before)  # it may be what shows the damage next time, too
        if says_damage(error):
            raise damaged(path, str(error)) from error
        raise


def damaged(path: Path, reason: str) -> CorruptDatabase:
    """The refusal of a damaged file."""
    return _refusal(path, f"is damaged: {reason}. It was not changed and will not be used. To save")


def _altered(path: Path, reason: str) -> CorruptDatabase:
    """The refusal of a file that others have made or changed."""
    come = "It may have come with the project, and was not changed"
    return _refusal(path, f"is not used: {reason}. {come}. To take over")


def _refusal(path: Path, text: str) -> CorruptDatabase:
    """It says what to do, in a command that can be pasted if there is a program for it."""
    from importlib.util import find_spec

    command = f"use `.recover` of the program sqlite3 on a copy of {path}"
    if find_spec(_SALVAGE.rpartition(".")[0]) is not None:
        command = pasted_command(_SALVAGE, str(path), f"{path}.recovered")
    return CorruptDatabase(f"{path} {text} what can be read: {command}; to go on, {_REPLACE}")


def check_pages(conn: sqlite3.Connection) -> str | None:
    """Read the whole file; return what is wrong with it, or None."""
    (verdict,) = conn.execute("PRAGMA integrity_check(1)").fetchone()
    return None if verdict == "ok" else " ".join(str(verdict).split())


def _check_content(path: Path, connect: ConnectionFactory, read_through: bool) -> None:
    conn = connect(path, True)
    try:
        version = version_of(conn)
        if version > VERSION:
            raise NewerSchema(
                f"{path} has schema version {version}, this crushlite knows up to {VERSION}: "
                "use a newer crushlite, or another data directory. The file was not changed"
            )
        if version < 0:
            raise damaged(path, f"it has schema version {version}")
        # Before the pages are checked: that evaluates what is declared.
        _check_declarations(path, version, conn)
        verdict = check_pages(conn) if read_through else None
        if verdict is not None:
            raise damaged(path, verdict)
    finally:
        conn.close()


def _check_declarations(path: Path, version: int, conn: sqlite3.Connection) -> None:
    """Refuse declarations other than those of this version: damage to one passes every check of the
    pages, and what others have added would be run."""
    try:
        found = declared(conn)
    except CorruptDatabase as error:
        raise _altered(path, error.message) from error
    if version == 0 and found:
        raise CorruptDatabase(f"{path} is the database of another program; it was not changed")
    name, other = compare(found, version)
    if name is not None:
        raise damaged(path, f"{name} is not what schema version {version} declares")
    if other is not None:
        raise _altered(path, f"it holds the {other}, which crushlite does not make")


def _check_journal(path: Path) -> bool:
    """Whether the creation of the database was cut short, so that it holds nothing yet. Raises
    CorruptDatabase if there is any other journal: crushlite uses a log instead, and opening a
    database with a journal may delete a file that the journal names."""
    journal = path.with_name(f"{path.name}-journal")
    size = _size(journal)
    if not size or not _size(path):  # without a database SQLite deletes the journal unread
        return False
    with journal.open("rb") as file:
        head = file.read(_JOURNAL_HEADER)
        file.seek(max(0, size - len(_JOURNAL_MAGIC)))
        names_file = file.read() == _JOURNAL_MAGIC
    held_nothing = head[16:20] == bytes(4) and _size(path) <= _ONE_PAGE
    if not held_nothing or names_file:
        raise _altered(path, f"{journal.name} is beside it, which crushlite does not make")
    return True


@contextlib.contextmanager
def no_litter(path: Path) -> Iterator[None]:
    """If the opening inside fails, delete the side files that it made. Beside a database that may
    only be read SQLite makes such files, which would be in the way of the next opening."""
    missing = [file for file in side_files(path) if not file.exists()]
    try:
        yield
    except BaseException:
        for file in missing:
            # An index can be made again at any time, a log only if there is nothing in it.
            if file.name.endswith("-shm") or not _content(file):
                file.unlink(missing_ok=True)
        raise


def side_files(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _content(file: Path) -> bytes:
    """The beginning of a side file; one from elsewhere may be of any size."""
    if not file.exists():
        return b""
    with file.open("rb") as opened:
        return opened.read(_INDEX_SIZE)
