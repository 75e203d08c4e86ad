"""The rows of one workspace in a store.

Every query takes `(conn, scope, ...)`. A ScopedStore adds both:

    session = await store.read(session_rows.get_session, session_id)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .connection import Connection
    from .stores import Store

P = ParamSpec("P")
T = TypeVar("T")
if TYPE_CHECKING:
    Query = Callable[Concatenate[Connection, str, P], T]


class ScopedStore:
    """Runs queries with one scope: '' in a workspace's own data directory, the resolved path of the
    workspace in a shared one."""

    def __init__(self, store: Store, scope: str) -> None:
        self.store = store
        self.scope = scope

    def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a query on the read-only connection; it sees every write whose future is done."""
        scope = self.scope
        return self.store.read(lambda conn: query(conn, scope, *args, **kwargs))

    def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a write; the future is done after its COMMIT. See `Store.submit`."""
        scope = self.scope
        return self.store.submit(lambda conn: query(conn, scope, *args, **kwargs))

    def write_durably(
        self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """A write whose commit also survives a power cut."""
        scope = self.scope
        return self.store.submit(lambda conn: query(conn, scope, *args, **kwargs), durably=True)
