"""Reading large request bodies in a thread, so that no other client waits for them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from .context import read

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 2  # threads: more would only take the interpreter from each other


class LargeBodies:
    """Reads so many bodies at once; others wait. The threads are daemons of their own, not of a
    pool: neither other work nor the end of the process waits for them."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    async def read(self, cls: type, body: bytes) -> Any:
        """What `context.read` returns or raises."""
        async with self._free:
            return await _in_thread(lambda: read(cls, body))


async def _in_thread(work: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if done.done():
            return  # the request was cancelled
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as caught:  # noqa: BLE001 - raised where it is awaited
            error = caught
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed

    threading.Thread(target=run, name="body", daemon=True).start()
    return await done
