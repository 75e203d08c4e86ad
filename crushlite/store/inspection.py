"""Looking at a file before it is opened for writing. One that is refused stays as it is.

What must not be written to: a file of a newer crushlite, one that is no database of ours, and one
that is damaged. They are refused each time, with what to do about it: nobody starts with an empty
history without having decided to. All is looked at through a read-only connection, as closing a
read-write one would merge the log into the file; what SQLite leaves beside a refused file is
cleared away.

How much is read depends on how the file was left. One that nobody has written to since it was
closed in order gets the quick check while that is quick, any other the full check, which compares
every index with its table: about 3 seconds for a gigabyte, and only after a crash.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase, CrushliteError, NewerSchema
from .directory import Note, this_boot
from .migrations import MIGRATIONS, VERSION, version_of
from .walfile import LogIndex, lost_commits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .connection import ConnectionFactory

QUICK = 64 * 2**20  # bytes of a file that is read through at every opening: some 50 milliseconds
_MAGIC = b"SQLite format 3\0"


def inspect_owned(path: Path, connect: ConnectionFactory, note: Note) -> None:
    """Return if the file may be opened for writing, or made if it is missing."""
    log, index = _side_files(path)
    has_log = log.exists() and log.stat().st_size > 0
    status = path.stat() if path.exists() else None
    if status is None or status.st_size == 0:
        if has_log:
            # SQLite would take the file for a new one and delete the log: maybe all there is.
            raise damaged(path, f"it is empty but its log {log.name} is not")
        if status is not None and note.holds_data:  # one that is missing was taken away on purpose
            raise damaged(path, "it is empty but held data when it was last used")
        return
    if not stat.S_ISREG(status.st_mode):
        raise CorruptDatabase(f"{path} is not a file; move it away")
    _check_head(path, has_log)
    check = "integrity_check"
    if note.fits(status) and not has_log:
        check = "quick_check" if status.st_size <= QUICK else ""
    with _untouched(log, index) as before:
        _check_content(path, connect, check)
        if not note.boot or note.boot == this_boot():
            loss = lost_commits(log, LogIndex.parse(before), LogIndex.parse(_content(index)))
            if loss is not None:
                raise damaged(path, loss)


def inspect(path: Path, connect: ConnectionFactory, note: Note) -> None:
    """The same for somebody who does not own the directory: of a copy. An owner that starts
    meanwhile would have its files changed under it, and what shows a loss would be gone."""
    if path.exists() and not path.is_file():
        return inspect_owned(path, connect, note)  # refuses it
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / path.name
        for file in (path, *_side_files(path)):
            if file.is_file():
                shutil.copy2(file, copy.with_name(file.name))
        try:
            inspect_owned(copy, connect, note)
        except CrushliteError as error:
            raise type(error)(error.message.replace(str(copy), str(path))) from error


def damaged(path: Path, reason: str) -> CorruptDatabase:
    """The refusal of a damaged file. It says what to do in commands that can be pasted."""
    command = [sys.executable, "-m", "crushlite.store.salvage", str(path), f"{path}.recovered"]
    return CorruptDatabase(
        f"{path} is damaged: {reason}. It was not changed and will not be used. "
        f"To save what can be read: {shlex.join(command)}; to go on, move the file away together "
        "with its -wal and -shm files, and put the saved one in its place or none for a new one"
    )


def check_pages(conn: sqlite3.Connection, check: str) -> str | None:
    """What is wrong with the file, if anything."""
    (verdict,) = conn.execute(f"PRAGMA {check}(1)").fetchone()
    return None if verdict == "ok" else " ".join(str(verdict).split())


def _check_head(path: Path, has_log: bool) -> None:
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise damaged(path, "it is not an SQLite database")
    if not has_log:  # else the version may be in there
        _check_version(path, int.from_bytes(head[60:64], "big", signed=True))


def _check_version(path: Path, version: int) -> None:
    if version > VERSION:
        raise NewerSchema(
            f"{path} has schema version {version}, this crushlite knows up to {VERSION}: "
            "use a newer crushlite, or another data directory. The file was not changed"
        )
    if version < 0:
        raise damaged(path, f"it has schema version {version}")


def _check_content(path: Path, connect: ConnectionFactory, check: str) -> None:
    conn = connect(path, True)
    try:
        version = version_of(conn)
        _check_version(path, version)
        verdict = check_pages(conn, check) if check else None
        if verdict is not None:
            raise damaged(path, verdict)
        _check_schema(path, version, _schema(conn))
    finally:
        conn.close()


def _check_schema(path: Path, version: int, found: dict[str, str]) -> None:
    """What somebody has added is none of our business, but all that is ours must be as it was
    declared: a damaged declaration passes every check of the pages."""
    if version == 0 and found:
        raise CorruptDatabase(f"{path} is the database of another program; it was not changed")
    ours = _expected(VERSION)
    wrong = {item for item in found.items() if item[0] in ours} ^ _expected(version).items()
    if wrong:
        raise damaged(path, f"{min(wrong)[0]} is not what schema version {version} declares")


def _schema(conn: sqlite3.Connection) -> dict[str, str]:
    """What was declared, by name, without what SQLite adds for itself."""
    rows = conn.execute("SELECT name, sql FROM sqlite_master WHERE substr(name, 1, 7) <> 'sqlite_'")
    return dict(rows.fetchall())


def _expected(version: int) -> dict[str, str]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for migration in MIGRATIONS[:version]:
            migration.apply(conn)
        return _schema(conn)
    finally:
        conn.close()


@contextlib.contextmanager
def _untouched(log: Path, index: Path) -> Iterator[bytes]:
    """Even reading makes SQLite write the index of the log and create what is missing. What it
    created goes again, and if the file is refused the index is put back: it may be what shows the
    damage next time too."""
    had_index, before = index.exists(), _content(index)
    with contextlib.ExitStack() as stack:
        stack.callback(_clear, [file for file in (log, index) if not file.exists()])
        try:
            yield before
        except BaseException:
            if had_index:
                index.write_bytes(before)
            raise


@contextlib.contextmanager
def no_litter(path: Path) -> Iterator[None]:
    """Around an opening. If it fails, nothing that it made may be in the way of the next one: with
    a file that may only be read, SQLite makes side files that may only be read."""
    missing = [file for file in _side_files(path) if not file.exists()]
    try:
        yield
    except BaseException:
        _clear(missing)
        raise


def _clear(files: list[Path]) -> None:
    for file in files:
        # An index can be made again at any time, a log only if there is nothing in it.
        if file.name.endswith("-shm") or not _content(file):
            file.unlink(missing_ok=True)


def _side_files(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""
