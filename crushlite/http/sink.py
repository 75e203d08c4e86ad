"""What a stream writes to: the server's `messages.ByteSink`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from .outbox import Outbox


class _Connection(Protocol):
    def write_long(self, data: bytes) -> None: ...

    def close_gracefully(self) -> None: ...

    def abort(self) -> None: ...


class StreamSink:
    """Writes to the transport of one connection. `write` must be fast: it is called for every event
    and every client.

    The connection sets `writable` and `most`: the longest write that may go to the transport in one
    piece, -1 while there is a rest in the outbox. `is_closing` is checked on each write because a
    failed send closes the transport before the connection is called.
    """

    __slots__ = ("_connection", "_is_closing", "_outbox", "_write", "most", "writable")

    def __init__(
        self, connection: _Connection, transport: asyncio.Transport, outbox: Outbox
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._write = transport.write
        self._is_closing = transport.is_closing
        self.most = 0
        self.writable = True

    def write(self, data: bytes) -> None:
        if not self._is_closing():
            if len(data) <= self.most:
                self._write(data)
            else:
                self._connection.write_long(data)

    @property
    def buffered(self) -> int:
        return self._outbox.unsent

    def close(self) -> None:
        self.writable = False
        self._connection.close_gracefully()

    def abort(self) -> None:
        self.writable = False
        self._connection.abort()
