"""A parser of Server-Sent Events, as the HTML standard defines them.

It is fed bytes as they come and returns the events that they complete. Uses no sockets and does
not reconnect; `last_id` is what a reconnecting reader sends.
"""

from __future__ import annotations

import re

from ..records import dataclass

# Bytes. A request body of 32 MiB may come back as one line of ASCII JSON, three times as long (two
# bytes of UTF-8 become six). A longer line ends a stream for good, so there is room to spare.
LINE_LIMIT = 128 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_END = re.compile(rb"\r\n|\r|\n")


class SSETooLong(ValueError):
    """A line, or the data of an event, is longer than the limit; the stream cannot be read on."""


@dataclass(frozen=True, slots=True)
class SSEEvent:
    data: str
    event: str = "message"
    id: str | None = None  # the last one on the stream, up to this event


class SSEParser:
    """The parser of one stream. Not to be fed again after it raised. `line_limit` bounds the bytes
    of a line, and those of all lines with data of an event."""

    def __init__(self, *, line_limit: int = LINE_LIMIT) -> None:
        self.last_id: str | None = None
        self._line_limit = line_limit
        self._buffer = bytearray()
        self._searched = 0  # how much of the buffer holds no line end
        self._after_cr = False  # the next LF belongs to a CR that ended the last line
        self._at_start = True
        self._id: str | None = None  # becomes `last_id` when the block ends
        self._event = ""
        self._data: list[str] = []
        self._size = 0  # of the lines that `_data` is from

    def feed(self, data: bytes) -> list[SSEEvent]:
        """The events that end in these bytes. Raises SSETooLong."""
        events: list[SSEEvent] = []
        buffer = self._buffer
        buffer += data
        start = 0
        if self._after_cr and buffer:
            start = 1 if buffer[0] == 0x0A else 0
            self._after_cr = False
        position = max(self._searched, start)
        while (match := _END.search(buffer, position)) is not None:
            if match.start() - start > self._line_limit:
                raise SSETooLong(f"a line of the stream is over {self._line_limit} bytes")
            event = self._line(bytes(memoryview(buffer)[start : match.start()]))
            if event is not None:
                events.append(event)
            start = position = match.end()
            # A CR at the very end may be half of a CR LF. The line has ended in either case, and to
            # wait for the next byte could mean to wait for the next keep-alive comment.
            self._after_cr = match.group() == b"\r" and start == len(buffer)
        del buffer[:start]
        self._searched = len(buffer)
        if len(buffer) > self._line_limit:
            raise SSETooLong(f"a line of the stream is over {self._line_limit} bytes")
        return events

    def _line(self, line: bytes) -> SSEEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._size += len(line)
            if self._size > self._line_limit:
                raise SSETooLong(f"an event of the stream is over {self._line_limit} bytes")
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # ignored: comments (whose name is empty), `retry` and unknown fields

    def _dispatch(self) -> SSEEvent | None:
        """At an empty line, return the event; None if it had no data. Its id counts even then."""
        self.last_id = self._id
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        if not data:
            return None
        return SSEEvent("\n".join(data), event or "message", self.last_id)
