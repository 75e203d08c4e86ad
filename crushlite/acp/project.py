"""One directory of an editor: its workspace in the daemon, and the events of it.

The daemon is found or started when it is first needed. If it is lost while the editor waits for an
answer, or when the editor asks for something next, it is started again; an idle editor starts none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from ..client import ConnectionFailed, RemoteWorkspace
from ..client.stream import EventStream, Lost, Recovered
from ..client.wire import is_temporary
from ..clock import time_limit
from ..errors import CrushliteError, NotFound
from ..launch import ensure_daemon, goodbye, join
from ..protocol.events import ConfigChanged, Resync
from ..protocol.permissions import PermissionNotification
from ..protocol.questions import QuestionNotification
from ..protocol.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import TypeVar

    from ..launch import Wanted
    from ..protocol.events import Envelope

    T = TypeVar("T")

log = logging.getLogger(__name__)


class ShownSession(Protocol):
    """A session that the editor shows: thread.py."""

    @property
    def is_waiting(self) -> bool:
        """Whether a prompt of the editor is open."""

    async def take(self, payload: object) -> None: ...

    def settled(self, notification: PermissionNotification | QuestionNotification) -> None: ...

    def withdraw_all(self) -> None: ...

    def fail(self, reason: str) -> None: ...

    async def find_requests(self) -> None: ...

    async def options_changed(self) -> None: ...

    async def catch_up(self) -> None: ...


LOST_SECONDS = 60.0  # that a prompt waits for a daemon that was lost
RETRY_SECONDS = 1.0  # between two attempts to start one, or to read what was missed
MOST_RETRY_SECONDS = 30.0  # between two attempts to read what was missed, after many


class Project:
    """`threads` are the sessions of this directory that the editor shows; events go to them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.path = wanted.directory
        self.threads: dict[str, ShownSession] = {}  # by session
        self._clock = wanted.clock
        self._workspace: RemoteWorkspace | None = None
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()  # set while the event stream is connected
        self._behind: set[str] = set()  # sessions with missed events that could not be read yet
        self._catching_up: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # The workspace -----------------------------------------------------------------------------

    async def workspace(self) -> RemoteWorkspace:
        """The workspace, in a daemon that is there now. Raises CrushliteError if there is none and
        none can be started."""
        async with self._opening:
            if self._workspace is None or self._reader is None or self._reader.done():
                await self._open()
        if not self._connected.is_set():
            self.revive()
            if not await self._is_connected_within(LOST_SECONDS):
                raise ConnectionFailed("the daemon is lost, and could not be started again")
        assert self._workspace is not None
        return self._workspace

    async def connected_workspace(self) -> RemoteWorkspace:
        """The workspace, as soon as its daemon is connected. Starts none."""
        await self._connected.wait()
        assert self._workspace is not None
        return self._workspace

    async def _is_connected_within(self, seconds: float) -> bool:
        try:
            async with time_limit(self._clock, seconds):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def _open(self) -> None:
        old, self._workspace = self._workspace, None
        if old is not None:
            await old.client.aclose()
        workspace = await join(self.wanted)
        stream = workspace.events()
        try:
            await stream.__aenter__()
            await workspace.init(interactive=True)
        except BaseException:
            await workspace.client.aclose()
            raise
        self._workspace = workspace
        self._connected.set()
        self._reader = asyncio.create_task(self._read(stream))

    async def call(self, ask: Callable[[RemoteWorkspace], Awaitable[T]]) -> T:
        """Ask the daemon something that may be asked twice; once more if it was lost meanwhile."""
        workspace = await self.workspace()
        try:
            return await ask(workspace)
        except CrushliteError as error:
            if not is_temporary(error):
                raise
            log.info("asking again: %s", error)
        if self._connected.is_set():
            await self._clock.sleep(RETRY_SECONDS)
        return await ask(await self.workspace())

    def revive(self) -> None:
        """Start a daemon in place of one that was lost, unless that is being done."""
        if self._reviving is None and not self._connected.is_set():
            self._reviving = asyncio.create_task(self._revive())
            self._reviving.add_done_callback(self._revived)

    def _revived(self, task: asyncio.Task[None]) -> None:
        self._reviving = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the daemon could not be started again", exc_info=task.exception())

    async def _revive(self) -> None:
        deadline = self._clock.time() + LOST_SECONDS
        reason = "it cannot be reached"
        while not self._connected.is_set() and self._clock.time() < deadline:
            try:
                await ensure_daemon(self.wanted)
                # The stream connects by itself, but may have begun to try rarely.
                if not await self._is_connected_within(RETRY_SECONDS):
                    await self._open_again()
            except CrushliteError as error:
                reason = error.message
                log.warning("the daemon is lost: %s", reason)
                await self._clock.sleep(RETRY_SECONDS)
        if not self._connected.is_set():
            self._fail(f"the daemon is lost: {reason}")

    async def _open_again(self) -> None:
        async with self._opening:
            if self._reader is not None and not self._connected.is_set():
                self._reader.cancel()
                await asyncio.wait([self._reader])
                await self._open()

    def _fail(self, reason: str) -> None:
        for thread in self.threads.values():
            thread.fail(reason)

    # Events ------------------------------------------------------------------------------------

    async def _read(self, stream: EventStream) -> None:
        reason = "the daemon has ended the stream of events"
        try:
            await self._catch_up()  # threads of an earlier stream have missed what was in between
            async for event in stream:
                try:
                    await self._take(event)
                except CrushliteError as error:
                    log.warning("an event could not be shown: %s", error)
        except CrushliteError as error:
            reason = error.message
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("events could not be read")
        finally:
            self._connected.clear()
            await stream.close()
        self._fail(reason)

    async def _take(self, event: Envelope) -> None:
        payload = event.payload
        threads = self._open_threads()
        match payload:
            case Lost():
                self._lost()
            case Recovered():
                self._connected.set()
                self._for_each(thread.find_requests() for thread in threads)
            case Resync():
                await self._catch_up()
            case ConfigChanged():
                self._for_each(thread.options_changed() for thread in threads)
            case PermissionNotification() | QuestionNotification():
                for thread in threads:
                    thread.settled(payload)
            case _:
                await self._take_of_session(payload, event.action)

    def _for_each(self, works: Iterable[Awaitable[None]]) -> None:
        for work in works:
            self.spawn(work)

    async def _take_of_session(self, payload: object, action: str) -> None:
        is_session = isinstance(payload, Session)
        thread = self.threads.get(str(getattr(payload, "id" if is_session else "session_id", "")))
        if thread is not None and action != "deleted":
            await thread.take(payload)

    def _open_threads(self) -> list[ShownSession]:
        return list(self.threads.values())

    def _lost(self) -> None:
        self._connected.clear()
        threads = self._open_threads()
        for thread in threads:
            thread.withdraw_all()
        if any(thread.is_waiting for thread in threads):
            self.revive()

    async def _catch_up(self) -> None:
        """Read and show what was missed, in every thread. Where that fails now, it is tried again
        later: after a reconnect there need not be another resync."""
        self._behind.update(self.threads)
        await self._try_to_catch_up()
        if self._behind and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = self.spawn(self._catch_up_later())

    async def _catch_up_later(self) -> None:
        delay = RETRY_SECONDS
        while self._behind:
            await self._clock.sleep(delay)
            await self._connected.wait()
            await self._try_to_catch_up()
            delay = min(2 * delay, MOST_RETRY_SECONDS)

    async def _try_to_catch_up(self) -> None:
        for session_id in list(self._behind):
            thread = self.threads.get(session_id)
            try:
                if thread is not None:
                    await thread.catch_up()
            except CrushliteError as error:
                if is_temporary(error) or not isinstance(error, NotFound):
                    log.warning("could not catch up: %s", error)
                    continue
                if thread is not None:
                    thread.fail("the session was deleted")
            self._behind.discard(session_id)

    # Ending ------------------------------------------------------------------------------------

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task that ends with the project; what it raises is logged."""
        task = asyncio.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except CrushliteError as error:
            log.info("not done: %s", error)
        except Exception:
            log.exception("a task failed")

    async def close(self) -> None:
        """Leave the daemon. Runs go on."""
        own = [task for task in (self._reader, self._reviving, *self._tasks) if task is not None]
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own)
        if self._workspace is not None:
            with contextlib.suppress(CrushliteError):
                await goodbye(self._workspace.client)
            await self._workspace.client.aclose()
