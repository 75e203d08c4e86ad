"""Background tasks: kept until they are done, because the event loop holds only weak references."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

log = logging.getLogger(__name__)

T = TypeVar("T")


class OwnedTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def idle(self) -> bool:
        return not self._tasks

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel what is left. It is not waited for: an agent may ignore its cancellation."""
        for task in self._tasks:
            task.cancel()

    async def end(self, seconds: float) -> None:
        """Cancel what is left, wait for it this long, and log what is still there then."""
        self.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds)
            for task in left:
                log.error("left behind: %r", task)


async def run_to_the_end(work: Awaitable[None]) -> None:
    """Await something that goes on when the caller is cancelled; then the cancellation is raised
    after it is done, instead of any error of its own."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved
        raise
