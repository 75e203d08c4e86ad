"""A daemon whose agent is the quirky one, a program of its own that speaks ACP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.acp_agents.wing import AgentsWing
from crushlite.clock import SystemClock
from crushlite.commands.orphans import find_process
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.clock import Clock
    from crushlite.testing import Participant, Seen
    from crushlite.testing.fake_clock import FakeClock

QUIRKY = Path(__file__).with_name("quirky_agent.py")
SECRET = "s3cr3t-Value-0123456789"


def quirky(*switches: str) -> str:
    """The command that starts the quirky agent, as it is typed."""
    return shlex.join([sys.executable, "-S", "-E", str(QUIRKY), *switches])


def is_alive(pid: int) -> bool:
    found = find_process(pid)
    return found is not None and found.state not in "ZX"


class HostedTestCase(BoundedTestCase):
    """`self.folder` is for the files of the agent, and is removed in the end."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="cl-acp-")))
        self.log = self.folder / "log"
        self.state = self.folder / "state"

    async def host(self, *switches: str, clock: Clock | None = None) -> LocalDaemon:
        """A daemon with the quirky agent, which keeps a log and its sessions."""
        files = ("--log", str(self.log), "--state", str(self.state))
        make = AgentsWing().agent(f"acp:{quirky(*switches, *files)}", clock or SystemClock())
        return await self.enterAsyncContext(LocalDaemon(make))

    async def join(self, daemon: LocalDaemon) -> tuple[Participant, str]:
        """A client and a session."""
        env = [f"{key}={value}" for key, value in os.environ.items()]
        client = await daemon.join(env=[*env, f"QUIRKY_KEY={SECRET}"])
        return client, await client.session()

    async def ask(self, client: Participant, session: str, text: str, **fields: Any) -> Seen:
        """Send a prompt, and wait for the end of its run."""
        run_id = (await client.prompt(session, text, **fields)).json["run_id"]
        return await client.events.wait_for("run_complete", run_id=run_id)

    def received(self, method: str) -> list[dict[str, Any]]:
        """The params of what the agent got with this method."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        messages = [json.loads(line) for line in lines]
        return [each["params"] for each in messages if each.get("method") == method]

    async def deaf(self) -> int:
        """Wait until an agent with `--deaf` has begun to read its prompt; returns its pid. It is
        killed after the test: its daemon would wait for it, on a clock that stands still."""
        await until(lambda: bool(self.received("deaf")), "it has begun to read the prompt")
        pid = int(self.received("deaf")[0]["pid"])
        self.addCleanup(kill_quietly, pid)
        return pid


def kill_quietly(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def pass_time(clock: FakeClock, awaited: asyncio.Future[Any], seconds: float = 1.0) -> None:
    """Let the clock of the agent run, fast, until something has happened. What has to happen first
    happens in real time, in another process."""
    while not awaited.done():
        await clock.advance(seconds)
        await asyncio.wait([awaited], timeout=0.02)
