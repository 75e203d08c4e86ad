"""The event loop of the tests."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import unittest
from typing import Any


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop that unittest cannot put into debug mode, which notes the call stack of every callback
    and future: a third of the time of all tests. Its check is kept: a callback that is scheduled
    from another thread raises RuntimeError. `python -X dev -m pytest` brings debug mode back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs_in: int | None = None

    def set_debug(self, enabled: bool) -> None:
        wanted = sys.flags.dev_mode or bool(os.environ.get("PYTHONASYNCIODEBUG"))
        super().set_debug(enabled and wanted)

    def run_forever(self) -> None:
        self._runs_in = threading.get_ident()
        try:
            super().run_forever()
        finally:
            self._runs_in = None

    def call_soon(self, *arguments: Any, **context: Any) -> asyncio.Handle:  # type: ignore[override]
        self._check_caller()
        return super().call_soon(*arguments, **context)

    def call_at(  # type: ignore[override]
        self, *arguments: Any, **context: Any
    ) -> asyncio.TimerHandle:
        self._check_caller()
        return super().call_at(*arguments, **context)

    def _check_caller(self) -> None:
        if self._runs_in is not None and self._runs_in != threading.get_ident():
            raise RuntimeError("scheduled from another thread: use call_soon_threadsafe")


class _QuickLoops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return QuickLoop()


def use_quick_loops() -> None:
    """Give every test a QuickLoop."""
    if sys.version_info >= (3, 13):
        unittest.IsolatedAsyncioTestCase.loop_factory = QuickLoop
    else:
        asyncio.set_event_loop_policy(_QuickLoops())
