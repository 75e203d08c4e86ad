"""Whether a log that a dead process left behind still holds all its commits.

SQLite reads a log up to the first frame that does not fit and takes the rest for never written.
After a crash that is right. In a log that was damaged or cut short it drops commits without a word.
Two things tell the difference:

- the index of the log (`-shm`) is memory shared through a file. It outlives a killed process, and
  says how many frames were committed;
- without the index: frames of the same log behind the one that does not fit. A killed process
  leaves at most one frame that does not fit, its last.

A power cut may tear both files in ways that prove nothing, so this is for a log that was written in
the present boot of the machine, or nobody knows when. Formats: sqlite.org/walformat.html
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_INDEX = struct.Struct("=3I2BH2I2I2I2I")  # in the byte order of the machine
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">4I8x")
_MAGIC = (0x377F0682, 0x377F0683)  # the last bit: checksums are over big-endian words


@dataclass(frozen=True, slots=True)
class LogIndex:
    """The head of a `-shm` file."""

    frames: int  # committed
    copied: int  # of them in the database by now

    @classmethod
    def parse(cls, data: bytes) -> LogIndex | None:
        """None if it says nothing: cut off, damaged, or its writer was killed in the middle."""
        size = _INDEX.size
        if len(data) < 2 * size + 4 or data[:size] != data[size : 2 * size]:
            return None
        fields = _INDEX.unpack_from(data)
        if not fields[3] or _checksum(data[: size - 8], "=") != fields[-2:]:
            return None
        return cls(fields[6], struct.unpack_from("=I", data, 2 * size)[0])

    @property
    def needed(self) -> int:
        """How many frames the log must hold."""
        return self.frames if self.copied < self.frames else 0


def lost_commits(log: Path, before: LogIndex | None, found: LogIndex | None) -> str | None:
    """What is wrong with the log, if anything. `before` is its index as it was left, `found` the
    one that SQLite made when it read the log just now."""
    frames = 0 if found is None else found.frames
    if before is not None:
        if frames >= before.needed:
            return None
        return f"{log.name} held {before.needed} pages that were committed, {frames} can be read"
    if _breaks_off(log, frames):
        return f"{log.name} cannot be read behind page {frames}, but goes on"
    return None


def _breaks_off(log: Path, frames: int) -> bool:
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        head = os.pread(descriptor, _HEADER.size, 0)
        size = os.fstat(descriptor).st_size
        if len(head) < _HEADER.size or size < _HEADER.size + _FRAME.size + 512:
            return False  # not one whole frame of the smallest page: nothing was committed
        magic, _, page, _, *salts, sum1, sum2 = _HEADER.unpack(head)
        order = ">" if magic & 1 else "<"
        if magic not in _MAGIC or _checksum(head[:-8], order) != (sum1, sum2):
            return True
        return _goes_on(_frames(descriptor, page, frames), tuple(salts))
    finally:
        os.close(descriptor)


def _frames(descriptor: int, page: int, first: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """From a frame on: whether it ends a commit, and which log it belongs to."""
    step = _FRAME.size + page
    place = _HEADER.size + first * step
    while len(data := os.pread(descriptor, _FRAME.size, place)) == _FRAME.size:
        _, commit, *salts = _FRAME.unpack(data)
        yield commit, (salts[0], salts[1])
        place += step


def _goes_on(frames: Iterator[tuple[int, tuple[int, int]]], salts: tuple[int, ...]) -> bool:
    over = False
    for commit, own in frames:
        if own != salts:
            over = True  # left over from before the file was started anew
        elif over:
            return True
        else:
            over = bool(commit)
    return False


def _checksum(data: bytes, order: str) -> tuple[int, int]:
    first = second = 0
    for even, odd in struct.iter_unpack(f"{order}2I", data):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
