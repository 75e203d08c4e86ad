"""Kill the daemon again and again while clients post, then count what was promised and is there.

    python tools/chaos.py --kills 20

Four posters send prompts as fast as they are answered, a third of them twice with the same run_id,
and sometimes cancel. The daemon is killed with -9 at random instants and started again on the same
data directory. At the end every prompt that was answered 202 must have exactly one user message and
exactly one ending, repeats must have made no second run, the database must be sound, and no session
may be busy. Exit 0 only if nothing was lost. The seed is printed; `--seed` repeats its choices.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.http.client import (  # noqa: E402
    ClientError,
    HTTPClient,
    ResponseTimeout,
    UnixConnector,
)

PATIENCE = 15.0


@dataclass
class Ledger:
    """What the daemon has promised, and what happened on the way."""

    promised: dict[str, tuple[str, str]] = field(default_factory=dict)  # run_id -> session, text
    repeats: int = 0
    cancels: int = 0
    failures: int = 0  # requests that died with the daemon; they promise nothing
    odd: list[str] = field(default_factory=list)  # answers that should not exist


class Target:
    """The daemon under fire: a child process on a fixed socket and data directory."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "daemon.sock"
        self.data = folder / "data"
        self.project = folder / "project"
        self.project.mkdir()
        self.log = (folder / "daemon.log").open("ab")
        self.process: asyncio.subprocess.Process | None = None
        self.up = asyncio.Event()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "crushlite",
            "serve",
            "--host",
            f"unix://{self.socket}",
            "--data-dir",
            str(self.data),
            "--agent",
            "tools.chaos:agent",
            "--log-level",
            "warning",
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=self.log,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self.process.stdout.readline()
        if b"serving" not in line:
            raise SystemExit(f"the daemon did not start; see {self.log.name}")
        self.up.set()

    async def kill(self) -> None:
        assert self.process is not None
        self.up.clear()
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    def client(self) -> HTTPClient:
        connector = UnixConnector(str(self.socket), expect_uid=os.geteuid())
        return HTTPClient(connector, host_header="localhost", clock=SystemClock())


async def agent(turn) -> None:  # type: ignore[no-untyped-def]
    """A turn with everything a kill can interrupt: text, tool calls, steps, waits."""
    for _ in range(random.randrange(1, 4)):
        await turn.followups()
        for _ in range(random.randrange(1, 6)):
            await turn.say("some words ")
            await asyncio.sleep(random.random() * 0.003)
        if random.random() < 0.5:
            call = await turn.tool_call("work", "{}")
            await asyncio.sleep(random.random() * 0.003)
            await turn.tool_result(call, "done")


class Poster:
    """One client: it joins, posts as fast as it is answered, and rejoins when the daemon died."""

    def __init__(self, target: Target, ledger: Ledger, rng: random.Random) -> None:
        self.target = target
        self.ledger = ledger
        self.rng = rng
        self.session = ""

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self.target.up.wait()
            client = self.target.client()
            try:
                await self._visit(client, until)
            except ResponseTimeout as error:  # a daemon that dies ends its connections at once
                self.ledger.odd.append(f"a request hung: {error}")
            except (ClientError, OSError):
                self.ledger.failures += 1
            finally:
                await client.aclose()

    async def _visit(self, client: HTTPClient, until: asyncio.Event) -> None:
        body = {"path": str(self.target.project), "client_id": str(uuid.uuid4())}
        created = await self._call(client, "POST", "/v1/workspaces", body)
        base = f"/v1/workspaces/{created['id']}"
        if not self.session:
            made = await self._call(client, "POST", f"{base}/sessions", {"title": "chaos"})
            self.session = made["id"]
        while not until.is_set():
            await self._prompt(client, base)
            if self.rng.random() < 0.1:
                path = f"{base}/agent/sessions/{self.session}/cancel"
                await self._call(client, "POST", path, None)
                self.ledger.cancels += 1

    async def _prompt(self, client: HTTPClient, base: str) -> None:
        run_id = str(uuid.uuid4())
        body = {"session_id": self.session, "prompt": f"do {run_id}", "run_id": run_id}
        if self.rng.random() < 0.3:
            body["when_busy"] = "steer"
        times = 2 if self.rng.random() < 1 / 3 else 1
        for attempt in range(times):
            answer = await self._call(client, "POST", f"{base}/agent", body, expect=202)
            if answer["run_id"] != run_id:
                self.ledger.odd.append(f"asked for {run_id}, got {answer['run_id']}")
            self.ledger.promised[run_id] = (self.session, body["prompt"])
            self.ledger.repeats += attempt

    async def _call(
        self, client: HTTPClient, method: str, path: str, body: object, expect: int = 200
    ) -> dict[str, str]:
        content = b"" if body is None else json.dumps(body).encode()
        response = await client.request(method, path, body=content, timeout=PATIENCE)
        if response.status != expect:
            text = response.body[:200].decode("utf-8", "replace")
            if response.status not in (404, 409, 503):  # leaving, or a workspace of another life
                self.ledger.odd.append(f"{method} {path}: {response.status} {text}")
            raise ConnectionError(f"{response.status} {text}")
        parsed: dict[str, str] = json.loads(response.body) if response.body else {}
        return parsed


async def rampage(target: Target, kills: int, rng: random.Random) -> Ledger:
    ledger = Ledger()
    over = asyncio.Event()
    posters = [Poster(target, ledger, random.Random(rng.random())) for _ in range(4)]
    tasks = [asyncio.create_task(poster.run(over)) for poster in posters]
    for number in range(kills):
        await target.start()
        await asyncio.sleep(rng.uniform(0.05, 1.0))
        await target.kill()
        print(f"kill {number + 1}/{kills}: {len(ledger.promised)} promised", flush=True)
    await target.start()
    await asyncio.sleep(0.5)
    over.set()
    async with asyncio.timeout(PATIENCE * 2):
        await asyncio.gather(*tasks)
    await settle(target, {poster.session for poster in posters})
    return ledger


async def settle(target: Target, sessions: set[str]) -> None:
    """Let the last turns end by themselves, then see that nothing is busy."""
    client = target.client()
    body = {"path": str(target.project), "client_id": str(uuid.uuid4())}
    content = json.dumps(body).encode()
    created = json.loads(
        (await client.request("POST", "/v1/workspaces", body=content, timeout=PATIENCE)).body
    )
    base = f"/v1/workspaces/{created['id']}"
    deadline = time.monotonic() + 60
    for session in sorted(filter(None, sessions)):
        while True:
            answer = await client.request("GET", f"{base}/sessions/{session}", timeout=PATIENCE)
            if not json.loads(answer.body)["is_busy"]:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"FAILED: session {session} stays busy")
            await asyncio.sleep(0.05)
    await client.aclose()


def audit(database: Path, ledger: Ledger) -> list[str]:
    """Hold the ledger against the rows. Returns what is wrong."""
    wrong = list(ledger.odd)
    with contextlib.closing(sqlite3.connect(database)) as conn:
        (sound,) = conn.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            wrong.append(f"integrity_check: {sound}")
        open_rows = conn.execute("SELECT run_id FROM runs WHERE outcome IS NULL").fetchall()
        wrong += [f"run {run_id} never ended" for (run_id,) in open_rows]
        unfinished = conn.execute("SELECT id FROM messages WHERE NOT finished").fetchall()
        wrong += [f"message {message} has no finish" for (message,) in unfinished]
        texts: dict[str, int] = {}
        for (parts,) in conn.execute("SELECT parts FROM messages WHERE role = 'user'"):
            text = json.loads(parts)[0]["data"]["text"]
            texts[text] = texts.get(text, 0) + 1
        rows = dict(conn.execute("SELECT run_id, outcome FROM runs"))
        twice = conn.execute("SELECT run_id FROM runs GROUP BY run_id HAVING count(*) > 1")
        wrong += [f"run {run_id} has two rows" for (run_id,) in twice]
    for run_id, (_, text) in ledger.promised.items():
        if run_id not in rows:
            wrong.append(f"LOST: run {run_id} was promised and is not there")
        elif texts.get(text, 0) != 1:
            wrong.append(f"run {run_id} has {texts.get(text, 0)} user messages")
    return wrong


async def main() -> int:
    parser = argparse.ArgumentParser(description="kill the daemon and count what was lost")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="crushlite-chaos-") as name:
        target = Target(Path(name))
        ledger = await rampage(target, options.kills, random.Random(options.seed))
        code = await target.stop()
        target.log.close()
        wrong = audit(target.data / "crushlite.db", ledger)
        if code != 0:
            wrong.append(f"the daemon left with {code} on SIGTERM")
        if wrong:
            sys.stdout.write(Path(target.log.name).read_text()[-4000:])
    print(
        f"{options.kills} kills, {len(ledger.promised)} promised, {ledger.repeats} repeats, "
        f"{ledger.cancels} cancels, {ledger.failures} requests died with the daemon"
    )
    for line in wrong[:20]:
        print(f"  {line}")
    print(f"FAILED: {len(wrong)} wrong" if wrong else "ok: zero lost")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
