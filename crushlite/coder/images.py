"""Images as models take them: which kind a file is, and whether it is whole.

A provider that refuses an image refuses every later request too, because the image stays in the
conversation. So files that are cut off, damaged or larger than providers accept are found here. The
pixels themselves are not decoded.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PIXELS = 8000  # of either side

Size = tuple[int, int]
_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments of a JPEG that hold its size


def image_type(data: bytes) -> str:
    """The type of an image, by its first bytes; empty if it is none that models take."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


def image_problem(data: bytes) -> str:
    """Why an image of a known type cannot be shown to a model; empty if it can."""
    try:
        width, height = _SIZES[image_type(data)](data)
    except (ValueError, IndexError, struct.error):
        return "it is damaged, or not complete"
    if not 0 < width <= MOST_PIXELS or not 0 < height <= MOST_PIXELS:
        return f"it has {width} x {height} pixels, and {MOST_PIXELS} are the most for a side"
    return ""


def _png(data: bytes) -> Size:
    """Raises ValueError unless all chunks are whole and the last one is there."""
    size, at = (0, 0), len(_PNG)
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 4 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(body) != checksum:
            raise ValueError("checksum")
        if kind == b"IHDR":
            size = struct.unpack_from(">II", body, 4)
        if kind == b"IEND":
            return size[0], size[1]
        at += length + 12


def _jpeg(data: bytes) -> Size:
    if b"\xff\xd9" not in data[-64:]:
        raise ValueError("end")
    at = 2
    while True:
        marker, kind, length = struct.unpack_from(">BBH", data, at)
        if marker != 0xFF:
            raise ValueError("marker")
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 1 if kind == 0xFF else 2 + length  # a marker may be filled up


def _gif(data: bytes) -> Size:
    if b"\x3b" not in data[-64:]:
        raise ValueError("end")
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _webp(data: bytes) -> Size:
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise ValueError("end")
    kind = data[12:16]
    if kind == b"VP8X":
        return _three(data, 24) + 1, _three(data, 27) + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind != b"VP8 ":
        raise ValueError("kind")
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _three(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


_SIZES: dict[str, Callable[[bytes], Size]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
