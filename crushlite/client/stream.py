"""The event stream of a workspace: every event in order, across lost connections, with gaps marked.

Besides the daemon's own events the stream yields three that are about itself, in the same shape:

    lost       Lost        the connection is gone; the stream reconnects by itself
    recovered  Recovered   it has reconnected; without a `resync` after it nothing was missed
    resync     Resync      events may be missing: a client that shows state must read it again

`recovered` comes before `resync`, and both before any newer event, so what a client reads on
`resync` includes every change that the stream will not report.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError, NotFound
from ..http import client as http
from ..http.sse import SSEEvent, SSEParser, SSETooLong
from ..protocol.codec import loads
from ..protocol.events import Envelope, Resync, parse
from ..protocol.messages import Message, MessageDelta
from ..records import dataclass
from .wire import ConnectionFailed, is_temporary

if TYPE_CHECKING:
    from .requests import WorkspaceRequests

log = logging.getLogger(__name__)

# Seconds before the first attempt to reconnect, doubled after each failed one.
BACKOFF_MIN, BACKOFF_MAX = 0.25, 10.0
REPEAT_LOST = 20  # failed attempts after which `lost` is yielded once more


@dataclass(slots=True)
class Lost:
    """The connection is gone. `attempts` to reconnect have failed since: 0, then 20, 40, ..."""

    reason: str
    attempts: int = 0


@dataclass(slots=True)
class Recovered:
    """The stream has reconnected, perhaps to a workspace that had to be created again."""

    workspace_id: str


class EventStream:
    """The events of a workspace, in order, across lost connections.

    To be used in `async with`, by one reader at a time. It has no task of its own: it connects,
    waits and parses inside the reader's `anext`, so a reader that stops reading makes the daemon
    hold the events, not this process. Cancelling an `anext` (by a time limit, say) loses no event.
    """

    def __init__(
        self, workspace: WorkspaceRequests, *, reconnect: bool = True, last_id: str | None = None
    ) -> None:
        self.last_id = last_id  # of the newest event that was yielded: `events(last_id=...)`
        self._workspace = workspace
        self._wire = workspace.wire
        self._clock = workspace.wire.clock
        self._reconnects = reconnect
        self._entered = self._closed = False
        # The connection, if there is one.
        self._connection: contextlib.AsyncExitStack | None = None
        self._response: http.StreamResponse | None = None
        self._parser = SSEParser()
        self._growing: dict[str, Message] = {}  # as they were yielded last
        self._ready: deque[tuple[str | None, Envelope]] = deque()
        # Reconnecting.
        self._gap = ""  # why events may have been missed: yielded as a resync once reconnected
        self._delay = BACKOFF_MIN
        self._failures = 0
        self._retry_at = 0.0
        self._must_introduce = False  # reconnected, `introduce` has not returned yet
        # Around the reader while it waits; `close` ends the wait through it.
        self._waiting: asyncio.Timeout | None = None

    async def __aenter__(self) -> EventStream:
        """Subscribe: from now on no event is missed. Raises if that fails. But a stream that
        continues another one (`last_id`) yields `lost` if the daemon cannot be reached, and tries
        again, as every stream does that was connected once."""
        if self._entered:
            raise RuntimeError("a stream is entered once: ask for a new one")
        self._entered = True
        try:
            await self._connect()
        except ConnectionFailed as error:
            if self.last_id is None:
                raise
            await self._lost(error.message)
        else:
            self._add_resync()
        self._wire.streams.add(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. A waiting `anext` raises StopAsyncIteration, as do later ones."""
        if not self._closed and self._waiting is not None:
            self._waiting.reschedule(0.0)  # long past: at once
        await self._end()

    async def reopen(self, reason: str) -> None:
        """Reconnect, with a `resync`: for a reader that could not read the state it needs."""
        self._gap = reason
        await self._lost(reason)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Envelope:
        if not self._entered or self._waiting is not None:
            raise RuntimeError("a stream is read inside its own 'async with', by one task")
        try:
            async with asyncio.timeout(None) as self._waiting:
                while not self._closed:
                    if self._ready:
                        position, event = self._ready.popleft()
                        self.last_id = position or self.last_id
                        return event
                    await self._advance()
        except TimeoutError:
            pass  # `close` was called meanwhile
        finally:
            self._waiting = None
            if self._closed:
                await self._disconnect()  # a connection that came about while `close` ran
        raise StopAsyncIteration

    async def _advance(self) -> None:
        """Reconnect, or introduce the client, or read: one step towards the next event."""
        if self._response is None:
            return await self._reconnect()
        if self._must_introduce:
            return await self._introduce()
        try:
            self._feed(await self._response.__anext__())
        except StopAsyncIteration:
            await self._lost("the daemon ended it")
        except http.ClientError as error:
            await self._lost(str(error))
        except SSETooLong as error:
            # After a reconnect the daemon would send the same line again.
            await self._end()
            raise CrushliteError(f"the event stream cannot be read on: {error}") from None

    def _feed(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            envelope = _envelope(event)
            if envelope is not None and self._completed(envelope):
                self._ready.append((event.id, envelope))
        if not self._ready:
            # The id of an event that was skipped, or an id without an event, counts as read.
            self.last_id = self._parser.last_id or self.last_id

    def _completed(self, event: Envelope) -> bool:
        """Make of a delta the message that it results in. False if it continues none that is known:
        then there is a newer state of it on its way, or the daemon is at fault."""
        if isinstance(event.payload, MessageDelta):
            known = self._growing.get(event.payload.message_id)
            message = known and event.payload.applied(known)
            if message is None:
                log.warning("skipped a delta that continues nothing: %s", event.payload.message_id)
                return False
            event.kind, event.payload = "message", message
        if isinstance(event.payload, Message):
            if event.action == "deleted" or event.payload.finish is not None:
                self._growing.pop(event.payload.id, None)
            else:
                self._growing[event.payload.id] = event.payload
        return True

    # Losing the connection and reconnecting.

    async def _lost(self, reason: str) -> None:
        await self._disconnect()
        if not self._reconnects or self._workspace.left:
            return await self._end()
        log.info("event stream of workspace %s lost: %s", self._workspace.id, reason)
        if self.last_id is None and not self._gap:
            self._gap = "the stream was interrupted and had no position to continue from"
        self._retry_at = self._clock.time() + self._delay
        self._add(Lost(reason))

    async def _reconnect(self) -> None:
        """Wait until `_retry_at` and try once."""
        await self._clock.sleep(max(0.0, self._retry_at - self._clock.time()))
        if self._workspace.left:
            return await self._end()
        try:
            await self._connect()
        except CrushliteError as error:
            if self._workspace.left:
                return await self._end()  # the daemon refuses a client that has left: no error
            if not is_temporary(error):
                await self._end()
                raise
            self._failures += 1
            self._delay = min(self._delay * 2, BACKOFF_MAX)
            self._retry_at = self._clock.time() + self._delay
            log.info("event stream: %s; trying again in %g s", error, self._delay)
            if self._failures % REPEAT_LOST == 0:
                self._add(Lost(error.message, self._failures))
        else:
            if self._workspace.left:
                return await self._end()
            self._delay, self._failures = BACKOFF_MIN, 0
            self._add(Recovered(self._workspace.id))
            self._add_resync()
            self._must_introduce = True
            await self._introduce()

    async def _introduce(self) -> None:
        """Introduce the client; the next `anext` repeats it if this one is cancelled."""
        await self._workspace.introduce()
        self._must_introduce = False

    async def _connect(self) -> None:
        """Subscribe. A workspace that is gone is created again, once; its events are numbered
        anew, so the old position is dropped."""
        wanted = self._workspace.id
        try:
            await self._subscribe()
        except NotFound:
            if not self._reconnects or self._workspace.left:
                raise
            await self._workspace.create_again(wanted)
            self.last_id, self._gap = None, "the workspace was created again"
            await self._subscribe()

    def _add_resync(self) -> None:
        """Yield the resync that is due, once subscribed: what is read then is no older than the
        first event to come."""
        if self._gap:
            self._add(Resync(self._gap))
            self._gap = ""

    def _add(self, about: Lost | Recovered | Resync) -> None:
        self._ready.append((None, Envelope(type(about).__name__.lower(), "", about)))

    async def _subscribe(self) -> None:
        """Open the connection and read the head of the answer. Raises the refusal if it is one."""
        target = self._workspace.at("events", client_id=self._wire.client_id, resume=1, deltas=1)
        headers = [("Last-Event-ID", self.last_id)] if self.last_id else []
        async with contextlib.AsyncExitStack() as stack:
            opening = self._wire.stream("GET", target, headers=headers)
            self._response = await stack.enter_async_context(opening)
            self._parser = SSEParser()
            self._growing.clear()
            self._connection = stack.pop_all()

    async def _disconnect(self) -> None:
        connection, self._connection, self._response = self._connection, None, None
        if connection is not None:
            await connection.aclose()

    async def _end(self) -> None:
        self._closed = True
        self._wire.streams.discard(self)
        await self._disconnect()


def _envelope(event: SSEEvent) -> Envelope | None:
    """The event; None if it cannot be read: a newer daemon may send such ones."""
    try:
        return parse(loads(event.data.encode()))
    except BadRequest as error:
        log.warning("skipped an event (id %s): %s", event.id, error)
        return None
