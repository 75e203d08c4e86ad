"""The writer: the only connection that changes the database, and group commit.

It runs all calls that wait in one transaction, each under a savepoint if there are several: a
commit costs a flush of the disk, however many share it. A call that fails is rolled back alone. But
SQLite may drop the whole transaction (a full disk, an I/O error): so `in_transaction` is checked
after every exception, and a lost batch is repeated call by call. Hence work may run twice.

Nothing is committed to a file that is no longer there, and nothing is written any more to one that
turns out to be damaged: what it still holds must not get worse.

A write that fails for a reason of the store's own (a full disk, a lock, damage) is *trouble*; one
that is refused (no such session, a bad value) is not. Trouble lasts until a write works again.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING

from .. import errors
from ..errors import CorruptDatabase, CrushliteError, StoreFailed
from .callqueue import CallQueue, StoreCall, identity
from .connection import breaks_connection, says_damage
from .inspection import check_pages, damaged

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_SAFE, _FAST = "FULL", "NORMAL"  # survives a power cut; survives the death of the process
_SAMPLE = 400  # rows per index that the statistics are made from

# What a write fails with for a reason of the store's own.
STORE_ERRORS = (
    *(errors.StoreFull, errors.StoreOverloaded, errors.StoreBusy),
    *(StoreFailed, CorruptDatabase),
)

log = logging.getLogger(__name__)


class _TransactionLost(Exception):
    """The transaction is gone, or nothing in it is worth keeping; the cause says why."""


class Writer(CallQueue):
    # Used in the event loop only:
    trouble: str | None = None  # why the last write failed, until one works again
    healed_callbacks: tuple[Callable[[], None], ...] = ()  # called when trouble has ended

    # Used in `_drain` only:
    _synchronous = ""  # as last set on the connection
    _suspect = False  # SQLite has found damage, which may be in memory only
    _damage: CorruptDatabase | None = None
    left_clean = False  # after close: the file is whole without its log

    def compact(self) -> asyncio.Future[None]:
        """Write the file anew, as small as what it holds; other writes wait meanwhile."""
        return self._run_apart(self._compact)

    def _compact(self) -> None:
        try:
            self._prepare()
            self._conn.execute("VACUUM")
            self._checkpoints.empty(self._conn)
        except sqlite3.Error as error:
            self._broken = self._broken or breaks_connection(error)
            raise

    def _run(self, batch: list[StoreCall]) -> None:
        self._commit(batch)
        self._measure_log(batch)
        self._deliver(batch)
        self._trim_log()

    # Trouble, in the event loop -----------------------------------------------------------------

    def _resolve(self, calls: list[StoreCall]) -> None:
        self._note_trouble(calls)  # first: the caller of a failed write finds the trouble set
        super()._resolve(calls)

    def _note_trouble(self, batch: list[StoreCall]) -> None:
        for call in reversed(batch):  # the last that says anything decides
            if isinstance(call.error, STORE_ERRORS):
                self.trouble = str(call.error)
                return
            if call.error is None and call.wrote:  # a commit of no rows proves nothing
                if self.trouble is not None:
                    self.trouble = None
                    for callback in self.healed_callbacks:
                        self._loop.call_soon(callback)  # each on its own: one may raise
                return

    # A batch ------------------------------------------------------------------------------------

    def _commit(self, batch: list[StoreCall]) -> None:
        try:
            self._prepare()
            self._begin(_SAFE if any(call.durably for call in batch) else _FAST)
        except (sqlite3.Error, OSError, CrushliteError) as error:
            # Not call by call: nothing ran, and each would wait for a lock as long again.
            for call in batch:
                own = type(error)(str(error)) if isinstance(error, CrushliteError) else error
                self._fail(call, own)
            return
        try:
            for call in batch:
                self._perform(call, alone=len(batch) == 1)
            self._conn.execute("COMMIT")
        except (sqlite3.Error, _TransactionLost) as lost:
            self._rollback()
            if len(batch) == 1:
                self._fail(batch[0], lost.__cause__ or lost)
                return
            for call in batch:
                self._commit([call])

    def _begin(self, synchronous: str) -> None:
        if synchronous != self._synchronous:  # has no effect inside a transaction
            self._conn.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        self._conn.execute("BEGIN IMMEDIATE")

    def _perform(self, call: StoreCall, *, alone: bool) -> None:
        """Run a call. One that is alone needs no savepoint: the transaction is its own."""
        conn = self._conn
        call.error = None
        changes = conn.total_changes
        if not alone:
            conn.execute("SAVEPOINT call")
        try:
            call.value = call.work(conn)
            if not conn.in_transaction:
                raise StoreFailed(f"{self._path}: SQLite has dropped the transaction")
            if not alone:
                conn.execute("RELEASE call")
            call.wrote = conn.total_changes != changes
        except BaseException as error:
            if alone or not conn.in_transaction:
                raise _TransactionLost from error
            self._fail(call, error)
            conn.execute("ROLLBACK TO call")
            conn.execute("RELEASE call")

    # The file -----------------------------------------------------------------------------------

    def _fail(self, call: StoreCall, error: BaseException) -> None:
        super()._fail(call, error)
        self._suspect = self._suspect or says_damage(error)

    def _prepare(self) -> None:
        """Before a transaction: replace a broken connection, and raise if the file is damaged, was
        removed or was replaced. What is committed must be found again."""
        if self._damage is not None:
            raise CorruptDatabase(str(self._damage))  # a new one: raising adds to it
        try:
            if self._broken:
                self._replace_broken()
                self._synchronous = ""
            verdict = check_pages(self._conn) if self._suspect else None
        except sqlite3.Error as error:
            if not says_damage(error):
                raise
            verdict = str(error)
        if verdict is not None:
            self._conn.close()  # now, while it is not the last: that one would write
            self._damage = damaged(self._path, verdict)
            raise self._damage
        self._suspect = False
        if identity(self._path) != self._file:
            raise StoreFailed(
                f"{self._path} was removed or replaced while in use; put it back, or restart"
            )

    def _measure_log(self, batch: list[StoreCall]) -> None:
        try:
            if any(call.error is None for call in batch):
                self._checkpoints.measure(self._conn)
        except (sqlite3.Error, OSError) as error:
            for call in batch:
                self._fail(call, call.error or error)

    def _trim_log(self) -> None:
        try:
            if self._damage is None and not self._broken:
                self._checkpoints.trim(self._conn)
        except sqlite3.Error as error:
            # What was committed is safe in the log; the next batch tries again, or fails.
            log.warning("%s: the log could not be shortened: %s", self._path, error)

    def _disconnect(self) -> None:
        """Make statistics for the query planner, merge the log into the file, and close it."""
        if self._damage is not None:
            return
        try:
            self._conn.execute(f"PRAGMA analysis_limit = {_SAMPLE}")
            self._conn.execute("PRAGMA optimize")
            (busy, *_), *_ = self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self.left_clean = not busy
        except sqlite3.Error as error:
            log.warning("%s was closed with its log beside it: %s", self._path, error)
        self._conn.close()
