"""Use a daemon for a long time, with faults, and check all the time that it keeps its promises.

    python tools/soak.py --minutes 45              # what a release needs
    python tools/soak.py --minutes 2 --seed 7      # a short one; the seed repeats its choices

Ten workers post prompts, repeat, steer, cancel and delete; fifty streams watch, of which some read
slowly, some go away and come back, some answer permission requests; configuration changes, requests
that are no HTTP come in between. In the first third of the time the daemon is killed with -9 or
restarted now and then; after that it is left running, and its memory, descriptors, threads and
tasks are measured. Checked are the invariants I1 to I10:

    I1   what was answered 202 is there
    I2   one turn at a time in a session
    I3   one ending for each run, the same in events and database
    I4   no command without a grant for that very command
    I5   event ids go up
    I6   messages rebuilt from events are those of the database
    I7   no process of a run that has ended
    I8   nothing behind a parse error is executed
    I9   no secret in events, answers, log or database
    I10  a second recovery changes nothing

Exit code 1 if one is violated, if an answer is a 500, or if memory grows faster than --slope (after
runs of 20 minutes or more: before that a slope says nothing).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sqlite3
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite import Client  # noqa: E402
from crushlite.clock import SystemClock  # noqa: E402
from crushlite.errors import CrushliteError  # noqa: E402
from crushlite.features import requests  # noqa: E402
from crushlite.protocol.codec import encode  # noqa: E402
from crushlite.store import Stores  # noqa: E402

if TYPE_CHECKING:
    from crushlite.client import RemoteWorkspace
    from crushlite.client.stream import EventStream

PATIENCE = 30.0  # seconds for anything that the machine may be slow with
LONG_ENOUGH = 20.0  # minutes after which slopes count
CANARY = "canary-" + "5f0c9d1e7b"
MARK = "soak-run-"  # in the command line of every process that a run starts
OUTCOMES = {"completed": (False, False), "canceled": (True, False), "failed": (False, True)}


# The agent, inside the daemon ------------------------------------------------------------------

_running: Counter[str] = Counter()


async def agent(turn: Any) -> None:
    """Words, tool calls, permissions, commands: everything that a fault can interrupt."""
    _running[turn.session_id] += 1
    try:
        if _running[turn.session_id] > 1:
            _note(turn, "violations", f"I2: two turns at once in {turn.session_id}")
        _note(turn, "tasks", str(len(asyncio.all_tasks())), mode="w")
        for _ in range(random.randrange(1, 4)):
            await turn.followups()
            for _ in range(random.randrange(1, 8)):
                await turn.say("some words ")
                await asyncio.sleep(random.random() * 0.01)
            if random.random() < 0.5:
                await _work(turn)
    finally:
        _running[turn.session_id] -= 1


async def _work(turn: Any) -> None:
    """A command that writes down that it was run, if it was granted."""
    name = f"{MARK}{turn.run_id}-{uuid.uuid4().hex[:8]}"
    text = f"echo {name} >> executed; (sleep {random.random():.2f}; : {name})"
    call = await turn.tool_call("bash", {"command": text})
    if await turn.permission("bash", "execute", params={"command": text}, tool_call_id=call):
        command = await turn.command(text, read_only=True)
        await command.done
    await turn.tool_result(call, "done")


def _note(turn: Any, name: str, text: str, mode: str = "a") -> None:
    with (turn.path / name).open(mode) as file:
        file.write(text + "\n")


# What was promised, seen and measured ------------------------------------------------------------


@dataclass
class Ledger:
    promised: dict[str, str] = field(default_factory=dict)  # run_id -> session
    deleted: set[str] = field(default_factory=set)  # sessions
    granted: set[str] = field(default_factory=set)  # commands
    endings: dict[str, tuple[bool, bool]] = field(default_factory=dict)  # cancelled, failed
    ended_at: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def violated(self, what: str) -> None:
        self.violations.append(what)
        print(f"VIOLATED {what}", flush=True)

    def failed(self, error: CrushliteError, what: str) -> None:
        """A request failed. With the daemon that is all right; with a 500 it never is."""
        self.counts[f"refused {error.code}"] += 1
        if error.status == 500 and error.code == "internal":
            self.violated(f"{what}: 500 {error.message}")
        if CANARY in error.message:
            self.violated(f"I9: a secret in the answer to {what}")


@dataclass
class Sample:
    at: float
    rss: float  # MiB
    descriptors: int
    threads: int
    tasks: int


class Target:
    """The daemon: a child process on a fixed socket and data directory."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix://{folder}/daemon.sock"
        self.data = folder / "data"
        self.project = folder / "project"
        self.project.mkdir()
        self.log = folder / "daemon.log"
        self.process: asyncio.subprocess.Process | None = None
        self.up = asyncio.Event()
        self.samples: list[Sample] = []

    async def start(self) -> None:
        options = ("--host", self.address, "--data-dir", str(self.data), "--log-level", "warning")
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "crushlite", "serve", *options),
                *("--agent", "tools.soak:agent", "--detach-grace", "5", "--unattended", "5"),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "SOAK_API_KEY": CANARY},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                with contextlib.suppress(CrushliteError):
                    async with Client(self.address) as client:
                        await client.health()
                    break
                if self.process.returncode is not None:
                    raise SystemExit(f"the daemon did not start:\n{self.log.read_text()[-2000:]}")
                await asyncio.sleep(0.05)
        self.samples.clear()
        self.up.set()

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.up.clear()
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def sample(self) -> None:
        assert self.process is not None
        proc = Path(f"/proc/{self.process.pid}")
        with contextlib.suppress(OSError, ValueError):
            status = (proc / "status").read_text()
            rss, threads = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "Threads"))
            assert rss is not None
            assert threads is not None
            descriptors = len(os.listdir(proc / "fd"))
            tasks = int((self.project / "tasks").read_text() or 0)
            sample = Sample(
                time.monotonic(), int(rss[1]) / 1024, descriptors, int(threads[1]), tasks
            )
            self.samples.append(sample)


# Clients -----------------------------------------------------------------------------------------


class Worker:
    """Posts prompts into a session of its own, as long as nothing is over."""

    def __init__(self, soak: Soak, rng: random.Random) -> None:
        self.soak = soak
        self.rng = rng
        self.session = ""
        self.left = 0  # runs before it takes another session

    async def run(self) -> None:
        while not self.soak.over.is_set():
            await self.soak.target.up.wait()
            try:
                async with Client(self.soak.target.address) as client:
                    workspace = await client.create(str(self.soak.target.project))
                    async with workspace.events():  # or it has no claim
                        while not self.soak.over.is_set():
                            await self._one(workspace)
            except CrushliteError as error:
                self.soak.ledger.failed(error, "a worker")
                await asyncio.sleep(0.1)

    async def _one(self, workspace: RemoteWorkspace) -> None:
        ledger, rng = self.soak.ledger, self.rng
        if not self.left:
            if self.session and rng.random() < 0.9:  # few stay: the database is not to grow
                ledger.deleted.add(self.session)
                await workspace.delete(self.session)
            self.session = (await workspace.create_session("soak")).id
            self.left = rng.randrange(5, 40)
        self.left -= 1
        runs = []
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            run_id = str(uuid.uuid4())
            when_busy = rng.choice(("", "steer"))
            for _ in range(rng.choice((1, 1, 2))):  # a repeat makes no second run
                accepted = await workspace.prompt(
                    self.session, f"do {run_id}", run_id=run_id, when_busy=when_busy
                )
                ledger.promised[run_id] = self.session
                if accepted.run_id != run_id:
                    ledger.violated(f"I1: asked for {run_id}, got {accepted.run_id}")
            runs.append(run_id)
        if rng.random() < 0.2:
            await workspace.cancel(self.session)
            ledger.counts["cancels"] += 1
        if rng.random() < 0.05:
            await requests.set_config(workspace, "options.tui.compact_mode", rng.random() < 0.5)
            ledger.counts["config changes"] += 1
        for run_id in runs:
            await workspace.run(run_id, wait=PATIENCE)
        active = await workspace.runs(self.session, "active")
        if len(active) > 1:
            ledger.violated(f"I2: {len(active)} active runs in {self.session}")


class Watcher:
    """Reads a stream in one of several ways, and checks what it sees."""

    def __init__(self, soak: Soak, rng: random.Random, number: int) -> None:
        self.soak = soak
        self.rng = rng
        self.kind = ("steady", "slow", "flighty", "answering", "mirror")[number % 5]
        self.view: dict[str, Any] = {}  # messages by id, as rebuilt from events
        self.seen: set[str] = set()  # runs whose ending came, on this connection

    async def run(self) -> None:
        while True:  # until it is cancelled: answers are needed to the end
            await self.soak.target.up.wait()
            try:
                async with Client(self.soak.target.address) as client:
                    workspace = await client.create(str(self.soak.target.project))
                    async with workspace.events() as stream:
                        await self._read(workspace, stream)
            except CrushliteError as error:
                self.soak.ledger.failed(error, f"a {self.kind} stream")
                await asyncio.sleep(0.1)

    async def _read(self, workspace: RemoteWorkspace, stream: EventStream) -> None:
        self.seen.clear()
        last: dict[str, int] = {}
        async for event in stream:
            ledger = self.soak.ledger
            ledger.counts["events"] += 1
            epoch, _, number = (stream.last_id or "").rpartition("-")
            if number and int(number) < last.get(epoch, -1):
                ledger.violated(f"I5: event {number} after {last[epoch]}")
            last[epoch] = int(number or 0)
            if event.kind == "resync":  # another daemon, or events were missed: begin anew
                self.seen.clear()
                self.view.clear()
            elif event.kind == "run_complete":
                self._ended(event.payload)
            elif event.kind == "permission_request" and self.kind == "answering":
                await self._answer(workspace, event.payload)
            elif event.kind == "message" and self.kind == "mirror":
                self._mirror(event.action, event.payload)
            if self.kind == "slow":
                await asyncio.sleep(self.rng.random() * 0.05)
            if self.kind == "flighty" and self.rng.random() < 0.01:
                ledger.counts["disconnects"] += 1
                return

    def _ended(self, ending: Any) -> None:
        ledger, run_id = self.soak.ledger, ending.run_id
        if run_id in self.seen:
            ledger.violated(f"I3: two endings of {run_id} on one stream")
        self.seen.add(run_id)
        how = (bool(ending.cancelled), bool(ending.error))
        if ledger.endings.setdefault(run_id, how) != how:
            ledger.violated(f"I3: {run_id} ended in two ways")
        ledger.ended_at.setdefault(run_id, time.monotonic())
        if CANARY in str(ending):
            ledger.violated(f"I9: a secret in the ending of {run_id}")

    async def _answer(self, workspace: RemoteWorkspace, request: Any) -> None:
        allow = self.rng.random() < 0.8
        if allow:
            self.soak.ledger.granted.add(request.params["command"].split()[1])
        with contextlib.suppress(CrushliteError):
            await workspace.grant(request.id, "allow" if allow else "deny")
            self.soak.ledger.counts["answers"] += 1

    def _mirror(self, action: str, message: Any) -> None:
        if action == "deleted":
            self.view.pop(message.id, None)
        else:
            self.view[message.id] = message
        if CANARY in str(message):
            self.soak.ledger.violated(f"I9: a secret in message {message.id}")


# The whole ---------------------------------------------------------------------------------------


class Soak:
    def __init__(self, folder: Path, seconds: float, seed: int, streams: int, workers: int) -> None:
        self.target = Target(folder)
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self.seconds = seconds
        self.over = asyncio.Event()
        self.watchers = [Watcher(self, self._rng(), number) for number in range(streams)]
        self.workers = [Worker(self, self._rng()) for _ in range(workers)]

    def _rng(self) -> random.Random:
        return random.Random(self.rng.random())

    async def run(self) -> None:
        await self.target.start()
        began = time.monotonic()
        tasks = [asyncio.create_task(one.run()) for one in (*self.watchers, *self.workers)]
        checks = [asyncio.create_task(self._check()), asyncio.create_task(self._garbage())]
        while (passed := time.monotonic() - began) < self.seconds / 3:
            await asyncio.sleep(min(self.rng.uniform(1, 15), self.seconds / 3 - passed + 0.1))
            await self._fault()
        left = self.seconds - (time.monotonic() - began)
        done, _ = await asyncio.wait(
            [*tasks, *checks], timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()  # a bug of this tool
        self.over.set()
        for task in checks:
            task.cancel()
        await self._end(tasks)

    async def _fault(self) -> None:
        """Kill or restart the daemon. What was running then ends in the next one."""
        killed = self.rng.random() < 0.7
        self.ledger.counts["kills" if killed else "restarts"] += 1
        code = await self.target.end(signal.SIGKILL if killed else signal.SIGTERM)
        if not killed and code != 0:
            self.ledger.violated(f"the daemon left with {code} on SIGTERM")
        await self.target.start()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Let the workers finish, compare what the mirrors have, and stop the daemon."""
        async with asyncio.timeout(PATIENCE * 4), Client(self.target.address) as client:
            workspace = await client.create(str(self.target.project))
            workers = tasks[len(self.watchers) :]
            await asyncio.wait(workers)
            deadline = time.monotonic() + PATIENCE
            while different := await self._different(workspace):  # events may be on their way
                if time.monotonic() > deadline:
                    self.ledger.violated(f"I6: messages are not what events said: {different}")
                    break
                await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]
        code = await self.target.end(signal.SIGTERM)
        if code != 0:
            self.ledger.violated(f"the daemon left with {code} on SIGTERM")

    async def _different(self, workspace: RemoteWorkspace) -> list[str]:
        """When nothing runs: the messages that a mirror has otherwise than the daemon."""
        stored = {}
        for session in await workspace.sessions():
            for message in await workspace.messages(session.id):
                stored[message.id] = encode(message)
        shown = [
            message
            for watcher in self.watchers
            for message in watcher.view.values()
            if message.session_id not in self.ledger.deleted
        ]
        self.ledger.counts["messages compared"] = len(shown)
        return [one.id for one in shown if stored.get(one.id) != encode(one)]

    async def _check(self) -> None:
        """Each second: measure, and look for what must not be."""
        while True:
            await asyncio.sleep(1.0)
            if self.target.up.is_set():
                self.target.sample()
            await asyncio.to_thread(self._processes)
            for name in self._notes("violations"):
                self.ledger.violated(name)
            for name in self._notes("executed", keep=True):
                if name not in self.ledger.granted:
                    self.ledger.violated(f"I4: {name} was executed without a grant")

    def _notes(self, name: str, *, keep: bool = False) -> list[str]:
        """The lines that the agent or its commands have written to a file of the project."""
        path = self.target.project / name
        try:
            lines = path.read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        if not keep:
            path.unlink()
        return lines

    def _processes(self) -> None:
        """I7: no process is alive five seconds after the ending of its run."""
        late = time.monotonic() - 5.0
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdecimal() else b""
                found = re.search(rf"{MARK}([0-9a-f-]{{36}})".encode(), words)
                if found and self.ledger.ended_at.get(found[1].decode(), late) < late:
                    self.ledger.violated(f"I7: process {entry} outlives its run: {words!r}")

    async def _garbage(self) -> None:
        """I8: requests that are no HTTP, with one behind them that must not be executed."""
        path = self.target.address.removeprefix("unix://")
        behind = b"POST /v1/workspaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
        heads = (b"GET / HTTP/1.1\r\n\r\n", b"\0\1\2\r\n\r\n", b"GET  /v1/health HTTP/9\r\n\r\n")
        while True:
            await asyncio.sleep(0.5)
            await self.target.up.wait()
            with contextlib.suppress(OSError, TimeoutError), socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(PATIENCE):
                    await loop.sock_connect(sock, path)
                    await loop.sock_sendall(sock, self.rng.choice(heads) + behind)
                    answer = b""
                    while data := await loop.sock_recv(sock, 65536):
                        answer += data
                self.ledger.counts["garbage"] += 1
                if answer.count(b"HTTP/1.1 ") > 1:
                    self.ledger.violated("I8: a request behind garbage was answered")


# The end -----------------------------------------------------------------------------------------


def audit(target: Target, ledger: Ledger) -> None:
    """Hold what was promised and seen against the rows."""
    with contextlib.closing(sqlite3.connect(target.data / "crushlite.db")) as conn:
        rows = dict(conn.execute("SELECT run_id, outcome FROM runs"))
        texts = Counter(
            json.loads(parts)[0]["data"]["text"]
            for (parts,) in conn.execute("SELECT parts FROM messages WHERE role = 'user'")
        )
        (sound,) = conn.execute("PRAGMA integrity_check").fetchone()
        unfinished = conn.execute("SELECT count(*) FROM messages WHERE NOT finished").fetchone()
    if (sound, unfinished) != ("ok", (0,)):
        ledger.violated(f"the database: {sound}, {unfinished[0]} messages without an end")
    for run_id, session in ledger.promised.items():
        if session in ledger.deleted:
            continue
        ledger.counts["promises audited"] += 1
        outcome = rows.get(run_id)
        if outcome is None or texts[f"do {run_id}"] != 1:
            ledger.violated(f"I1: run {run_id}: {outcome}, {texts[f'do {run_id}']} prompts")
        seen = ledger.endings.get(run_id)
        if seen is not None and outcome in OUTCOMES and seen != OUTCOMES[outcome]:
            ledger.violated(f"I3: run {run_id} is {outcome}, events said {seen}")
    for file in (target.log, *target.data.iterdir()):
        if CANARY.encode() in file.read_bytes():
            ledger.violated(f"I9: a secret in {file.name}")
    if "Traceback" in target.log.read_text():
        ledger.violated(f"a traceback in the log:\n{target.log.read_text()[-3000:]}")


async def recovers_once(target: Target, ledger: Ledger) -> None:
    """I10: opening the database again and again changes no row."""
    dumps = []
    for _ in range(2):
        stores = Stores(clock=SystemClock(), boot_id=str(uuid.uuid4()))
        await stores.release(await stores.open(target.data))
        with contextlib.closing(sqlite3.connect(target.data / "crushlite.db")) as conn:
            tables = ("sessions", "messages", "runs", "files")
            dumps.append([conn.execute(f"SELECT * FROM {table}").fetchall() for table in tables])
    if dumps[0] != dumps[1]:
        ledger.violated("I10: the second recovery changed rows")


def slopes(samples: list[Sample]) -> dict[str, float]:
    """By how much each figure grows in an hour, over the last two thirds of the samples."""
    late = samples[len(samples) // 3 :]
    if len(late) < 3:
        return {}
    times = [sample.at for sample in late]
    mean = sum(times) / len(times)
    spread = sum((at - mean) ** 2 for at in times)
    return {
        name: sum((s.at - mean) * getattr(s, name) for s in late) / spread * 3600
        for name in ("rss", "descriptors", "threads", "tasks")
    }


def report(soak: Soak, options: argparse.Namespace) -> int:
    ledger, samples = soak.ledger, soak.target.samples
    found = slopes(samples)
    for name in ("rss", "descriptors", "threads", "tasks"):
        values = [getattr(sample, name) for sample in samples]
        if values and name in found:
            spread = f"{min(values):g} to {max(values):g}, last {values[-1]:g}"
            print(f"{name:12} {spread}, slope {found[name]:+.2f} per hour")
    grows = options.minutes >= LONG_ENOUGH and found.get("rss", 0.0) > options.slope
    if grows:
        ledger.violated(f"memory grows by {found['rss']:.2f} MiB an hour")
    totals = ", ".join(f"{number} {name}" for name, number in sorted(ledger.counts.items()))
    print(f"{len(ledger.promised)} promised, {len(ledger.endings)} endings seen, {totals}")
    kinds: defaultdict[str, int] = defaultdict(int)
    for violation in ledger.violations:
        kinds[violation.partition(":")[0]] += 1
    print(f"FAILED: {dict(kinds)}" if kinds else "ok: every promise was kept")
    return 1 if kinds else 0


async def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--slope", type=float, default=1.0, help="MiB an hour that are allowed")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="crushlite-soak-") as name:
        seconds = options.minutes * 60
        soak = Soak(Path(name), seconds, options.seed, options.streams, options.workers)
        try:
            await soak.run()
        finally:
            process = soak.target.process
            if process is not None and process.returncode is None:
                process.kill()
        audit(soak.target, soak.ledger)
        await recovers_once(soak.target, soak.ledger)
    return report(soak, options)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
