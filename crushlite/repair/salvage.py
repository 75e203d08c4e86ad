"""Save what can still be read of a damaged database into a new one.

    python -P -m crushlite.repair.salvage crushlite.db crushlite.db.recovered

A copy of the damaged file is read, log included, table by table and not through any index. What
others have declared in it is not run: only plain columns of plain tables are read. A table is read
from its start and from its end up to the damage, and between them row by row. What cannot be used
is left out and counted; messages whose session is lost get a session of that id.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CorruptDatabase
from ..store.connection import configure, connect, transaction
from ..store.directory import create_database_file
from ..store.inspection import declared
from ..store.messages import MESSAGE_COLUMNS, message_from_row
from ..store.migrations import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store import Connection

# Sessions first: the others hang on them. Agents make their notes anew.
_TABLES = ("sessions", "messages", "runs", "files", "reads", "gaps")
_TYPES: dict[str, tuple[type, ...]] = {"TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}
_BETWEEN = 1_000_000  # rows that are looked for one by one, at most
_LARGEST = 2**40  # bytes: a head that says more is damaged itself
_ORPHANS = """
    INSERT OR IGNORE INTO sessions (scope, id, title, created_at, updated_at, touched)
    SELECT scope, session_id, 'Recovered', 0, 0, 0 FROM {table}
"""
_MEND = (
    """
    UPDATE sessions SET parent_session_id = NULL WHERE NOT EXISTS (
        SELECT 1 FROM sessions AS s
        WHERE s.scope = sessions.scope AND s.id = sessions.parent_session_id
    )
    """,
    """
    UPDATE sessions SET message_count = (
        SELECT count(*) FROM messages
        WHERE messages.scope = sessions.scope AND messages.session_id = sessions.id
    )
    """,
)


Row = tuple[Any, ...]


def salvage(damaged: Path, target: Path) -> dict[str, tuple[int, int]]:
    """Make `target`, unless there is nothing to save. Returns per table how many rows were saved,
    and how many of those that were found could not be used. Raises FileExistsError if `target`
    exists, and others if the copy cannot be made or opened."""
    if target.exists():
        raise FileExistsError(f"{target} exists already; move it away first")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        copy = Path(folder) / damaged.name
        for tail in ("", "-wal"):
            file = damaged.with_name(damaged.name + tail)
            if file.exists():
                shutil.copyfile(file, copy.with_name(copy.name + tail))
        _pad(copy)
        fresh = Path(folder) / "new.db"
        create_database_file(fresh)
        old, new = connect(copy, False), connect(fresh, False)
        try:
            configure(new)
            migrate(new, fresh)
            new.execute("PRAGMA foreign_keys = OFF")  # until all is there
            with transaction(new):
                readable = _plain_tables(old)
                counts = {
                    table: _transfer(old, new, table) if table in readable else (0, 0)
                    for table in _TABLES
                }
                for statement in (*(_ORPHANS.format(table=t) for t in _TABLES[1:]), *_MEND):
                    new.execute(statement)
        finally:
            new.close()
            old.close()
        if any(saved for saved, _ in counts.values()):
            fresh.rename(target)
    return counts


def _pad(copy: Path) -> None:
    """SQLite reads nothing of a file that is shorter than its head says; zeros it passes over."""
    with copy.open("r+b") as file:
        head = file.read(32)
        size = int.from_bytes(head[16:18], "big") * int.from_bytes(head[28:32], "big")
        if copy.stat().st_size < size <= _LARGEST:
            file.truncate(size)


def _plain_tables(old: Connection) -> set[str]:
    """The tables that are neither views nor virtual. None if the declarations cannot be read: no
    other statement can be run then."""
    try:
        found = declared(old)
    except (CorruptDatabase, old.DatabaseError, UnicodeDecodeError):
        return set()
    return {
        name
        for kind, name, _, sql in found
        if kind == "table" and str(sql).upper().startswith("CREATE TABLE")
    }


def _transfer(old: Connection, new: Connection, table: str) -> tuple[int, int]:
    """Copy a table; return how many rows were saved, and how many could not be used."""
    kinds = {name: kind for _, name, kind, *_ in new.execute(f"PRAGMA table_info({table})")}
    # A generated column is hidden: reading it would run its expression.
    info = _until_damage(old, f"PRAGMA table_xinfo({table})")
    had = {name for _, name, *_, hidden in info if not hidden}
    # What an older version did not have gets its default.
    columns = [name for name in kinds if name in had]
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"
    saved = found = 0
    for row in _rows(old, table, names) if columns else ():
        found += 1
        if _usable(table, dict(zip(columns, row, strict=True)), kinds):
            saved += new.execute(insert, row).rowcount
    return saved, found - saved


def _usable(table: str, values: dict[str, Any], kinds: dict[str, str]) -> bool:
    """Whether each value is of its column's type, and a message can be decoded. Whether a value may
    be NULL is left to the new table."""
    try:
        if table == "messages":
            message_from_row(tuple(values[name] for name in MESSAGE_COLUMNS.split(", ")))
    except CorruptDatabase:
        return False
    return all(v is None or isinstance(v, _TYPES[kinds[name]]) for name, v in values.items())


def _rows(conn: Connection, table: str, names: str) -> Iterator[Row]:
    """Every row that can be read, in the order of the table as far as the damage allows."""
    select = f"SELECT rowid, {names} FROM {table} NOT INDEXED"
    first = 0  # of the rows that were read from the start, the last
    for rowid, *row in _until_damage(conn, f"{select} ORDER BY rowid"):
        first = rowid
        yield tuple(row)
    behind = list(_until_damage(conn, f"{select} WHERE rowid > ? ORDER BY rowid DESC", first))
    end = behind[-1][0] if behind else first
    for rowid in range(first + 1, min(end, first + _BETWEEN)):
        for _, *row in _until_damage(conn, f"{select} WHERE rowid = ?", rowid):
            yield tuple(row)
    for _, *row in reversed(behind):
        yield tuple(row)


def _until_damage(conn: Connection, query: str, *values: object) -> Iterator[Row]:
    try:
        yield from conn.execute(query, values)
    except (conn.DatabaseError, UnicodeDecodeError):
        pass  # nothing more can be read this way


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("damaged", type=Path)
    parser.add_argument("target", type=Path, help="a file that does not exist yet")
    options = parser.parse_args()
    try:
        counts = salvage(options.damaged.resolve(), options.target.resolve())
    except Exception as error:  # noqa: BLE001 - SQLite's own, or of the system
        sys.stderr.write(f"nothing was saved: {error}\n")
        return 1
    for table, (saved, lost) in counts.items():
        sys.stdout.write(f"{table}: {saved} saved, {lost} unusable\n")
    if not options.target.exists():
        sys.stderr.write("nothing was saved: nothing can be read\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
