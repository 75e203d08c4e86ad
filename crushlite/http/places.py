"""How many connections there may be, and which of them give way when places run out.

Each kind of listener has places of its own: whatever other users of the machine do on TCP, the
owner's unix socket keeps all of its places. When those of one kind are taken, a newcomer gets the
place of a connection for which nothing is being carried out, in the order of `Rank`; among equals
the one that has waited longest gives way. A stream, or a request that is being carried out, is
never closed.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .limits import Limits


class Rank(enum.IntEnum):
    """What a connection that may give way waits for; the lowest gives way first."""

    STRANGER = 0  # on TCP, and no request has shown a token; or refused, and only lingering
    IDLE = 1  # a head, or the rest of one
    BODY = 2  # the rest of a body


class Member(Protocol):
    """What is known here of a connection."""

    def give_way(self) -> bool:
        """Close for another connection. True if that frees the descriptor at once."""


class Places:
    """The connections of one kind of listener."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[OrderedDict[Member, None]] = [OrderedDict() for _ in Rank]
        self._ranks: dict[Member, Rank | None] = {}  # of all members; None: does not give way

    def __len__(self) -> int:
        return len(self._ranks)

    def waiting(self, rank: Rank) -> int:
        """How many connections of this rank there are."""
        return len(self._waiting[rank])

    def is_flooded(self) -> bool:
        """Whether there are half as many strangers as there may be, which honest ones never are."""
        return 2 * self.waiting(Rank.STRANGER) >= self._limits.strangers

    def join(self, member: Member) -> int:
        """Add a connection, for which another one gives way if there are too many; returns how
        many there are now."""
        self._ranks[member] = None
        if len(self._ranks) > self._limits.connections:
            self.make_room(Rank.BODY)
        return len(self._ranks)

    def leave(self, member: Member) -> None:
        rank = self._ranks.pop(member, None)
        if rank is not None:
            del self._waiting[rank][member]

    def rank(self, member: Member, rank: Rank | None) -> None:
        """Say what a member waits for. One whose rank stays the same keeps its turn. For one
        stranger too many the oldest gives way."""
        before = self._ranks.get(member)
        if member not in self._ranks or before is rank:
            return
        if before is not None:
            del self._waiting[before][member]
        if rank is not None:
            self._waiting[rank][member] = None
        self._ranks[member] = rank
        if rank is Rank.STRANGER and self.waiting(rank) > self._limits.strangers:
            self.make_room(rank)

    def moved(self, member: Member) -> None:
        """A head has begun to arrive: the wait of a member that is no stranger begins anew."""
        if self._ranks.get(member) is Rank.IDLE:
            self._waiting[Rank.IDLE].move_to_end(member)

    def has_room(self) -> bool:
        """Whether more than the reserved places are free, after closing those who wait for
        a head."""
        usual = self._limits.connections - self._limits.reserved
        while len(self._ranks) > usual and self.make_room(Rank.IDLE):
            pass
        return len(self._ranks) <= usual

    def make_room(self, highest: Rank) -> bool:
        """Let a connection of at most this rank give way. False if none could: its descriptor is
        free by the next tick of the loop."""
        for rank in range(highest + 1):
            while self._waiting[rank]:
                member, _ = self._waiting[rank].popitem(last=False)
                self._ranks[member] = None
                if member.give_way():
                    self._ranks.pop(member, None)
                    return True
        return False
