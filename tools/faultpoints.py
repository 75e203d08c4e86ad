"""Kill the process after every single SQL statement of a turn, and of the recovery that follows.

    python tools/faultpoints.py                # about 10 minutes
    python tools/faultpoints.py --every 7      # every seventh statement only

A child process serves a small, fixed story (a turn with a tool, prompts that queue, steer, repeat
and are canceled, a rename) with a database whose connections count statements, and kills itself
with -9 right after the given one. For each number from 1 until the story survives: the parent opens
what is left as the next daemon would, and holds it against what the child had promised. Now and
then the opening itself is killed after each of its statements, again and again, before it may
succeed. (Migrations are killed the same way by tests/test_store_migrations.py.)

Exit 0 only if every promise was kept: each 202 has its user message and exactly one ending, no run
is left open, and the file is sound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.store import Stores  # noqa: E402

PATIENCE = 60.0


# The child --------------------------------------------------------------------------------------


class Deadly(sqlite3.Connection):
    """Counts the statements of all connections, and ends the process after the given one."""

    left = 0

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        type(self).left -= 1
        if type(self).left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return cursor


def deadly(path: Path, read_only: bool) -> sqlite3.Connection:
    uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, factory=Deadly, check_same_thread=False
    )


def stores(number: int) -> Stores:
    Deadly.left = number
    return Stores(clock=SystemClock(), boot_id=str(uuid.uuid4()), connect=deadly)


async def story(folder: Path, number: int) -> None:
    from crushlite.daemon import Daemon
    from crushlite.http.client import HTTPClient, UnixConnector
    from crushlite.offline.agent import OfflineAgent

    daemon = Daemon(
        agent=OfflineAgent(pace=0.0), hosts=[f"unix://{folder / 's'}"], stores=stores(number)
    )
    await daemon.start()
    connector = UnixConnector(str(folder / "s"), expect_uid=os.getuid())
    http = HTTPClient(connector, clock=SystemClock(), host_header="localhost")

    async def call(method: str, target: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        answer = await http.request(method, target, body=data)
        assert answer.status < 300, (answer.status, answer.body)
        return json.loads(answer.body) if answer.body else None

    create = {"path": str(folder / "project"), "client_id": str(uuid.uuid4())}
    base = "/v1/workspaces/" + (await call("POST", "/v1/workspaces", create))["id"]
    session = (await call("POST", f"{base}/sessions", {"title": "one"}))["id"]
    await call("POST", f"{base}/permissions/skip", {"skip": True})

    async def post(run_id: str, prompt: str, **more: Any) -> None:
        body = {"session_id": session, "prompt": prompt, "run_id": run_id, **more}
        await call("POST", f"{base}/agent", body)
        print(f"{run_id} {prompt}", flush=True)  # from now on it is promised

    async def ended(run_id: str) -> None:
        await call("GET", f"{base}/runs/{run_id}?wait=60")

    await post("r1", "hello there")
    await ended("r1")
    await post("r2", "/tool ls -l")
    await post("r2", "/tool ls -l")  # a repeat is the same run
    await ended("r2")
    await post("r3", "/slow 60")
    await post("r4", "queued")
    await post("r5", "steering", when_busy="steer")
    await call("PUT", f"{base}/sessions/{session}", {"title": "renamed"})
    await call("POST", f"{base}/agent/sessions/{session}/cancel?wait=60")
    await post("r6", "/fail on purpose")
    await ended("r6")
    await daemon.stop()


async def reopen(folder: Path, number: int) -> None:
    opened = stores(number)
    store = await opened.open(folder / "project" / ".crushlite")
    await opened.release(store)


# The parent -------------------------------------------------------------------------------------


def child(what: str, folder: Path, number: int) -> tuple[bool, list[str]]:
    """Whether it was killed, and what it had promised."""
    command = [sys.executable, __file__, "--child", what, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--number", str(number)],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        cwd=ROOT,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"{what} failed at {number}:\n{done.stderr.decode()[-2000:]}")
    return done.returncode != 0, done.stdout.decode().splitlines()


async def check(folder: Path, promised: list[str], number: int) -> list[str]:
    """Open as the next daemon would, then read the file with nothing of ours in between."""
    opened = Stores(clock=SystemClock(), boot_id=str(uuid.uuid4()))
    store = await opened.open(folder / "project" / ".crushlite")
    await opened.release(store)
    conn = sqlite3.connect(folder / "project" / ".crushlite" / "crushlite.db")
    wrong = []
    if conn.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        wrong.append("the file is damaged")
    if conn.execute("SELECT count(*) FROM runs WHERE outcome IS NULL").fetchone() != (0,):
        wrong.append("a run is open")
    if conn.execute("SELECT count(*) FROM messages WHERE finished = 0").fetchone() != (0,):
        wrong.append("a message is open")
    for run_id, _, prompt in (line.partition(" ") for line in promised):
        rows = conn.execute(
            "SELECT outcome, user_message_id FROM runs WHERE run_id = ?", (run_id,)
        ).fetchall()
        if len(rows) != 1:
            wrong.append(f"{run_id} has {len(rows)} rows")
            continue
        parts = conn.execute("SELECT parts FROM messages WHERE id = ?", (rows[0][1],)).fetchone()
        if parts is None or prompt not in parts[0]:
            wrong.append(f"{run_id} has lost its prompt")
        said = conn.execute(
            "SELECT count(*) FROM messages WHERE role = 'user' AND instr(parts, ?) > 0", (prompt,)
        ).fetchone()
        if said != (1,):
            wrong.append(f"{run_id} was said {said[0]} times")
    conn.close()
    return [f"killed after statement {number}: {text}" for text in wrong]


async def run(every: int, recoveries: int) -> int:
    wrong: list[str] = []
    number, points, reopenings = 1, 0, 0
    while True:
        with tempfile.TemporaryDirectory(prefix="crushlite-faults-") as name:
            folder = Path(name)
            (folder / "project").mkdir()
            killed, promised = child("story", folder, number)
            if killed and points % recoveries == 0 and (folder / "project/.crushlite").exists():
                at = 1
                while child("reopen", folder, at)[0]:
                    at += 1
                    reopenings += 1
            wrong += await check(folder, sorted(set(promised)), number)
            shutil.rmtree(folder / "project")
        if not killed:
            break
        points += 1
        number += every
        if points % 25 == 0:
            print(f"{points} points, {reopenings} of recovery, {len(wrong)} wrong", flush=True)
    for line in wrong[:20]:
        print(line)
    print(f"{points} points in the story, {reopenings} in recovery, {len(wrong)} promises broken")
    return 1 if wrong or not points else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="kill after every Nth statement")
    parser.add_argument("--recoveries", type=int, default=10, help="kill every Nth recovery, too")
    parser.add_argument("--child", choices=("story", "reopen"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that runs were interrupted is what this is about
    if options.child:
        work = story if options.child == "story" else reopen
        asyncio.run(work(options.folder, options.number))
        return 0
    return asyncio.run(run(options.every, options.recoveries))


if __name__ == "__main__":
    sys.exit(main())
