"""The server: listeners, the set of connections, and the tasks that carry requests out.

A handler's task belongs to the server, not to the connection that brought the request: a request
that arrived completely is carried out even if its sender has left. Tasks are created in the order
in which requests became complete, so their first steps run in that order too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..clock import resolve_once, wait_at_most
from ..records import dataclass
from .accepting import Acceptor
from .budget import BodyBudget
from .capacity import Capacity, Rank
from .connection import Connection
from .framing import date_line, frame_response
from .limits import Limits
from .messages import HTTPError, Kind, Request, RequestHead, Response, Stream, overloaded
from .parsing import HeadParser
from .peercred import peer_uid

if TYPE_CHECKING:
    from ..clock import Clock
    from .budget import BodyShare
    from .router import Admission, Handler, Router

_CANCEL_GRACE = 1.0

log = logging.getLogger(__name__)

Translate = Callable[[Exception], "HTTPError | None"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of a server."""

    connections: int  # open now
    streams: int  # of these, answered with a stream
    in_flight: int  # requests being carried out, with or without their connection
    requests: int  # carried out since the start
    answers: dict[int, int]  # begun since the start, refusals too, by status


class HTTPServer:
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
        self.router = router
        self.clock = clock
        self.limits = limits or Limits()
        self.parser = HeadParser(self.limits)
        self.expected_uid = os.geteuid()
        self.draining = False
        self.answers: Counter[int] = Counter()  # by status, written by the connections
        self._translate = translate
        self._has_token = has_token
        kinds: tuple[Kind, ...] = ("tcp", "memory", "unix")
        self.capacity: Mapping[Kind, Capacity] = {kind: Capacity(self.limits) for kind in kinds}
        self.bodies = BodyBudget(self.limits.bodies)
        self.urgent_bodies = BodyBudget(self.limits.urgent_bodies)
        self._acceptors: list[Acceptor] = []
        self._connections: set[Connection] = set()  # all that are not lost yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._date = b""
        self._date_second = -1
        # Set while `drain` waits; resolved when something that it waits for has ended.
        self._changed: asyncio.Future[None] | None = None

    # Listening.

    async def listen(self, sock: socket.socket) -> None:
        """Serve on a bound stream socket, unix or TCP. The server closes the socket and never
        unlinks its path."""
        kind: Kind = "unix" if sock.family == socket.AF_UNIX else "tcp"
        port = None if kind == "unix" else sock.getsockname()[1]
        known, has_token = self._has_token, None
        if port is not None and known is not None:
            has_token = functools.partial(known, port)
        acceptor = Acceptor(
            sock,
            self.protocol_factory(kind, port),
            self,
            self.clock,
            is_flooded=self.capacity[kind].is_flooded,
            has_token=has_token,
        )
        self._acceptors.append(acceptor)

    def protocol_factory(self, kind: Kind, port: int | None = None) -> Callable[[], Connection]:
        """A factory of connections for a listener of this kind, which a guard may depend on. Tests
        connect it to a memory transport."""
        return lambda: Connection(self, kind, port)

    def stop_listening(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    async def drain(self, timeout: float) -> None:
        """Stop listening, finish the requests in flight, and close all connections.

        Idle connections close at once, requests in flight are answered with `Connection: close`,
        then streams end. After `timeout` the connections that are left are aborted and the tasks
        cancelled.
        """
        self.stop_listening()
        self.draining = True
        deadline = self.clock.time() + timeout
        for connection in tuple(self._connections):
            connection.wind_down(streams=False)
        await self._until(lambda: not self._tasks, deadline)
        for connection in tuple(self._connections):
            connection.wind_down(streams=True)
        await self._until(lambda: not self._tasks and not self._connections, deadline)
        for connection in tuple(self._connections):
            connection.abort()
        for task in tuple(self._tasks):
            task.cancel()
        grace = self.clock.time() + _CANCEL_GRACE
        await self._until(lambda: not self._tasks and not self._connections, grace)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until a condition about tasks and connections holds, or for the deadline."""
        while not condition() and (left := deadline - self.clock.time()) > 0:
            self._changed = asyncio.get_running_loop().create_future()
            await wait_at_most(self.clock, self._changed, left)
        self._changed = None

    def _notify(self) -> None:
        if self._changed is not None:
            resolve_once(self._changed)

    @property
    def statistics(self) -> Statistics:
        streams = sum(connection.streaming for connection in self._connections)
        connections = sum(map(len, self.capacity.values()))
        return Statistics(
            connections, streams, len(self._tasks), self._requests, dict(self.answers)
        )

    # For acceptors.

    def close_one(self) -> bool:
        return any(
            capacity.close_one(rank)
            for rank in (Rank.WITHOUT_TOKEN, Rank.IDLE)
            for capacity in self.capacity.values()
        )

    def refuse(self, sock: socket.socket) -> None:
        if sock.family == socket.AF_UNIX and peer_uid(sock) != self.expected_uid:
            return
        refusal = overloaded("no file descriptors are left").response()
        self.answers[refusal.status] += 1
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # closing with unread bytes would send a reset
            sock.recv(self.limits.head)
        with contextlib.suppress(OSError):
            sock.send(frame_response(refusal, self.date(), keep=False, bodiless=False))

    # For connections (`connection.Owner`).

    def joined(self, connection: Connection) -> None:
        self._connections.add(connection)

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._notify()

    def launch(
        self, connection: Connection, request: Request, admission: Admission, body: BodyShare | None
    ) -> None:
        self._requests += 1
        coroutine = self._carry_out(connection, request, admission.route.handler)
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        if body is not None:
            task.add_done_callback(lambda _: body.release())

    async def _carry_out(self, connection: Connection, request: Request, handler: Handler) -> None:
        answer: Response | Stream
        try:
            answer = await handler(request)
        except asyncio.CancelledError as error:
            # Either `drain` ran out of time, or the handler awaited something that was cancelled.
            # The peer gets an answer in both cases; only the first is a 503, on which clients look
            # for another server.
            refusal = HTTPError(503, "cancelled", "the request was cancelled")
            if not self.draining:
                cause = RuntimeError("the handler awaited something that was cancelled")
                refusal = self.failed(cause.with_traceback(error.__traceback__), request.head)
            connection.answer(refusal.response())
            raise
        except Exception as error:  # noqa: BLE001 - every exception becomes an answer
            answer = self.failed(error, request.head).response()
        try:
            connection.answer(answer)
        except Exception as error:  # noqa: BLE001 - a bad header, say: nothing was written
            connection.answer(self.failed(error, request.head).response())

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request's task failed", exc_info=error)

    def failed(self, error: Exception, head: RequestHead | None) -> HTTPError:
        if isinstance(error, HTTPError):
            return error
        if self._translate is not None:
            try:
                known = self._translate(error)
            except Exception:  # the peer gets its answer even then
                log.exception("could not translate %s", type(error).__name__)
            else:
                if known is not None:
                    return known
        id_ = os.urandom(6).hex()
        what = f"{head.method} {'/'.join(head.segments[:2])}" if head else "stream"
        log.error("internal error %s in %s", id_, what, exc_info=error)
        return HTTPError(500, "internal", f"internal server error (id {id_})")

    def date(self) -> bytes:
        now = self.clock.now()
        second = int(now)
        if second != self._date_second:
            self._date_second = second
            self._date = date_line(now)
        return self._date
