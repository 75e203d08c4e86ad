"""How many connections there may be, and which are closed when there are too many; and how many
bytes the bodies of their requests may take.

Each kind of listener is counted by itself: whatever other users of the machine do on TCP, the
owner's unix socket keeps all that it may have. When one kind has too many, a connection for which
nothing is being carried out is closed for the new one, in the order of `Rank`; among equals the one
that has waited longest. A stream, or a request that is being carried out, is never closed.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING

from .messages import overloaded

if TYPE_CHECKING:
    from .connection import Connection
    from .limits import Limits


class Rank(enum.IntEnum):
    """What a connection that may be closed waits for; the lowest is closed first."""

    WITHOUT_TOKEN = 0  # on TCP, and no request has shown a token; or refused, and only lingering
    IDLE = 1  # a head, or the rest of one
    BODY = 2  # the rest of a body


class Capacity:
    """The connections of one kind of listener."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[OrderedDict[Connection, None]] = [OrderedDict() for _ in Rank]
        self._ranks: dict[Connection, Rank | None] = {}  # of all members; None: may not be closed

    def __len__(self) -> int:
        return len(self._ranks)

    def waiting(self, rank: Rank) -> int:
        """How many connections of this rank there are."""
        return len(self._waiting[rank])

    def is_flooded(self) -> bool:
        """Whether there are half as many without a token as there may be: honest ones never are."""
        return 2 * self.waiting(Rank.WITHOUT_TOKEN) >= self._limits.without_token

    def join(self, member: Connection) -> int:
        """Add a connection, and close another if there are too many; return how many are left."""
        self._ranks[member] = None
        if len(self._ranks) > self._limits.connections:
            self.close_one(Rank.BODY)
        return len(self._ranks)

    def leave(self, member: Connection) -> None:
        rank = self._ranks.pop(member, None)
        if rank is not None:
            del self._waiting[rank][member]

    def rank(self, member: Connection, rank: Rank | None) -> None:
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

    def moved(self, member: Connection) -> None:
        """A head has begun to arrive: the wait of a member that has shown a token begins anew."""
        if self._ranks.get(member) is Rank.IDLE:
            self._waiting[Rank.IDLE].move_to_end(member)

    def has_room(self) -> bool:
        """Whether there are few enough for ordinary requests, after closing those who wait for a
        head: the rest up to the limit is reserved for urgent ones."""
        usual = self._limits.connections - self._limits.reserved
        while len(self._ranks) > usual and self.close_one(Rank.IDLE):
            pass
        return len(self._ranks) <= usual

    def close_one(self, highest: Rank) -> bool:
        """Close a connection of at most this rank; False if there was none. Its descriptor is free
        by the next tick of the loop."""
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
