"""Databases that this process does not own, and that a daemon may be using: looking at one, copying
one, and what its sessions take.

Even to read a database SQLite writes beside it. If no daemon uses it that would leave files behind
or, after a crash, wipe out what shows that commits were lost; so then a copy of the files is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Conflict, CorruptDatabase, CrushliteError, NotFound
from ..records import dataclass
from ..store.connection import connect, translate
from ..store.directory import sync_directory
from ..store.inspection import check_pages, inspect, side_files
from ..unique import random_hex
from .owners import is_owned, last_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store import Connection

# A row is its texts and a little more; what an index adds is not counted.
_SIZES = """
    SELECT session_id, sum(size) FROM (
        SELECT session_id, length(CAST(parts AS BLOB)) + 200 AS size FROM messages WHERE scope = :s
        UNION ALL
        SELECT session_id, length(CAST(content AS BLOB)) + 200 FROM files WHERE scope = :s
        UNION ALL
        SELECT session_id, length(CAST(prompt AS BLOB)) + 300 FROM runs WHERE scope = :s
    ) GROUP BY session_id
"""


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as errors of the package."""
    try:
        yield
    except Exception as error:
        told = translate(error, path)
        if told is error:
            raise
        raise told from error


def session_sizes(path: Path, scope: str) -> dict[str, int]:
    """About how many bytes each session takes, by id. Reads the whole file."""
    with translated(path):
        conn = connect(path, True)
        try:
            return dict(conn.execute(_SIZES, {"s": scope}).fetchall())
        finally:
            conn.close()


@contextlib.contextmanager
def inspected_copy(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """A copy of a database, log included, that has passed the store's `inspect`; it is made in a
    temporary directory in `folder`. To look at the files themselves would change them under an
    owner that starts meanwhile."""
    if path.exists() and not path.is_file():
        raise CorruptDatabase(f"{path} is not a file; move it away")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".crushlite-") as name:
        copy = Path(name).resolve() / path.name
        for file in (path, *side_files(path)):
            if file.is_file():
                shutil.copyfile(file, copy.with_name(file.name))
        try:
            inspect(copy, connect, last_note(path.parent))
        except CrushliteError as error:
            raise type(error)(error.message.replace(str(copy), str(path))) from error
        yield copy


# Backups ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copied:
    """What `backup` has made."""

    path: Path
    bytes: int
    sessions: int
    messages: int


def backup(source: Path, target: Path, *, force: bool = False) -> Copied:
    """Copy the database `source` to a new file that only its owner may read. An existing file is
    replaced only with `force`, and only by a copy that is good. Raises NotFound, Conflict,
    CorruptDatabase or another error of the store.

    SQLite makes the copy from one moment of the database: everything that was committed before is
    in it, nothing that came later is half in it, and writers are not held up. It is checked before
    it gets its name, and is a whole database in one file: put into a data directory as
    `crushlite.db` it is opened like any other."""
    if not source.exists():
        raise NotFound(f"there is no database {source}: name another data directory")
    if target.exists() and target.samefile(source):
        raise Conflict(f"{target} is the database itself; name another file")
    if target.name == source.name and is_owned(target.parent):
        raise Conflict(f"{target} is the database of a daemon that is running; name another file")
    if target.exists() and not force:
        raise Conflict(f"{target} exists already; use --force to replace it")
    half = target.with_name(f".{target.name}.{random_hex(4)}.tmp")
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
    """Copy a database that no process owns; return False if one began to use it meanwhile."""
    before = _identities(source)
    failure: CrushliteError | None = None
    try:
        with translated(source), inspected_copy(source, half.parent) as copy:
            _copy(copy, half)
    except CrushliteError as error:
        failure = error
    if is_owned(source.parent) or _identities(source) != before:
        return False
    if failure is not None:
        raise failure
    return True


def _identities(database: Path) -> list[tuple[int, ...]]:
    """What changes when the database or its log is written to."""
    found: list[tuple[int, ...]] = []
    for file in (database, *side_files(database)):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


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
        verdict = check_pages(conn)
        if verdict is None and conn.execute("PRAGMA foreign_key_check").fetchone():
            verdict = "rows belong to sessions that are missing"
        if verdict is not None:
            raise CorruptDatabase(
                f"the copy is damaged, as the database must be: {verdict}. It was not kept; stop "
                "the daemon, and start it again to learn what can be saved"
            )
        sessions, messages = (_count(conn, table) for table in ("sessions", "messages"))
        return Copied(target, half.stat().st_size, sessions, messages)
    finally:
        conn.close()


def _count(conn: Connection, table: str) -> int:
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
