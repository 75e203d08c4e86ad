"""Writes the endings of runs, and keeps those that the store cannot write yet.

A `run_complete` must not wait for a disk that the user has to make room on. So an ending that
cannot be committed is published all the same, with the error `not saved: ...`, and waits here.
Meanwhile no workspace that shares the store accepts a prompt, because that promise could not be
kept either. Reads, streams and cancel go on.

What waits is tried again with growing pauses, and at once when another write has worked: of each
session in order, because messages are placed by the order of their insertion. What outlives its
last workspace is written at the next open of that store in this process. If the process ends first,
recovery records the run as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import NotSaved, SessionNotFound, StoreBusy
from ..records import dataclass
from ..store import STORE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock, Timer
    from ..protocol.sessions import Session
    from ..store import Connection, Store

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.25  # seconds before an ending is tried again,
LONGEST_PAUSE = 5.0  # doubled each time up to this


@dataclass(eq=False, slots=True)
class Ending:
    """What one ending writes. If `commit` raised one of STORE_ERRORS, it is kept, and `written` is
    called once: with the session, or None if it was given up (no such session, or refused)."""

    key: tuple[str, str]  # scope and session
    run_ids: tuple[str, ...]
    work: Callable[[Connection], Session]
    written: Callable[[Session | None], None]
    session: Session | None = None
    error: Exception | None = None  # of the last try
    late: bool = False  # `commit` has raised, so nobody waits for it there


class Endings:
    """The endings of one store, for all workspaces that share it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self._store = store
        store.on_healed(self._wake)
        self._waiting: dict[tuple[str, str], list[Ending]] = {}  # by session, none of them empty
        self._users = 0  # workspaces
        self._reason = ""  # why the last try failed
        self._pause = FIRST_PAUSE
        self._timer: Timer | None = None
        self._pass = asyncio.Lock()  # one pass over what waits at a time
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many endings are not written yet."""
        return sum(len(group) for group in self._waiting.values())

    @property
    def idle(self) -> bool:
        """No workspace uses this, and nothing would be lost with it."""
        return not self._waiting and not self._users

    def require_none(self) -> None:
        """Raise NotSaved while an ending waits: what follows it could not be written either."""
        if self._waiting:
            raise NotSaved(
                f"not saved yet: the endings of {self.waiting} run(s) ({self._reason}): make the "
                "store writable, then send this again; no restart is needed"
            )

    # Who uses it ---------------------------------------------------------------------------------

    def join(self, store: Store) -> None:
        """A workspace begins to use this. The store may have been closed and opened again."""
        if store is not self._store:
            self._store = store
            store.on_healed(self._wake)
        self._users += 1
        self._wake()

    def leave(self) -> None:
        """A workspace has closed. With the last one the store may close: nothing is tried then."""
        self._users -= 1
        if not self._users:
            self._disarm()

    def close(self) -> None:
        """Let go of the store, which may live on: a daemon keeps its shared one open."""
        self._store.off_healed(self._wake)

    # Writing -------------------------------------------------------------------------------------

    async def commit(self, ending: Ending) -> Session | None:
        """Write an ending; returns None if its session is gone. If the store cannot write, its
        error is raised and the ending is kept; any other error is only raised."""
        ahead = self._waiting.get(ending.key)
        if ahead is not None:
            ending.error = ahead[-1].error
            ahead.append(ending)
            # Each try on a locked file blocks for the whole busy timeout: the timer tries again.
            if not isinstance(ending.error, StoreBusy):
                await self.retry()
        else:
            await self._try(ending)
            if isinstance(ending.error, STORE_ERRORS):
                self._keep(ending)
        if ending.error is not None:
            ending.late = True
            raise ending.error
        return ending.session

    async def retry(self) -> None:
        """Try once to write everything that waits."""
        async with self._pass:
            self._disarm()
            # Side by side: the store gives calls that wait together one commit.
            await asyncio.gather(*map(self._write_session, list(self._waiting)))
            if self._waiting:
                self._arm()
            else:
                self._pause = FIRST_PAUSE

    # Inside --------------------------------------------------------------------------------------

    async def _write_session(self, key: tuple[str, str]) -> None:
        for ending in list(self._waiting[key]):
            await self._try(ending)
            if isinstance(ending.error, STORE_ERRORS):
                self._reason = str(ending.error)
                for behind in self._waiting[key]:
                    behind.error = ending.error
                return
            if ending.error is not None and ending.late:
                why = "the ending of %s can never be written"
                log.error(why, ending.run_ids, exc_info=ending.error)
            self._remove(ending)

    async def _try(self, ending: Ending) -> None:
        error: Exception | None = None
        try:
            ending.session = await self._store.submit(ending.work, durably=True)
        except SessionNotFound:
            log.info("%s ended after their session was deleted", ending.run_ids)
        except Exception as failure:  # noqa: BLE001 - raised by `commit`, or logged
            error = failure
        # Set only now: a `commit` of the same session meanwhile reads the error of the last try.
        ending.error = error

    def _keep(self, ending: Ending) -> None:
        self._reason = str(ending.error)
        if not self._waiting:
            log.error("endings are not saved, prompts are refused until they are: %s", self._reason)
        self._waiting.setdefault(ending.key, []).append(ending)
        if self._timer is None and not self._pass.locked():
            self._arm()

    def _remove(self, ending: Ending) -> None:
        group = self._waiting[ending.key]
        group.remove(ending)
        if not group:
            del self._waiting[ending.key]
            if not self._waiting:
                log.warning("every ending is saved again")
        if ending.late:
            ending.written(ending.session)

    # Time ----------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._users:
            self._timer = self._clock.call_later(self._pause, self._wake)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        # A pass that is under way arms the timer when it is over.
        if self._waiting and self._users and not self._pass.locked():
            self._task = asyncio.create_task(self.retry())
