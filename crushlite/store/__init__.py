"""Durable records: one SQLite file per data directory, one writer, one reader.

`Stores` opens and shares a `Store`; a Store runs plain functions over a connection. Those functions
are in one module per noun (`sessions`, `messages`, `runs`, `files`, `notes`) and take
`(conn, scope, ...)`; a `ScopedStore` calls them with the scope of one workspace.

    stores       opening, sharing, closing        writer       transactions and group commit
    directory    who owns a data directory        reader       lists and histories
    inspection   which files are refused          callqueue    what both have in common
    declarations what a file may declare          checkpoints  keeping the log short
    walfile      commits lost from a log          listing      long lists, as JSON from SQLite
    migrations   bringing a file up to date       recovery     ending what a killed daemon left open
    schema       the tables                       scoped       the rows of one workspace
    connection   opening SQLite, its errors

Only this package imports sqlite3, and no error of sqlite3 leaves it. It knows nothing of tasks,
events or HTTP.
"""

from __future__ import annotations

from .callqueue import Executor
from .connection import Connection, ConnectionFactory, connect
from .runs import RunRow
from .scoped import ScopedStore
from .stores import Store, Stores
from .writer import STORE_ERRORS

__all__ = [
    "STORE_ERRORS",
    "Connection",
    "ConnectionFactory",
    "Executor",
    "RunRow",
    "ScopedStore",
    "Store",
    "Stores",
    "connect",
]
