"""The reader: lists and histories, on a connection that cannot write.

Each call sees one moment of the database. No transaction is open between calls, as an open read
keeps the log from being shortened. Calls are answered one by one: a short read is not held back by
a long one behind it.

Making objects of many rows keeps the interpreter busy, and a thread gets hold of it again only
after some milliseconds: a prompt that is being stored would lose that at each of its statements. So
a read of more than a few milliseconds (a thousand sessions) pauses every few rows.
"""

from __future__ import annotations

import time

from .callqueue import CallQueue, StoreCall, deliver

_SHORT = 0.004  # seconds of a read without a pause
_STEPS = 500  # of SQLite's machine: some 30 rows, about a millisecond
_PAUSE = 0.0001  # seconds: long enough for a thread that waits


class Reader(CallQueue):
    _began = 0.0  # when the read under way did

    def _run(self, batch: list[StoreCall]) -> None:
        for call in batch:
            with self._checkpoints.reading():
                self._read(call)
            deliver(self._loop, [call])

    def _read(self, call: StoreCall) -> None:
        try:
            self._replace_broken()
            self._began = time.monotonic()
            self._conn.set_progress_handler(self._pause_if_long, _STEPS)
            self._conn.execute("BEGIN")
            call.value = call.work(self._conn)
            self._conn.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the future gets it
            self._fail(call, error)
            self._rollback()

    def _pause_if_long(self) -> None:
        if time.monotonic() - self._began > _SHORT:
            time.sleep(_PAUSE)
