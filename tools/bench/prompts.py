"""What a prompt waits for: the time from POST to 202, alone, in company, and beside a long read.

    python tools/bench/prompts.py                      # 1 against 32 posters, and 100,000 messages
    python tools/bench/prompts.py --rounds 3 --messages 20000

The daemon is a process of its own, with its database on disk (a 202 waits for fsync). Each poster
has a session whose first turn never ends, so that every further prompt is stored, promised and
queued, and nothing else runs: what is measured is the way from the socket to the commit and back.
Rounds are interleaved (alone, company, alone, reader, ...) and medians are printed with their
spread; the figures that count are the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

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


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.socket = folder / "daemon.sock"
        self.project = folder / "project"
        self.project.mkdir()

    async def __aenter__(self) -> Daemon:
        command = [sys.executable, "-m", "crushlite", "serve", "--agent", "offline"]
        env = {**os.environ, "HOME": str(self.project.parent), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [*command, "--host", f"unix://{self.socket}"],
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
        for session in sessions:
            await self.line.json("POST", f"{self.base}/agent/sessions/{session}/prompts/clear")


async def post(daemon: Daemon, session: str, count: int) -> list[float]:
    line = await Line.open(daemon.socket)
    took = []
    for _ in range(count):
        body = {"session_id": session, "prompt": "a prompt of ordinary length", "run_id": ""}
        body["run_id"] = str(uuid.uuid4())
        began = time.perf_counter()
        status, answer = await line.call("POST", f"{daemon.base}/agent", body)
        took.append(time.perf_counter() - began)
        assert status == 202, (status, answer)
    line.close()
    return took


async def alone(daemon: Daemon, sessions: list[str], count: int) -> list[float]:
    took = await post(daemon, sessions[0], count)
    await daemon.clear(sessions[:1])
    return took


async def company(daemon: Daemon, sessions: list[str], count: int) -> list[float]:
    each = await asyncio.gather(*(post(daemon, session, count) for session in sessions))
    await daemon.clear(sessions)
    return [one for took in each for one in took]


async def beside_reader(
    daemon: Daemon, sessions: list[str], count: int, big: str
) -> tuple[list[float], int]:
    reads = 0

    async def read() -> None:
        nonlocal reads
        line = await Line.open(daemon.socket)
        while True:
            status, _ = await line.call("GET", f"{daemon.base}/sessions/{big}/messages")
            assert status == 200
            reads += 1

    reader = asyncio.create_task(read())
    try:
        await asyncio.sleep(0.05)  # the read is under way
        took = await post(daemon, sessions[0], count)
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
    await daemon.clear(sessions[:1])
    return took, reads


def fill(database: Path, session: str, messages: int) -> None:
    """Put messages into a session behind the daemon's back: posting them would take an hour."""
    import sqlite3

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
    return f"{name:44} {statistics.median(over):5.2f} [{min(over):.2f}-{max(over):.2f}]"


async def measure(options: argparse.Namespace) -> None:
    rows: dict[str, list[tuple[float, float]]] = {"alone": [], "company": [], "reader": []}
    reads = 0
    with tempfile.TemporaryDirectory(prefix="crushlite-bench-", dir=options.folder) as folder:
        async with Daemon(Path(folder)) as daemon:
            sessions = [await daemon.busy_session() for _ in range(options.posters)]
            title = {"title": "big"}
            big = (await daemon.line.json("POST", f"{daemon.base}/sessions", title))["id"]
            fill(daemon.project / ".crushlite" / "crushlite.db", big, options.messages)
            await alone(daemon, sessions, 50)  # warm
            for _ in range(options.rounds):
                rows["alone"].append(figures(await alone(daemon, sessions, options.count)))
                per_poster = max(10, options.count // 8)
                rows["company"].append(figures(await company(daemon, sessions, per_poster)))
                took, seen = await beside_reader(daemon, sessions, options.count, big)
                rows["reader"].append(figures(took))
                reads += seen
    print(f"{platform.python_version()}, {os.cpu_count()} cores, {options.rounds} rounds")
    print(line_of("one poster", rows["alone"]))
    print(line_of(f"{options.posters} posters", rows["company"]))
    print(line_of(f"one, beside {reads} reads", rows["reader"]))
    pairs = list(zip(rows["alone"], rows["company"], rows["reader"], strict=True))
    print(
        ratio_of(f"p50 of {options.posters} posters / of one", [c[0] / a[0] for a, c, _ in pairs])
    )
    name = f"p99 beside a reader of {options.messages} / alone"
    print(ratio_of(name, [r[1] / a[1] for a, _, r in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--posters", type=int, default=32)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--count", type=int, default=400, help="prompts per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the database is put (default: the system's)")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
