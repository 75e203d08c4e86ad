"""The output of a connection, until the kernel has taken it.

A transport accepts any amount and keeps a copy of what its peer has not read. So a long output is
given to it in pieces, the next one when there is room; what it was not given yet is the *rest*.

- Bytes leave in the order in which they were given: while there is a rest everything goes behind
  it, and closing waits for it. Nothing is written to a closing transport.
- One piece per tick of the loop, none while the transport is paused: no peer delays the others,
  however fast or slowly it reads.
- `then` is called once when the rest is written, never from inside the call that gave it, and not
  at all if another `then` replaced it or the connection was lost.
- A peer that takes nothing for `write_timeout` although something waits is cut off: any progress
  counts, however small. Only an open stream may wait longer: see `unlimited`.

How an answer looks as bytes is at the end.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..clock import Clock, Timer
    from .messages import Response, Stream

    Piece = bytes | memoryview


def slices(data: bytes, size: int) -> Iterator[memoryview]:
    """Pieces of `data` without copying: many connections may hold the rest of the same event."""
    view = memoryview(data)
    return (view[at : at + size] for at in range(0, len(view), size))


class Outbox:
    """The output of one transport. `cancel` must be called when the connection is lost."""

    def __init__(self, transport: asyncio.Transport, clock: Clock, write_timeout: float) -> None:
        self._transport = transport
        self._clock = clock
        self._write_timeout = write_timeout
        self._rest: deque[Piece] = deque()
        self._then: Callable[[], None] | None = None  # None if there is no rest
        self.paused = False  # the transport takes no bytes: set by the connection

        # Bytes given to the transport, and how many of them the kernel had at the last check. What
        # an open stream's sink writes past this object is missing, but a stream is not cut off.
        self._given = 0
        self._taken = 0
        self._timer: Timer | None = None
        self.unlimited = False  # True for an open stream: the queue that feeds it has a limit

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._rest))

    def write(self, data: bytes) -> None:
        if self._then is not None:
            self._rest.append(data)
        elif not self._transport.is_closing():
            self._send(data)

    def write_pieces(self, pieces: Iterable[Piece], then: Callable[[], None]) -> None:
        """Write one piece or more. `then` is called when the transport has them and all that was
        written after them; it replaces a `then` that was not called yet."""
        under_way = self._then is not None
        self._rest.extend(pieces)
        self._then = then
        if not under_way and not self.paused:
            self._go_on()

    def close(self) -> None:
        """Send the rest, then FIN; a stream now has the write limit. Only `cancel` may follow."""
        self.unlimited = False
        if self._rest:
            self._then = self.close
        else:
            self._transport.close()
        self._watch()

    def cancel(self) -> None:
        """Drop the rest: the connection is lost."""
        self._rest.clear()
        self._then = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> bool:
        """The transport takes bytes again. True if the rest goes first."""
        self.paused = False
        if self._then is None:
            return False
        self._go_on()
        return True

    def _send(self, data: Piece) -> None:
        transport = self._transport
        self._given += len(data)
        transport.write(data)
        if self._timer is None and transport.get_write_buffer_size():
            self._watch()

    def _go_on(self) -> None:
        """Write the next piece or, after the last one, call `then`. While there is a rest only this
        writes, and can pause the transport: so its next call is from the loop or from `resume`."""
        then = self._then
        if then is None or self._transport.is_closing():
            return
        if self._rest:
            self._send(self._rest.popleft())
            if not self.paused:
                asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._then = None
            then()

    def _watch(self) -> None:
        """Check for progress after the write limit, if the kernel has not taken everything."""
        pending = self._transport.get_write_buffer_size()
        if not pending:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._taken = self._given - pending
        self._timer = self._clock.call_later(self._write_timeout, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._given - self._transport.get_write_buffer_size() > self._taken:
            self._watch()
        elif not self.unlimited:
            self._transport.abort()


# Answers as bytes -----------------------------------------------------------------------------

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_CLOSE = b"Connection: close\r\n"
_BODILESS = frozenset({204, 304})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def frame_response(response: Response, date: bytes, *, keep: bool, bodiless: bool) -> bytes:
    """The head and `response.body`, without the pieces in `more`. `bodiless` is for HEAD: the head
    alone, with the length that GET would have. Raises ValueError for a bad header."""
    status = response.status
    lines = header_lines(response.headers) if response.headers else b""
    close = b"" if keep else _CLOSE
    if status in _BODILESS:
        return b"%b%b%b%b\r\n" % (_status_line(status), date, lines, close)
    body = response.body
    head = b"%b%b%b%b%bContent-Length: %d\r\n\r\n" % (
        _status_line(status),
        date,
        _content_type(response.content_type) if body else b"",
        lines,
        close,
        len(body) + sum(map(len, response.more)),
    )
    return head if bodiless else head + body


def frame_stream(stream: Stream, date: bytes) -> bytes:
    """The head of a stream. Its body ends with the connection, on purpose: then even a killed
    process ends it cleanly, while some clients never recover from a chunked body cut short."""
    lines = header_lines(stream.headers)
    return b"%b%b%b%b\r\n" % (_status_line(stream.status), date, lines, _CLOSE)


def header_lines(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Header fields as lines. Raises ValueError for one that HTTP does not allow."""
    for name, value in pairs:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a header field: {name!r}")
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode("latin-1")


@functools.lru_cache(maxsize=1)
def date_line(second: int) -> bytes:
    """A `Date` line, not made with strftime because that follows the locale."""
    t = time.gmtime(second)
    return (
        f"Date: {_DAYS[t.tm_wday]}, {t.tm_mday:02d} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04d} "
        f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} GMT\r\n"
    ).encode("ascii")


@functools.cache
def _status_line(status: int) -> bytes:
    if status == 200:
        return b"HTTP/1.1 200 OK\r\n"
    try:
        # Only now: the first answer is a 200, and need not wait for it.
        from http import HTTPStatus

        reason = HTTPStatus(status).phrase
    except (ValueError, ImportError, OSError):  # also if there is no file descriptor left
        reason = "Unknown"
    return f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")


@functools.lru_cache(maxsize=64)
def _content_type(value: str) -> bytes:
    return header_lines((("Content-Type", value),))
