"""Fill the daemon's disk again and again while clients post, then count what was promised.

    python tools/diskfull.py --rounds 20

Four posters send prompts, a third of them twice with the same run_id, and sometimes cancel and
read. Under them the disk is filled to the last byte, or nearly, and freed again. While it is full
prompts may be refused (507 or 503; a poster repeats what was refused until it is taken), but reads
and cancel must be answered, nothing may be answered 500, and streams stay open. Each time it is
freed the daemon must take and finish a prompt again by itself. At the end every prompt that was
answered 202 must have exactly one user message, one ending in its row and one `run_complete` on the
stream, and every session must read as the stream has told it, message by message.

The disk is a small tmpfs in a mount namespace of its own. Where no namespace can be made, the
daemon's files may not grow instead (RLIMIT_FSIZE). Exit 0 only if nothing was lost. The seed is
printed; `--seed` repeats its choices.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.testing import EventReader  # noqa: E402
from tools.chaos import PATIENCE, Ledger, Target, audit  # noqa: E402

if TYPE_CHECKING:
    from crushlite.http.client import HTTPClient

SIZE = 64 * 1024 * 1024
SPARE = 64 * 1024  # at most so much is left when the disk is "nearly" full
HEAL_SECONDS = 15.0
REFUSALS = (503, 507)


class SmallDisk:
    """A tmpfs of its own, filled by a file beside the database."""

    name = "tmpfs"

    def __init__(self, target: Target) -> None:
        self._filler = target.data / "filler"
        target.data.mkdir(mode=0o700)
        options = f"size={SIZE},mode=700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(target.data)]
        subprocess.run(command, check=True)

    def fill(self, spare: int) -> None:
        block = b"x" * 65536
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(block)
            except OSError:
                pass
            file.truncate(max(0, file.tell() - spare))

    def free(self) -> None:
        self._filler.unlink()


class NoGrowth:
    """The daemon's files may not grow: every write behind their first bytes is refused."""

    name = "RLIMIT_FSIZE"

    def __init__(self, target: Target) -> None:
        self._target = target
        target.data.mkdir(mode=0o700)

    def fill(self, spare: int) -> None:
        self._limit(1)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        assert self._target.process is not None
        pid = self._target.process.pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@dataclass
class Tally(Ledger):
    """What was answered, besides what was promised."""

    answers: collections.Counter[int] = field(default_factory=collections.Counter)
    rounds: list[float] = field(default_factory=list)  # seconds until it had healed
    histories: dict[str, list[Any]] = field(default_factory=dict)  # by session, at the end


class Poster:
    def __init__(self, http: HTTPClient, base: str, tally: Tally, rng: random.Random) -> None:
        self.http = http
        self.base = base
        self.tally = tally
        self.rng = rng
        self.session = ""

    async def open(self) -> None:
        self.session = (await self.call("POST", "/sessions", {"title": "full"}, 200))["id"]

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.prompt()
            if self.rng.random() < 0.1:
                await self.call("POST", f"/agent/sessions/{self.session}/cancel", None, 200)
                self.tally.cancels += 1
            if self.rng.random() < 0.1:
                await self.call("GET", f"/sessions/{self.session}/messages", None, 200)
            await asyncio.sleep(self.rng.uniform(0.005, 0.03))

    async def prompt(self) -> str:
        """Post until it is taken, and now and then once more."""
        run_id = str(uuid.uuid4())
        body = {"session_id": self.session, "prompt": f"do {run_id}", "run_id": run_id}
        if self.rng.random() < 0.3:
            body["when_busy"] = "steer"
        again = self.rng.random() < 1 / 3
        while True:
            status, answer = await self.ask("POST", "/agent", body)
            if status == 202:
                if answer["run_id"] != run_id:
                    self.tally.odd.append(f"asked for {run_id}, got {answer['run_id']}")
                self.tally.promised[run_id] = (self.session, body["prompt"])
                if not again:
                    return run_id
                again, self.tally.repeats = False, self.tally.repeats + 1
            elif status in REFUSALS:
                self.tally.failures += 1
                await asyncio.sleep(self.rng.uniform(0.01, 0.1))
            else:
                self.tally.odd.append(f"POST /agent: {status} {answer}")
                return run_id

    async def call(self, method: str, path: str, body: object, expect: int) -> Any:
        status, answer = await self.ask(method, path, body)
        if status != expect:
            self.tally.odd.append(f"{method} {path}: {status} {answer}")
        return answer

    async def ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = await self.http.request(method, self.base + path, body=content, timeout=PATIENCE)
        self.tally.answers[answer.status] += 1
        return answer.status, json.loads(answer.body) if answer.body else None


async def healed(probe: Poster, events: EventReader) -> float:
    """How long it takes until a prompt is taken and has ended as if nothing had been."""
    begun = time.monotonic()
    async with asyncio.timeout(HEAL_SECONDS):
        while True:
            run_id = await probe.prompt()
            path = f"/runs/{run_id}?wait={HEAL_SECONDS}"
            run = await probe.call("GET", path, None, 200)
            if run["state"] == "ended" and not run["error"]:
                return time.monotonic() - begun


async def rampage(
    target: Target, disk: SmallDisk | NoGrowth, rounds: int, rng: random.Random
) -> tuple[Tally, EventReader]:
    tally, over, events = Tally(), asyncio.Event(), EventReader()
    client = str(uuid.uuid4())
    http = target.client()
    body = json.dumps({"path": str(target.project), "client_id": client}).encode()
    made = await http.request("POST", "/v1/workspaces", body=body, timeout=PATIENCE)
    base = f"/v1/workspaces/{json.loads(made.body)['id']}"
    await events.open(target.client(), f"{base}/events?client_id={client}&resume=1")
    posters = [Poster(target.client(), base, tally, random.Random(rng.random())) for _ in range(5)]
    for poster in posters:
        await poster.open()
    *crowd, probe = posters
    tasks = [asyncio.create_task(poster.run(over)) for poster in crowd]
    for number in range(rounds):
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        disk.fill(rng.choice((0, 0, rng.randrange(SPARE))))
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        disk.free()
        tally.rounds.append(await healed(probe, events))
        print(
            f"round {number + 1}/{rounds}: healed in {tally.rounds[-1]:.2f} s, "
            f"{len(tally.promised)} promised, {tally.failures} refused",
            flush=True,
        )
    over.set()
    async with asyncio.timeout(PATIENCE * 2):
        await asyncio.gather(*tasks)
        for poster in posters:
            path = f"/sessions/{poster.session}"
            while (await poster.call("GET", path, None, 200))["is_busy"]:
                await asyncio.sleep(0.05)
            history = await poster.call("GET", f"{path}/messages", None, 200)
            tally.histories[poster.session] = history
    return tally, events


def verdict(database: Path, tally: Tally, events: EventReader) -> list[str]:
    wrong = audit(database, tally)
    told = collections.Counter(event["run_id"] for event in events.all("run_complete"))
    for run_id in tally.promised:
        if told[run_id] != 1:
            wrong.append(f"run {run_id} has {told[run_id]} run_complete")
    wrong += [f"{run_id} ended and was never promised" for run_id in told.keys() - tally.promised]
    for session, history in tally.histories.items():
        streamed = {
            event["id"]: event["parts"] for event in events.all("message", session_id=session)
        }
        if [(message["id"], message["parts"]) for message in history] != list(streamed.items()):
            wrong.append(f"session {session} does not read as the stream has told it")
    if tally.answers[500]:
        wrong.append(f"{tally.answers[500]} requests were answered 500")
    if not tally.failures:
        wrong.append("nothing was ever refused: the disk was not full")
    return wrong


async def attack(options: argparse.Namespace) -> int:
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="crushlite-diskfull-") as name:
        target = Target(Path(name))
        disk = SmallDisk(target) if options.inside else NoGrowth(target)
        await target.start()
        try:
            rng = random.Random(options.seed)
            tally, events = await rampage(target, disk, options.rounds, rng)
            unsaved = sum("not saved" in (e["error"] or "") for e in events.all("run_complete"))
            await events.close()
        finally:
            code = await target.stop()
            target.log.close()
            log = Path(target.log.name).read_text(errors="replace")
        wrong = verdict(target.data / "crushlite.db", tally, events)
        if code != 0:
            wrong.append(f"the daemon left with {code} on SIGTERM")
        if "Traceback" in log:
            wrong.append("the daemon logged a traceback")
        if wrong:
            sys.stdout.write(log[-4000:])
        if options.inside:
            subprocess.run(["umount", str(target.data)], check=True)
    print(
        f"{disk.name}, {options.rounds} times full: {len(tally.promised)} promised, "
        f"{tally.repeats} repeats, {tally.cancels} cancels, {tally.failures} refused, "
        f"{unsaved} endings told before they were written, "
        f"healed in {max(tally.rounds):.2f} s at most, "
        f"answers {dict(sorted(tally.answers.items()))}"
    )
    for line in wrong[:20]:
        print(f"  {line}")
    print(f"FAILED: {len(wrong)} wrong" if wrong else "ok: no lost promise, no 500, healed")
    return 1 if wrong else 0


def namespaced() -> bool:
    """Whether this machine lets us mount something for ourselves."""
    try:
        answer = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()],
            capture_output=True,
        )
    except OSError:
        return False
    return answer.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="fill the disk and count what was lost")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-growth", action="store_true", help="use RLIMIT_FSIZE, not a tmpfs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside and not options.no_growth and namespaced():
        arguments = ["--rounds", str(options.rounds), "--seed", str(options.seed), "--inside"]
        os.execvp("unshare", ["unshare", "-rm", sys.executable, __file__, *arguments])
    return asyncio.run(attack(options))


if __name__ == "__main__":
    sys.exit(main())
