"""What a prompt waits for: the time from POST to 202, alone, in company, and beside a long read.

    python tools/bench/prompts.py                      # 1 against 32 posters, and 100,000 messages
    python tools/bench/prompts.py --rounds 3 --messages 20000
    python tools/bench/prompts.py --sync-ms 5          # as on a disk where a commit takes that long

The daemon is a process of its own, with its database on disk (a 202 waits for fsync). Each poster
has a session whose first turn never ends, so that every further prompt is stored, promised and
queued, and nothing else runs: what is measured is the way from the socket to the commit and back.
Company comes in two kinds: posters that send the next prompt as soon as the last is promised, which
saturates a core (then a prompt waits for the processor, not for the commit, and the ratio is about
what a prompt costs in processor time, times the posters), and as many that leave pauses of random
length, as people and scripts do: they are held against one that leaves the same pauses. Beside the
reader prompts are posted until it has read everything several times.
Rounds are interleaved (alone, company, alone, reader, ...) and medians are printed with their
spread; the figures that count are the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

PATIENCE = 120.0


class Line:
    """One kept-alive connection that says as little as HTTP allows: the client is not measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, path: Path) -> Line:
        return cls(*await asyncio.open_unix_connection(str(path), limit=1 << 26))

    async def call(self, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in answer.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return int(answer[9:12]), await self._reader.readexactly(length)

    async def json(self, method: str, target: str, body: Any = None) -> Any:
        status, answer = await self.call(method, target, body)
        assert status < 300, (status, answer[:300])
        return json.loads(answer) if answer else None

    def close(self) -> None:
        self._writer.close()


async def serve(url: str, sync_ms: float) -> None:
    """The daemon, on a disk that takes at least so long to make a commit safe."""
    from crushlite.agent.offline import OfflineAgent
    from crushlite.clock import SystemClock
    from crushlite.daemon import Daemon as RealDaemon
    from crushlite.store import Stores

    class SlowDisk(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" and sync_ms:
                time.sleep(sync_ms / 1000)
            return super().execute(sql, *values)

    def connect(path: Path, read_only: bool) -> sqlite3.Connection:
        target = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
        return sqlite3.connect(
            target, uri=True, isolation_level=None, factory=SlowDisk, check_same_thread=False
        )

    stores = Stores(clock=SystemClock(), boot_id=str(uuid.uuid4()), connect=connect)
    daemon = RealDaemon(agent=OfflineAgent(), hosts=[url], stores=stores)
    await daemon.serve(lambda _: None)


class Daemon:
    def __init__(self, folder: Path, sync_ms: float) -> None:
        self._sync_ms = sync_ms
        self.socket = folder / "daemon.sock"
        self.project = folder / "project"
        self.project.mkdir()

    async def __aenter__(self) -> Daemon:
        command = [sys.executable, __file__, "--sync-ms", str(self._sync_ms)]
        env = {**os.environ, "HOME": str(self.project.parent), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [*command, "--serve", f"unix://{self.socket}"],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=(self.project.parent / "daemon.log").open("wb"),
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.line = await Line.open(self.socket)
                break
            except OSError:
                assert self._process.poll() is None, "the daemon did not start"
                assert time.monotonic() < deadline, "the daemon did not answer"
                await asyncio.sleep(0.05)
        self.client = str(uuid.uuid4())
        body = {"path": str(self.project), "client_id": self.client}
        created = await self.line.json("POST", "/v1/workspaces", body)
        self.base = f"/v1/workspaces/{created['id']}"
        self._stream = await Line.open(self.socket)  # keeps the workspace
        head = f"GET {self.base}/events?client_id={self.client} HTTP/1.1\r\nHost: x\r\n\r\n"
        self._stream._writer.write(head.encode())
        self._draining = asyncio.create_task(self._drain())
        return self

    async def _drain(self) -> None:
        while await self._stream._reader.read(1 << 20):
            pass

    async def __aexit__(self, *_: object) -> None:
        self._draining.cancel()
        self._process.kill()
        self._process.wait()

    async def busy_session(self) -> str:
        """A session whose turn goes on, so that what is posted to it waits in line."""
        session = (await self.line.json("POST", f"{self.base}/sessions", {"title": "bench"}))["id"]
        body = {"session_id": session, "prompt": "/slow 36000", "run_id": str(uuid.uuid4())}
        await self.line.json("POST", f"{self.base}/agent", body)
        return str(session)

    async def clear(self, sessions: list[str]) -> None:
        """Forget what is queued, and wait until all of that is written: the next measurement must
        not pay for it."""
        for session in sessions:
            queue = await self.line.json("GET", f"{self.base}/agent/sessions/{session}/prompts")
            await self.line.json("POST", f"{self.base}/agent/sessions/{session}/prompts/clear")
            for prompt in queue[-1:]:
                await self.line.json("GET", f"{self.base}/runs/{prompt['run_id']}?wait=60")


async def post(
    daemon: Daemon,
    session: str,
    count: int,
    pause: float = 0.0,
    enough: Callable[[], bool] = lambda: True,
) -> list[float]:
    """Post `count` prompts, and go on until it is `enough`."""
    line = await Line.open(daemon.socket)
    took: list[float] = []
    while len(took) < count or not enough():
        if pause:
            await asyncio.sleep(random.expovariate(1 / pause))
        body = {"session_id": session, "prompt": "a prompt of ordinary length", "run_id": ""}
        body["run_id"] = str(uuid.uuid4())
        began = time.perf_counter()
        status, answer = await line.call("POST", f"{daemon.base}/agent", body)
        took.append(time.perf_counter() - began)
        assert status == 202, (status, answer)
    line.close()
    return took


async def alone(daemon: Daemon, sessions: list[str], count: int, pause: float = 0.0) -> list[float]:
    took = await post(daemon, sessions[0], count, pause)
    await daemon.clear(sessions[:1])
    return took


async def company(
    daemon: Daemon, sessions: list[str], count: int, pause: float = 0.0
) -> list[float]:
    each = await asyncio.gather(*(post(daemon, session, count, pause) for session in sessions))
    await daemon.clear(sessions)
    return [one for took in each for one in took]


async def beside_reader(
    daemon: Daemon, sessions: list[str], count: int, big: str, wanted: int
) -> list[float]:
    """The reader is a process of its own: taking megabytes would keep the poster from its clock."""
    target = f"{daemon.base}/sessions/{big}/messages"
    command = [sys.executable, __file__, "--read", str(daemon.socket), target, str(wanted)]
    reader = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    await reader.stdout.readline()  # it has asked
    reading = asyncio.create_task(reader.wait())
    took = await post(daemon, sessions[0], count, enough=reading.done)
    assert await reading == 0, "the reader failed"
    await daemon.clear(sessions[:1])
    return took


def read(path: str, target: str, times: int) -> None:
    with socket.socket(socket.AF_UNIX) as line, line.makefile("rb") as answers:
        line.connect(path)
        for number in range(times):
            line.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if number == 0:
                print(flush=True)
            assert answers.readline().startswith(b"HTTP/1.1 200"), "the answer is not a 200"
            length = 0
            while (field := answers.readline()) != b"\r\n":
                name, _, value = field.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            while length > 0:
                length -= len(answers.read1(min(length, 1 << 20)))


def fill(database: Path, session: str, messages: int) -> None:
    """Put messages into a session behind the daemon's back: posting them would take an hour."""
    parts = json.dumps(
        [
            {"type": "text", "data": {"text": "some words of an ordinary message, " * 6}},
            {"type": "finish", "data": {"reason": "stop", "time": 0}},
        ]
    )
    connection = sqlite3.connect(database, timeout=60)
    (scope,) = connection.execute("SELECT scope FROM sessions WHERE id = ?", (session,)).fetchone()
    with connection:
        connection.executemany(
            "INSERT INTO messages (scope, id, session_id, position, role, parts, finished, model, "
            "provider, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, 1, '', '', 0, 0)",
            (
                (scope, str(uuid.uuid4()), session, n, ("user", "assistant")[n % 2], parts)
                for n in range(messages)
            ),
        )
    # Its log is not the daemon's doing: out of the way with it.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def figures(took: list[float]) -> tuple[float, float]:
    ordered = sorted(took)
    return statistics.median(ordered) * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def line_of(name: str, rounds: list[tuple[float, float]]) -> str:
    words = []
    for label, values in zip(("p50", "p99"), zip(*rounds, strict=True), strict=True):
        low, high = min(values), max(values)
        words.append(f"{label} {statistics.median(values):7.2f} ms [{low:.2f}-{high:.2f}]")
    return f"{name:24} " + "   ".join(words)


def ratio_of(name: str, over: list[float]) -> str:
    return f"{name:52} {statistics.median(over):5.2f} [{min(over):.2f}-{max(over):.2f}]"


async def measure(options: argparse.Namespace) -> None:
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    full = f"{options.posters} at full speed"
    beside = f"one, beside {options.reads} reads"
    ratios = [(full, "one at full speed", 0), (beside, "one at full speed", 1)]
    with tempfile.TemporaryDirectory(prefix="crushlite-bench-", dir=options.folder) as folder:
        async with Daemon(Path(folder), options.sync_ms) as daemon:
            sessions = [await daemon.busy_session() for _ in range(options.posters)]
            title = {"title": "big"}
            big = (await daemon.line.json("POST", f"{daemon.base}/sessions", title))["id"]
            fill(daemon.project / ".crushlite" / "crushlite.db", big, options.messages)
            await alone(daemon, sessions, 50)  # warm
            each = max(10, options.count // 8)
            for _ in range(options.rounds):
                took = await alone(daemon, sessions, options.count)
                rows["one at full speed"].append(figures(took))
                rows[full].append(figures(await company(daemon, sessions, each)))
                for rate in options.rates:
                    pause = options.posters / rate
                    one, all_ = f"one, {1 / pause:g}/s", f"{options.posters}, {rate}/s in all"
                    ratios += [(all_, one, 0)] * ((all_, one, 0) not in ratios)
                    rows[one].append(figures(await alone(daemon, sessions, each, pause)))
                    rows[all_].append(figures(await company(daemon, sessions, each, pause)))
                took = await beside_reader(daemon, sessions, options.count, big, options.reads)
                rows[beside].append(figures(took))
    print(f"{platform.python_version()}, {os.cpu_count()} cores, {options.rounds} rounds")
    for name, values in rows.items():
        print(line_of(name, values))
    print(f"\nratios in the same round ({options.messages} messages are read)")
    for many, one, which in ratios:
        over = [m[which] / o[which] for m, o in zip(rows[many], rows[one], strict=True)]
        print(ratio_of(f"{('p50', 'p99')[which]}: {many} / {one}", over))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--posters", type=int, default=32)
    parser.add_argument(
        "--rates",
        type=lambda text: [int(rate) for rate in text.split(",")],
        default=[500, 1000, 2000],
        help="prompts a second, of all together: several, with commas",
    )
    parser.add_argument("--reads", type=int, default=3, help="of all messages, beside the prompts")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--count", type=int, default=400, help="prompts per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the database is put (default: the system's)")
    parser.add_argument("--sync-ms", type=float, default=0.0, help="as on a disk that slow")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        path, target, times = options.read
        read(path, target, int(times))
    elif options.serve:
        asyncio.run(serve(options.serve, options.sync_ms))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
