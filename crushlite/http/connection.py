"""One server connection: bytes in, requests out, answers back in order; and what all connections of
a server share (`Owner`).

The life of a connection, in `State`:

    HEAD -> BODY -> BUSY -> HEAD ...        a keep-alive cycle; HEAD with an empty buffer is idle
    BUSY -> STREAM -> CLOSED                the answer is a stream; input is discarded from then on
    HEAD | BODY | BUSY -> LINGER -> CLOSED  refused, or no next request: half-closed, draining
    any -> CLOSED                           connection lost

Invariants:

- One request at a time: while one is BUSY reading is paused after at most one further read, which
  waits in the buffer. So later requests neither overtake it nor pile up.
- A complete request is launched in the same call that received its last byte, unless it must wait
  behind another one. It is carried out even if the connection is lost: only the answer is lost.
- After a head or body was refused nothing that follows is parsed.
- The bytes that a body counts for are given back by `_release_body`, or when its task has ended.
- A connection may be closed for another one (`Capacity`) at any time, but not as BUSY or STREAM.
- `Stream.closed` is called once: `_end_stream` forgets the stream before it calls.

`Outbox` keeps the order of output and its time limit, `Deadline` the time that a state may take.
h11 is used in `parsing` only; answers are framed by hand, with Connection, HEAD and Expect.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING

from ..clock import resolve_once
from .limits import BodyBudget, Capacity, Deadline, Limits, Rank
from .messages import HTTPError, Peer, Request, Response, Stream, overloaded
from .outbox import CONTINUE, Outbox, date_line, frame_response, frame_stream, slices
from .parsing import HeadParser, find_head, too_large
from .peer import peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .messages import Kind, RequestHead
    from .parsing import ParsedHead
    from .router import Admission, Handler, Router

    Translate = Callable[[Exception], HTTPError | None]
    HasToken = Callable[[int, bytes], bool]

log = logging.getLogger(__name__)


class State(enum.Enum):
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    STREAM = "stream"
    LINGER = "linger"
    CLOSED = "closed"


class Owner:
    """What the connections of a server share; `HTTPServer` adds listening and leaving. `translate`
    gives the answer for exceptions of handlers; one that it does not know (None) is logged and
    answered with 500. `has_token` says whether the first bytes of a TCP connection to a port show
    who it is; only they count in a flood."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Clock,
        limits: Limits | None = None,
        translate: Translate | None = None,
        has_token: HasToken | None = None,
    ) -> None:
        limits = limits or Limits()
        self.router = router
        self.clock = clock
        self.limits = limits
        self.has_token = has_token
        self.parser = HeadParser(limits)
        self.expected_uid = os.geteuid()
        self.draining = False
        self.answers: Counter[int] = Counter()  # how many were begun, by status
        kinds: tuple[Kind, ...] = ("tcp", "memory", "unix")
        self.capacity = {kind: Capacity(limits) for kind in kinds}
        self.bodies = BodyBudget(limits.bodies)  # received or carried out, without the small ones
        self.urgent_bodies = BodyBudget(limits.urgent_bodies)  # the same for urgent routes
        self.connections: set[Connection] = set()  # all that are not lost yet
        self.tasks: set[asyncio.Task[None]] = set()  # of requests, with or without a connection
        self._translate = translate
        # Set while `drain` waits; resolved when something that it waits for has ended.
        self.waiter: asyncio.Future[None] | None = None

    def changed(self) -> None:
        """A connection is lost, or a task has ended."""
        if self.waiter is not None:
            resolve_once(self.waiter)

    def launch(
        self, connection: Connection, request: Request, handler: Handler
    ) -> asyncio.Task[None]:
        """Carry a request out in a task, which ends with `answer`."""
        coroutine = self._carry_out(connection, request, handler)
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def _carry_out(self, connection: Connection, request: Request, handler: Handler) -> None:
        try:
            connection.answer(await handler(request))
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
        except Exception as error:  # noqa: BLE001 - of the handler, or for a header: nothing is written
            connection.answer(self.failed(error, request.head).response())

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request's task failed", exc_info=error)

    def failed(self, error: Exception, head: RequestHead | None) -> HTTPError:
        """The answer for an exception; logs an unexpected one."""
        if isinstance(error, HTTPError):
            return error
        try:
            known = self._translate(error) if self._translate is not None else None
        except Exception:  # the peer gets its answer even then
            log.exception("could not translate %s", type(error).__name__)
        else:
            if known is not None:
                return known
        id_ = os.urandom(6).hex()
        what = f"{head.method} {'/'.join(head.segments[:2])}" if head else "stream"
        log.error("internal error %s in %s", id_, what, exc_info=error)
        return HTTPError(500, "internal", f"internal server error (id {id_})")

    def refusal(self, error: HTTPError, *, bodiless: bool = False) -> bytes:
        """The bytes of an answer after which the connection ends; counts it as begun."""
        self.answers[error.status] += 1
        return frame_response(error.response(), self.date(), keep=False, bodiless=bodiless)

    def date(self) -> bytes:
        """The current `Date` line."""
        return date_line(int(self.clock.now()))


class Connection(asyncio.Protocol):
    """See the module's docstring. To a stream it is the `ByteSink`."""

    def __init__(self, owner: Owner, kind: Kind, port: int | None = None) -> None:
        self._owner = owner
        self._peer = Peer(kind, port)
        self._capacity = owner.capacity[kind]
        self._trusted = kind != "tcp"  # there, when a request has shown a token
        self._transport: asyncio.Transport  # made with the connection; closing once it is lost
        self._outbox: Outbox
        self._deadline = Deadline(owner.clock, self._time_is_up)  # BUSY and STREAM have none
        self.state = State.HEAD

        # Input: what was read and not consumed, and how much of it was searched for the head's end.
        self._buffer = bytearray()
        self._scanned = 0
        self._discarded = 0
        self._eof = False

        # The request being read or carried out.
        self._parsed: ParsedHead | None = None
        self._admission: Admission | None = None
        self._budget = owner.bodies  # that its body counts for, if it is not small
        self._counted = 0  # bytes of it
        self._body_began = 0.0
        self._surplus = False  # accepted when only the reserved ones were left

        # The stream being answered with.
        self._stream: Stream | None = None
        self._leaving = False  # the stream is to be closed when it has written what waits
        self.writable = False  # whether the stream may write: see `ByteSink`
        self._most = -1  # bytes it may write to the transport at once; -1 while there is a rest

    # Transport callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        owner, limits = self._owner, self._owner.limits
        self._outbox = Outbox(transport, owner.clock, limits.write_timeout)
        if self._peer.kind == "unix":
            sock = transport.get_extra_info("socket")
            if sock is None or peer_uid(sock) != owner.expected_uid:
                self.abort()  # another user: no answer, and nothing is closed for it
                return
        owner.connections.add(self)
        count = self._capacity.join(self)
        if count > limits.connections + limits.surplus:
            self.abort()
            return
        self._surplus = count > limits.connections - limits.reserved
        self._deadline.set(limits.first_byte_timeout)
        if count > limits.connections:
            self._refuse(overloaded("too many connections"))
        else:
            self._wait_as(Rank.IDLE)

    def data_received(self, data: bytes) -> None:
        state = self.state
        if state is State.BUSY or (self._outbox.paused and state in (State.HEAD, State.BODY)):
            # Another request comes first, or the peer does not read the answers it has.
            self._buffer += data
            self._transport.pause_reading()
        elif state is State.HEAD or state is State.BODY:
            self._buffer += data
            self._advance()
        else:
            self._discard(len(data))

    def eof_received(self) -> bool:
        """End a stream that was half-closed; in other states answer first, then close."""
        self._eof = True
        if self.state is State.HEAD or self.state is State.BODY:
            if not self._outbox.paused:
                self._end_of_input()
        elif self.state is not State.BUSY:
            self._end_stream()
            self.close()
        return True  # the transport must not close by itself: it would drop a pending answer

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = State.CLOSED
        self._buffer.clear()
        self._parsed = self._admission = None
        self._release_body()
        self._outbox.cancel()
        self._deadline.cancel()
        self._end_stream()
        self._capacity.leave(self)
        self._owner.connections.discard(self)
        self._owner.changed()

    def pause_writing(self) -> None:
        self._outbox.paused = True
        self.writable = False

    def resume_writing(self) -> None:
        if self._outbox.resume():
            return
        if self._stream is not None:
            self._resume_stream()
        else:
            self._advance()

    # Reading.

    def _advance(self) -> None:
        """Take requests out of the buffer until one is BUSY or more bytes are needed."""
        while self._buffer and not self._outbox.paused:
            try:
                if self.state is State.HEAD:
                    progress = self._read_head()
                elif self.state is State.BODY:
                    progress = self._read_body()
                else:
                    return
            except Exception as error:  # noqa: BLE001 - a bug of a guard is answered with 500
                self._refuse(self._owner.failed(error, self._parsed.head if self._parsed else None))
                return
            if not progress:
                break
        if self.state in (State.HEAD, State.BODY) and not self._outbox.paused:
            if self._eof:
                self._end_of_input()
            else:
                self._transport.resume_reading()

    def _read_head(self) -> bool:
        owner = self._owner
        buffer = self._buffer
        length = find_head(buffer, self._scanned, owner.limits)
        if not length:
            if not self._scanned:
                self._capacity.moved(self)
                # From the first byte, or from the end of the request before a pipelined one.
                self._deadline.set(owner.limits.head_timeout)
            self._scanned = len(buffer)
            return False
        self._scanned = 0
        self._capacity.rank(self, None)
        raw = bytes(memoryview(buffer)[:length])
        del buffer[:length]
        parsed = self._parsed = owner.parser.parse(raw, self._peer)
        try:
            admission = owner.router.admit(parsed.head)
            route = admission.route
            self._trusted = self._trusted or not route.public
            if self._surplus and not route.urgent and not self._capacity.has_room():
                raise overloaded("too many connections")
            if parsed.length > route.body_limit:
                raise too_large(route.body_limit)
            self._count_body(parsed.length, admission)
        except HTTPError as error:
            return self._refuse_whole(error, parsed)
        self._admission = admission
        if not parsed.length and parsed.chunked is None:
            self._complete(parsed, admission, b"")
            return True
        self.state = State.BODY
        if parsed.expects_continue and not buffer:
            self._outbox.write(CONTINUE)
        self._body_began = owner.clock.time()
        if not buffer:
            self._await_body(0)
        return True

    def _refuse_whole(self, error: HTTPError, parsed: ParsedHead) -> bool:
        """Refuse a well-formed request. The connection stays open if the whole body is in the
        buffer: then it is certain where the next request begins. 413 and 503 always close."""
        body_is_here = parsed.chunked is None and parsed.length <= len(self._buffer)
        if not body_is_here or error.status in (413, 503):
            raise error
        del self._buffer[: parsed.length]
        self.state = State.BUSY
        self._respond(error.response())
        return True

    def _read_body(self) -> bool:
        parsed, admission = self._parsed, self._admission
        assert parsed is not None
        assert admission is not None
        buffer = self._buffer
        if parsed.chunked is not None:
            body = parsed.chunked.feed(buffer, admission.route.body_limit)
            self._count_body(parsed.chunked.size, admission)
        elif len(buffer) >= parsed.length:
            body = bytes(memoryview(buffer)[: parsed.length])
            del buffer[: parsed.length]
        else:
            body = None
        if body is None:
            self._await_body(parsed.chunked.size if parsed.chunked is not None else len(buffer))
            return False
        self._complete(parsed, admission, body)
        return True

    def _await_body(self, size: int) -> None:
        """Wait for more of a body of which `size` bytes are here: they add to its time limit."""
        limits, admission = self._owner.limits, self._admission
        assert admission is not None
        whole = limits.body_grace + size / limits.body_rate
        if admission.route.public:
            whole = limits.public_body_timeout
        left = self._body_began + whole - self._owner.clock.time()
        self._deadline.set(min(limits.body_timeout, max(left, 0.0)))
        self._wait_as(Rank.BODY)

    def _count_body(self, size: int, admission: Admission) -> None:
        """Count `size` bytes, declared or received, of this body; 503 if all are too many."""
        owner = self._owner
        if size > owner.limits.small_body:
            self._budget = owner.urgent_bodies if admission.route.urgent else owner.bodies
            self._budget.grow(self._counted, size)
            self._counted = size

    def _release_body(self) -> None:
        self._budget.used -= self._counted
        self._counted = 0

    def _complete(self, parsed: ParsedHead, admission: Admission, body: bytes) -> None:
        self.state = State.BUSY
        self._capacity.rank(self, None)
        self._deadline.clear()
        if self._buffer:
            self._transport.pause_reading()
        request = Request(parsed.head, body, admission.params)
        route = admission.route
        if route.instant is not None and not self._buffer and not self._counted:
            instant = route.instant(request)
            if instant is not None:
                self._respond(instant)
                return
        task = self._owner.launch(self, request, route.handler)
        if counted := self._counted:
            budget, self._counted = self._budget, 0

            def release(_: object) -> None:
                budget.used -= counted

            task.add_done_callback(release)

    def _end_of_input(self) -> None:
        """The peer half-closed before or within a request."""
        if self.state is State.BODY or self._buffer:
            self._refuse(HTTPError(400, "bad_request", "the request is incomplete"))
        else:
            self.close()

    def _discard(self, count: int) -> None:
        self._discarded += count
        limits = self._owner.limits
        if self.state is State.STREAM and self._discarded > limits.stream_input:
            self.abort()
        elif self.state is State.LINGER and self._discarded > limits.linger_bytes:
            self.close()

    # Answering.

    def answer(self, answer: Response | Stream) -> None:
        """Answer the BUSY request. Raises ValueError, with nothing written, for a bad header."""
        if isinstance(answer, Stream):
            self._begin_stream(answer)
        elif self.state is State.BUSY:
            self._respond(answer)
            self._advance()

    def _respond(self, response: Response) -> None:
        """Write an answer; then wait for the next request, or close."""
        owner, parsed = self._owner, self._parsed
        assert parsed is not None
        keep = parsed.keep_alive and not owner.draining
        bodiless = parsed.head.method == "HEAD"
        data = frame_response(response, owner.date(), keep=keep, bodiless=bodiless)
        self._parsed = self._admission = None
        owner.answers[response.status] += 1
        self._outbox.write(data)
        if response.more and not bodiless:
            self._outbox.write_pieces(response.more, lambda: self._answered_later(keep))
        else:
            self._answered(keep)

    def _answered_later(self, keep: bool) -> None:
        self._answered(keep and not self._owner.draining)
        self._advance()

    def _answered(self, keep: bool) -> None:
        if keep:
            self.state = State.HEAD
            self._wait_as(Rank.IDLE)
            self._deadline.set(self._owner.limits.idle_timeout)
        elif self._buffer or not self._transport.is_reading():
            self._linger()
        else:
            self.close()

    def _refuse(self, error: HTTPError) -> None:
        """Answer a request that will not be read to its end; nothing more is parsed."""
        if self._transport.is_closing():
            return
        bodiless = self._parsed is not None and self._parsed.head.method == "HEAD"
        self._parsed = self._admission = None
        self._release_body()
        self._outbox.write(self._owner.refusal(error, bodiless=bodiless))
        self._linger()

    def _begin_stream(self, stream: Stream) -> None:
        transport, parsed = self._transport, self._parsed
        self._stream = stream
        if transport.is_closing() or parsed is None:
            self._end_stream()
            return
        try:
            head = frame_stream(stream, self._owner.date())
        except ValueError:
            self._end_stream()
            raise
        self._parsed = self._admission = None
        self.state = State.STREAM
        self._owner.answers[stream.status] += 1
        self._outbox.unlimited = True
        self._outbox.write(head)
        if parsed.head.method == "HEAD" or self._eof:
            self._end_stream()
            self.close()
            return
        self._write, self._is_closing = transport.write, transport.is_closing
        self.writable = not self._outbox.paused
        self._most = 2 * self._owner.limits.stream_slice
        rest = len(self._buffer)
        self._buffer.clear()
        self._transport.resume_reading()
        self._guarded(lambda: stream.opened(self))
        self._discard(rest)

    def _resume_stream(self) -> None:
        stream = self._stream
        if stream is None or self._transport.is_closing():
            return
        self.writable = True
        self._most = 2 * self._owner.limits.stream_slice
        self._guarded(stream.resumed)
        if self._leaving and self.writable:
            self.close()

    def _guarded(self, callback: Callable[[], None]) -> None:
        """Run a stream's callback; if it raises, only that stream ends."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the owner logs it
            self._owner.failed(error, None)
            self.close()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        self.writable = False
        if stream is not None:
            self._guarded(stream.closed)

    # For the stream: `ByteSink`.

    def write(self, data: bytes) -> None:
        # Called for every event and every client. `is_closing` is asked each time, because a failed
        # send closes the transport before the connection is called.
        if not self._is_closing():
            if len(data) <= self._most:
                self._write(data)
            elif self.state is State.STREAM and self._stream is not None:
                self.writable = False
                self._most = -1
                pieces = slices(data, self._owner.limits.stream_slice)
                self._outbox.write_pieces(pieces, self._resume_stream)

    @property
    def buffered(self) -> int:
        return self._outbox.unsent

    # Ending.

    def _linger(self) -> None:
        """Half-close, and read on for a while: a close with unread input could lose the answer."""
        transport = self._transport
        if transport.is_closing():
            return
        self.state = State.LINGER
        self._capacity.rank(self, Rank.WITHOUT_TOKEN)
        self._buffer.clear()
        if self._eof:
            self.close()
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._transport.resume_reading()
        self._deadline.set(self._owner.limits.linger_timeout)

    def close(self) -> None:
        """Send what waits, then FIN; a peer that takes nothing is cut off by the write limit."""
        self.state = State.CLOSED
        self.writable = False
        if not self._transport.is_closing():
            # A closing transport does so by itself, but with a rest it is not closing yet.
            self._transport.pause_reading()
            self._outbox.close()

    def _wait_as(self, rank: Rank) -> None:
        """Nothing is carried out for this connection: it may be closed for another one."""
        self._capacity.rank(self, rank if self._trusted else Rank.WITHOUT_TOKEN)

    def close_for_another(self) -> bool:
        """Close for another connection. True if that frees the descriptor at once: not if the peer
        has not taken its last answer. A request that has begun to arrive is answered 503, if it may
        have a token: in a flood of others, those answers would cost more than the rest."""
        begun = self.state is State.BODY or (self.state is State.HEAD and self._scanned)
        if begun and self._trusted:
            self._outbox.write(self._owner.refusal(overloaded("too many connections")))
        self.close()
        return not self._outbox.unsent

    def abort(self) -> None:
        self.state = State.CLOSED
        self.writable = False
        self._transport.abort()

    def wind_down(self, *, streams: bool) -> None:
        """The server stops: close if there is no request or, with `streams`, if it is a stream: a
        paused one later, as its last events still wait."""
        if streams and self._stream is not None and not self.writable:
            self._leaving = True
        elif self.state is State.HEAD or (streams and self.state is State.STREAM):
            self.close()

    def _time_is_up(self) -> None:
        if self.state is State.BODY or (self.state is State.HEAD and self._scanned):
            self._refuse(HTTPError(408, "request_timeout", "the request took too long to arrive"))
        else:
            self.close()
