"""Durable records: one SQLite file per data directory, one writer, one reader.

`Stores` opens and shares a `Store`; a Store runs plain functions over a connection. Those functions
are in one module per noun (`sessions`, `messages`, `runs`, `files`) and take `(conn, scope, ...)`:
`scope` is '' in a workspace's own data directory and the workspace's resolved path in a shared one.

Only this package imports sqlite3, and no error of sqlite3 leaves it. It knows nothing of tasks,
events or HTTP.
"""

from __future__ import annotations

from crushlite.store.connection import Connection, ConnectionFactory, connect
from crushlite.store.executor import Executor, InlineExecutor, ThreadExecutor
from crushlite.store.runs import RunRow
from crushlite.store.stores import Store, Stores

__all__ = [
    "Connection",
    "ConnectionFactory",
    "Executor",
    "InlineExecutor",
    "RunRow",
    "Store",
    "Stores",
    "ThreadExecutor",
    "connect",
]
