"""Transports made of memory: drive a protocol without a socket.

A `MemoryTransport` stands on one side of a connection. Alone, it is scripted by a test: what the
protocol wrote is in `written`, and `feed`, `feed_eof` and `lose` play the peer. With `connect_pair`
two of them carry bytes between two protocols, one event-loop step per hop. As asyncio's own
transports do, they call `connection_lost` from the loop and never from inside `close` or `abort`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIGH_WATER = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One end of a connection that exists only in memory.

    `stalled` plays a peer that does not read: bytes stay in the buffer, `pause_writing` is called
    above the high-water mark, and `drain` takes some of them and may call `resume_writing`.
    """

    def __init__(
        self, protocol: asyncio.Protocol, *, extra: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(extra=dict(extra or {}))
        self.protocol = protocol
        self.written = bytearray()  # everything that left this end, in order
        self.eof_written = False  # the FIN has left, after all of `written`
        self.aborted = False
        self.lost = False  # `connection_lost` was called
        self.reading_paused = False
        self.stalled = False
        self.peer: MemoryTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()  # written by the protocol, not taken by the stalled peer
        self._arrived: list[bytes | None] = []  # came while reading was paused; None is the FIN
        self._closing = False
        self._eof_wanted = False
        self._ending = False
        self._high = _HIGH_WATER
        self._low = _HIGH_WATER // 4
        self._writing_paused = False

    def connect(self) -> None:
        """Call the protocol's `connection_made`."""
        self.protocol.connection_made(self)

    # The peer's side, for tests.

    def feed(self, data: bytes, *, step: int = 0) -> None:
        """Bytes arrive from the peer: whole, or in pieces of `step` bytes."""
        step = step or max(len(data), 1)
        for at in range(0, len(data), step):
            self._arrive(data[at : at + step])

    def feed_eof(self) -> None:
        """The peer half-closes."""
        self._arrive(None)

    def lose(self, error: Exception | None = None) -> None:
        """The connection breaks, as by a reset."""
        self._buffer.clear()
        self._end(error)

    def drain(self, count: int | None = None) -> None:
        """The stalled peer takes `count` bytes, or all of them and stops stalling."""
        if count is None:
            self.stalled = False
            count = len(self._buffer)
        self._deliver(bytes(self._buffer[:count]))
        del self._buffer[:count]
        if self._writing_paused and len(self._buffer) <= self._low:
            self._writing_paused = False
            self.protocol.resume_writing()
        self._settle()

    # asyncio.Transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._ending:
            return
        if not self.stalled and not self._buffer:
            self._deliver(bytes(data))
            return
        self._buffer += data
        if len(self._buffer) > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._settle()

    def close(self) -> None:
        self._closing = True
        self._settle()

    def abort(self) -> None:
        self.aborted = True
        self._buffer.clear()
        self._end(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self.reading_paused and not self._closing

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            # Later, not now: with a socket, too, what waits is read in another step of the loop.
            self._loop.call_soon(self._read_waiting)

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    # Between the two ends.

    def _deliver(self, data: bytes) -> None:
        self.written += data
        if self.peer is not None and data:
            self._loop.call_soon(self.peer._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        if self._closing or self.lost:
            return
        if self.reading_paused or self._arrived:
            self._arrived.append(data)
        elif data is not None:
            self.protocol.data_received(data)
        elif not self.protocol.eof_received():
            self.close()

    def _read_waiting(self) -> None:
        while self._arrived and not self.reading_paused and not self._closing:
            waiting, self._arrived = self._arrived, []
            for at, data in enumerate(waiting):
                if self.reading_paused or self._closing:
                    self._arrived = waiting[at:]
                    break
                self._arrive(data)

    def _settle(self) -> None:
        """Once the buffer is empty, send a FIN that was asked for, and end if it is closing."""
        if self._buffer:
            return
        if self._eof_wanted and not self.eof_written:
            self._send_fin()
        if self._closing:
            self._end(None)

    def _send_fin(self) -> None:
        self.eof_written = True
        if self.peer is not None:
            self._loop.call_soon(self.peer._arrive, None)

    def _end(self, error: Exception | None) -> None:
        if self._ending:
            return
        self._closing = self._ending = True
        if not self.eof_written:
            self._send_fin()
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        self.lost = True
        self.protocol.connection_lost(error)


def connect_pair(
    client: asyncio.Protocol, server: asyncio.Protocol
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols. Returns the client's and the server's transport."""
    near, far = MemoryTransport(client), MemoryTransport(server)
    near.peer, far.peer = far, near
    far.connect()
    near.connect()
    return near, far
