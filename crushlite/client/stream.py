"""The event stream of a workspace: in order, across lost connections, and honest about gaps.

Besides the daemon's own events the stream yields three that are about itself, in the same shape:

    lost       Lost        the connection is gone; the stream tries to come back by itself
    recovered  Recovered   it is back; without a `resync` after it nothing was missed
    resync     Resync      events may be missing: whoever shows state must read it afresh

`recovered` comes before `resync`, and both before any newer event, so what is read on `resync`
cannot miss a later change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadRequest, CrushliteError, NotFound
from ..http import client as http
from ..http.sse import SSEEvent, SSEParser, SSETooLong
from ..protocol.codec import loads
from ..protocol.events import Envelope, Resync, parse
from .wire import ANSWER, passes, refusal

if TYPE_CHECKING:
    from .workspace import RemoteWorkspace

log = logging.getLogger(__name__)

# Before the first attempt to come back, doubled after each failed one.
BACKOFF_MIN, BACKOFF_MAX = 0.25, 10.0
STUBBORN = 20  # failed attempts after which a loss is announced again, as a serious one


@dataclass(slots=True)
class Lost:
    """The connection is gone. `attempts` have failed since: 0 at first, then 20, 40, ..."""

    reason: str
    attempts: int = 0


@dataclass(slots=True)
class Recovered:
    """The connection is back, perhaps to a workspace that had to be created again."""

    workspace_id: str


class EventStream:
    """The events of a workspace, in order, across lost connections.

    For one reader at a time. No task of its own: it connects, waits and parses inside the
    reader's `anext`, so a reader that stops reading holds the daemon back, not this process's
    memory. Cancelling an `anext` (a time limit around it, say) loses no event.
    """

    def __init__(
        self, workspace: RemoteWorkspace, *, resume: bool, reconnect: bool, last_id: str | None
    ) -> None:
        self.last_id = last_id  # of the newest event that was yielded: `events(last_id=...)`
        self._workspace = workspace
        self._clock = workspace._wire.clock
        self._resume, self._reconnect = resume, reconnect
        self._entered = self._closed = False
        # The connection, if there is one.
        self._connection: contextlib.AsyncExitStack | None = None
        self._response: http.StreamResponse | None = None
        self._parser = SSEParser()
        self._ready: deque[tuple[str | None, Envelope]] = deque()
        # The way back, if there is none.
        self._gap = ""  # why events may have been missed; said as soon as the stream is back
        self._delay = BACKOFF_MIN
        self._failures = 0
        self._retry_at = 0.0
        self._stranger = False  # back, but not introduced yet
        # Around the reader while it waits; `close` ends the wait through it.
        self._waiting: asyncio.Timeout | None = None

    async def __aenter__(self) -> EventStream:
        """Returns when the daemon has answered: from then on no event is missed. Raises if nobody
        is there: only a stream that was there once is worth waiting for."""
        if self._entered:
            raise RuntimeError("a stream is entered once: ask for a new one")
        self._entered = True
        await self._connect()
        self._announce_gap()
        self._workspace.client._streams.add(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; a reader that waits comes to its end, and nothing is yielded
        any more."""
        if not self._closed and self._waiting is not None:
            self._waiting.reschedule(0.0)  # long past: at once
        await self._end()

    async def reopen(self, reason: str) -> None:
        """Drop the connection and come back with a `resync`: for a reader that could not make
        sense of what it has, or could not read what a `resync` asks for."""
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
                await self._hang_up()  # a connection that came about while `close` ran
        raise StopAsyncIteration

    async def _advance(self) -> None:
        """One step towards the next event."""
        if self._response is None:
            return await self._come_back()
        if self._stranger:
            return await self._introduce()
        try:
            self._feed(await self._response.__anext__())
        except StopAsyncIteration:
            await self._lost("the daemon ended it")
        except http.ClientError as error:
            await self._lost(str(error))
        except SSETooLong as error:
            # It would come again after every return.
            await self._end()
            raise CrushliteError(f"the event stream cannot be read on: {error}") from None

    def _feed(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            envelope = _envelope(event)
            if envelope is not None:
                self._ready.append((event.id, envelope))
        if not self._ready:
            # An id without an event, or with one that was skipped, has been dealt with.
            self.last_id = self._parser.last_id or self.last_id

    # Losing the connection and coming back.

    async def _lost(self, reason: str) -> None:
        await self._hang_up()
        if not self._reconnect or self._workspace._left:
            return await self._end()
        log.info("event stream of workspace %s lost: %s", self._workspace.id, reason)
        if self.last_id is None and not self._gap:
            self._gap = "the stream was interrupted and had no position to continue from"
        self._retry_at = self._clock.time() + self._delay
        self._notice(Lost(reason))

    async def _come_back(self) -> None:
        await self._clock.sleep(max(0.0, self._retry_at - self._clock.time()))
        if self._workspace._left:
            return await self._end()
        try:
            await self._connect()
        except CrushliteError as error:
            if self._workspace._left:
                return await self._end()  # a refusal of whoever has said goodbye is no news
            if not passes(error):
                await self._end()
                raise
            self._failures += 1
            self._delay = min(self._delay * 2, BACKOFF_MAX)
            self._retry_at = self._clock.time() + self._delay
            log.info("event stream: %s; trying again in %g s", error, self._delay)
            if self._failures % STUBBORN == 0:
                self._notice(Lost(error.message, self._failures))
        else:
            if self._workspace._left:
                return await self._end()
            self._delay, self._failures = BACKOFF_MIN, 0
            self._notice(Recovered(self._workspace.id))
            self._announce_gap()
            self._stranger = True
            await self._introduce()

    async def _introduce(self) -> None:
        """Again if it is cancelled: the daemon must hear it once."""
        await self._workspace._reintroduce()
        self._stranger = False

    async def _connect(self) -> None:
        """Subscribe. A workspace that is gone is created again, once; its events are others, so
        the old position means nothing to it."""
        wanted = self._workspace.id
        try:
            await self._subscribe()
        except NotFound:
            if not self._reconnect or self._workspace._left:
                raise
            await self._workspace._create_again(wanted)
            self.last_id, self._gap = None, "the workspace was created again"
            await self._subscribe()

    def _announce_gap(self) -> None:
        """Only when subscribed: what is read after that cannot miss a later event."""
        if self._gap:
            self._notice(Resync(self._gap))
            self._gap = ""

    def _notice(self, about: Lost | Recovered | Resync) -> None:
        self._ready.append((None, Envelope(type(about).__name__.lower(), "", about)))

    async def _subscribe(self) -> None:
        """Open the connection, up to the head of the answer."""
        workspace, wire = self._workspace, self._workspace._wire
        me, resume = workspace.client.client_id, int(self._resume)
        target = workspace._at("events", client_id=me, resume=resume)
        headers = [("Last-Event-ID", self.last_id)] if self.last_id else []
        async with contextlib.AsyncExitStack() as stack:
            with wire.translated():
                opening = wire.http.stream("GET", target, headers=headers, timeout=ANSWER)
                response = await stack.enter_async_context(opening)
                if response.status != 200:
                    raise refusal(f"GET {target}", response.status, await response.read())
            self._response, self._parser = response, SSEParser()
            self._connection = stack.pop_all()

    async def _hang_up(self) -> None:
        connection, self._connection, self._response = self._connection, None, None
        if connection is not None:
            await connection.aclose()

    async def _end(self) -> None:
        self._closed = True
        self._workspace.client._streams.discard(self)
        await self._hang_up()


def _envelope(event: SSEEvent) -> Envelope | None:
    """The event, or None if it makes no sense: a newer daemon's, and no reason to stop."""
    try:
        return parse(loads(event.data.encode()))
    except BadRequest as error:
        log.warning("skipped an event (id %s): %s", event.id, error)
        return None
