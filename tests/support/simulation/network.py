"""The network between simulated clients and the daemon: memory transports with delays, cuts and
peers that do not read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from crushlite.http.client import ConnectFailed
from crushlite.http.connection import Connection
from tests.support.memory import MemoryTransport

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from crushlite.http.server import HTTPServer

PORT = 4096  # that the simulated daemon says it listens on
HOST = f"127.0.0.1:{PORT}"


class LinkTransport(MemoryTransport):
    """A memory transport whose bytes take a drawn time to arrive, in drawn pieces, in order."""

    def __init__(self, protocol: asyncio.Protocol, rng: random.Random, latency: float) -> None:
        super().__init__(protocol)
        self._rng = rng
        self._latency = latency
        self._flying: deque[bytes | None] = deque()  # None is the FIN
        self._armed = False

    def _deliver(self, data: bytes) -> None:
        self.written += data
        while data:
            size = len(data)
            if size > 1 and self._rng.random() < 0.2:
                size = self._rng.randrange(1, size)
            self._fly(data[:size])
            data = data[size:]

    def _send_fin(self) -> None:
        self.eof_written = True
        self._fly(None)

    def _fly(self, piece: bytes | None) -> None:
        self._flying.append(piece)
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        if self._latency and self._rng.random() < 0.5:
            self._loop.call_later(self._rng.random() * self._latency, self._land)
        else:
            self._loop.call_soon(self._land)

    def _land(self) -> None:
        self._armed = False
        if not self._flying:
            return  # the link was cut
        piece = self._flying.popleft()
        if self._flying:
            self._arm()
        if self.peer is not None:
            self.peer._arrive(piece)

    # What can happen to the connection, seen from the client's end -------------------------------

    @property
    def open(self) -> bool:
        return all(not end.is_closing() for end in self._ends())

    def reset(self) -> None:
        """Both ends lose the connection, and what was on its way."""
        for end in self._ends():
            end._flying.clear()
        for end in self._ends():
            if not end.lost:
                end.lose(ConnectionResetError("reset by the network"))

    def half_close(self) -> None:
        """The client says that it will send nothing more."""
        if not self.is_closing():
            self.write_eof()

    def stop_reading(self) -> None:
        self._ends()[1].stalled = True

    def read(self, count: int | None = None) -> None:
        """The client reads some bytes, or everything and goes on reading."""
        if not self._ends()[1].lost:
            self._ends()[1].drain(count)

    def _ends(self) -> tuple[LinkTransport, LinkTransport]:
        assert isinstance(self.peer, LinkTransport)
        return self, self.peer


class _ServerConnection(Connection):
    """Hashed by a number, so that the server goes through its connections in the same order in
    every process."""

    def __init__(self, server: HTTPServer, number: int) -> None:
        super().__init__(server, "tcp", PORT)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class Network:
    """Connects clients with whichever server is there."""

    def __init__(self, rng: random.Random, *, latency: float, high_water: int | None) -> None:
        self.server: HTTPServer | None = None
        self._rng = rng
        self._latency = latency
        self._high_water = high_water  # of the server's transports: None for the usual
        self._connections = 0

    def connect(self, protocol: asyncio.Protocol) -> LinkTransport:
        """Raises ConnectFailed if no server listens."""
        if self.server is None or self.server.draining:
            raise ConnectFailed("nothing listens there") from ConnectionRefusedError()
        self._connections += 1
        connection = _ServerConnection(self.server, self._connections)
        near = LinkTransport(protocol, self._rng, self._latency)
        far = LinkTransport(connection, self._rng, self._latency)
        far.set_write_buffer_limits(self._high_water)
        near.peer, far.peer = far, near
        far.connect()
        near.connect()
        return near


class LinkConnector:
    """For HTTPClient: connects through a network and remembers the newest connection."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.link: LinkTransport | None = None

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        await asyncio.sleep(0)  # as a real connect, it takes a step of the loop
        self.link = self._network.connect(factory())
        return self.link
