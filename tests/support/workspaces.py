"""What the tests of workspaces, claims and the daemon's life have in common."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import unittest
import uuid
from typing import TYPE_CHECKING, Any

from crushlite.claims import Graces
from crushlite.settings import Settings
from crushlite.testing import FakeClock, LocalDaemon, ScriptedAgent, Stores
from crushlite.threads import DaemonThreads
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from crushlite.claims import Claims
    from crushlite.store.callqueue import Executor
    from crushlite.testing import Answer, Participant

__all__ = [
    "PATIENCE",
    "SETTINGS",
    "ClosingAgent",
    "Openings",
    "WorkspaceTestCase",
    "another_owner",
    "assert_free",
    "ticks",
    "until",
]

PATIENCE = 60.0  # seconds: only a hang reaches it

# Far below the time limits of HTTP, so that moving the clock past a grace closes no connection.
SETTINGS = Settings(graces=Graces(create=3.0, detach=1.0, idle=6.0))


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the loop run until the condition holds: for what reaches the daemon through a socket."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 - a condition of the daemon, which has no event
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"this never came true: {what}") from None


async def ticks(count: int) -> None:
    """Let the loop turn: to let a race begin at a different point each time."""
    for _ in range(count):
        await asyncio.sleep(0)


class Openings:
    """Stores that count the databases they open and, while the gate is shut, do not finish."""

    def __init__(self, clock: FakeClock) -> None:
        self.count = 0
        self.gate = threading.Event()
        self.gate.set()
        self._threads = DaemonThreads(8, "stores")
        self.stores = Stores(clock=clock, boot_id="boot", executor=self._executor)

    def _executor(self, name: str) -> Executor:
        if name != "crushlite-writer":
            return self._threads
        self.count += 1
        return HeldExecutor(self._threads, self.gate)


class HeldExecutor:
    """Its first call, which opens the database, waits for the gate."""

    def __init__(self, threads: DaemonThreads, gate: threading.Event) -> None:
        self._threads = threads
        self._gate: threading.Event | None = gate

    def start(self, call: Callable[[], None]) -> None:
        gate, self._gate = self._gate, None

        def held() -> None:
            if gate is not None:
                gate.wait(PATIENCE)
            call()

        self._threads.start(held)


class ClosingAgent(ScriptedAgent):
    """Counts how often a workspace let go of it."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class WorkspaceTestCase(unittest.IsolatedAsyncioTestCase):
    """One daemon on a clock that only the test moves."""

    settings = SETTINGS
    tcp = False

    async def asyncSetUp(self) -> None:
        self.clock = FakeClock()
        self.agent = ClosingAgent()
        self.openings = Openings(self.clock)
        self.daemon = await self.enterAsyncContext(self.start())
        self.addCleanup(self.openings.gate.set)  # before the daemon stops: it waits for openings

    def start(self, settings: Settings | None = None, *, tcp: bool | None = None) -> LocalDaemon:
        return LocalDaemon(
            self.agent,
            settings=settings or self.settings,
            clock=self.clock,
            stores=self.openings.stores,
            tcp=self.tcp if tcp is None else tcp,
            auth="none",
        )

    @property
    def claims(self) -> Claims:
        return self.daemon.backend.claims

    @property
    def is_leaving(self) -> bool:
        return self.daemon.backend.leaving.is_set()

    def folder(self, name: str) -> Path:
        path = self.daemon.root / name
        path.mkdir(exist_ok=True)
        return path

    def state(self, who: Participant) -> tuple[str, int]:
        """A participant's claim on its workspace: its state and its open streams."""
        for client, state, streams in self.claims.clients(str(who.workspace["id"])):
            if client == who.id:
                return state, streams
        return "NONE", 0

    async def status(self, who: Participant) -> int:
        return (await who.call("GET", "")).status

    async def listed(self) -> list[str]:
        answer = await self.daemon.call("GET", "/v1/workspaces")
        return [workspace["id"] for workspace in answer.json]

    async def cut(self, who: Participant) -> None:
        """Kill the connection of a participant's stream; return when the daemon knows."""
        streams = self.state(who)[1]
        await who.events.close()
        await until(lambda: self.state(who)[1] < streams, "the daemon saw the stream close")

    async def attempt(self, path: Path | str | None = None, **fields: Any) -> Answer:
        """A create that may be refused."""
        body = {
            "path": str(path or self.daemon.root / "project"),
            "client_id": str(uuid.uuid4()),
            **fields,
        }
        return await self.daemon.call("POST", "/v1/workspaces", body)

    async def control(self, command: str = "shutdown_if_idle", **fields: Any) -> Answer:
        body = {"command": command, "client": "crushlite", **fields}
        return await self.daemon.call("POST", "/v1/control", body)

    async def pending_create(self, path: Path | str | None = None, **fields: Any) -> Pending:
        """Begin a create that stays inside its opening until the gate opens."""
        self.openings.gate.clear()
        before = self.openings.count
        task = asyncio.create_task(self.attempt(path, **fields))
        await until(lambda: self.openings.count > before, "the create began to open its database")
        return Pending(task, self.openings.gate)


class Pending:
    """A create inside its slow opening."""

    def __init__(self, task: asyncio.Task[Answer], gate: threading.Event) -> None:
        self._task = task
        self._gate = gate

    async def answered(self) -> Answer:
        self._gate.set()
        async with asyncio.timeout(PATIENCE):
            return await self._task


async def assert_free(data_dir: Path) -> None:
    """Fail unless a stranger can open this data directory: nothing in this process locks it."""
    stores = Stores(clock=FakeClock(), boot_id="stranger")
    async with asyncio.timeout(PATIENCE):
        await stores.release(await stores.open(data_dir))


OWNER = """
import asyncio, sys
from pathlib import Path
from crushlite.clock import SystemClock
from crushlite.store import Stores

async def main():
    await Stores(clock=SystemClock(), boot_id="other").open(Path(sys.argv[1]))
    print("owned", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def another_owner(data_dir: Path) -> AsyncIterator[int]:
    """Another process that owns the data directory while the block runs; gives its pid."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(data_dir)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"owned\n"
        yield process.pid
    finally:
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
