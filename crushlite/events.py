"""The event hub of a workspace: one sequence, bounded conflating queues, a replay ring.

**The publisher never waits, a fact is never dropped, a slow reader loses its stream.** Growth (a
snapshot of a streaming message that only got longer) may be skipped for a slow reader: a newer
snapshot removes the queued one and is queued at the end, a structural update of that message
removes it as well. Every other event is a fact. A stream that would hold more than its bounds, or
whose socket takes nothing for a while although something waits, is closed as `slow`; its client can
resume, because the hub keeps the latest events in a ring.

How an event travels. `publish` encodes it once and gives it the next number. Subscribers are in
one of four groups. *base* (without ids, as in the base protocol), *tagged* (with ids) and *linear*
(with ids, and growth as deltas) get different bytes; their sinks take them and nothing is queued.
*waiting* are those whose sink is paused or not yet opened: they get the event into their queue at
once. The other groups are written to directly: the first event after a loop tick without events
immediately, unless `more` follows, later ones of that tick together at its end, joined once per
group. Where there are many streams, the next batch then waits eight times as long as this one took:
what is published meanwhile shares its writes, which are most of its cost, and the loop has time for
other work. A subscriber changes groups only when no such batch is open, so that it gets every event
once and in order.

Linear streams get growth as what was appended. That continues what they have, because they begin
with the growing messages as they are then, and get every event after that in order; where growth
was skipped for them, what is sent in its place begins where the skipped one did.

Everything here is synchronous and belongs to one event loop. Knows nothing of HTTP but what a
stream writes to (ByteSink, which must not call back into the hub), nothing of runs, and nothing of
what the payloads mean, apart from a message having an id.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from .backlog import Backlog, Event, LinearBacklog
from .errors import IllegalCall
from .http.messages import Stream
from .protocol.codec import dumps
from .protocol.events import Resync, is_base, to_json
from .protocol.messages import Message, MessageDelta, ToolOutput
from .protocol.sessions import Session
from .records import dataclass
from .unique import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import Clock, Timer
    from .http.messages import ByteSink, Pairs

_CHUNK = 256 * 1024  # most bytes per write: a queued event can still be conflated, a sent one not
_STALL_CHECKS = 4  # checks of a paused sink per stall period
_EARLY = 0.001  # an event loop may fire a timer this much before its time
_COMMENT = b": keep-alive\n\n"
_MANY = 32  # streams: for fewer of them no batch waits
_REST = 8  # times as long as a batch took to write, until the next one is written,
_MOST_REST = 0.01  # seconds, at most
_GROWING = 1024  # growing messages that are remembered: more than there are runs
_ID = re.compile(r"(.+)-(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one subscriber may hold, with its transport buffer. One event larger than `bytes` is
    admitted to an empty queue and counts as nothing until it is sent: else a prompt with a large
    attachment would end the stream of every client."""

    entries: int = 4096
    bytes: int = 8 * 1024 * 1024
    stall: float = 20.0  # seconds without progress on a socket for which something waits
    keepalive: float = 15.0

    # The ring has half the bounds, so that a full replay fits into a new queue.

    @property
    def ring_entries(self) -> int:
        return self.entries // 2

    @property
    def ring_bytes(self) -> int:
        return self.bytes // 2


class Subscriber(Stream):
    """One reader of a hub: a stream, whose connection calls `opened`, `resumed` and `closed`.

    `closed_reason` is empty while the stream is open, then `closed` (by its owner), `hub`, `peer`,
    `slow` or `failed`. `when_closed` is called once after that, from the event loop; if it is set
    later, at the next call of the connection.
    """

    headers: Pairs = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"))

    def __init__(self, hub: Hub, group: dict[Subscriber, None]) -> None:
        self._hub = hub
        self._direct = group  # while it is written to
        self._tagged = group is not hub.base
        self.closed_reason = ""
        self.when_closed: Callable[[], object] | None = None
        self.sink: ByteSink | None = None
        self.first_id = b""  # the id line that a stream begins with, until it is written
        # For a stream that waits: the next check of its socket. Else: the next keep-alive comment.
        self._timer: Timer | None = None
        self._seen = 0  # sink.buffered at the last check
        self._still = 0  # checks since the socket took anything
        self._excess = 0  # bytes of an oversized event that the transport may still hold
        kind = LinearBacklog if group is hub.linear else Backlog
        self.backlog = kind(hub.bounds.bytes)  # what is queued for it

    # For the owner of the stream.

    def close(self) -> None:
        """End the stream after the events that were published so far."""
        self._hub.flush()
        self.end("closed")

    @property
    def buffered(self) -> int:
        """Bytes in the transport."""
        return 0 if self.sink is None else self.sink.buffered

    # Called by the connection of a stream.

    def opened(self, sink: ByteSink) -> None:
        """The response head was written: the sink takes events from now on."""
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
        """The connection has ended, by either side."""
        self._detach()
        self.backlog.clear()
        self.end("peer")

    # Called by the hub.

    def queue(self, event: Event) -> None:
        """Add an event to the backlog; end the stream as `slow` if that is too much."""
        if self.closed_reason:  # closed by an earlier event of the same batch
            return
        if self.backlog.add(event):
            self._hub.conflated += 1
        if len(self.backlog.entries) > 1 and self._is_over(event):
            # Removed again: a stream that is not opened yet will get its queue up to the bound.
            self.backlog.pop(last=True)
            self._close_slow()

    def _is_over(self, newest: Event) -> bool:
        bounds, backlog = self._hub.bounds, self.backlog
        if len(backlog.entries) > bounds.entries or newest.size > bounds.bytes:
            return True
        return backlog.bytes + max(0, self.buffered - self._excess) > bounds.bytes

    def start_waiting(self, events: list[Event]) -> None:
        """Leave the group that is written to, and queue the events that the paused sink missed."""
        self._direct.pop(self, None)
        self._hub.waiting[self] = None
        self._start_watch()
        for event in events:
            self.queue(event)

    def exempt(self, size: int) -> None:
        """Do not count a write that was larger than the bound while the transport holds it."""
        if self.sink is not None and not self.sink.writable:
            self._excess = size

    def end(self, reason: str) -> None:
        """Take no more events. A sink is closed after what is queued, except where the caller
        aborts it. Does nothing the second time."""
        if not self.closed_reason:
            self.closed_reason = reason
            self._hub.forget(self)
            if self.sink is not None and reason in ("closed", "hub"):
                self._drain(self.sink)
        self._notify()

    def fail(self, error: Exception) -> None:
        """End this stream, whose sink raised, and report the error to the event loop."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the sink of an event stream failed", "exception": error}
        )
        self._hub.failed += 1
        self._abort("failed")

    # Inside.

    def _drain(self, sink: ByteSink) -> None:
        """Write what is queued while the sink takes it, then enter the group that fits."""
        backlog, chunk = self.backlog, self._hub.chunk
        while (backlog.entries or self.first_id) and sink.writable:
            parts, size = [self.first_id], 0
            self.first_id = b""
            while backlog.entries and size < chunk:
                event = backlog.pop()
                parts += backlog.pieces(event) if self._tagged else (event.frame,)
                size += event.size
            # A large frame is not joined: it would be copied for every slow stream.
            large = parts.pop() if len(parts[-1]) > _CHUNK else b""
            self._send(sink, b"".join(parts))
            if large and self.sink is not None:
                self._send(sink, large)
            if self.sink is None:
                return
            if size > backlog.limit:
                self.exempt(size)
        self._regroup(sink)

    def _send(self, sink: ByteSink, data: bytes) -> None:
        try:
            sink.write(data)
        except Exception as error:  # noqa: BLE001 - only this stream ends
            self.fail(error)

    def _regroup(self, sink: ByteSink) -> None:
        if self.backlog.entries or self.first_id:
            self._start_watch()
        elif self.closed_reason:
            self._detach()
            sink.close()
        else:
            self._hub.waiting.pop(self, None)
            self._direct[self] = None
            self._arm(self._hub.bounds.keepalive if self._tagged else None, self._comment)

    def _start_watch(self) -> None:
        self._seen = self.buffered + 1  # so that the first check counts as progress
        self._watch()

    def _watch(self) -> None:
        # Nothing is written to a paused sink, so if its buffer got smaller, the peer reads.
        buffered = self.buffered
        self._still = 0 if buffered < self._seen else self._still + 1
        self._seen = buffered
        if self._still == _STALL_CHECKS:
            self._close_slow()
        else:
            self._arm(self._hub.bounds.stall / _STALL_CHECKS, self._watch)

    def _comment(self) -> None:
        """If no event was published for a while: show client and proxies that the stream lives."""
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
        self._abort("slow")

    def _abort(self, reason: str) -> None:
        """End at once, without what is queued if there is a sink."""
        self.end(reason)
        sink = self._detach()
        if sink is not None:
            self.backlog.clear()
            sink.abort()

    def _detach(self) -> ByteSink | None:
        """Cancel the timer, and forget and return the sink."""
        self._arm(None, self._watch)
        sink, self.sink = self.sink, None
        return sink

    def _notify(self) -> None:
        if self.closed_reason and self.when_closed is not None:
            callback, self.when_closed = self.when_closed, None
            asyncio.get_running_loop().call_soon(callback)


class Hub:
    """All events of one workspace, in one order."""

    def __init__(self, *, clock: Clock, bounds: Bounds) -> None:
        self.clock = clock
        self.bounds = bounds
        self.epoch = random_hex(8)
        self.current = 0  # the newest number
        self.published_at = clock.time()  # when it was published
        self.floor = 0  # the newest number that the ring dropped: older ids cannot be resumed
        self.closed = False
        # The groups, as ordered sets.
        self.base: dict[Subscriber, None] = {}
        self.tagged: dict[Subscriber, None] = {}
        self.linear: dict[Subscriber, None] = {}
        self.waiting: dict[Subscriber, None] = {}
        # Called with each event, soon after it was published: for parts of wings.
        self.observers: list[Callable[[Event], object]] = []
        # The batch of this loop tick. `_batching` from an event until a tick without one.
        self.chunk = max(1, min(_CHUNK, bounds.bytes // 4))
        self._batch: list[Event] = []
        self._batch_bytes = 0
        self._batching = False
        self._rest_until = 0.0
        self.ring = Backlog(bounds.bytes)
        self._growing: OrderedDict[str, Message] = OrderedDict()  # as published last, by id
        # Counted by the subscribers.
        self.conflated = 0  # growth skipped for one of them
        self.closed_slow = 0  # streams closed at a bound, or because their socket took nothing
        self.failed = 0  # streams closed because their sink raised

    # Publishing.

    def publish(
        self, action: str, payload: object, *, growth: bool = False, more: bool = False
    ) -> int:
        """Send an event to every subscriber; return its number, or 0 if the hub is closed.

        `growth` marks an update of a message in which text or reasoning got longer and nothing
        else. Output of a running tool is always growth. What is not in the base protocol
        (tool output, retries) goes to streams with ids only. `more`: do not write yet; it leaves
        with what follows, at the latest in the next tick. Raises only for a payload that is no
        event, never because of a subscriber.
        """
        if self.closed:
            return 0
        event = self._event(action, payload, self.current + 1, growth=growth)
        self.current = event.seq
        self.published_at = self.clock.time()
        self._follow(event)
        self._remember(event)
        for observer in self.observers:
            asyncio.get_running_loop().call_soon(observer, event)
        for subscriber in tuple(self.waiting):
            subscriber.queue(event)
        if self.base or self.tagged or self.linear:
            self._batch.append(event)
            self._batch_bytes += event.size
            if not self._batching:
                self._batching = True
                asyncio.get_running_loop().call_soon(self._end_tick)
                if not more and self.published_at >= self._rest_until:
                    self.flush()
            if self._batch_bytes >= self.chunk:
                self.flush()
        return event.seq

    def _event(
        self, action: str, payload: object, seq: int | None, *, growth: bool = False
    ) -> Event:
        message = payload.id if isinstance(payload, Message) else None
        if isinstance(payload, ToolOutput):
            message, growth = f"output of {payload.tool_call_id}", True
        elif growth and (message is None or action != "updated"):
            raise IllegalCall("only an update of a message can be growth")
        body = to_json(action, payload)
        frame = b"data: " + dumps(body) + b"\n\n"
        id_line = b"" if seq is None else self._id_line(seq)
        if not is_base(payload):
            id_line, frame = id_line + frame, b""
        size = len(id_line) + len(frame)
        kind = body["type"]
        return Event(seq or 0, action, kind, payload, frame, id_line, message, growth, size)

    def _follow(self, event: Event) -> None:
        """Keep the state of the messages that grow, and note what was appended to one."""
        message = event.payload
        if isinstance(message, Session) and event.action == "deleted":
            for gone in [m.id for m in self._growing.values() if m.session_id == message.id]:
                del self._growing[gone]
        if not isinstance(message, Message):
            return
        before = self._growing.pop(message.id, None)
        if event.growth and before is not None:
            event.delta = MessageDelta.between(before, message)
        if message.finish is None and event.action != "deleted":
            self._growing[message.id] = message
            if len(self._growing) > _GROWING:
                self._growing.popitem(last=False)

    def _id_line(self, seq: int) -> bytes:
        return f"id: {self.epoch}-{seq}\n".encode()

    def _remember(self, event: Event) -> None:
        ring, bounds = self.ring, self.bounds
        if event.size > bounds.ring_bytes:
            ring.clear()
            self.floor = event.seq
            return
        ring.add(event.to_replay())
        while len(ring.entries) > bounds.ring_entries or ring.bytes > bounds.ring_bytes:
            self.floor = ring.pop().seq

    def _end_tick(self) -> None:
        rest = self._rest_until - self.clock.time()
        if not self._batch:
            self._batching = False
        elif rest > 0:
            self.clock.call_later(rest, self._end_tick)
        else:
            self.flush()
            asyncio.get_running_loop().call_soon(self._end_tick)

    def flush(self) -> None:
        """Write the open batch. To be called before a subscriber changes groups."""
        if self._batch:
            began = self.clock.time()
            events, self._batch, self._batch_bytes = self._batch, [], 0
            if self.base:
                self._fan_out(self.base, b"".join([event.frame for event in events]), events)
            if self.tagged:
                self._fan_out(self.tagged, b"".join([event.id_frame for event in events]), events)
            if self.linear:
                data = b"".join([event.linear_frame for event in events])
                self._fan_out(self.linear, data, events)
            if len(self.base) + len(self.tagged) + len(self.linear) >= _MANY:
                now = self.clock.time()
                self._rest_until = now + min((now - began) * _REST, _MOST_REST)

    def _fan_out(self, group: dict[Subscriber, None], data: bytes, events: list[Event]) -> None:
        for subscriber in tuple(group):
            sink = subscriber.sink
            if sink is None:  # closed by an earlier step of this loop
                continue
            if sink.writable:
                try:
                    sink.write(data)
                except Exception as error:  # noqa: BLE001 - only this stream ends
                    subscriber.fail(error)
            else:
                subscriber.start_waiting(events)
        if len(data) > self.bounds.bytes:
            for subscriber in tuple(group):
                subscriber.exempt(len(data))

    # Subscribing.

    def subscribe(
        self,
        *,
        resume: bool = False,
        deltas: bool = False,
        last_id: str | None = None,
        pending: Callable[[], list[object]] | None = None,
    ) -> Subscriber:
        """A new reader of all events from now on.

        With `resume` its stream has ids and comments. With `last_id` too, and it begins with the
        events after that id or, if the ring does not hold them all, with a resync. Open requests,
        which `pending` gives, are sent again unless they are in the replay. With `deltas` a stream
        with ids gets growth as what was appended.
        """
        self.flush()
        tagged = resume or last_id is not None
        group = self.linear if tagged and deltas else self.tagged if tagged else self.base
        subscriber = Subscriber(self, group)
        if self.closed:
            subscriber.end("hub")
            return subscriber
        start, opening = self._since(last_id)
        if group is self.linear:
            # Of a message that is in the replay at all, the newest event is.
            replayed = {event.message for event in opening}
            growing = [each for each in self._growing.values() if each.id not in replayed]
            opening += [self._event("updated", message, None) for message in growing]
        for request in pending() if pending is not None else ():
            event = self._event("created", request, None)
            if not any(e.kind == event.kind and e.frame == event.frame for e in opening):
                opening.append(event)
        for event in opening:  # not checked: a replay is shorter, and open requests must be shown
            subscriber.backlog.add(event)
        if start is not None and tagged:
            subscriber.first_id = self._id_line(start) + b"\n"
        self.waiting[subscriber] = None
        return subscriber

    def _since(self, last_id: str | None) -> tuple[int | None, list[Event]]:
        """The number that a stream begins at, and the replay or the resync that it begins with.

        With a resync the number is None: the resync itself has the current id. A client that got
        that id alone, and lost the connection before the resync, would resume there and never
        learn that it has missed events.
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
            return seq, [event for event in self.ring.entries.values() if event.seq > seq]
        return None, [self._event("", Resync(reason), self.current)]

    def forget(self, subscriber: Subscriber) -> None:
        for group in (self.base, self.tagged, self.linear, self.waiting):
            group.pop(subscriber, None)

    def close(self) -> None:
        """End every stream after what is queued for it. Later `subscribe` returns a closed one."""
        self.flush()
        self.closed = True
        for subscriber in self.subscribers():
            subscriber.end("hub")

    def subscribers(self) -> list[Subscriber]:
        return [*self.base, *self.tagged, *self.linear, *self.waiting]
