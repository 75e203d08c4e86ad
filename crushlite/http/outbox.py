"""The way of a connection's bytes, from "these go out" to "the kernel has them".

A transport takes whatever it is given and keeps a copy of what its peer has not read. So what is
long goes to it in pieces, the next one when there is room; what it was not given yet is the *rest*.

Invariants:

- Nothing is written to a closing transport.
- Bytes leave in the order in which they were given: while there is a rest everything goes behind
  it, and closing waits for it.
- One piece per turn of the loop, none while the transport is paused: neither a peer that reads
  fast nor one that reads slowly keeps the others waiting.
- What follows the rest (`then`) follows it once, never from inside the call that gave it, and not
  at all if something else took its place or the connection was lost.
- A peer that takes nothing for `write_timeout` although something waits is cut off. What counts is
  progress, not completion. Only an open stream may wait longer: see `patient`.

Knows nothing of requests and of input.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..clock import Clock, Timer

Piece = bytes | memoryview


def slices(data: bytes, size: int) -> Iterator[memoryview]:
    """Pieces of `data` that are no copies: many connections can hold the rest of one event."""
    view = memoryview(data)
    return (view[at : at + size] for at in range(0, len(view), size))


class Outbox:
    """Made with the transport and given up by `cancel` when the connection is lost."""

    __slots__ = (
        "_clock",
        "_given",
        "_rest",
        "_taken",
        "_then",
        "_timer",
        "_transport",
        "_write_timeout",
        "patient",
        "paused",
    )

    def __init__(self, transport: asyncio.Transport, clock: Clock, write_timeout: float) -> None:
        self._transport = transport
        self._clock = clock
        self._write_timeout = write_timeout
        self._rest: deque[Piece] = deque()
        self._then: Callable[[], None] | None = None  # None if there is no rest
        self.paused = False

        # How much was given to the transport, and how much of that the kernel had at the last look.
        # What an open stream's sink writes by itself does not count: meanwhile nobody is cut off.
        self._given = 0
        self._taken = 0
        self._timer: Timer | None = None
        # An open stream has its own bound, in the queue that feeds it.
        self.patient = False

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._rest))

    def write(self, data: bytes) -> None:
        if self._then is not None:
            self._rest.append(data)
        elif not self._transport.is_closing():
            self._send(data)

    def write_pieces(self, pieces: Iterable[Piece], then: Callable[[], None]) -> None:
        """Write what is long, one piece or more. `then` follows when the transport has it all, and
        all that came behind it; it takes the place of a `then` that is still due."""
        under_way = self._then is not None
        self._rest.extend(pieces)
        self._then = then
        if not under_way and not self.paused:
            self._go_on()

    def close(self) -> None:
        """Flush, then FIN: the last call but `cancel`. From now on a stream is watched, too."""
        self.patient = False
        if self._rest:
            self._then = self.close
        else:
            self._transport.close()
        self._watch()

    def cancel(self) -> None:
        """The connection is lost, and the rest with it."""
        self._rest.clear()
        self._then = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The transport's flow control.

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> bool:
        """There is room again; whether the rest takes it."""
        self.paused = False
        if self._then is None:
            return False
        self._go_on()
        return True

    # Inside.

    def _send(self, data: Piece) -> None:
        transport = self._transport
        self._given += len(data)
        transport.write(data)
        if self._timer is None and transport.get_write_buffer_size():
            self._watch()

    def _go_on(self) -> None:
        """Write a piece, or do what follows the last one.

        Only what is written in here can pause the transport while there is a rest, so there is
        never more than one next call: from the loop, or from `resume`.
        """
        then = self._then
        if then is None or self._transport.is_closing():
            return
        if self._rest:
            self._send(self._rest.popleft())
            if not self.paused:
                asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._then = None
            then()

    def _watch(self) -> None:
        """Look again after the write limit, if there is something to wait for."""
        pending = self._transport.get_write_buffer_size()
        if not pending:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._taken = self._given - pending
        self._timer = self._clock.call_later(self._write_timeout, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._given - self._transport.get_write_buffer_size() > self._taken:
            self._watch()
        elif not self.patient:
            self._transport.abort()
