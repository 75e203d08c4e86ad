"""Looking at a file before it is opened for writing. One that is refused stays as it is.

Refused, each time and with what to do about it, are a file of a newer crushlite, one that is no
database of ours or declares more than ours do, and one that is damaged: no user gets an empty
history without having decided so. All is looked at through a read-only connection, as closing a
read-write one would merge the log into the file.

A file is read through, and every index compared with its table, which takes about 3 seconds for a
gigabyte. Only a large file that was closed in order and not written to since is spared that.

A database can hold programs (triggers, views, generated columns, checks, expressions) that run when
rows are read or written, some already during a check of the pages, and one that does not end would
hang its thread. A cloned project may come with a database, so one that declares anything else than
our migrations do is refused before any of its rows is read. SQLite parses all declarations and
reads its statistics before the first statement, so already that is done with tight limits.

SQLite reads a log up to the first frame (a page with its header) that does not fit, and takes the
rest for never written. After a crash that is right; of a damaged log it drops commits without a
word. Two things show that: the index of the log (`-shm`), which outlives a killed process and says
how many frames were committed; and, without a usable index, more of the same log behind the first
commit that cannot be read, as a killed process leaves at most one such commit, its last. A power
cut may tear both files in ways that prove nothing, so this is only for a log that was written in
the present boot of the machine, or in an unknown one. See sqlite.org/walformat.html.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sqlite3
import struct
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase, NewerSchema
from ..itself import PACKAGE, pasted_command
from .connection import says_damage
from .directory import closed_note, opened_note
from .migrations import MIGRATIONS, VERSION, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .connection import ConnectionFactory

    Declaration = tuple[str, str, str, str | None]  # type, name, table, SQL

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


def inspect(path: Path, connect: ConnectionFactory, note: str) -> None:
    """Return if the database may be opened for writing, or made if it is missing; else raise
    CorruptDatabase or NewerSchema. `note` is that of the last owner of its directory.

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
        if path.exists() and note:  # one that is missing was taken away on purpose
            raise damaged(path, "it is empty but held data when it was last used")
        return
    read_through = has_log or _size(path) <= SMALL or note != closed_note(path)
    before = _content(index)
    try:
        _check_content(path, connect, read_through)
        # Not if the last owner left it open in another boot: a power cut proves nothing.
        if not note.startswith("open ") or note == opened_note():
            loss = _lost_commits(log, before, _content(index))
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
    wanted = _expected(version)
    if missing := {name for _, name, *_ in wanted - found}:
        raise damaged(path, f"{min(missing)} is not what schema version {version} declares")
    if others := {f"{kind} {str(name)[:80]!r}" for kind, name, *_ in found - wanted - _STATISTICS}:
        raise _altered(path, f"it holds the {min(others)}, which crushlite does not make")


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


# Declarations -------------------------------------------------------------------------------------

# While declarations are read. Ours take less than a tenth of each.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 65_536,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 65_536,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 0,  # its cost grows without bound with the pattern
}
_STEPS = 1_000  # of SQLite's machine, between two looks at how many there were
_LOOKS = 100  # ours take one or two; SQLite takes a minute to parse 300,000 declarations
# What SQLite adds for itself, by PRAGMA optimize.
_STATISTICS: frozenset[Declaration] = frozenset(
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in (
        ("sqlite_stat1", "tbl,idx,stat"),
        ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample"),
    )
)
_READ = "SELECT type, name, tbl_name, sql FROM sqlite_master"


def declared(conn: sqlite3.Connection) -> frozenset[Declaration]:
    """All that a database declares. Raises CorruptDatabase if that is too much to be read: the
    statement is interrupted if it takes more than 100,000 steps."""
    before = {limit: conn.setlimit(limit, value) for limit, value in _LIMITS.items()}
    looks = itertools.count(1)
    conn.set_progress_handler(lambda: next(looks) > _LOOKS, _STEPS)
    try:
        return frozenset(conn.execute(_READ).fetchall())
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG):
            raise CorruptDatabase("its declarations are too large") from error
        raise
    finally:
        conn.set_progress_handler(None, 0)
        for limit, value in before.items():
            conn.setlimit(limit, value)


@functools.cache
def _expected(version: int) -> frozenset[Declaration]:
    """What a database of a schema version declares, without the statistics."""
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                conn.execute(statement)
        return frozenset(conn.execute(_READ).fetchall())
    finally:
        conn.close()


# The log ------------------------------------------------------------------------------------------

_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_LOG_HEADER = 32  # bytes
_FRAME_HEADER = 24
_SMALLEST_PAGE = 512
_INDEX_HEADER = 48  # there are two copies of it


def _lost_commits(log: Path, before: bytes, after: bytes) -> str | None:
    """What is wrong with the log, or None. `before` is the content of its index as the process left
    it, `after` as SQLite has written it on reading the log just now."""
    found, _ = _frames(after) or (0, 0)
    left = _frames(before)
    if left is None:
        goes_on = _goes_on(log, found)
        return f"{log.name} cannot be read behind page {found}, but goes on" if goes_on else None
    committed, copied = left
    if copied == committed or found >= committed:
        return None
    return f"{log.name} held {committed} pages that were committed, {found} can be read"


def _frames(index: bytes) -> tuple[int, int] | None:
    """How many frames are committed according to an index, and how many of them are copied into the
    database. None if the index is cut off or damaged, or its writer was killed in the middle."""
    header, copy = index[:_INDEX_HEADER], index[_INDEX_HEADER : 2 * _INDEX_HEADER]
    is_set_up = header[12:13] == b"\1"
    if not is_set_up or header != copy or len(index) < 2 * _INDEX_HEADER + 4:
        return None
    (committed,) = struct.unpack_from("=I", index, 16)  # in the byte order of the machine
    (copied,) = struct.unpack_from("=I", index, 2 * _INDEX_HEADER)
    return committed, copied


def _goes_on(log: Path, frames: int) -> bool:
    """Whether the log holds more than one commit behind its first `frames` frames."""
    if not log.exists() or log.stat().st_size < _LOG_HEADER + _FRAME_HEADER + _SMALLEST_PAGE:
        return False
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER)
        if header[:4] not in _MAGIC:
            return True
        page, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        file.seek(frames * (_FRAME_HEADER + page), 1)
        committed = False
        while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER:
            if frame[8:16] == salts:  # else it was left over when the log was begun anew
                if committed:
                    return True
                committed = frame[4:8] != bytes(4)
            file.seek(page, 1)
    return False
