"""The event hub of a workspace: one sequence, bounded conflating queues, a replay ring.

The backpressure rule: **the publisher never waits, a fact is never dropped, a slow reader loses
its stream.** Growth (a snapshot of a streaming message that only got longer) may be skipped for a
reader that lags: a newer snapshot replaces the one still queued and takes its place at the end, a
structural update of that message removes it. Everything else is a fact. A stream that would hold
more than its bounds, or whose socket takes nothing for a while although something waits, is closed
as `slow` and counted; its client can resume, because the hub remembers what went by.

How an event travels. `publish` encodes it once and gives it the next number. Subscribers are in
one of three groups: *base* and *tagged* (their sink takes bytes and nothing is queued) and
*waiting* (a paused sink, a sink not yet opened, or a consumer in this process). Waiting ones get
the event into their queue at once. The other groups are written to directly: the first event after
a silent loop tick immediately, later ones of that tick together at its end, joined once per group.
A subscriber changes groups only when no such batch is open, so that nothing is seen twice or late.

Everything here is synchronous and belongs to one event loop. Knows nothing of HTTP, of runs, or of
what the payloads mean, apart from a message having an id.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .errors import IllegalCall
from .protocol.codec import dumps
from .protocol.events import Resync, to_json
from .protocol.messages import Message, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from .clock import Clock, Timer

_CHUNK = 256 * 1024  # most bytes per write: what is still queued can conflate, what is sent cannot
_STALL_CHECKS = 4  # looks at a paused sink per stall period
_EARLY = 0.001  # an event loop may fire a timer this much before its time
_COMMENT = b": keep-alive\n\n"
_ID = re.compile(r"(.+)-(0|[1-9][0-9]{0,18})", re.ASCII)


class Sink(Protocol):
    """The connection of a stream. No method raises or calls back into the hub: the subscriber's
    `closed` is called later, from the loop. (Inside of `close` or `abort` it would do no harm.)"""

    def write(self, data: bytes) -> None: ...

    @property
    def writable(self) -> bool:
        """False from the moment the transport asks to pause until it calls `resumed`."""

    @property
    def buffered(self) -> int:
        """Bytes written and not yet taken by the socket."""

    def close(self) -> None:
        """Flush, then FIN."""

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one subscriber may hold, transport buffer included. One event larger than `bytes` is
    admitted to an empty queue, and then counts for nothing until it is sent: else every prompt
    with a large attachment would cost every client its stream."""

    entries: int = 4096
    bytes: int = 8 * 1024 * 1024
    stall: float = 20.0  # seconds without progress on a socket for which something waits
    keepalive: float = 15.0

    @property
    def ring_entries(self) -> int:
        """The ring has half the bounds, so that a full replay fits into a new queue."""
        return self.entries // 2

    @property
    def ring_bytes(self) -> int:
        return self.bytes // 2


_DEFAULT = Bounds()


@dataclass(slots=True, eq=False)
class Event:
    """One published event. Consumers in this process read `payload`: whoever publishes hands it
    over and changes it no more. `seq` is 0 for an open request that is shown again."""

    seq: int
    action: str
    kind: str
    payload: object
    frame: bytes  # what every stream gets; nothing of a tool output, which is for those with ids
    id_line: bytes  # what streams with ids get before the frame: of a tool output all there is
    key: str | None  # the message this is growth of
    supersedes: str | None  # the message whose queued growth this makes obsolete
    size: int

    @property
    def id_frame(self) -> bytes:
        """Not kept: the ring would hold every event twice, and streams share a joined batch."""
        return self.id_line + self.frame


@dataclass(frozen=True, slots=True)
class SubscriberStatistics:
    entries: int  # queued events
    bytes: int  # their size
    buffered: int  # bytes in the transport
    conflated: int  # growth that was skipped
    closed_reason: str  # empty while the stream is open


@dataclass(frozen=True, slots=True)
class HubStatistics:
    published: int  # events since the hub was made
    encoded_bytes: int  # their frames, each counted once
    subscribers: int  # open streams and in-process consumers
    waiting: int  # those of them that are read from a queue
    queued_bytes: int  # not yet taken by any of them: in their queues and in their transports
    ring_entries: int
    ring_bytes: int
    conflated: int  # growth skipped, summed over all subscribers
    closed_slow: int  # streams closed at a bound or for standing still
    failed: int  # streams closed because their sink raised


class _Backlog:
    """Events in order of their numbers, at most one growth per message."""

    __slots__ = ("bytes", "ended", "entries", "limit")

    def __init__(self, limit: int) -> None:
        # Growth is filed under its message, a fact under itself.
        self.entries: OrderedDict[str | Event, Event] = OrderedDict()
        self.bytes = 0
        self.limit = limit
        self.ended = False

    def __len__(self) -> int:
        return len(self.entries) + self.ended

    def _weight(self, event: Event) -> int:
        return event.size if event.size <= self.limit else 0

    def add(self, event: Event) -> bool:
        """Append an event; say whether older growth went for it."""
        growth = event.key if event.key is not None else event.supersedes
        old = None if growth is None else self.entries.pop(growth, None)
        if old is not None:
            self.bytes -= self._weight(old)
        self.entries[event if event.key is None else event.key] = event
        self.bytes += self._weight(event)
        return old is not None

    def pop(self, *, last: bool = False) -> Event:
        _, event = self.entries.popitem(last=last)
        self.bytes -= self._weight(event)
        return event

    def clear(self) -> None:
        self.entries.clear()
        self.bytes = 0


class Subscriber(asyncio.Queue[Event | None]):
    """One reader of a hub: a consumer in this process, or a stream with a sink.

    A consumer awaits `get` (None, from then on always, is the end) or iterates. A stream is driven
    by its connection through `opened`, `resumed` and `closed`, and needs no task. Only the hub
    puts; `join` and `task_done` have no meaning here.

    `closed_reason` is empty while the stream is open, then `closed` (by its owner), `hub`, `peer`,
    `slow` or `failed`. `when_closed` is called once after that, from the event loop, never from
    inside `publish`; set late, it is called when the connection next reports.
    """

    def __init__(
        self, hub: Hub, *, tagged: bool, prime: bytes = b"", opening: Sequence[Event] = ()
    ) -> None:
        self._hub = hub
        self._tagged = tagged
        self._direct = hub.tagged if tagged else hub.base  # its group while it is written to
        self.closed_reason = ""
        self.when_closed: Callable[[], object] | None = None
        self.sink: Sink | None = None
        self._prime = prime  # the opening id line, until it is written
        self._conflated = 0
        # A stream either waits (this is the stall watch) or is idle (the next comment).
        self._timer: Timer | None = None
        self._seen = 0  # sink.buffered at the last look of the stall watch
        self._still = 0  # looks since anything moved
        self._excess = 0  # bytes of an oversized event that the transport may still hold
        super().__init__()
        # Past the bounds: a replay is half of them, and an open request must be seen.
        for event in opening:
            self._queue.add(event)

    def __repr__(self) -> str:
        state = self.closed_reason or "open"
        return f"<Subscriber {state} entries={len(self._queue.entries)} bytes={self._queue.bytes}>"

    __str__ = __repr__

    # The hooks of asyncio.Queue.

    def _init(self, maxsize: int) -> None:
        self._queue = _Backlog(self._hub.bounds.bytes)

    def _put(self, item: Event | None) -> None:
        backlog = self._queue
        if item is None:
            backlog.ended = True
            return
        if self.closed_reason:  # ended by the event before, of the same batch
            return
        if backlog.add(item):
            self._conflated += 1
            self._hub.conflated += 1
        if len(backlog.entries) > 1 and self._is_over(item):
            # Taken back for a consumer that will still read what it has: never past the bound.
            backlog.pop(last=True)
            self._close_slow()

    def _get(self) -> Event | None:
        if self._queue.entries:
            return self._queue.pop()
        # The end stays, and putting it again wakes the next of several waiting getters.
        self.put_nowait(None)
        return None

    def _is_over(self, newest: Event) -> bool:
        bounds, backlog = self._hub.bounds, self._queue
        if len(backlog.entries) > bounds.entries or newest.size > bounds.bytes:
            return True
        return backlog.bytes + max(0, self._buffered - self._excess) > bounds.bytes

    @property
    def _buffered(self) -> int:
        return 0 if self.sink is None else self.sink.buffered

    # In-process consumers, and the owner of a stream.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End the stream after what has been published so far."""
        self._hub.flush()
        self.end("closed")

    def statistics(self) -> SubscriberStatistics:
        return SubscriberStatistics(
            entries=len(self._queue.entries),
            bytes=self._queue.bytes,
            buffered=self._buffered,
            conflated=self._conflated,
            closed_reason=self.closed_reason,
        )

    # What the connection of a stream reports.

    def opened(self, sink: Sink) -> None:
        """The response head is out: from here on the sink takes the stream."""
        self._hub.flush()
        self.sink = sink
        self._drain(sink)
        self._notify()

    def resumed(self) -> None:
        """The sink is writable again."""
        self._hub.flush()
        if self.sink is not None:
            self._excess = 0
            self._drain(self.sink)

    def closed(self) -> None:
        """The connection is gone, whoever ended it."""
        self._release()
        self._queue.clear()
        self.end("peer")

    # Called by the hub.

    def hold(self, events: list[Event]) -> None:
        """Leave the group that is written to directly: the sink has paused before it got these."""
        self._direct.pop(self, None)
        self._hub.waiting[self] = None
        self._start_watch()
        for event in events:
            self.put_nowait(event)

    def spare(self, size: int) -> None:
        """A write larger than the bound: it must not count against what comes after it."""
        if self.sink is not None and not self.sink.writable:
            self._excess = size

    def end(self, reason: str) -> None:
        """Take nothing more; a sink gets what is queued and is closed. Once."""
        if not self.closed_reason:
            self.closed_reason = reason
            self._hub.forget(self)
            self.put_nowait(None)
            if self.sink is not None and reason in ("closed", "hub"):
                self._drain(self.sink)
        self._notify()

    def fail(self, error: Exception) -> None:
        """The sink raised. That is its own stream's end and nobody else's trouble."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the sink of an event stream failed", "exception": error}
        )
        self._hub.failed += 1
        self._cut("failed")

    # Inside.

    def _drain(self, sink: Sink) -> None:
        """Write what is queued while the sink takes it, then enter the group that is right."""
        backlog, chunk = self._queue, self._hub.chunk
        while (backlog.entries or self._prime) and sink.writable:
            parts, size = [self._prime], 0
            self._prime = b""
            while backlog.entries and size < chunk:
                event = backlog.pop()
                parts += (event.id_line, event.frame) if self._tagged else (event.frame,)
                size += event.size
            # Joined, a large frame would be copied for every stream that lags.
            large = parts.pop() if len(parts[-1]) > _CHUNK else b""
            self._send(sink, b"".join(parts))
            if large and self.sink is not None:
                self._send(sink, large)
            if self.sink is None:
                return
            if size > backlog.limit:
                self.spare(size)
        self._regroup(sink)

    def _send(self, sink: Sink, data: bytes) -> None:
        try:
            sink.write(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
            self.fail(error)

    def _regroup(self, sink: Sink) -> None:
        if self._queue.entries or self._prime:
            self._start_watch()
        elif self.closed_reason:
            self._release()
            sink.close()
        else:
            self._hub.waiting.pop(self, None)
            self._direct[self] = None
            self._arm(self._hub.bounds.keepalive if self._tagged else None, self._comment)

    def _start_watch(self) -> None:
        self._seen = self._buffered + 1  # coming here is progress
        self._watch()

    def _watch(self) -> None:
        # While a sink is paused nothing is written to it: a smaller buffer means a reading peer.
        buffered = self._buffered
        self._still = 0 if buffered < self._seen else self._still + 1
        self._seen = buffered
        if self._still == _STALL_CHECKS:
            self._close_slow()
        else:
            self._arm(self._hub.bounds.stall / _STALL_CHECKS, self._watch)

    def _comment(self) -> None:
        """Tell an idle client (and whatever is in between) that the stream lives."""
        keepalive = self._hub.bounds.keepalive
        silent = self._hub.clock.time() - self._hub.published_at
        if silent < keepalive - _EARLY:
            self._arm(keepalive - silent, self._comment)
            return
        self._arm(keepalive, self._comment)
        if self.sink is not None and self.sink.writable:
            self._send(self.sink, _COMMENT)

    def _arm(self, delay: float | None, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._hub.clock.call_later(delay, callback)

    def _close_slow(self) -> None:
        self._hub.closed_slow += 1
        self._cut("slow")

    def _cut(self, reason: str) -> None:
        """End at once: a sink is aborted, a consumer may still read what it has."""
        self.end(reason)
        sink = self._release()
        if sink is not None:
            self._queue.clear()
            sink.abort()

    def _release(self) -> Sink | None:
        self._arm(None, self._watch)
        sink, self.sink = self.sink, None
        return sink

    def _notify(self) -> None:
        if self.closed_reason and self.when_closed is not None:
            callback, self.when_closed = self.when_closed, None
            asyncio.get_running_loop().call_soon(callback)


class Hub:
    """All events of one workspace, in one order."""

    def __init__(
        self, *, clock: Clock, bounds: Bounds = _DEFAULT, epoch: str | None = None
    ) -> None:
        self.clock = clock
        self.bounds = bounds
        self.epoch = secrets.token_hex(8) if epoch is None else epoch
        self.current = 0  # the newest number,
        self.published_at = clock.time()  # and when it was given out
        self.floor = 0  # the newest number evicted for space: older ids cannot be resumed
        self.closed = False
        # The groups, as ordered sets.
        self.base: dict[Subscriber, None] = {}
        self.tagged: dict[Subscriber, None] = {}
        self.waiting: dict[Subscriber, None] = {}
        # The batch of this loop tick; `hot` from the first event until a tick brings none.
        self.chunk = max(1, min(_CHUNK, bounds.bytes // 4))
        self._batch: list[Event] = []
        self._batch_bytes = 0
        self._hot = False
        self._ring = _Backlog(bounds.bytes)
        # Counters: the first is ours, the others are written by the subscribers.
        self._encoded_bytes = 0
        self.conflated = 0
        self.closed_slow = 0
        self.failed = 0

    # Publishing.

    def publish(self, action: str, payload: object, *, growth: bool = False) -> int:
        """Send an event to everyone; return its number, or 0 when the hub is closed.

        `growth` marks an update of a message in which text or reasoning got longer and nothing
        else; output of a running tool always is, and goes to streams with ids only. Raises only for
        a payload that is no event: never because of a subscriber.
        """
        if self.closed:
            return 0
        event = self._event(action, payload, self.current + 1, growth=growth)
        self.current = event.seq
        self.published_at = self.clock.time()
        self._encoded_bytes += len(event.frame)
        self._remember(event)
        for subscriber in tuple(self.waiting):
            subscriber.put_nowait(event)
        if self.base or self.tagged:
            self._batch.append(event)
            self._batch_bytes += event.size
            if not self._hot:
                self._hot = True
                asyncio.get_running_loop().call_soon(self._end_tick)
                self.flush()
            elif self._batch_bytes >= self.chunk:
                self.flush()
        return event.seq

    def _event(
        self, action: str, payload: object, seq: int | None, *, growth: bool = False
    ) -> Event:
        key = supersedes = None
        if isinstance(payload, ToolOutput):
            key = f"output of {payload.tool_call_id}"
        elif growth:
            if not isinstance(payload, Message) or action != "updated":
                raise IllegalCall("only an update of a message can be growth")
            key = payload.id
        elif isinstance(payload, Message):
            supersedes = payload.id
        body = to_json(action, payload)
        frame = b"data: " + dumps(body) + b"\n\n"
        id_line = b"" if seq is None else self._id_line(seq)
        if isinstance(payload, ToolOutput):
            # Beyond the base protocol: streams that did not ask for more get nothing of it.
            id_line, frame = id_line + frame, b""
        size = len(id_line) + len(frame)
        kind = body["type"]
        return Event(seq or 0, action, kind, payload, frame, id_line, key, supersedes, size)

    def _id_line(self, seq: int) -> bytes:
        return f"id: {self.epoch}-{seq}\n".encode()

    def _remember(self, event: Event) -> None:
        ring, bounds = self._ring, self.bounds
        if event.size > bounds.ring_bytes:
            ring.clear()
            self.floor = event.seq
            return
        ring.add(event)
        while len(ring.entries) > bounds.ring_entries or ring.bytes > bounds.ring_bytes:
            self.floor = ring.pop().seq

    def _end_tick(self) -> None:
        if self._batch:
            self.flush()
            asyncio.get_running_loop().call_soon(self._end_tick)
        else:
            self._hot = False

    def flush(self) -> None:
        """Write the open batch. Everything that moves a subscriber between groups does so first."""
        if self._batch:
            events, self._batch, self._batch_bytes = self._batch, [], 0
            if self.base:
                self._fan_out(self.base, b"".join([event.frame for event in events]), events)
            if self.tagged:
                self._fan_out(self.tagged, b"".join([event.id_frame for event in events]), events)

    def _fan_out(self, group: dict[Subscriber, None], data: bytes, events: list[Event]) -> None:
        for subscriber in tuple(group):
            sink = subscriber.sink
            if sink is None:  # ended by something this loop did
                continue
            if sink.writable:
                try:
                    sink.write(data)
                except Exception as error:  # noqa: BLE001 - whatever it is, only this stream ends
                    subscriber.fail(error)
            else:
                subscriber.hold(events)
        if len(data) > self.bounds.bytes:
            for subscriber in tuple(group):
                subscriber.spare(len(data))

    # Subscribing.

    def subscribe(
        self,
        *,
        resume: bool = False,
        last_id: str | None = None,
        pending: Callable[[], list[object]] | None = None,
    ) -> Subscriber:
        """A new reader of everything from now on.

        With `resume` its stream carries ids and comments; with `last_id` as well, and it begins
        with what came after that id or, if that is not known, with a resync. `pending` gives the
        open requests: those the replay did not hold are shown again, as they were created.
        """
        self.flush()
        tagged = resume or last_id is not None
        if self.closed:
            subscriber = Subscriber(self, tagged=tagged)
            subscriber.end("hub")
            return subscriber
        start, opening = self._since(last_id)
        for request in pending() if pending is not None else ():
            event = self._event("created", request, None)
            if not any(e.kind == event.kind and e.frame == event.frame for e in opening):
                opening.append(event)
        prime = b"" if start is None or not tagged else self._id_line(start) + b"\n"
        subscriber = Subscriber(self, tagged=tagged, prime=prime, opening=opening)
        self.waiting[subscriber] = None
        return subscriber

    def _since(self, last_id: str | None) -> tuple[int | None, list[Event]]:
        """Where a stream begins, and the replay or the resync it begins with.

        A resync gives no place to begin with: it brings the current id itself. A client that got
        that id alone, and lost the connection before the resync, would resume there and never
        learn what it has missed.
        """
        if last_id is None:
            return self.current, []
        match = _ID.fullmatch(last_id)
        seq = int(match[2]) if match else 0
        if match is None:
            reason = "the last event id is malformed"
        elif match[1] != self.epoch:
            reason = "the last event id is of an unknown epoch"
        elif seq < self.floor:
            reason = "the last event id is too old"
        elif seq > self.current:
            reason = "the last event id is from the future"
        else:
            return seq, [event for event in self._ring.entries.values() if event.seq > seq]
        return None, [self._event("", Resync(reason), self.current)]

    def forget(self, subscriber: Subscriber) -> None:
        for group in (self.base, self.tagged, self.waiting):
            group.pop(subscriber, None)

    def close(self) -> None:
        """End every stream after what is queued for it. Later subscribers get a closed one."""
        self.flush()
        self.closed = True
        for subscriber in self._subscribers():
            subscriber.end("hub")

    def _subscribers(self) -> list[Subscriber]:
        return [*self.base, *self.tagged, *self.waiting]

    def statistics(self) -> HubStatistics:
        subscribers = self._subscribers()
        each = [subscriber.statistics() for subscriber in subscribers]
        return HubStatistics(
            published=self.current,
            encoded_bytes=self._encoded_bytes,
            subscribers=len(subscribers),
            waiting=len(self.waiting),
            queued_bytes=sum(one.bytes + one.buffered for one in each),
            ring_entries=len(self._ring.entries),
            ring_bytes=self._ring.bytes,
            conflated=self.conflated,
            closed_slow=self.closed_slow,
            failed=self.failed,
        )
