"""Durable records: one SQLite file per data directory, one writer, one reader.

`Stores` opens and shares a `Store`; a Store runs plain functions over a connection. Those functions
are in one module per noun (`sessions`, `messages`, `runs`, `files`) and take `(conn, scope, ...)`;
a `ScopedStore` calls them with the scope of one workspace.

    stores       opening, sharing, closing         writer, reader   the two lanes into a file
    directory    who owns a data directory         lanes, executor  what a lane is, and its thread
    inspection   which files are refused           checkpoints      keeping the log short
    migrations   bringing a file up to date        health           whether writes work
    schema       the tables                        walfile          commits lost from a log
    recovery     what a dead daemon left open      salvage          saving what damage has left
    listing      long lists, as JSON from SQLite   backup, sizes    a copy; the room a file takes

Only this package imports sqlite3, and no error of sqlite3 leaves it. It knows nothing of tasks,
events or HTTP.
"""

from __future__ import annotations

from .connection import Connection, ConnectionFactory, connect
from .executor import Executor, InlineExecutor, ThreadExecutor
from .health import TROUBLE
from .runs import RunRow
from .scoped import ScopedStore
from .stores import Store, Stores

__all__ = [
    "TROUBLE",
    "Connection",
    "ConnectionFactory",
    "Executor",
    "InlineExecutor",
    "RunRow",
    "ScopedStore",
    "Store",
    "Stores",
    "ThreadExecutor",
    "connect",
]
