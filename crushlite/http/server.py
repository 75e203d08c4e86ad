"""The server: listeners, and leaving. Its connections and what they share are in `connection`.

A handler's task belongs to the server, not to the connection that brought the request: a request
that arrived completely is carried out even if its sender has left. Tasks are created in the order
in which requests became complete, so their first steps run in that order too.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from ..clock import resolve_once, wait_at_most
from .accepting import Acceptor
from .connection import Owner
from .limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .connection import Translate
    from .router import Router

_CANCEL_GRACE = 1.0


class HTTPServer(Owner):
    """Serves the routes of a router. `translate` gives the answer for exceptions of handlers; one
    that it does not know (None) is logged and answered with 500. `has_token` says whether the first
    bytes of a TCP connection to a port show who it is; only they count in a flood."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Clock,
        limits: Limits | None = None,
        translate: Translate | None = None,
        has_token: Callable[[int, bytes], bool] | None = None,
    ) -> None:
        super().__init__(router, clock, limits or Limits(), translate)
        self._has_token = has_token
        self._acceptors: list[Acceptor] = []
        # Set while `drain` waits; resolved when something that it waits for has ended.
        self._waiter: asyncio.Future[None] | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Serve on a bound socket, unix or TCP. The server closes it and never unlinks its path."""
        has_token = None if sock.family == socket.AF_UNIX else self._has_token
        self._acceptors.append(Acceptor(sock, self, has_token))

    def stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    async def drain(self, timeout: float) -> None:
        """Stop listening, and close all connections: idle ones at once, those with a request in
        flight after its answer, which says `Connection: close`, then streams. After `timeout` the
        connections that are left are aborted and the tasks cancelled."""
        self.stop_listening()
        self.draining = True
        deadline = self.clock.time() + timeout
        for connection in tuple(self.connections):
            connection.wind_down(streams=False)
        await self._until(lambda: not self.tasks, deadline)
        for connection in tuple(self.connections):
            connection.wind_down(streams=True)
        await self._until(lambda: not self.tasks and not self.connections, deadline)
        for connection in tuple(self.connections):
            connection.abort()
        for task in tuple(self.tasks):
            task.cancel()
        grace = self.clock.time() + _CANCEL_GRACE
        await self._until(lambda: not self.tasks and not self.connections, grace)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until a condition about tasks and connections holds, or for the deadline."""
        while not condition() and (left := deadline - self.clock.time()) > 0:
            self._waiter = asyncio.get_running_loop().create_future()
            await wait_at_most(self.clock, self._waiter, left)
        self._waiter = None

    def changed(self) -> None:
        if self._waiter is not None:
            resolve_once(self._waiter)

    @property
    def open_connections(self) -> int:
        return sum(map(len, self.capacity.values()))
