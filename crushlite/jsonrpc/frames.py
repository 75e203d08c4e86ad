"""Where a message begins and ends in a stream of bytes: one per line (ACP, MCP), or behind
Content-Length headers (language servers).

A decoder is fed with whatever has arrived and gives frames. It takes linear time and keeps at most
one frame of the allowed size. What is too large is skipped to its end; only its first and last
bytes are kept, in which the id of the message may be found. What is no message is `Noise`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

KEPT = 4096  # bytes of each end of a frame that is skipped
# At the end of a line: a text without a line break may stand before it.
_LENGTH = re.compile(rb"content-length[ \t]*:[ \t]*(\d{1,12})\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    body: bytes


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A frame that was skipped."""

    size: int
    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Noise:
    """Bytes that are no part of a message, such as a line of a log."""

    text: bytes


class FrameDecoder(Protocol):
    def feed(self, data: bytes) -> Iterator[Frame | TooLarge | Noise]:
        """What has become complete with these bytes. Must be iterated to its end."""


class Framing(Protocol):
    def decoder(self, most: int) -> FrameDecoder:
        """For frames of at most `most` bytes."""

    def pack(self, body: bytes) -> bytes:
        """A message, which holds no line break, as it is written."""


class _Body:
    """A frame that is arriving in pieces, of which no more than `most` bytes are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()  # all of it; once it is too large, its beginning
        self._tail = b""  # once it is too large
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= self._most:
            self._kept += piece
            return
        if not self._tail:
            self._tail = bytes(self._kept[-KEPT:])
            self._kept = (self._kept[:KEPT] + piece[:KEPT])[:KEPT]
        self._tail = (self._tail + piece)[-KEPT:]

    def take(self) -> Frame | TooLarge:
        """What has arrived; the next piece begins a new frame."""
        body, size, tail = bytes(self._kept), self.size, self._tail
        self._kept, self._tail, self.size = bytearray(), b"", 0
        return TooLarge(size, body, tail) if tail else Frame(body)


class LineFraming:
    """One message per line. Only a line feed ends a line: other separators occur inside texts."""

    def decoder(self, most: int) -> FrameDecoder:
        return _LineDecoder(most)

    def pack(self, body: bytes) -> bytes:
        return body + b"\n"


class _LineDecoder:
    def __init__(self, most: int) -> None:
        self._body = _Body(most)

    def feed(self, data: bytes) -> Iterator[Frame | TooLarge | Noise]:
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            self._body.add(data[at:end])
            at = end + 1
            frame = self._body.take()
            if isinstance(frame, TooLarge) or frame.body.strip():
                yield frame
        if at < len(data):
            self._body.add(data[at:])


class HeaderFraming:
    """A message behind headers, one of which is its length, and an empty line."""

    def decoder(self, most: int) -> FrameDecoder:
        return _HeaderDecoder(most)

    def pack(self, body: bytes) -> bytes:
        return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class _HeaderDecoder:
    """Reads the headers line by line, so that a line of a log before them is noise and no harm."""

    def __init__(self, most: int) -> None:
        self._body = _Body(most)
        self._lines = _HeaderLines()
        self._length: int | None = None  # as the headers so far say
        self._missing = 0  # bytes of the body; 0: in the headers

    def feed(self, data: bytes) -> Iterator[Frame | TooLarge | Noise]:
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                self._body.add(piece)
                self._missing -= len(piece)
                at += len(piece)
                if not self._missing:
                    yield self._body.take()
                continue
            line, at = self._lines.next(data, at)
            if line is not None and (noise := self._header(line)):
                yield noise

    def _header(self, line: bytes) -> Noise | None:
        """Take one line of the headers; the empty one begins the body."""
        if not line.strip():
            length, self._length = self._length, None
            self._missing = length or 0
            return None
        if found := _LENGTH.search(line):
            self._length = int(found[1])
        elif self._length is None and not line.lower().startswith(b"content-type"):
            return Noise(line)  # a line of a log; behind the length it is one more header
        return None


class _HeaderLines:
    """Lines of bounded length: the rest of a longer one is dropped."""

    def __init__(self) -> None:
        self._begun = b""

    def next(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """The line that ends in `data` at or after `at`, if one does, and where to go on."""
        end = data.find(b"\n", at)
        if end < 0:
            self._begun = (self._begun + data[at : at + KEPT])[:KEPT]
            return None, len(data)
        line, self._begun = (self._begun + data[at : min(end, at + KEPT)])[:KEPT], b""
        return line, end + 1


LINES: Framing = LineFraming()
HEADERS: Framing = HeaderFraming()
