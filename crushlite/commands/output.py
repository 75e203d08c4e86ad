"""The output of a command, kept in bounded memory."""

from __future__ import annotations

import re

HALF = 512 * 1024  # bytes kept of either end of the output, as Codex does
SHOWN = 30_000  # bytes of output that a model gets to see, as in Crush
BINARY = 0.3  # output with a larger share of bytes that no text holds is binary

_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\b\f\x1b")) + b"\x7f"


class Output:
    """The first and the last 512 KiB of a stream of bytes."""

    def __init__(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HALF - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * HALF:  # not at every piece: each cut moves the whole tail
            del self._tail[:-HALF]

    @property
    def dropped(self) -> int:
        """How many bytes of the middle are not kept."""
        return self.total - len(self._head) - min(len(self._tail), HALF)

    def text(self, limit: int = SHOWN) -> str:
        """The output as text: all of it, or its two ends with about `limit` bytes together. Of
        binary output only the size is given."""
        head, tail = self._ends(limit)
        left_out = self.total - len(head) - len(tail)
        texts = [part.decode("utf-8", "replace") for part in (head, tail)]
        strange = sum(text.count("\ufffd") for text in texts)
        strange += sum(len(part) - len(part.translate(None, _CONTROL)) for part in (head, tail))
        if strange > BINARY * sum(map(len, texts)):
            return f"[binary output, {self.total} bytes]"
        return f"\n... {left_out} bytes left out ...\n".join(texts) if left_out else "".join(texts)

    def _ends(self, limit: int) -> tuple[bytes, bytes]:
        """Everything and nothing, if that is at most `limit` bytes; else the two ends, without a
        character of UTF-8 that is cut in two."""
        head, tail = bytes(self._head), bytes(self._tail[-HALF:])
        if not self.dropped:
            head = tail = head + tail
            if len(head) <= limit:
                return head, b""
        half = limit // 2
        head, tail = head[:half], tail[max(len(tail) - half, 0) :]
        head = re.sub(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z", _if_complete, head)
        return head, re.sub(rb"\A[\x80-\xbf]{1,3}", b"", tail)


def _if_complete(found: re.Match[bytes]) -> bytes:
    """The matched character of UTF-8, or nothing if some of its bytes are missing."""
    piece = found[0]
    size = 4 if piece[0] >= 0xF0 else 3 if piece[0] >= 0xE0 else 2
    return piece if len(piece) >= size else b""
