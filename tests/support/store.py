"""What the tests of the store share: a store, work for it, and connections that fail on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.errors import CrushliteError
from crushlite.protocol.codec import decode
from crushlite.protocol.messages import (
    BinaryPart,
    FinishPart,
    ImageURLPart,
    Part,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crushlite.protocol.runs import RunInfo
from crushlite.protocol.sessions import Session
from crushlite.store import Store, Stores
from crushlite.store.connection import connect
from crushlite.store.sessions import delete_session, insert_session, session_texts
from crushlite.store.stores import SHARING_SECONDS
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import LIMIT, BoundedTestCase
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from crushlite.store.callqueue import Executor
    from crushlite.store.connection import ConnectionFactory


def list_sessions(conn: sqlite3.Connection, scope: str) -> list[Session]:
    """The list of sessions, all of them as objects."""
    return [
        decode(Session, json.loads(one)) if isinstance(one, bytes) else one
        for one in session_texts(conn, scope)
    ]


async def probe(store: Store) -> bool:
    """Whether a store can write, found out by a row that comes and goes in one transaction."""

    def come_and_go(conn: sqlite3.Connection) -> None:
        insert_session(conn, "probe", Session(id="probe"))
        delete_session(conn, "probe", "probe")

    try:
        await store.submit(come_and_go, durably=True)
    except CrushliteError:
        return False
    return True


# One of each, with what is hard to store and to write down.
EVERY_PART: list[Part] = [
    ReasoningPart("think\0", "sig", 1, 2),
    TextPart('text\0 \u2028 \U0001f600 "quoted" \\ </script> \x7f\x1b[31m'),
    ImageURLPart("http://x/", "low"),
    BinaryPart("a/b", "image/png", "AAA="),
    ToolCallPart("c", "bash", '{"a":"\\u0000"}', "function", True),
    ToolResultPart("c", "bash", "out\0", '{"m":1}', True, "AAA=", "image/png"),
    ShellCommandPart("ls", "\0", -1),
    FinishPart("end_turn", 2**63 - 1, "title", "detail"),
]


def add(sid: str) -> Callable[[sqlite3.Connection], str]:
    def work(conn: sqlite3.Connection) -> str:
        insert_session(conn, "", Session(id=sid))
        return sid

    return work


def ids(conn: sqlite3.Connection) -> list[str]:
    return sorted(sid for (sid,) in conn.execute("SELECT id FROM sessions WHERE scope = ''"))


class Gate:
    """Work that holds the thread it runs in until it is opened, and fails if nobody opens it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, conn: sqlite3.Connection) -> bool:
        self.entered.set()
        return _came(self.open)

    async def reached(self) -> None:
        await asyncio.to_thread(_came, self.entered)


def _came(event: threading.Event) -> bool:
    if not event.wait(LIMIT):
        raise AssertionError(f"waited {LIMIT:.0f} s in vain")
    return True


class StoreCase(BoundedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.faults = Faults()
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory())) / "data"
        self.trace: list[str] = []  # what the writer's connection executed

    def tracing(self, path: Path, read_only: bool) -> sqlite3.Connection:
        conn = connect(path, read_only)
        if not read_only:
            conn.set_trace_callback(self.trace.append)
        return conn

    def faulty(self, path: Path, read_only: bool) -> sqlite3.Connection:
        """A connection that fails as `self.faults` says, and never waits for a lock."""
        mode = "ro" if read_only else "rw"
        conn = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=0,
            factory=FaultyConnection,
            check_same_thread=False,
        )
        conn.faults, conn.read_only = self.faults, read_only
        self.faults.opened.append(read_only)
        if not read_only:
            conn.set_trace_callback(self.trace.append)
        return conn

    @contextlib.asynccontextmanager
    async def opened(
        self,
        factory: ConnectionFactory | None = None,
        executor: Callable[[str], Executor] | None = None,
        sharing_seconds: float = SHARING_SECONDS,
    ) -> AsyncIterator[Store]:
        stores = Stores(
            clock=FakeClock(),
            boot_id="boot",
            executor=executor,
            connect=factory or self.tracing,
            sharing_seconds=sharing_seconds,
        )
        store = await stores.open(self.directory)
        self.trace.clear()
        try:
            yield store
        finally:
            await stores.release(store)

    async def batch(
        self, store: Store, *works: Callable[[sqlite3.Connection], object], durably: bool = False
    ) -> list[Any]:
        """Run works that certainly wait together: the thread is held until all are queued."""
        gate = Gate()
        held = store.submit(gate)
        await gate.reached()
        futures = [store.submit(work, durably=durably) for work in works]
        self.trace.clear()
        gate.open.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        self.assertTrue(await held)
        return results

    def count(self, statement: str) -> int:
        return sum(1 for line in self.trace if line == statement)


class Faults:
    """What is to fail: the beginning of a statement -> how many more times, and with what."""

    def __init__(self) -> None:
        self.opened: list[bool] = []  # each connection: whether it was read-only
        self.gates: dict[str, Gate] = {}  # statements of the writer that wait before they are run
        self._plan: dict[tuple[str, bool], tuple[int, int]] = {}

    def fail(self, statement: str, code: int = 0, *, times: int = 1, reading: bool = False) -> None:
        """`code` is one of sqlite3's; 0 makes an error without any, as the Python module does."""
        self._plan[statement, reading] = (times, code)

    def clear(self) -> None:
        self._plan.clear()

    def check(self, conn: sqlite3.Connection, sql: str, read_only: bool) -> None:
        if not read_only and sql in self.gates:
            self.gates[sql](conn)
        for (statement, reading), (times, code) in self._plan.items():
            if times and reading == read_only and sql.lstrip().startswith(statement):
                self._plan[statement, reading] = (times - 1, code)
                error = sqlite3.OperationalError(f"injected into {statement}")
                if code:
                    error.sqlite_errorcode = code
                raise error


class FaultyConnection(sqlite3.Connection):
    faults: Faults
    read_only: bool

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA busy_timeout"):
            sql = "PRAGMA busy_timeout = 0"
        self.faults.check(self, sql, self.read_only)
        return super().execute(sql, *values)


# For each line `NUMBER DIRECTORY` of its input, a process of its own opens the store there with a
# connection that kills the process instead of the n-th statement; its exit code is printed. They
# are forked, so that the package is imported once.
DYING = """
import asyncio, os, signal, sqlite3, sys
from pathlib import Path
from crushlite.clock import SystemClock
from crushlite.store import Stores
from crushlite.store.connection import connect

class Deadly(sqlite3.Connection):
    def execute(self, sql, *values):
        Deadly.left -= 1
        if Deadly.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *values)

def factory(path, read_only):
    if read_only:
        return connect(path, True)
    return sqlite3.connect(path, isolation_level=None, factory=Deadly, check_same_thread=False)

async def main(directory):
    stores = Stores(clock=SystemClock(), boot_id="killed", connect=factory)
    await stores.open(Path(directory))

for line in sys.stdin:
    number, directory = line.rstrip("\\n").split(" ", 1)
    child = os.fork()
    if not child:
        try:
            signal.alarm(int(sys.argv[1]))
            Deadly.left = int(number)
            asyncio.run(main(directory))
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class DyingOpener:
    """A context in which other processes open a store and die at a statement."""

    def __enter__(self) -> DyingOpener:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DYING, str(int(LIMIT))],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=LIMIT)

    def open_and_die(self, directory: Path, number: int) -> bool:
        """Let a process open the store and die at its n-th statement; returns whether it did, or
        had fewer to execute."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number} {directory}\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"the process that opens the store ended with {code}")
        return code != 0


def ending(
    run_id: str,
    outcome: str = "completed",
    message_id: str = "",
    error: str = "",
    denied: int = 0,
    carrier: str = "",
    ended_at: float = 0.0,
) -> RunInfo:
    """How a run has ended, for `end_run`."""
    return RunInfo(
        run_id,
        outcome=outcome,
        message_id=message_id,
        error=error,
        denied=denied,
        folded_into=carrier,
        ended_at=ended_at,
    )
