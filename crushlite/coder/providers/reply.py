"""The body of a provider's response, read as events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Literal

from ...clock import time_limit
from ...http.client import ClientError
from ...http.sse import SSEEvent, SSEParser, SSETooLong
from .base import ProviderError
from .failures import MESSAGE_LIMIT, malformed, page_text

if TYPE_CHECKING:
    from ...clock import Clock
    from ...http.client import StreamResponse

# The name of the one event of a body that is no event stream but a JSON document.
WHOLE = "whole"

# Bytes. A line of 4 MiB holds the longest file that a tool writes, as the arguments of one call.
LINE_LIMIT = 4 << 20
TOTAL_LIMIT = 64 << 20
SLICE = 4 * 1024  # parsed in one step of the event loop: at most 4,096 empty lines, in 4 ms
# An answer is given up after this time, whatever comes: comments that only keep it alive, too.
ANSWER_SECONDS = 3600.0
PAGE_LIMIT = 64 * 1024
# After the end of the answer only the usage can follow, and some servers never close.
_USAGE_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 64 * 1024

_BOM = b"\xef\xbb\xbf"


class Reply:
    """The events of a response, as an asynchronous iterator that raises ProviderError.

    A body that is one JSON document becomes a single event named WHOLE: some servers answer so
    whatever they were asked for. What a body is, is decided by its first byte, because declared
    content types are often wrong. `idle` bounds each silence, in seconds.
    """

    def __init__(self, response: StreamResponse, clock: Clock, idle: float) -> None:
        self._response = response
        self._clock = clock
        self._idle = idle
        self._parser = SSEParser(line_limit=LINE_LIMIT)
        self._events: deque[SSEEvent] = deque()
        self._total = 0
        self._unparsed = b""  # of the last chunk,
        self._at = 0  # from here on
        self._deadline = clock.time() + ANSWER_SECONDS
        self._kind: Literal["", "stream", "document", "page"] = ""  # empty until the first byte
        # All of a document or a page; of a stream only its beginning, up to the first event.
        self._kept = bytearray()
        self._has_events = False
        self._ended = False
        self._answer_complete = False

    def expect_end(self) -> None:
        """Call this when the answer is complete and only the usage can follow: it is not waited for
        long, and a failure from now on counts as the end of the body."""
        self._answer_complete = True
        self._idle = min(self._idle, _USAGE_SECONDS)

    async def drain(self) -> None:
        """Read to the end of the body if that is near, so that the connection can be used for the
        next request."""
        try:
            async with time_limit(self._clock, _DRAIN_SECONDS):
                left = _DRAIN_BYTES
                async for chunk in self._response:
                    left -= len(chunk)
                    if left < 0:
                        return
        except (ClientError, TimeoutError):
            pass  # the answer is complete; only the connection is lost

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> SSEEvent:
        parsed = False
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            if parsed or self._at < len(self._unparsed):
                # What a chunk holds may keep the loop busy for long, and the next one may be there
                # already: others run between slices.
                await asyncio.sleep(0)
            if self._at >= len(self._unparsed):
                await self._read()
            self._parse_slice()
            parsed = True
        return self._events.popleft()

    async def _read(self) -> None:
        """Wait for a piece of the body."""
        left = self._deadline - self._clock.time()
        if left <= 0:
            raise ProviderError(f"the provider's answer takes over {ANSWER_SECONDS:g} s")
        try:
            async with time_limit(self._clock, min(self._idle, left)):
                chunk = await anext(self._response, b"")
        except (ClientError, TimeoutError) as error:
            if not self._answer_complete:
                raise self._broken(error) from None
            chunk = b""
        self._total += len(chunk)
        if self._total > TOTAL_LIMIT:
            raise ProviderError(f"the provider's answer is over {TOTAL_LIMIT >> 20} MiB")
        self._unparsed, self._at = chunk, 0

    def _parse_slice(self) -> None:
        """Parse the next part of the chunk; an empty chunk is the end of the body."""
        piece = self._unparsed[self._at : self._at + SLICE]
        self._at += SLICE
        try:
            self._events.extend(self._parse(piece) if piece else self._end())
        except SSETooLong:
            limit = f"{LINE_LIMIT >> 20} MiB"
            raise ProviderError(f"a line of the provider's answer is over {limit}") from None

    def _broken(self, error: Exception) -> ProviderError:
        silent = f"the provider fell silent for {self._idle:g} s in mid-answer"
        what = silent if isinstance(error, TimeoutError) else f"the answer broke off: {error}"
        return ProviderError(what, retryable=True)

    def _parse(self, chunk: bytes) -> list[SSEEvent]:
        """The events that end in this piece of the body."""
        new = chunk
        if not self._kind:
            # Without the white space, of which there may be much: it means nothing there.
            self._kept = (self._kept + chunk).lstrip()
            self._kind = _kind(self._kept)
            new = bytes(self._kept)
        elif self._kind != "stream" or (not self._has_events and len(self._kept) < MESSAGE_LIMIT):
            self._kept += chunk
        if self._kind == "stream":
            events = self._parser.feed(new)
            self._has_events = self._has_events or bool(events)
            return events
        if self._kind == "page" and len(self._kept) > PAGE_LIMIT:
            raise self._page()
        if len(self._kept) > LINE_LIMIT:
            raise SSETooLong
        return []

    def _end(self) -> list[SSEEvent]:
        """The events that are left at the end of the body: an event of a stream counts without the
        empty line after it, too."""
        self._ended = True
        if self._kind == "page":
            raise self._page()
        if self._kind == "document":
            return [SSEEvent(self._kept.decode("utf-8-sig", "replace"), WHOLE)]
        events = [] if self._answer_complete else self._parser.feed(b"\n\n")
        if not events and not self._has_events:
            lines = self._kept.decode("utf-8", "replace").splitlines()
            words = " ".join(line for line in lines if not line.startswith(":"))
            if words.strip():
                raise malformed("no answer but this", words)
        return events

    def _page(self) -> ProviderError:
        text = page_text(self._kept.decode("utf-8", "replace"))
        return ProviderError(f"the provider sent a web page, not an answer: {text}")


def _kind(start: bytearray) -> Literal["", "stream", "document", "page"]:
    """What a body is, by its first byte that is not white space; empty while there is none."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return ""
    first = bytes(start.removeprefix(_BOM).lstrip()[:1])
    if not first:
        return ""
    if first in (b"{", b"["):
        return "document"
    return "page" if first == b"<" else "stream"
