"""The standard streams of this process, as what a peer reads from and writes to.

By threads, because the streams may be anything (pipes, files, a terminal), and because making them
non-blocking would do so for every process that shares them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ = 64 * 1024
_AHEAD = 16  # pieces that are read before somebody takes them


class StandardInput:
    """Reads a descriptor in a thread of its own, which ends with the process if it waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._ended = False
        threading.Thread(target=self._run, name="standard input", daemon=True).start()

    async def read(self, n: int, /) -> bytes:
        """The next bytes, `n` being ignored: at most 64 KiB. Empty at the end."""
        if self._ended:
            return b""
        piece = await self._pieces.get()
        self._room.release()
        self._ended = not piece
        return piece

    def end(self) -> None:
        """Make the reader see the end of the stream."""
        self._pieces.put_nowait(b"")

    def _run(self) -> None:
        piece = b"-"
        while piece:
            self._room.acquire()
            try:
                piece = os.read(self._descriptor, _READ)
            except OSError:
                piece = b""
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


class StandardOutput:
    """Writes to a descriptor in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pieces: list[bytes] = []
        self._changed = threading.Condition()
        self._drained: list[Future[None]] = []
        self._failed: OSError | None = None
        self._closed = False
        threading.Thread(target=self._run, name="standard output", daemon=True).start()

    def write(self, data: bytes, /) -> None:
        """Raises OSError if an earlier write has failed."""
        with self._changed:
            if self._failed is not None:
                raise self._failed
            self._pieces.append(data)
            self._changed.notify()

    async def drain(self) -> None:
        """Return when everything is written. Raises OSError."""
        done: Future[None] = Future()
        with self._changed:
            self._drained.append(done)
            self._changed.notify()
        await asyncio.wrap_future(done)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            pieces, waiting = work
            try:
                for piece in pieces:
                    _write_all(self._descriptor, piece)
            except OSError as error:
                self._failed = error
            for done in waiting:
                if not done.set_running_or_notify_cancel():
                    continue
                if self._failed is not None:
                    done.set_exception(self._failed)
                else:
                    done.set_result(None)

    def _next(self) -> tuple[list[bytes], list[Future[None]]] | None:
        with self._changed:
            while not self._pieces and not self._drained:
                if self._closed:
                    return None
                self._changed.wait()
            work = self._pieces, self._drained
            self._pieces, self._drained = [], []
            return work


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def standard_streams() -> Iterator[tuple[StandardInput, StandardOutput]]:
    """The standard streams. From here on whatever else is written to standard output goes to
    standard error: an editor takes every line for a message."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield StandardInput(0), StandardOutput(own)
    finally:
        os.dup2(own, 1)
