"""Whether the log of a killed process has lost commits.

SQLite reads a log up to the first frame (a page with its header) that does not fit, and takes the
rest for never written. After a crash that is right; of a damaged log it drops commits without a
word. Two things show that: the index of the log (`-shm`), which outlives a killed process and says
how many frames were committed; and, without a usable index, more of the same log behind the first
commit that cannot be read, as a killed process leaves at most one such commit, its last.

A power cut may tear both files in ways that prove nothing, so this is only for a log that was
written in the present boot of the machine, or in an unknown one. Both formats are documented at
sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_LOG_HEADER = 32  # bytes
_FRAME_HEADER = 24
_SMALLEST_PAGE = 512
_INDEX_HEADER = 48  # there are two copies of it


def lost_commits(log: Path, before: bytes, after: bytes) -> str | None:
    """What is wrong with the log, or None. `before` is the content of its index as the process left
    it, `after` as SQLite has written it on reading the log just now."""
    found, _ = _frames(after) or (0, 0)
    left = _frames(before)
    if left is None:
        goes_on = _goes_on(log, found)
        return f"{log.name} cannot be read behind page {found}, but goes on" if goes_on else None
    committed, copied = left
    if copied == committed or found >= committed:
        return None
    return f"{log.name} held {committed} pages that were committed, {found} can be read"


def _frames(index: bytes) -> tuple[int, int] | None:
    """How many frames are committed according to an index, and how many of them are copied into the
    database. None if the index is cut off or damaged, or its writer was killed in the middle."""
    header, copy = index[:_INDEX_HEADER], index[_INDEX_HEADER : 2 * _INDEX_HEADER]
    is_set_up = header[12:13] == b"\1"
    if not is_set_up or header != copy or len(index) < 2 * _INDEX_HEADER + 4:
        return None
    (committed,) = struct.unpack_from("=I", index, 16)  # in the byte order of the machine
    (copied,) = struct.unpack_from("=I", index, 2 * _INDEX_HEADER)
    return committed, copied


def _goes_on(log: Path, frames: int) -> bool:
    """Whether the log holds more than one commit behind its first `frames` frames."""
    if not log.exists() or log.stat().st_size < _LOG_HEADER + _FRAME_HEADER + _SMALLEST_PAGE:
        return False
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER)
        if header[:4] not in _MAGIC:
            return True
        page, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        file.seek(frames * (_FRAME_HEADER + page), 1)
        committed = False
        while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER:
            if frame[8:16] == salts:  # else it was left over when the log was begun anew
                if committed:
                    return True
                committed = frame[4:8] != bytes(4)
            file.seek(page, 1)
    return False
