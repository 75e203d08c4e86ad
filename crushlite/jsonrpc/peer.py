"""One connection to another program, over which both sides ask and answer.

    peer = RpcPeer(reader, writer, handler, clock, PeerOptions(...))
    reading = asyncio.create_task(peer.run())        # ends with the connection
    answer = await peer.request("initialize", {...}, seconds=30)
    await peer.notify("initialized")
    await peer.close()

What arrives is handed to the handler in the order of arrival: a notification is over when the next
message is looked at; a request is *begun* then, and answered by a task of its own, exactly once.
The task that waits for an answer of the other side goes on before the next message is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ..clock import all_done, time_limit
from ..protocol.codec import LARGE, NotJSON
from ..records import dataclass
from . import frames, values
from .errors import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PeerBusy,
    PeerGone,
    PeerTimeout,
    RpcError,
    Unsendable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ..clock import Clock
    from ..protocol.codec import JSON
    from .values import Id

log = logging.getLogger(__name__)

_READ = 64 * 1024
_FRAMES = 64  # that are looked at before others get a turn of the loop
_SHOWN = 300  # characters of noise, and of a foreign error's message times ten


class ByteReader(Protocol):
    async def read(self, n: int, /) -> bytes:
        """At most `n` bytes; none at the end."""


class ByteWriter(Protocol):
    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class RpcHandler:
    """What one side does with the other's messages. The defaults know no method."""

    def on_request(self, request: RpcRequest) -> Awaitable[JSON]:
        """Called in the order of arrival; what it returns is awaited in a task of its own. Its
        result is the answer; RpcError is answered as it is, any other exception as an internal
        error. An `async def` will do where the order does not matter. Raises RpcError."""
        raise RpcError(METHOD_NOT_FOUND, f"the method {request.method[:100]} is not known here")

    def on_notification(self, method: str, params: dict[str, Any]) -> Awaitable[None] | None:
        """If it returns something to await, nothing more is read before that is done: so it must
        not wait for an answer of the same peer. Unknown ones are ignored."""
        return None


@dataclass(frozen=True, slots=True)
class RpcRequest:
    id: Id
    method: str
    params: dict[str, Any]  # empty if there were none


@dataclass(frozen=True, slots=True)
class PeerOptions:
    framing: frames.Framing = frames.LINES
    frame: int = 64 << 20  # bytes of one message, in either direction
    asked: int = 256  # requests of ours without an answer
    asking: int = 256  # requests of theirs that we work on
    write_seconds: float | None = 60  # for the other side to take what was written; None: any time
    # What is sent to take back a request of ours, by its id: the method of a notification and its
    # params. None: nothing.
    cancel_notice: Callable[[Id], tuple[str, dict[str, Any]]] | None = None
    # Gets the beginning of what was no message, at most `noise` times.
    on_noise: Callable[[str], None] | None = None
    noise: int = 200


class RpcPeer:
    def __init__(
        self,
        reader: ByteReader,
        writer: ByteWriter,
        handler: RpcHandler,
        clock: Clock,
        options: PeerOptions | None = None,
    ) -> None:
        self._reader, self._writer, self._handler, self._clock = reader, writer, handler, clock
        self._options = options = options or PeerOptions()
        self._decoder = options.framing.decoder(options.frame)
        self._next_id = 0
        self._asked: dict[Id, asyncio.Future[JSON]] = {}
        self._given_up: deque[Id] = deque(maxlen=1024)  # their answers are no noise
        self._asking: dict[Id, asyncio.Future[JSON]] = {}  # the work on each; not what answers it
        self._unanswered: set[Id] = set()  # cancelled without an answer, on purpose
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn_to_write = asyncio.Lock()  # messages leave in the order of the calls
        self._left: asyncio.Task[None] | None = None  # waits in place of a sender that gave up
        self._reading: asyncio.Timeout | None = None  # to interrupt `run`
        self._gone: PeerGone | None = None
        self._is_closed = False  # nothing can be written any more
        self.noises = 0

    # Asking ------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        seconds: float | None,
        cancellable: bool = True,
    ) -> JSON:
        """Ask, and wait for the answer. Raises RpcError if it is an error, PeerTimeout if there is
        none after `seconds` (None: wait for ever), PeerGone, PeerBusy, Unsendable. If the time is
        up or the caller is cancelled, the request is taken back with the cancel notice, unless it
        is not `cancellable`, and a late answer is dropped."""
        self._check()
        if len(self._asked) >= self._options.asked:
            raise PeerBusy(f"{len(self._asked)} requests are open: wait for answers first")
        number, self._next_id = self._next_id, self._next_id + 1
        answer: asyncio.Future[JSON] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with time_limit(self._clock, seconds):
                await self._send(_call(method, params, number))
                return await answer
        except TimeoutError:
            self._give_up(number, cancellable=cancellable)
            raise PeerTimeout(f"{method} was not answered within {seconds:g} seconds") from None
        except asyncio.CancelledError:
            self._give_up(number, cancellable=cancellable)
            raise
        finally:
            self._asked.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # it may have failed while the request was still being sent

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification, and wait until the other side takes more. Raises PeerGone,
        Unsendable."""
        self._check()
        await self._send(_call(method, params, None))

    def _give_up(self, number: Id, *, cancellable: bool) -> None:
        self._given_up.append(number)
        if cancellable and self._options.cancel_notice is not None and self._gone is None:
            self._spawn(self._notify_quietly(*self._options.cancel_notice(number)))

    async def _notify_quietly(self, method: str, params: dict[str, Any]) -> None:
        with contextlib.suppress(PeerGone, Unsendable):
            await self.notify(method, params)

    # Reading -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until the stream ends. Then the requests that are open fail with PeerGone; those of
        the other side go on, and are answered if it still reads, until `close`. Also returns when
        the other side has taken nothing for too long: it may never send or close anything."""
        reason = "the other side has closed the connection"
        try:
            async with asyncio.timeout(None) as self._reading:
                await self._read()
        except (OSError, ValueError) as error:  # a StreamReader wraps errors of its limit so
            reason = f"the connection broke: {error}"
        finally:
            self._reading = None
            self._end(reason)

    async def _read(self) -> None:
        looked_at = 0
        while self._gone is None and (data := await self._reader.read(_READ)):
            for frame in self._decoder.feed(data):
                await self._take(frame)
                await self._answers_taken()
                looked_at += 1
                if looked_at % _FRAMES == 0:  # a read that finds bytes gives nobody else a turn
                    await asyncio.sleep(0)

    async def _answers_taken(self) -> None:
        """Wait while the other side takes no answers: it must not be able to pile them up here. At
        most `asking` tasks work; the others only wait until they can send."""
        while len(self._tasks) >= 2 * self._options.asking and self._gone is None:
            await asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, frame: frames.Frame | frames.TooLarge | frames.Noise) -> None:
        if isinstance(frame, frames.Noise):
            self._noise(frame.text)
            return
        if isinstance(frame, frames.TooLarge):
            flaw = f"a message of {frame.size} bytes is too large: at most {self._options.frame}"
            self._unreadable(flaw, frame.head, frame.tail)
            return
        body = frame.body
        try:
            if len(body) > LARGE:
                message = await asyncio.to_thread(values.read, body)
            else:
                message = values.read(body)
        except NotJSON as error:
            self._unreadable(error.reason, body[: frames.KEPT], body[-frames.KEPT :])
            return
        await self._message(message, body)

    async def _message(self, message: JSON, body: bytes) -> None:
        if isinstance(message, list):
            self._refuse("batches are not supported: send one message per frame")
        elif not isinstance(message, dict):
            self._noise(body)
        elif "method" in message:
            await self._incoming(message)
        elif "result" in message or "error" in message:
            self._answered(message, body)
            await asyncio.sleep(0)  # whoever waited for it goes on first
        else:
            self._noise(body)

    async def _incoming(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params")
        if "id" in message and not values.is_id(message["id"]):
            self._refuse("the id of a request is an integer or a text")
        elif "id" in message:
            self._begin(message["id"], method, {} if params is None else params)
        elif isinstance(method, str) and (params is None or isinstance(params, dict)):
            await self._notified(method, params or {})
        else:
            self._noise(b"a notification with a method or params of the wrong type")

    async def _notified(self, method: str, params: dict[str, Any]) -> None:
        try:
            work = self._handler.on_notification(method, params)
            if work is not None:
                await work
        except Exception:
            log.exception("the notification %s could not be handled", method[:100])

    def _answered(self, message: dict[str, Any], body: bytes) -> None:
        number: Any = message.get("id")
        answer = self._asked.pop(number, None) if values.is_id(number) else None
        if answer is None:
            # Once the connection counts as gone, every request was given up.
            if number not in self._given_up and self._gone is None:
                self._noise(body)
        elif answer.done():
            pass
        elif "error" in message and message["error"] is not None:
            answer.set_exception(_foreign_error(message["error"]))
        else:
            answer.set_result(message.get("result"))

    def _unreadable(self, flaw: str, head: bytes, tail: bytes) -> None:
        """A frame that could not be read: if it is seen whose it is, that request fails."""
        seen = values.glimpse(head, tail)
        if seen is None:
            self._noise(head)
        elif seen.is_request:
            error = RpcError(INVALID_REQUEST, flaw)
            self._spawn(self._send_quietly(_answer(seen.id, error=error)))
        elif (answer := self._asked.get(seen.id)) is not None and not answer.done():
            answer.set_exception(RpcError(INVALID_REQUEST, f"the answer cannot be read: {flaw}"))

    def _noise(self, text: bytes) -> None:
        self.noises += 1
        if self._options.on_noise is not None and self.noises <= self._options.noise:
            self._options.on_noise(text[: _SHOWN * 4].decode("utf-8", "replace")[:_SHOWN])

    # Answering ---------------------------------------------------------------------------------

    def _begin(self, number: Id, method: Any, params: Any) -> None:
        error: RpcError | None = None
        if not isinstance(method, str):
            error = RpcError(INVALID_REQUEST, "the method of a request is a text")
        elif not isinstance(params, dict):
            error = RpcError(INVALID_PARAMS, "the params of a request are an object")
        elif number in self._asking:
            error = RpcError(INVALID_REQUEST, "another open request has this id")
        elif len(self._asking) >= self._options.asking:
            error = RpcError(INTERNAL_ERROR, f"{len(self._asking)} requests are open: wait first")
        if error is not None:
            self._spawn(self._send_quietly(_answer(number, error=error)))
            return
        request = RpcRequest(number, method, params)
        try:
            work = asyncio.ensure_future(self._handler.on_request(request))
        except Exception as raised:  # noqa: BLE001 - is answered
            self._spawn(self._answer(request, None, raised))
            return
        self._asking[number] = work
        self._spawn(self._complete(request, work))

    async def _complete(self, request: RpcRequest, work: asyncio.Future[JSON]) -> None:
        """Answer a request when the work on it is done. Only the work is ever cancelled: a task
        that is cancelled before its first step could not answer."""
        result: JSON = None
        error: BaseException | None = None
        try:
            result = await work
        except asyncio.CancelledError as cancelled:
            error = cancelled
        except Exception as raised:  # noqa: BLE001 - is answered
            error = raised
        self._asking.pop(request.id, None)
        if request.id in self._unanswered:
            self._unanswered.discard(request.id)
            return
        await self._answer(request, result, error)

    async def _answer(self, request: RpcRequest, result: JSON, error: BaseException | None) -> None:
        if error is None:
            try:
                await self._send(_answer(request.id, result), is_answer=True)
            except PeerGone:
                pass
            except Unsendable as unsendable:
                error = RpcError(INTERNAL_ERROR, f"the answer cannot be sent: {unsendable}")
            else:
                return
        if isinstance(error, asyncio.CancelledError):
            error = RpcError(CANCELLED, "the request was cancelled")
        elif error is not None and not isinstance(error, RpcError):
            log.error("the request %s failed", request.method[:100], exc_info=error)
            error = RpcError(INTERNAL_ERROR, f"internal error: {type(error).__name__}")
        if error is not None:
            await self._send_quietly(_answer(request.id, error=error))

    def cancel_incoming(self, number: object, *, answer: bool = True) -> bool:
        """Cancel the work on a request of the other side, as its cancel notification asks for. It
        is answered with CANCELLED, unless the handler returns something else or `answer` is False
        (MCP wants none). False if no such request is open."""
        if not isinstance(number, (int, str)) or number not in self._asking:
            return False
        if not answer:
            self._unanswered.add(number)
        self._asking[number].cancel()
        return True

    def _refuse(self, flaw: str) -> None:
        self._spawn(self._send_quietly(_answer(None, error=RpcError(INVALID_REQUEST, flaw))))

    # Writing -----------------------------------------------------------------------------------

    async def _send(self, message: dict[str, Any], *, is_answer: bool = False) -> None:
        """Write a message. Answers are also written to a side that has closed its own stream. If
        the caller is cancelled while the other side does not take the message, nothing more is
        written before it is taken: messages do not pile up behind it."""
        async with self._turn_to_write:
            if self._left is not None:
                await asyncio.wait([self._left])
                self._left = None
            if values.is_large(message):
                body = await asyncio.to_thread(values.write_large, message, self._options.frame)
            else:
                body = values.write(message)
            if self._is_closed or not is_answer:
                self._check()
            try:
                await self._taken(self._options.framing.pack(body))
            except asyncio.CancelledError:
                if not self._is_closed:
                    self._left = self._spawn(self._taken_quietly())
                raise

    async def _taken(self, data: bytes = b"") -> None:
        """Write something, and wait until the other side has taken nearly all that was written.
        Raises PeerGone if it does not in time, or cannot."""
        try:
            if data:
                self._writer.write(data)
            async with time_limit(self._clock, self._options.write_seconds):
                await self._writer.drain()
        except TimeoutError:
            self._is_closed = True
            if self._reading is not None:
                self._reading.reschedule(-math.inf)
            reason = f"the other side took nothing for {self._options.write_seconds:g} seconds"
            raise self._end(reason) from None
        except (OSError, RuntimeError) as error:
            self._is_closed = True
            raise self._end(f"the connection broke: {error}") from None

    async def _taken_quietly(self) -> None:
        with contextlib.suppress(PeerGone):
            await self._taken()

    async def _send_quietly(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message, is_answer=True)
        except (PeerGone, Unsendable) as error:
            log.debug("an answer was not sent: %s", error)

    # Ending ------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    def _check(self) -> None:
        if self._gone is not None:
            raise PeerGone(self._gone.message)

    def _end(self, reason: str) -> PeerGone:
        """The connection has ended: requests that are open fail. Only the first reason counts."""
        if self._gone is None:
            self._gone = PeerGone(reason)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(PeerGone(self._gone.message))
        return PeerGone(self._gone.message)

    async def all_answered(self, seconds: float) -> bool:
        """Wait until every request of the other side is answered; False if the time was up."""
        return await all_done(self._clock, list(self._tasks), seconds)

    async def close(self) -> None:
        """Cancel the work on requests of the other side, fail our own, and close the writer. Does
        not wait for the other side."""
        self._end("the connection was closed")
        self._is_closed = True
        self._writer.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _call(method: str, params: dict[str, Any] | None, number: Id | None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if number is not None:
        message["id"] = number
    message["method"] = method
    if params is not None:
        message["params"] = params
    return message


def _answer(
    number: Id | None, result: JSON = None, *, error: RpcError | None = None
) -> dict[str, Any]:
    if error is not None:
        return {"jsonrpc": "2.0", "id": number, "error": error.wire()}
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _foreign_error(error: Any) -> RpcError:
    """An error as others send it, also one that is not as it should be."""
    if not isinstance(error, dict):
        error = {"message": error}
    number, message = error.get("code"), error.get("message")
    return RpcError(
        number if isinstance(number, int) else INTERNAL_ERROR,
        message[: _SHOWN * 10] if isinstance(message, str) else "an error without a message",
        error.get("data"),
    )
