"""Server-Sent Events from the reading side, as the HTML standard defines them.

A parser is fed bytes as they come and returns the events they complete. Knows nothing of sockets
and never decides to reconnect; `last_id` is what a reconnecting reader would send.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Bytes. What a server takes in one body of 32 MiB comes back as one line of JSON in ASCII, in which
# two bytes of UTF-8 are six. A stream that cannot be read on is lost for good: leave room.
LINE_LIMIT = 128 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_END = re.compile(rb"\r\n|\r|\n")


class SSETooLong(ValueError):
    """A line passed the limit; the stream cannot be read on."""


@dataclass(frozen=True, slots=True)
class SSEEvent:
    data: str
    event: str = "message"
    id: str | None = None  # the last id seen when the event was dispatched


class SSEParser:
    """One stream's parser. Not to be fed further after it raised."""

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

    def feed(self, data: bytes) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        buffer = self._buffer
        buffer += data
        if not self._skip_bom():
            return events
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
            # A CR at the very end may be half of a CR LF; the line is over in either case, and
            # waiting for the next byte would delay the event by a whole heartbeat.
            self._after_cr = match.group() == b"\r" and start == len(buffer)
        del buffer[:start]
        self._searched = len(buffer)
        if len(buffer) > self._line_limit:
            raise SSETooLong(f"a line of the stream is over {self._line_limit} bytes")
        return events

    def _skip_bom(self) -> bool:
        """Drop a byte order mark at the very start; False while it is not yet decidable."""
        if self._at_start:
            if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
                return False
            self._at_start = False
            if self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
        return True

    def _line(self, line: bytes) -> SSEEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # a comment has the empty name; `retry` and unknown fields are not for us

    def _dispatch(self) -> SSEEvent | None:
        """The empty line: an id counts even without data, the rest does not."""
        self.last_id = self._id
        data, event = self._data, self._event
        self._data, self._event = [], ""
        if not data:
            return None
        return SSEEvent("\n".join(data), event or "message", self.last_id)
