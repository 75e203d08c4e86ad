"""What a stream writes to: the server's side of `messages.Sink`."""

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
    """The hottest object of the server: one `write` per event and client.

    `writable` and `most` (what may go to the transport in one piece: nothing while there is a rest
    in the outbox) are plain attributes kept by the connection. The check of `is_closing` is needed
    on each write because a failed send closes the transport before anyone is told.
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
