"""Looking at a file before it is opened for writing. One that is refused stays as it is.

What must not be written to: a file of a newer crushlite, one that is no database of ours, and one
that is damaged. They are refused each time, with what to do about it: no user gets an empty history
without having decided so. All is looked at through a read-only connection, as closing a read-write
one would merge the log into the file.

A file is read through, and every index compared with its table, which takes about 3 seconds for a
gigabyte. Only a large file that was closed in order and not written to since is spared that.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CorruptDatabase, CrushliteError, NewerSchema
from .connection import connect as default_connect, says_damage
from .directory import Note, last_note, this_boot
from .migrations import MIGRATIONS, VERSION, version_of
from .walfile import lost_commits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .connection import ConnectionFactory

SMALL = 32 * 2**20  # bytes of a file that is read through at every opening: some 0.1 seconds


def inspect(path: Path, connect: ConnectionFactory, note: Note) -> None:
    """Return if the database may be opened for writing, or made if it is missing; else raise
    CorruptDatabase or NewerSchema. `note` is what the last owner of its directory left behind.

    For the owner of the directory: SQLite writes beside a database even to read it. `no_litter`
    around the opening clears that away."""
    _require_file(path)
    log, index = _side_files(path)
    has_log = bool(_size(log))
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


@contextlib.contextmanager
def inspected_copy(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """A copy of a database, log included, that has passed `inspect`; it is made in a temporary
    directory in `folder`. For a process that does not own the database: to look at the files
    themselves would change them under an owner that starts meanwhile, and wipe out what shows that
    commits were lost."""
    _require_file(path)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".crushlite-") as name:
        copy = Path(name).resolve() / path.name
        for file in (path, *_side_files(path)):
            if file.is_file():
                shutil.copyfile(file, copy.with_name(file.name))
        try:
            inspect(copy, default_connect, last_note(path.parent))
        except CrushliteError as error:
            raise type(error)(error.message.replace(str(copy), str(path))) from error
        yield copy


def damaged(path: Path, reason: str) -> CorruptDatabase:
    """The refusal of a damaged file. It says what to do in commands that can be pasted."""
    command = [sys.executable, "-m", f"{__package__}.salvage", str(path), f"{path}.recovered"]
    return CorruptDatabase(
        f"{path} is damaged: {reason}. It was not changed and will not be used. "
        f"To save what can be read: {shlex.join(command)}; to go on, move the file away together "
        "with its -wal and -shm files, and put the saved one in its place or none for a new one"
    )


def check_pages(conn: sqlite3.Connection) -> str | None:
    """Read the whole file; return what is wrong with it, or None."""
    (verdict,) = conn.execute("PRAGMA integrity_check(1)").fetchone()
    return None if verdict == "ok" else " ".join(str(verdict).split())


def _require_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise CorruptDatabase(f"{path} is not a file; move it away")


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
        verdict = check_pages(conn) if read_through else None
        if verdict is not None:
            raise damaged(path, verdict)
        _check_schema(path, version, _schema(conn))
    finally:
        conn.close()


def _check_schema(path: Path, version: int, found: dict[str, str]) -> None:
    """Compare what is declared with what this version declares: damage to a declaration passes
    every check of the pages. What other programs have added does not matter."""
    if version == 0 and found:
        raise CorruptDatabase(f"{path} is the database of another program; it was not changed")
    missing = _expected(version).items() - found.items()
    if missing:
        raise damaged(path, f"{min(missing)[0]} is not what schema version {version} declares")


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
def no_litter(path: Path) -> Iterator[None]:
    """Around an opening: if it fails, delete the side files that it made. With a database that may
    only be read SQLite makes side files that may only be read, which would be in the way of the
    next opening."""
    missing = [file for file in _side_files(path) if not file.exists()]
    try:
        yield
    except BaseException:
        for file in missing:
            # An index can be made again at any time, a log only if there is nothing in it.
            if file.name.endswith("-shm") or not _content(file):
                file.unlink(missing_ok=True)
        raise


def _side_files(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""
