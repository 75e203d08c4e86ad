"""Images for tests."""

from __future__ import annotations

import struct
import zlib


def png(width: int = 2, height: int = 3, padding: int = 0) -> bytes:
    """A PNG of this size, with so many bytes of a comment."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        sum_ = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", sum_)

    rows = zlib.compress((b"\0" + b"\1" * width) * min(height, 100))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"tEXt", b"x" * padding)
    return b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IEND", b"")
