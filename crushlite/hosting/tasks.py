"""Background tasks: kept until they are done, because the event loop holds only weak references."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

log = logging.getLogger(__name__)

T = TypeVar("T")


class OwnedTasks(set[asyncio.Task[Any]]):
    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Cancel what is left. It is not waited for: an agent may ignore its cancellation."""
        for task in self:
            task.cancel()

    async def end(self, seconds: float) -> None:
        """Cancel what is left, wait for it this long, and log what is still there then."""
        self.cancel()
        if self:
            _, left = await asyncio.wait(self, timeout=seconds)
            for task in left:
                log.error("left behind: %r", task)


async def run_to_the_end(
    work: Awaitable[None], on_cancel: Callable[[], object] = lambda: None
) -> None:
    """Await something that goes on when the caller is cancelled: then `on_cancel` is called, and
    the cancellation is raised after it is done, instead of any error of its own."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved
        raise
