"""Events as they wait: encoded once, and queues that hold at most one growth per message."""

from __future__ import annotations

from collections import OrderedDict

from .protocol.codec import dumps
from .protocol.events import to_json
from .protocol.messages import Message, MessageDelta
from .records import dataclass


def frame_of(delta: MessageDelta) -> bytes:
    return b"data: " + dumps(to_json("updated", delta)) + b"\n\n"


@dataclass(slots=True, eq=False)
class Event:
    """One published event. Its `payload` is read later, too: the publisher must not change it any
    more. An event that is replayed has none. `seq` is 0 for an open request that is shown again,
    and for a growing message at the start of a linear stream."""

    seq: int
    action: str
    kind: str
    payload: object
    # What every stream gets; empty for what is not in the base protocol: tool output, retries.
    frame: bytes
    id_line: bytes  # what streams with ids get before the frame, or, if that is empty, in its place
    message: str | None  # the message, or output of a tool, whose queued growth this removes
    growth: bool  # whether this is growth of it, too
    size: int
    # If this is growth: since the event before of that message. Not in a replay, which may have
    # skipped that one.
    delta: MessageDelta | None = None
    delta_frame: bytes = b""  # the same encoded, once a linear stream was written to

    def to_replay(self) -> Event:
        """What the ring keeps of it. The frame says everything; the objects of the payload would
        take memory beside it, and the garbage collector would look through them each time."""
        return Event(
            *(self.seq, self.action, self.kind, None, self.frame, self.id_line),
            *(self.message, self.growth, self.size),
        )

    @property
    def id_frame(self) -> bytes:
        """Not stored: then the ring would hold every event twice."""
        return self.id_line + self.frame

    @property
    def linear_frame(self) -> bytes:
        if self.delta is None:
            return self.id_frame
        self.delta_frame = self.delta_frame or frame_of(self.delta)
        return self.id_line + self.delta_frame


class Backlog:
    """Events in the order of their numbers, with at most one growth per message."""

    __slots__ = ("bytes", "entries", "limit")

    def __init__(self, limit: int) -> None:
        # The key of growth is its message, the key of a fact is the event itself.
        self.entries: OrderedDict[object, Event] = OrderedDict()
        self.bytes = 0
        self.limit = limit

    def _weight(self, event: Event) -> int:
        return event.size if event.size <= self.limit else 0

    def add(self, event: Event) -> bool:
        """Append an event; return whether it replaced older growth."""
        old = None if event.message is None else self.entries.pop(event.message, None)
        if old is not None:
            self.bytes -= self._weight(old)
        self.entries[event.message if event.growth else event] = event
        self.bytes += self._weight(event)
        return old is not None

    def pieces(self, event: Event) -> tuple[bytes, ...]:
        """What is written of an event that was in here to a stream with ids."""
        return event.id_line, event.frame

    def pop(self, *, last: bool = False) -> Event:
        _, event = self.entries.popitem(last=last)
        self.bytes -= self._weight(event)
        return event

    def clear(self) -> None:
        self.entries.clear()
        self.bytes = 0


class LinearBacklog(Backlog):
    """The queue of a linear stream. Growth takes the place of older growth that was not sent yet,
    so it must be sent from where that began, or whole."""

    __slots__ = ("_begins",)

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        # By message, for queued growth that is not sent as its event has it: the delta whose
        # beginning it is sent from; None if it is sent whole.
        self._begins: dict[str | None, MessageDelta | None] = {}

    def add(self, event: Event) -> bool:
        if not event.growth:
            self._begins.pop(event.message, None)
        elif (old := self.entries.get(event.message)) is not None:
            begin = self._begins.get(event.message, old.delta)
            fits = begin and event.delta and begin.part == event.delta.part
            self._begins[event.message] = begin if fits else None
        return super().add(event)

    def pieces(self, event: Event) -> tuple[bytes, ...]:
        if not event.growth or event.message not in self._begins:
            return (event.linear_frame,)
        begin = self._begins.pop(event.message)
        if begin is None or not isinstance(event.payload, Message):
            return super().pieces(event)
        return event.id_line, frame_of(begin.until(event.payload))
