"""Two connected pairs of asyncio streams in this process, for tests of what talks over pipes."""

from __future__ import annotations

import asyncio
import socket

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def stream_pair(*, buffer: int = 0) -> tuple[Streams, Streams]:
    """What one end writes the other reads. With `buffer`, the system keeps about as many bytes
    between them, and a writer has to wait for the reader soon."""
    ends = socket.socketpair()
    for end in ends:
        if buffer:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    one, other = [await asyncio.open_connection(sock=end) for end in ends]
    return one, other
