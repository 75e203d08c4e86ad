"""The server: accepting connections, and leaving. Connections and what they share are in
`connection`.

A handler's task belongs to the server, not to the connection that brought the request: a request
that arrived completely is carried out even if its sender has left. Tasks are created in the order
in which requests became complete, so their first steps run in that order too.

Without a free descriptor asyncio's own server tries and logs tens of thousands of times in a few
seconds. Here a connection for which nothing is carried out is closed for each new one then. If
there is none, a spare descriptor is closed for a moment, so that the new connection can be accepted
and answered with 503. If even that fails, accepting pauses.

In a flood over TCP (many have shown no token, or they come faster than they are accepted), building
a connection for each newcomer would let the queue of the kernel grow to seconds, with the owner's
requests in it. So then only a newcomer whose first bytes hold the token gets a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
from typing import TYPE_CHECKING

from ..clock import wait_at_most
from .connection import Connection, Owner
from .limits import Rank
from .messages import overloaded
from .peer import peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Timer
    from .connection import HasToken
    from .messages import Kind

_CANCEL_GRACE = 1.0  # seconds for the last tasks to end
_BACKLOG = 4096  # a burst waits in the kernel, which may allow fewer
_BATCH = 16  # connected per tick of the loop: a closed one frees its descriptor between the ticks
_FLOOD = 128  # accepted one after the other without finding the queue empty
_FLOOD_SECONDS = 1.0  # for which that counts as a flood
_FLOOD_BATCH = 256  # per tick, of newcomers that are looked at first
_HELD = 256  # newcomers that have not sent anything yet
_HELD_SECONDS = 5.0  # for which they may be held
_FIRST_BYTES = 8192  # that are searched for the token
_PAUSE = 0.5  # seconds
_LOG_PAUSE = 10.0  # seconds between two log lines
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)

log = logging.getLogger(__name__)


class HTTPServer(Owner):
    """Serves the routes of a router; see `Owner` for the arguments."""

    _acceptors: tuple[Acceptor, ...] = ()

    async def listen(self, sock: socket.socket) -> None:
        """Serve on a bound socket, unix or TCP. The server closes it and never unlinks its path."""
        has_token = None if sock.family == socket.AF_UNIX else self.has_token
        self._acceptors += (Acceptor(sock, self, has_token),)

    def stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = ()

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
            self.waiter = asyncio.get_running_loop().create_future()
            await wait_at_most(self.clock, self.waiter, left)
        self.waiter = None

    @property
    def open_connections(self) -> int:
        return sum(map(len, self.capacity.values()))


class Acceptor:
    """Accepts on one bound socket, unix or TCP, until `close`, which closes it. In a flood
    `has_token`, if there is one, is called with the port and the first bytes of each newcomer."""

    def __init__(self, sock: socket.socket, owner: Owner, has_token: HasToken | None) -> None:
        self._sock = sock
        self._owner = owner
        self._clock = owner.clock
        self._kind: Kind = "unix" if sock.family == socket.AF_UNIX else "tcp"
        self._port = None if self._kind == "unix" else sock.getsockname()[1]
        self._has_token = has_token
        self._held: dict[socket.socket, Timer] = {}  # with what will close each, oldest first
        self._connected = 0
        self._streak = 0  # accepted since the queue was empty
        self._flood_ends = -math.inf
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[object]] = set()  # accepted, not yet connected
        self._spare: int | None = None
        self._timer: Timer | None = None
        self._logged_at = -math.inf
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for sock in tuple(self._held):
            self._drop(sock)
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._close_spare()

    def _start(self) -> None:
        self._timer = None
        self._open_spare()
        self._loop.add_reader(self._sock, self._ready)

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock)
        self._timer = self._clock.call_later(_PAUSE, self._start)

    def _ready(self) -> None:
        capacity = self._owner.capacity[self._kind]
        flooded = capacity.is_flooded() or self._clock.time() < self._flood_ends
        before = self._connected
        for _ in range(_FLOOD_BATCH):
            if self._connected - before == _BATCH:
                break
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._streak = 0
                return
            except OSError as error:
                self._log(error)
                out_of_files = error.errno in _OUT_OF_FILES
                if not out_of_files or not (self._close_one() or self._use_spare()):
                    self._pause()
                return
            self._streak += 1
            if flooded and self._has_token:
                sock.setblocking(False)
                self._look(sock)
            else:
                self._connect(sock)
        if self._streak >= _FLOOD:
            self._flood_ends = self._clock.time() + _FLOOD_SECONDS

    def _look(self, sock: socket.socket, *, last: bool = False) -> None:
        """Connect a newcomer whose first bytes hold the token, hold one that has sent nothing yet
        unless this is the `last` look, and close any other."""
        try:
            first = sock.recv(_FIRST_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if not last:
                self._hold(sock)
                return
            first = b""
        except OSError:  # it has left
            first = b""
        if self._has_token and self._has_token(self._port or 0, first):
            self._release(sock)
            self._connect(sock)
        else:
            self._drop(sock)

    def _hold(self, sock: socket.socket) -> None:
        if sock in self._held:
            return
        if len(self._held) >= _HELD:
            # What it has sent since it was accepted, perhaps in this very tick, was not seen yet.
            self._look(next(iter(self._held)), last=True)
        self._held[sock] = self._clock.call_later(_HELD_SECONDS, lambda: self._drop(sock))
        self._loop.add_reader(sock, self._look, sock)

    def _release(self, sock: socket.socket) -> None:
        if (timer := self._held.pop(sock, None)) is not None:
            timer.cancel()
            self._loop.remove_reader(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._release(sock)
        sock.close()

    def _connect(self, sock: socket.socket) -> None:
        self._connected += 1
        connecting = self._loop.connect_accepted_socket(
            lambda: Connection(self._owner, self._kind, self._port), sock
        )
        task = self._loop.create_task(connecting)
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    def _close_one(self) -> bool:
        """Close a connection for which nothing is carried out; False if there is none."""
        return any(
            capacity.close_one(rank)
            for rank in (Rank.WITHOUT_TOKEN, Rank.IDLE)
            for capacity in self._owner.capacity.values()
        )

    def _use_spare(self) -> bool:
        """Accept a connection with the spare descriptor and refuse it. False if none is left."""
        if self._spare is None:
            return False
        self._close_spare()
        with contextlib.suppress(OSError):  # it has left, or another thread took the descriptor
            sock, _ = self._sock.accept()
            with sock:
                self._refuse(sock)
        return self._open_spare()

    def _refuse(self, sock: socket.socket) -> None:
        """Answer 503 on an accepted socket, without waiting."""
        owner = self._owner
        if self._kind == "unix" and peer_uid(sock) != owner.expected_uid:
            return
        answer = owner.refusal(overloaded("no file descriptors are left"))
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # closing with unread bytes would send a reset
            sock.recv(owner.limits.head)
        with contextlib.suppress(OSError):
            sock.send(answer)

    def _open_spare(self) -> bool:
        if self._spare is None:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _log(self, error: OSError) -> None:
        now = self._clock.time()
        if now - self._logged_at >= _LOG_PAUSE:
            self._logged_at = now
            log.error(
                "cannot accept connections: %s. Idle ones are closed and new ones refused; "
                "if this lasts, raise the limit of open files (ulimit -n)",
                error.strerror,
            )
