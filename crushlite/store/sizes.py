"""How much room a database takes, and which session takes how much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .connection import connect, translated

if TYPE_CHECKING:
    from pathlib import Path

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


def bytes_of(path: Path) -> int:
    """The size of a database and its log on disk."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def session_sizes(path: Path, scope: str) -> dict[str, int]:
    """About how many bytes each session takes, by id. Reads the whole file, which may be in use by
    another process."""
    with translated(path):
        conn = connect(path, True)
        try:
            return dict(conn.execute(_SIZES, {"s": scope}).fetchall())
        finally:
            conn.close()
