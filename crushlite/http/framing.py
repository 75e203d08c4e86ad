"""Answers as bytes.

Status lines and content types are encoded once and cached. A header that could break out of its
line raises ValueError before a byte is written.
"""

from __future__ import annotations

import functools
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .messages import Response, Stream

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_CLOSE = b"Connection: close\r\n"
_BODILESS = frozenset({204, 304})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


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
    return b"%b%b%b%b\r\n" % (
        _status_line(stream.status),
        date,
        header_lines(stream.headers),
        _CLOSE,
    )


def header_lines(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Header fields as lines. Raises ValueError for one that HTTP does not allow."""
    for name, value in pairs:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a header field: {name!r}")
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode("latin-1")


def date_line(now: float) -> bytes:
    """A `Date` line, not made with strftime because that follows the locale."""
    t = time.gmtime(now)
    return (
        f"Date: {_DAYS[t.tm_wday]}, {t.tm_mday:02d} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04d} "
        f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} GMT\r\n"
    ).encode("ascii")


@functools.cache
def _status_line(status: int) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    return f"HTTP/1.1 {status} {reason}\r\n".encode("ascii")


@functools.lru_cache(maxsize=64)
def _content_type(value: str) -> bytes:
    return header_lines((("Content-Type", value),))
