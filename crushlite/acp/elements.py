"""The messages of a session one by one, as the bytes of the answer come: for transcripts of any
length."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

from ..client.wire import ANSWER, readable
from ..errors import CrushliteError
from ..protocol.codec import decode
from ..protocol.messages import Message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from ..client import RemoteWorkspace

_AHEAD = 64 << 20  # bytes of a long answer
ELEMENT_CHARS = 64 << 20  # the longest element
_ATTEMPT = 64 * 1024  # characters that must have come before an element is tried again
_BETWEEN = re.compile(r"[\s,\[]*")


async def each_message(
    workspace: RemoteWorkspace, session_id: str
) -> AsyncGenerator[Message, None]:
    """The messages of a session. At most _AHEAD bytes are read before they are needed: the daemon
    cuts off a client that takes nothing for long."""
    target = workspace.at("sessions", session_id, "messages")
    elements = ElementReader()
    ahead: list[bytes] = []
    size = 0
    async with workspace.wire.stream("GET", target, idle_timeout=ANSWER) as pieces:
        async for piece in pieces:
            ahead.append(piece)
            size += len(piece)
            if size >= _AHEAD:
                for each in ahead:
                    for item in elements.feed(each):
                        yield _message(item, target)
                ahead, size = [], 0
    for item in itertools.chain(*map(elements.feed, ahead), elements.end()):
        yield _message(item, target)


def _message(item: object, target: str) -> Message:
    with readable("GET", target):
        return decode(Message, item)


class ElementReader:
    """Takes the bytes of an array of objects. It keeps what belongs to no whole element yet, and
    tries to read that again when there is twice as much: so the work is linear."""

    def __init__(self, limit: int = ELEMENT_CHARS) -> None:
        self._limit = limit
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._read = json.JSONDecoder().raw_decode
        self._pieces: list[str] = []
        self._held = 0  # characters in the pieces
        self._wanted = 0  # characters that must be there before the next attempt

    def feed(self, data: bytes) -> Iterator[Any]:
        """The elements that are whole with these bytes. Raises CrushliteError."""
        try:
            piece = self._decode.decode(data)
        except UnicodeDecodeError:
            raise CrushliteError("the answer is unreadable: not UTF-8") from None
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= self._wanted:
            yield from self._whole()
            if self._held > self._limit:
                raise CrushliteError(f"an element is longer than {self._limit} characters")
            self._wanted = min(max(2 * self._held, _ATTEMPT), self._limit + 1)

    def end(self) -> Iterator[Any]:
        """The last elements. Raises CrushliteError if the array is not complete."""
        yield from self._whole()
        if "".join(self._pieces).strip() != "]":
            raise CrushliteError("the answer is unreadable: it is no complete array of objects")

    def _whole(self) -> Iterator[Any]:
        text = "".join(self._pieces)
        start = _next(text, 0)
        while text.startswith("{", start):
            try:
                element, end = self._read(text, start)
            except (ValueError, RecursionError):  # not whole yet, or never
                break
            yield element
            start = _next(text, end)
        self._pieces = [text[start:]]
        self._held = len(text) - start


def _next(text: str, start: int) -> int:
    """Where the next element begins, or the end of the array."""
    found = _BETWEEN.match(text, start)
    return found.end() if found is not None else start
