"""Every bound of the HTTP server in one place, with the reason for its size, and what keeps them:
`Deadline` those of time, `Capacity` the number of connections, `BodyBudget` the bytes of bodies.
Each is the most that one peer, or all of them, can cost the process.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from ..records import dataclass
from .messages import overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock, Timer

_KIB = 1024
_MIB = 1024 * _KIB

_OTHER_FILES = 256  # descriptors that are not for connections: databases, pipes, tools' files
_KINDS = 2  # of listeners: unix and TCP, each counted by itself
_EPSILON = 1e-3  # seconds by which timers may fire early, in floating point


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    # Request heads. Common servers allow 8-32 KiB and about 100 fields; editors and browsers
    # send well under 4 KiB.
    head: int = 32 * _KIB
    header_count: int = 100
    target: int = 8 * _KIB

    # Chunked bodies: one-byte chunks cost a parser event each, so a body with more of them than a
    # small upload can have is refused.
    chunk_overhead: int = 4 * _KIB
    tiny_chunk_count: int = 4096
    tiny_chunk_mean: int = 64
    tiny_chunk_grace: int = 64 * _KIB

    # Bodies that are being received or carried out, all together: four of the largest. Small ones
    # do not count, and those of urgent routes count for themselves, so that uploads cannot keep a
    # cancel waiting.
    bodies: int = 128 * _MIB
    urgent_bodies: int = 16 * _MIB
    small_body: int = 64 * _KIB

    # Seconds. The idle limit must stay above the 90 s for which Go clients keep a connection:
    # they do not retry a POST that raced with our close.
    first_byte_timeout: float = 10.0
    head_timeout: float = 10.0
    body_timeout: float = 15.0  # without a byte
    body_grace: float = 60.0  # for a whole body, and one second more for each `body_rate` bytes
    body_rate: int = 64 * _KIB  # far below what a tunnel through a telephone carries
    public_body_timeout: float = 5.0  # for a whole body on a route that asks for no token
    write_timeout: float = 10.0
    idle_timeout: float = 120.0

    # After an early refusal the peer may still be sending; closing at once would reset the
    # connection and destroy the answer before it was read.
    linger_bytes: int = 4 * _MIB  # some clients read no answer before they have sent all
    linger_timeout: float = 2.0

    # What a peer may send on a connection whose answer is a stream.
    stream_input: int = 64 * _KIB

    # A transport keeps a copy of what its peer has not taken. A write to a stream that is longer
    # than two of these is given to it in such slices: above what a burst of events is joined to.
    stream_slice: int = 256 * _KIB

    # Connections of each kind of listener: the last `reserved` serve only urgent routes (cancel,
    # answers, health), so runs can be cancelled on a full server. `surplus` more are answered 503
    # and closed, those beyond are cut. Those that wait for a request are closed first. Only so many
    # may have shown no token, however few others there are: what all of them send or end at once
    # must not take the event loop long.
    connections: int = 1024
    reserved: int = 16
    surplus: int = 64
    without_token: int = 64

    @classmethod
    def for_open_files(cls, files: int) -> Limits:
        """The limits of a process that may open so many files. Of few, a quarter is for
        connections, so that those run out first."""
        usual = cls()
        room = max(files - _OTHER_FILES, files // 4) // _KINDS
        surplus = min(usual.surplus, room // 8)
        connections = max(1, min(usual.connections, room - surplus))
        reserved = min(usual.reserved, connections // 4)
        without_token = min(usual.without_token, max(1, connections // 2))
        return cls(
            connections=connections, reserved=reserved, surplus=surplus, without_token=without_token
        )


class Deadline:
    """Calls `passed` when the time of the latest `set` is up, unless it was cleared since. There
    is at most one timer, due no later than the deadline; one that fires too early is armed again.
    So on a connection whose requests each arrive whole, `set` only stores a number."""

    __slots__ = ("_clock", "_due", "_fires", "_passed", "_timer")

    def __init__(self, clock: Clock, passed: Callable[[], None]) -> None:
        self._clock = clock
        self._passed = passed
        self._due = math.inf
        self._timer: Timer | None = None
        self._fires = math.inf  # when the timer does

    def set(self, seconds: float) -> None:
        """Replace the deadline: call `passed` in `seconds`."""
        due = self._due = self._clock.time() + seconds
        if self._timer is not None:
            if self._fires <= due:
                return
            self._timer.cancel()
        self._arm(seconds)

    def clear(self) -> None:
        """Do not call `passed` until the next `set`."""
        self._due = math.inf

    def cancel(self) -> None:
        """Never call `passed` again, and drop it: it refers to the object that holds this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._passed = lambda: None

    def _arm(self, seconds: float) -> None:
        self._fires = self._due
        self._timer = self._clock.call_later(seconds, self._fired)

    def _fired(self) -> None:
        self._timer = None
        remaining = self._due - self._clock.time()
        if remaining == math.inf:
            return
        if remaining > _EPSILON:
            self._arm(remaining)
        else:
            self._passed()


class Rank(enum.IntEnum):
    """What a connection that may be closed waits for; the lowest is closed first."""

    WITHOUT_TOKEN = 0  # on TCP, and no request has shown a token; or refused, and only lingering
    IDLE = 1  # a head, or the rest of one
    BODY = 2  # the rest of a body


class Member(Protocol):
    def close_for_another(self) -> bool:
        """Close. True if that frees the descriptor at once."""


class Capacity:
    """The connections of one kind of listener. Each kind is counted by itself: whatever other users
    of the machine do on TCP, the owner's unix socket keeps all that it may have. When there are too
    many, one is closed for the new one, in the order of `Rank`; among equals the one that waited
    longest. A stream, or one with a request that is being carried out, is never closed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[OrderedDict[Member, None]] = [OrderedDict() for _ in Rank]
        self._ranks: dict[Member, Rank | None] = {}  # of all members; None: may not be closed

    def __len__(self) -> int:
        return len(self._ranks)

    def waiting(self, rank: Rank) -> int:
        """How many connections of this rank there are."""
        return len(self._waiting[rank])

    def is_flooded(self) -> bool:
        """Whether there are half as many without a token as there may be: honest ones never are."""
        return 2 * self.waiting(Rank.WITHOUT_TOKEN) >= self._limits.without_token

    def join(self, member: Member) -> int:
        """Add a connection, and close another if there are too many; return how many are left."""
        self._ranks[member] = None
        if len(self._ranks) > self._limits.connections:
            self.close_one(Rank.BODY)
        return len(self._ranks)

    def leave(self, member: Member) -> None:
        rank = self._ranks.pop(member, None)
        if rank is not None:
            del self._waiting[rank][member]

    def rank(self, member: Member, rank: Rank | None) -> None:
        """Say what a member waits for. One whose rank stays the same keeps its turn. If there are
        too many without a token, the oldest of them is closed."""
        before = self._ranks.get(member)
        if member not in self._ranks or before is rank:
            return
        if before is not None:
            del self._waiting[before][member]
        if rank is not None:
            self._waiting[rank][member] = None
        self._ranks[member] = rank
        if rank is Rank.WITHOUT_TOKEN and self.waiting(rank) > self._limits.without_token:
            self.close_one(rank)

    def moved(self, member: Member) -> None:
        """A head has begun to arrive: the wait of a member that has shown a token begins anew."""
        if self._ranks.get(member) is Rank.IDLE:
            self._waiting[Rank.IDLE].move_to_end(member)

    def has_room(self) -> bool:
        """Whether an ordinary request may use another place, after closing those who wait for a
        head: the rest up to the limit is reserved for urgent ones."""
        usual = self._limits.connections - self._limits.reserved
        while len(self._ranks) > usual and self.close_one(Rank.IDLE):
            pass
        return len(self._ranks) <= usual

    def close_one(self, highest: Rank) -> bool:
        """Close a connection of at most this rank, by the next tick; False if there was none."""
        for rank in range(highest + 1):
            while self._waiting[rank]:
                member, _ = self._waiting[rank].popitem(last=False)
                self._ranks[member] = None
                if member.close_for_another():
                    self._ranks.pop(member, None)
                    return True
        return False


class BodyBudget:
    """How many bytes all bodies of one sort may take, each until its request was carried out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def grow(self, before: int, size: int) -> None:
        """Count `size` bytes of a body, declared or received so far, of which `before` were counted
        already. Raises 503 if all are too large together; a single one never is."""
        others = self.used - before
        if others and others + size > self.most:
            raise overloaded("too much is being sent at once")
        self.used = others + size
