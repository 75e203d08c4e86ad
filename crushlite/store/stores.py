"""Opening, sharing and closing stores.

There is one Store per database file: opens of the same real path share it, and the last release
closes it. To open: lock the directory, inspect the file, bring the schema up to date, recover. An
open that fails gives back all it took. While a store is being closed, an open of the same path
waits: this process must not meet its own lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from .. import errors
from ..realpath import real_path
from ..records import dataclass
from ..threads import DaemonThreads
from . import directory
from .callqueue import Executor, Reader, run_in
from .checkpoints import Checkpoints
from .connection import configure, connect as default_connect, says_damage, transaction
from .directory import DirectoryLock
from .inspection import damaged, inspect, no_litter
from .migrations import migrate
from .recovery import recover
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .connection import ConnectionFactory

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
if TYPE_CHECKING:
    Query = Callable[Concatenate[sqlite3.Connection, str, P], T]

_NAME = "crushlite.db"
# Shared by all stores: those that are not in use need none, and a call that hangs keeps only one.
_MOST_THREADS = 64
READ_SECONDS = 1.0  # that a read may go on when its store is closed: no request is left for it
WRITE_SECONDS = 20.0  # that writes may go on
GIVE_UP_SECONDS = 60.0  # after which a thread that cannot be interrupted is left behind,
HURRIED_SECONDS = 1.0  # and when the process is about to end
# How long a `shared` write may wait, in real time, for another one to share its commit with: two
# commits less made a short turn half a millisecond and more shorter.
SHARING_SECONDS = 0.02
_INTERVAL = 0.05  # seconds between two interrupts

# What recovery raises for rows that make no sense: all that it looks for should be there.
_NONSENSE = (
    *(errors.CorruptDatabase, errors.NotFound, errors.BadRequest),
    *(ValueError, TypeError, OverflowError),
)


class Store:
    """A database file that this process owns. Made by `Stores.open`."""

    def __init__(
        self, path: Path, boot_id: str, lock: DirectoryLock, writer: Writer, reader: Reader
    ) -> None:
        self.path = path
        self.data_dir = path.parent
        self.boot_id = boot_id
        self._lock = lock
        self._writer = writer
        self._reader = reader

    @property
    def trouble(self) -> str | None:
        """Why the last write failed, until a write works again; None while all is well. Set before
        the future of the failed write is resolved."""
        return self._writer.trouble

    def on_healed(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the event loop each time trouble has ended, until `off_healed`."""
        self._writer.healed_callbacks += (callback,)

    def off_healed(self, callback: Callable[[], None]) -> None:
        kept = (each for each in self._writer.healed_callbacks if each != callback)
        self._writer.healed_callbacks = tuple(kept)

    def submit(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        durably: bool = False,
        shared: bool = False,
    ) -> asyncio.Future[T]:
        """Queue a write, in the order of the calls; the future is done after its COMMIT, which
        survives a power cut if `durably`. A `shared` write waits up to SHARING_SECONDS for another
        one to share its commit with. `work` may run twice (the first time undone): it must touch
        nothing but the connection, and return plain data."""
        return self._writer.submit(work, durably, shared=shared)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a query on a read-only connection; it sees every write whose future is done."""
        return self._reader.submit(work, False)

    async def compact(self) -> tuple[int, int]:
        """Give the room of deleted rows back to the system; return the bytes on disk before and
        after. Writes wait for it, some seconds for a gigabyte."""
        before = self._size()
        await self._writer.compact()
        return before, self._size()

    def _size(self) -> int:
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    async def close(self, stores: Stores) -> None:
        """Finish what waits, and close the file. Called by `stores` after the last release."""
        over = True
        try:
            over = await stores.closed(self.path, self._reader.close(), READ_SECONDS)
            # The connection that closes last merges the log into the file: this one can.
            over = await stores.closed(self.path, self._writer.close(), WRITE_SECONDS) and over
            if self._writer.left_clean and self.path.exists():  # or it was removed in use
                self._lock.write(directory.closed_note(self.path))
        finally:
            if over:  # else a thread may still write: the lock goes with the process
                self._lock.release()


class ScopedStore:
    """The rows of one workspace in a store. Every query takes `(conn, scope, ...)`; this adds both:
    `await store.read(session_rows.get_session, session_id)`. The scope is '' in a workspace's own
    data directory, the resolved path of the workspace in a shared one."""

    def __init__(self, store: Store, scope: str) -> None:
        self.store = store
        self.scope = scope

    def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """See `Store.read`."""
        scope = self.scope
        return self.store.read(lambda conn: query(conn, scope, *args, **kwargs))

    def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """See `Store.submit`."""
        scope = self.scope
        return self.store.submit(lambda conn: query(conn, scope, *args, **kwargs))

    def write_durably(
        self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """A write whose commit also survives a power cut."""
        scope = self.scope
        return self.store.submit(lambda conn: query(conn, scope, *args, **kwargs), durably=True)


@dataclass(slots=True, eq=False)
class _Entry:
    opening: asyncio.Task[Store]
    # The last few: of the writer, of the reader, and one that was replaced or looks at the file.
    connections: deque[sqlite3.Connection]
    users: int = 0
    closing: asyncio.Task[None] | None = None

    def interrupt(self) -> None:
        """End the statements that are running now, with an error."""
        for conn in tuple(self.connections):
            with contextlib.suppress(sqlite3.Error):  # it is closed
                conn.interrupt()


class Stores:
    """The open stores of a backend, by the real path of their data directory."""

    def __init__(
        self,
        *,
        clock: Clock,
        boot_id: str,
        executor: Callable[[str], Executor] | None = None,
        connect: ConnectionFactory = default_connect,
        sharing_seconds: float = SHARING_SECONDS,
    ) -> None:
        self._sharing_seconds = sharing_seconds
        self._clock = clock
        self._boot_id = boot_id
        shared = DaemonThreads(_MOST_THREADS, "crushlite-store")
        self._executor = executor or (lambda _: shared)
        self._factory = connect
        self._entries: dict[Path, _Entry] = {}
        self._is_hurried = False

    def hurry(self) -> None:
        """The process is about to end: from now on whatever runs in a store that is being opened or
        closed is interrupted, and a store that does not end soon is left open."""
        self._is_hurried = True
        for entry in self._entries.values():
            if entry.closing is not None or not entry.opening.done():
                entry.interrupt()

    async def open(self, data_dir: Path) -> Store:
        """Open the store in a data directory, or share the open one. Every open needs a `release`.
        Raises StoreUnusable or a subclass, with what to do."""
        # In the event loop on purpose: an await would let the opens of one path pass each other.
        path = Path(real_path(data_dir))
        while (entry := self._entries.get(path)) is not None and entry.closing is not None:
            await asyncio.shield(entry.closing)
        if entry is None:
            entry = _Entry(asyncio.create_task(self._open(path)), deque(maxlen=8))
            self._entries[path] = entry
        entry.users += 1
        try:
            return await asyncio.shield(entry.opening)
        except BaseException:
            self._leave(path, entry)
            raise

    async def release(self, store: Store) -> None:
        """Give back one `open`: the last closes the file. Raises IllegalCall if it is not open."""
        entry = self._entries.get(store.data_dir)
        if entry is None or not entry.opening.done() or entry.opening.result() is not store:
            raise errors.IllegalCall("the store is not open")
        closing = self._leave(store.data_dir, entry)
        if closing is not None:
            await asyncio.shield(closing)

    def _leave(self, path: Path, entry: _Entry) -> asyncio.Task[None] | None:
        entry.users -= 1
        if entry.users == 0:
            entry.closing = asyncio.create_task(self._close(path, entry))
        return entry.closing

    async def _close(self, path: Path, entry: _Entry) -> None:
        try:
            await asyncio.wait([entry.opening])
            if not entry.opening.cancelled() and entry.opening.exception() is None:
                await entry.opening.result().close(self)
        finally:
            del self._entries[path]

    async def closed(self, path: Path, closing: asyncio.Future[None], seconds: float) -> bool:
        """Wait until a connection is closed, and return whether it is. After so many seconds what
        runs on it is interrupted, again and again: an interrupt ends one statement. The time is
        real time, as threads are not on any clock."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not closing.done():
            waited = loop.time() - began
            if self._is_hurried or waited > seconds:
                self._entries[path.parent].interrupt()
            if waited > (HURRIED_SECONDS if self._is_hurried else seconds + GIVE_UP_SECONDS):
                log.error("%s could not be closed: a thread of ours does not come back", path)
                return False
            await asyncio.wait([closing], timeout=_INTERVAL)
        await closing
        return True

    async def _open(self, data_dir: Path) -> Store:
        try:
            return await self._open_file(data_dir / _NAME)
        except (errors.StoreBusy, errors.StoreFailed) as error:
            # 409 and not 503: trying again does not help, the user must change something.
            cause = error.__cause__ or error
            reason, advice = str(cause), ""
            if isinstance(error, errors.StoreBusy):
                advice = "; end the program that uses it"
            elif isinstance(cause, OSError) and cause.strerror:  # else it has words of our own
                inside = cause.filename and str(cause.filename) != str(data_dir)
                reason = f"{cause.filename}: {cause.strerror}" if inside else cause.strerror
                advice = "; `crushlite serve --data-dir DIR` keeps all data in another one"
            message = f"{data_dir} cannot be a data directory: {reason}{advice}"
            raise errors.StoreUnusable(message) from cause

    async def _open_file(self, path: Path) -> Store:
        # The names are for a test's factory only.
        writing, reading = self._executor("crushlite-writer"), self._executor("crushlite-reader")
        connect_writer = partial(self._connected, path, read_only=False)
        connect_reader = partial(self._connected, path, read_only=True)
        lock, conn = await run_in(writing, path, partial(self._prepare, path))
        checkpoints, sharing = Checkpoints(path), self._sharing_seconds
        writer = Writer(writing, conn, path, connect_writer, checkpoints, sharing)
        try:
            conn = await run_in(reading, path, connect_reader)
        except BaseException:
            if await self.closed(path, writer.close(), WRITE_SECONDS):
                lock.release()
            raise
        reader = Reader(reading, conn, path, connect_reader, checkpoints)
        return Store(path, self._boot_id, lock, writer, reader)

    def _prepare(self, path: Path) -> tuple[DirectoryLock, sqlite3.Connection]:
        directory.make_directory(path.parent)
        directory.refuse_links(path)
        lock = DirectoryLock(path.parent)
        try:
            with no_litter(path):
                inspect(path, self._connect, lock.note)
                directory.create_database_file(path)
                conn = self._open_writer(path)
            lock.write(directory.opened_note())
            return lock, conn
        except BaseException:
            lock.release()
            raise

    def _open_writer(self, path: Path) -> sqlite3.Connection:
        conn = self._connected(path, read_only=False)
        try:
            migrate(conn, path)
            with transaction(conn):
                recovered = recover(conn, self._boot_id, self._clock.now())
        except BaseException as error:
            if not isinstance(error, _NONSENSE) and not says_damage(error):
                conn.close()
                raise
            # A file that is refused stays as it is, so the writer must not be the last to close.
            # If no reader can be opened the file is refused for the same reason.
            last = conn
            with contextlib.suppress(sqlite3.Error, OSError):
                last = self._connected(path, read_only=True)
            conn.close()
            last.close()
            raise damaged(path, str(error)) from error
        if recovered:
            message = "%s: runs that were interrupted when the daemon before this one stopped: %s"
            log.warning(message, path, ", ".join(recovered))
        return conn

    def _connect(self, path: Path, read_only: bool) -> sqlite3.Connection:
        conn = self._factory(path, read_only)
        if (entry := self._entries.get(path.parent)) is not None:  # else it was left behind
            entry.connections.append(conn)
        return conn

    def _connected(self, path: Path, read_only: bool) -> sqlite3.Connection:
        conn = self._connect(path, read_only)
        try:
            if read_only:
                # It must read once: only then does it count as open, and the writer can close
                # without being the last, which would merge the log into the file.
                conn.execute("SELECT 1 FROM sqlite_master").fetchall()
            else:
                configure(conn)
        except BaseException:
            conn.close()
            raise
        return conn
