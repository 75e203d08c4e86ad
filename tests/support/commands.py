"""What the tests of commands share: starting them, waiting for output, finding what is left."""

from __future__ import annotations

import asyncio
import os
import select
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.commands.process import Command, start
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.agent.base import Exit
    from crushlite.clock import Clock

PATH = os.environ.get("PATH", os.defpath)
LONG = "sleep 600"


class ProcessTestCase(BoundedTestCase):
    """Every test has a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-process-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.clock: Clock = SystemClock()

    async def start(self, command: str | Sequence[str], **options: Any) -> Command:
        settings = {"cwd": self.folder, "env": {"PATH": PATH}, "clock": self.clock, **options}
        started = await start(command, **settings)
        self.addCleanup(started.kill)
        return started

    async def run_it(self, command: str | Sequence[str], **options: Any) -> tuple[Exit, str]:
        started = await self.start(command, **options)
        return await started.wait(), started.output.text()


class Heard:
    """An `on_output` that can be waited for."""

    def __init__(self) -> None:
        self.data = b""
        self._changed = asyncio.Event()

    def __call__(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    async def until(self, wanted: bytes) -> None:
        while wanted not in self.data:
            self._changed.clear()
            await self._changed.wait()

    async def pids(self, count: int) -> list[int]:
        """The numbers in the first lines of the output."""
        while self.data.count(b"\n") < count:
            self._changed.clear()
            await self._changed.wait()
        return [int(line) for line in self.data.split(b"\n")[:count]]


def dead(pidfds: list[int], *, within: float = 0.0) -> bool:
    """Whether the processes of these pidfds have ended, at most `within` seconds from now. Closes
    the pidfds."""
    poller = select.poll()
    ended = []
    for fd in pidfds:
        poller.register(fd, select.POLLIN)
        ended.append(bool(poller.poll(within * 1000)))
        poller.unregister(fd)
        os.close(fd)
    return all(ended)


def zombies() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has exited meanwhile
        if state == "Z" and int(parent) == os.getpid():
            found.append(path.parent.name)
    return found
