"""Plain functions as agents: a thread of their own, and a Turn whose calls wait for their answers.

A plain function would block the event loop. In a thread it can take its time; what it asks of the
turn is done on the loop, one call at a time. A thread cannot be killed: a cancel makes the present
call, or the next one, raise; an agent that makes none any more is abandoned by the turn's grace.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from ..errors import TurnOver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .turn import LiveTurn


class _BlockingTurn:
    """A Turn for an agent in a thread of its own: the same calls, each waits for its answer."""

    def __init__(self, turn: LiveTurn, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._loop = loop
        self._stopped = False
        self._waiting: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._turn, name)
        if name.startswith("_") or not asyncio.iscoroutinefunction(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            work = self._guarded(attribute(*args, **kwargs))
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()

        return call

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._stopped:
            work.close()
            raise TurnOver(f"run {self._turn.run_id} was canceled")
        self._waiting = asyncio.ensure_future(work)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            raise TurnOver(f"run {self._turn.run_id} was canceled") from None
        finally:
            self._waiting = None

    def stop(self) -> None:
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()


async def run_blocking(run: Callable[[Any], Any], turn: LiveTurn) -> None:
    """Run a plain function as the agent; a cancel makes its next call, or the present one, raise.

    A thread cannot be killed: one that makes no call any more is abandoned by the turn's grace.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    blocking = _BlockingTurn(turn, loop)

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(RuntimeError(repr(error)) if _is_exit(error) else error)

    def work() -> None:
        error: BaseException | None = None
        try:
            run(blocking)
        except BaseException as caught:  # noqa: BLE001 - handed to the turn task, which reports it
            error = caught
        try:
            loop.call_soon_threadsafe(settle, error)
        except RuntimeError:
            pass  # the loop is closed, and with it the turn

    threading.Thread(target=work, name=f"agent-{turn.run_id}", daemon=True).start()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        blocking.stop()
        await asyncio.wait([done])
        done.exception()
        raise


def _is_exit(error: BaseException) -> bool:
    return not isinstance(error, Exception)
