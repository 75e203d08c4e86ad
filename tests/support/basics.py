"""What every kind of test here needs: an end, whatever happens; and a link that leads nowhere."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import sys
import unittest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

LIMIT = 120.0  # seconds: far above what anything takes, so that only a hang reaches it


def limited_test(method: Callable[[Any], Coroutine[Any, Any, None]]) -> Any:
    @functools.wraps(method)
    async def limited(self: Any) -> None:
        async with asyncio.timeout(LIMIT):
            await method(self)

    limited.limited = True  # type: ignore[attr-defined]
    return limited


class BoundedTestCase(unittest.IsolatedAsyncioTestCase):
    """Every test ends within LIMIT or fails by name."""

    def __init_subclass__(cls) -> None:
        for name in dir(cls):  # its own tests, and those of classes that are no test cases
            if name.startswith("test"):
                method = getattr(cls, name)
                if inspect.iscoroutinefunction(method) and not hasattr(method, "limited"):
                    setattr(cls, name, limited_test(method))

    def setUp(self) -> None:
        # Failures are provoked on purpose; what must be logged is asserted with assertLogs.
        logging.getLogger("crushlite").addHandler(logging.NullHandler())


def chain_of_links(path: Path) -> None:
    """Make a link to a link, and so on, more of them than Python can resolve."""
    chain = path.with_name("chain")
    chain.mkdir()
    for number in range(2 * sys.getrecursionlimit()):
        os.symlink(str(number + 1), chain / str(number))
    os.symlink("chain/0", path)
