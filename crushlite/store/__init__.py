"""Durable records: one SQLite file per data directory, one writer, one reader.

`Stores` opens and shares a `Store`; a Store runs plain functions over a connection. Those functions
are in one module per noun (`sessions`, `messages`, `runs`), or in a wing, and take `(conn, scope,
...)`: a `ScopedStore` calls them with the scope of one workspace.

    stores       opening, sharing, closing        callqueue    calls in threads; the reader
    directory    who owns a data directory        writer       transactions and group commit
    inspection   which files are refused          checkpoints  keeping the log short
    migrations   the tables, and their versions   recovery     ending what a killed daemon left open
    connection   opening SQLite, its errors

Only this package imports sqlite3, and no error of sqlite3 leaves it.
"""

from __future__ import annotations

from .connection import Connection
from .stores import ScopedStore, Store, Stores
from .writer import STORE_ERRORS

__all__ = ["STORE_ERRORS", "Connection", "ScopedStore", "Store", "Stores"]
