"""Threads for calls that may hang in the file system of a project."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import BadRequest
from ..threads import DaemonThreads

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")

LOST = 16  # threads that hang and are replaced by others


class FileThreads(DaemonThreads):
    """A pool in which a thread that hangs is replaced by another one until it comes back."""

    _lost = 0  # threads that hang in a call that was given up

    async def run(self, seconds: float, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread. Raises BadRequest if it has not returned after `seconds`:
        its thread is then given up and another one takes its place."""
        call = _FileCall(functools.partial(function, *args), self._lock, self._found)
        self.start(call.perform)
        try:
            async with asyncio.timeout(seconds):
                return await call.future
        except TimeoutError:
            if not call.future.cancelled():
                return call.future.result()  # just in time, or the function's own error
            self._give_up(call)
            raise BadRequest(
                f"the file system did not answer within {seconds:g} seconds: try another path"
            ) from None

    def _give_up(self, call: _FileCall[Any]) -> None:
        """Replace the thread of a call that runs and is not waited for any more."""
        with self._lock:
            if not call.running or self._lost >= LOST:
                return
            call.given_up = True
            self._lost += 1
            self._most += 1
            is_needed = bool(self._calls) and self._is_thread_needed()
        if is_needed:
            self._add_thread()

    def _found(self) -> None:
        self._lost -= 1
        self._most -= 1


class _FileCall(Generic[T]):
    """A call whose result a task of this loop waits for. If that is cancelled before a thread has
    come to the call, it is not made. `found` is called, under the lock, when the thread of a call
    that was given up is back."""

    def __init__(
        self, function: Callable[[], T], lock: threading.Lock, found: Callable[[], None]
    ) -> None:
        self._function = function
        self._lock = lock
        self._found = found
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()
        self.running = False  # guarded by the lock, as is the next
        self.given_up = False

    def perform(self) -> None:
        """Make the call, in a thread of the pool, and have the future resolved in its loop."""
        with self._lock:
            if self.future.cancelled():
                return
            self.running = True
        try:
            resolve = functools.partial(self._resolve, self._function())
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            resolve = functools.partial(self._fail, error)
        with self._lock:
            self.running = False
            if self.given_up:
                self._found()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(resolve)

    def _resolve(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)
