"""Scripted editors at one daemon, at random, for some minutes:

    python tools/acp_editors.py [--minutes N] [--editors N] [--seed N]

Each editor starts `crushlite acp`, opens sessions that others use too, sends prompts, cancels some,
answers permission requests in every way, loads its session again, and is closed, ended or killed;
the daemon is killed now and then.

Every prompt of an editor that stays is answered once: with `cancelled` only if this editor has
cancelled it, with the end of the turn after its text was shown once. No prompt is in its session
twice, and none that was answered with the end of the turn is missing. No process, permission
request or run is left at the end. Prints what was done; the exit code is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.client import Client  # noqa: E402
from crushlite.clock import SystemClock  # noqa: E402
from crushlite.errors import CrushliteError  # noqa: E402
from crushlite.features import requests  # noqa: E402
from crushlite.jsonrpc.errors import PeerError, RpcError  # noqa: E402
from crushlite.jsonrpc.peer import RpcPeer  # noqa: E402
from tests.support.configured import marked  # noqa: E402
from tests.support.editors import ScriptedEditor, prompt  # noqa: E402

if TYPE_CHECKING:
    from crushlite.client import RemoteWorkspace
    from tests.support.editors import Asked

PATIENCE = 90.0  # seconds for an answer: more than a prompt waits for a daemon that was lost
SHARED = 6  # sessions; a new one takes the place of the oldest
WORK = ("", "", "\n/long 100", "\n/slow 1", "\n/tool x", "\n/tool x\n/tool y", "\n/think a b c")
OPTIONS = ("allow", "allow", "allow_session", "deny", "nonsense")
# What the end of a turn may be called if it is an error.
ERRORS = ("interrupted", "the daemon is lost", "was deleted", "start a daemon", "carried out")


class Editors:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.address = f"unix://{folder}/d.sock"
        self.cwd = str(folder / "project")
        places = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder / "run")}
        self.env = {**places, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        self.folder = folder
        self.numbers = itertools.count(1)
        self.sessions: collections.deque[str] = collections.deque(maxlen=SHARED)
        self.every_session: set[str] = set()
        self.sent: dict[str, str] = {}  # the session of each prompt
        self.done: set[str] = set()  # prompts that were answered with an end of the turn
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    async def run(self, seconds: float, editors: int) -> list[str]:
        """What was wrong."""
        Path(self.cwd).mkdir()
        (self.folder / "run").mkdir(mode=0o700)
        self.deadline = time.monotonic() + seconds
        killing = asyncio.create_task(self._kill_daemons())
        try:
            results = await asyncio.gather(
                *(self._editors() for _ in range(editors)), return_exceptions=True
            )
        finally:
            killing.cancel()
        self.wrong += [f"an editor failed: {error!r}" for error in results if error is not None]
        await self._check()
        return self.wrong

    async def _kill_daemons(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(10, 30))
            with contextlib.suppress(CrushliteError, ProcessLookupError):
                async with Client(self.address) as client:
                    os.kill((await requests.vitals(client)).pid, signal.SIGKILL)
                    self.counts["daemons killed"] += 1

    async def _editors(self) -> None:
        """One editor after the other."""
        while time.monotonic() < self.deadline:
            await OneEditor(self).run()

    async def _check(self) -> None:
        """What must hold when all editors are gone."""
        if left := [pid for pid in marked(self.address) if b"\0acp\0" in _command(pid)]:
            self.wrong.append(f"{len(left)} processes of editors are left")
        async with Client(self.address) as client:
            try:
                workspace = await client.create(self.cwd)
            except CrushliteError:  # it was killed last
                await self._start_daemon()
                workspace = await client.create(self.cwd)
            async with asyncio.timeout(PATIENCE):
                await self._end_runs(workspace)
            said = collections.Counter(
                message.text.split("\n")[0] for message in await workspace.user_messages()
            )
            listed = {session.id for session in await workspace.sessions()}
            os.kill((await requests.vitals(client)).pid, signal.SIGTERM)
        self.wrong += [
            f"{name} is in its session {said[name]} times" for name in said if said[name] > 1
        ]
        self.wrong += [
            f"{name} was answered and is not there" for name in self.done if not said[name]
        ]
        if lost := self.every_session - listed:
            self.wrong.append(f"{len(lost)} sessions are lost")
        for _ in range(100):
            if not marked(self.address):
                return
            await asyncio.sleep(0.1)
        self.wrong.append(f"{len(marked(self.address))} processes are left")

    async def _start_daemon(self) -> None:
        script = OneEditor(self)
        await script.start()
        await script.request("session/list", cwd=self.cwd)
        await script.end("close")

    async def _end_runs(self, workspace: RemoteWorkspace) -> None:
        """Answer what is open until every run has ended."""
        while any(run.state != "ended" for run in await workspace.runs()):
            for request in await workspace.permissions():
                await workspace.grant(request.id, "deny")
            await asyncio.sleep(0.1)
        if open_requests := await workspace.permissions():
            self.wrong.append(f"{len(open_requests)} permission requests are left")


class OneEditor(ScriptedEditor):
    def __init__(self, all_of_them: Editors) -> None:
        super().__init__()
        self.all = all_of_them
        self.random = all_of_them.random
        self.session = ""

    async def start(self) -> None:
        host = ("--host", self.all.address, "--agent", "offline")
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crushlite", "acp", *host),
            env=self.all.env,
            cwd=self.all.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 20,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.peer = RpcPeer(self.process.stdout, self.process.stdin, self, SystemClock())
        self.reading = asyncio.create_task(self.peer.run())
        self.answering = asyncio.create_task(self._answer())
        self.all.counts["editors"] += 1
        await self.request("initialize", protocolVersion=1)

    async def run(self) -> None:
        await self.start()
        kind = "kill"
        try:
            async with asyncio.timeout(PATIENCE):
                await self._open()
            for _ in range(self.random.randint(1, 6)):
                await self._turn()
            kind = self.random.choice(("kill", "term", "close"))
            if self.random.random() < 0.5:  # in mid-turn
                self.begin("session/prompt", **self._prompt()).add_done_callback(_forget)
                await asyncio.sleep(self.random.uniform(0, 0.5))
        except RpcError as error:
            self._judge_error("a session", error)
        except TimeoutError:
            self.all.wrong.append("a session was not opened")
        finally:
            await self.end(kind)

    async def end(self, kind: str) -> None:
        self.answering.cancel()
        if kind == "close" and self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
        except TimeoutError:
            self.all.wrong.append(f"an editor's process did not end after {kind}")
            self.process.kill()
        await self.peer.close()
        await asyncio.wait([self.reading])
        if self.peer.noises:
            self.all.wrong.append("what was no message, or a second answer")

    async def _open(self) -> None:
        params: dict[str, Any] = {"cwd": self.all.cwd, "mcpServers": []}
        if not self.all.sessions or self.random.random() < 0.2:
            answer = await self.request("session/new", **params)
            self.session = answer["sessionId"]
            self.all.sessions.append(self.session)
            self.all.every_session.add(self.session)
            return
        self.session = self.random.choice(self.all.sessions)
        await self._load()

    async def _load(self) -> None:
        self.updates.clear()
        method = self.random.choice(("session/load", "session/resume"))
        params = {"sessionId": self.session, "cwd": self.all.cwd, "mcpServers": []}
        await self.request(method, **params)
        self.all.counts["loads"] += 1

    async def _turn(self) -> None:
        """One or two prompts, and something that happens to them."""
        what = self.random.choice(("wait", "wait", "cancel", "take back", "load", "two"))
        first = asyncio.create_task(self._prompted(is_cancelled=what in ("cancel", "take back")))
        others = []
        number = self.peer._next_id  # of the request that the task is about to send
        await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.3, 1)))
        if what == "cancel":
            await self.peer.notify("session/cancel", {"sessionId": self.session})
            others.append(self._prompted(is_cancelled=False))  # a cancel never hits a later one
        elif what == "take back":
            await self.peer.notify("$/cancel_request", {"requestId": number})
        elif what == "two":
            others.append(self._prompted(is_cancelled=False))
        await asyncio.gather(first, *others)
        if what == "load":
            async with asyncio.timeout(PATIENCE):
                await self._load()

    def _prompt(self) -> dict[str, Any]:
        name = f"p{next(self.all.numbers)}."
        self.all.sent[name] = self.session
        self.all.counts["prompts"] += 1
        return prompt(self.session, name + self.random.choice(WORK))

    async def _prompted(self, *, is_cancelled: bool) -> None:
        params = self._prompt()
        name = params["prompt"][0]["text"].split("\n")[0]
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self.request("session/prompt", **params)
        except TimeoutError:
            self.all.wrong.append(f"{name} was never answered")
            return
        except RpcError as error:
            self.all.counts["errors"] += 1
            self._judge_error(name, error)
            return
        reason = answer["stopReason"]
        self.all.counts[reason] += 1
        if reason == "cancelled":
            if not is_cancelled:
                self.all.wrong.append(f"{name} was cancelled, by nobody")
            return
        self.all.done.add(name)
        shown = self.text().count(f"You said: {name}")
        if shown != 1:
            self.all.wrong.append(f"{name} was answered and its text shown {shown} times")

    def _judge_error(self, name: str, error: RpcError) -> None:
        if not any(words in error.message for words in ERRORS):
            self.all.wrong.append(f"{name}: {error.message[:200]}")

    async def _answer(self) -> None:
        """Answer what is asked, late sometimes, and not always in time."""
        while True:
            asked = await self.asked.get()
            await asyncio.sleep(self.random.choice((0, 0.05, 0.5)))
            if not asked.answer.done():
                self._choose(asked)

    def _choose(self, asked: Asked) -> None:
        self.all.counts["dialogs"] += 1
        if self.random.random() < 0.1:
            asked.answer.set_result({"outcome": {"outcome": "cancelled"}})
        else:
            asked.choose(self.random.choice(OPTIONS))


def _forget(task: asyncio.Task[Any]) -> None:
    """A prompt whose editor has ended."""
    if not task.cancelled() and not isinstance(task.exception(), PeerError | None):
        raise AssertionError(task.exception())


def _command(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def main() -> int:
    parser = argparse.ArgumentParser(description="Scripted editors at one daemon, at random.")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--editors", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # A socket's path must be short: not below a long TMPDIR.
    with tempfile.TemporaryDirectory(prefix="cl-", dir="/tmp") as folder:
        editors = Editors(options.seed, Path(folder))
        wrong = asyncio.run(editors.run(options.minutes * 60, options.editors))
    done = ", ".join(f"{count} {what}" for what, count in sorted(editors.counts.items()))
    print("\n".join([f"{done}, {len(wrong)} wrong", *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
