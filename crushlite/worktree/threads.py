"""Threads for calls that may hang in the file system of a project."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import BadRequest
from ..threads import DaemonThreads

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")

LOST = 16  # threads that hang and are replaced by others


class FileThreads(DaemonThreads):
    """A pool in which a thread that hangs is replaced by another one until it comes back."""

    _lost = 0  # threads that hang in a call that was given up

    async def run(self, seconds: float, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises BadRequest if it has not returned after `seconds`:
        its thread is then given up and another one takes its place."""
        future = self.submit(function, *args)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not future.done() or future.cancelled():
                self._give_up(future)
                raise BadRequest(
                    f"the file system did not answer within {seconds:g} seconds: try another path"
                ) from None
            raise  # of the function itself

    def _give_up(self, future: Future[Any]) -> None:
        """Replace the thread of a call that runs and is not waited for any more."""
        with self._lock:
            if future.cancel() or future.done() or self._lost >= LOST:
                return
            self._lost += 1
            self._most += 1
            is_needed = bool(self._calls) and self._is_thread_needed()
        future.add_done_callback(self._found)
        if is_needed:
            self._add_thread()

    def _found(self, future: Future[Any]) -> None:
        with self._lock:
            self._lost -= 1
            self._most -= 1
