"""A daemon in a process of its own, which can be killed and started again at the same address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from crushlite.fake_model import FakeModel, obedient
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.crush import Tui, configuration
from tests.support.places import ROOT

__all__ = ["ProcessCase"]


class ProcessCase(BoundedTestCase):
    """`self.url` is where the daemon listens: with `tcp`, the port of its first start."""

    tcp = False

    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=obedient))
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-process-"))
        self.root = Path(folder).resolve()
        self.project = self.root / "project"
        self.project.mkdir()
        self.socket = self.root / "daemon.sock"
        self.url = "tcp://127.0.0.1:0" if self.tcp else f"unix://{self.socket}"
        home = self.root / "home"
        file = home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(configuration(self.model)))
        self.env = [f"HOME={home}", f"PATH={os.environ['PATH']}", f"PWD={self.project}"]

    async def start(self) -> asyncio.subprocess.Process:
        """Start the daemon, and wait for the line that says where it serves."""
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "serve", "--host", self.url, "--auth", "none"),
            *("--agent", "auto", "--log-level", "error"),
            cwd=ROOT,
            env=dict(pair.split("=", 1) for pair in self.env),
            stdout=asyncio.subprocess.PIPE,
        )
        self.addAsyncCleanup(self.stop, daemon)
        assert daemon.stdout is not None
        async with asyncio.timeout(LIMIT / 2):
            self.assertIn(b"is serving", await daemon.stdout.readline())
            self.url = (await daemon.stdout.readline()).decode().split()[0]
        return daemon

    async def stop(
        self, daemon: asyncio.subprocess.Process, how: signal.Signals = signal.SIGTERM
    ) -> int:
        """Send a signal, unless the process has ended, and return its exit code."""
        if daemon.returncode is None:
            daemon.send_signal(how)
        async with asyncio.timeout(LIMIT / 2):
            await daemon.communicate()
        assert daemon.returncode is not None
        return daemon.returncode

    async def tui(self) -> Tui:
        """A TUI that has started and reconnects when the daemon is back."""
        tui = Tui(self.url, self.project, self.env)
        self.addAsyncCleanup(tui.close)
        await tui.start()
        tui.follow()
        return tui
