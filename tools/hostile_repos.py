"""Open, list, prompt and leave repositories that want to do harm.

    python tools/hostile_repos.py                          all of them (some minutes)
    python tools/hostile_repos.py --only git/ data/fifo    those whose name begins like that
    python tools/hostile_repos.py --skip config/           without those that need the trust rule
    python tools/hostile_repos.py --list

Each repository (tools/hostile_corpus.py) gets a daemon of its own, in a process, with a user's
configuration and a model that asks for ls, glob, grep, view, edit, write and git in it. Nobody
grants a permission. Checked for each one:

- opening and the prompt are answered within their limits (an error is an answer);
- no connection was made to the server that the repository names, and the user's model saw no secret
  of the environment;
- the program that the repository wants to run did not run, and nothing was written outside;
- health is answered after the prompt, and SIGTERM ends the daemon within 10 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.fake_model import End, FakeModel, Say, Use  # noqa: E402
from crushlite.http.client import ClientError, HTTPClient, UnixConnector  # noqa: E402
from tools.hostile_corpus import REPOS, Maker  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.fake_model import Step

LEAVE_SECONDS = 10.0
SECRET = "sk-canary-5f0c1d2e3b4a59687766"
NAMES = (
    *("AGENTS.md", "a.txt", ".gitignore", ".env", "crush.json", ".crushlite/crushlite.db", "p"),
    *("main.py", "main.go", "main.c", "main.rs"),
)
LISTS = ("skills", "commands", "agents", "mcp/states", "mcp/prompts", "lsps")


def plan(request: dict[str, Any]) -> Sequence[Step]:
    """What the model answers: first many tool calls, then the end. Titles need no tools."""
    if not request.get("tools"):
        return [Say("A title"), End()]
    if any(message["role"] == "tool" for message in request["messages"]):
        return [Say("done"), End()]
    uses: list[tuple[str, dict[str, Any]]] = [
        *(("ls", {}) for _ in range(7)),
        ("glob", {"pattern": "**/*"}),
        ("grep", {"pattern": "(needle|KEY)"}),
        ("grep", {"pattern": "x", "path": ".crushlite"}),
        *(("view", {"file_path": name}) for name in NAMES),
        ("edit", {"file_path": "a.txt", "old_string": "x", "new_string": "y"}),
        ("bash", {"command": "ls", "description": "look"}),
        ("bash", {"command": "git status", "description": "look"}),  # a denied call ends the turn
        ("ls", {"path": "..", "depth": 2}),
    ]
    return [*(Use(name, json.dumps(value)) for name, value in uses), End()]


class Recorder:
    """A server that must not be asked: counts connections and keeps what they sent."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __aenter__(self) -> Recorder:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(b"(connected)")
        self.heard.append(await reader.read(10_000))
        writer.close()


class Case:
    """One repository, and the daemon that has it open. `patience` is the limit of one request, in
    seconds; `leave` that of the way out, None if it is not checked."""

    def __init__(
        self, name: str, folder: Path, *, patience: float, leave: float | None = LEAVE_SECONDS
    ) -> None:
        self.name = name
        self.problems: list[str] = []
        self.outcome = ""
        self.seconds: dict[str, float] = {}
        self._patience = patience
        self._leave = leave
        self._folder = folder
        self._mark = folder / "mark"
        self._log = folder / "log"
        self._home = folder / "home"
        self._repo = folder / "repo"

    async def run(self) -> None:
        for path in (self._home, self._repo, self._folder / "tmp"):
            path.mkdir()
        trap = self._folder / "trap"
        trap.write_text(f"#!/bin/sh\necho ran >> {self._mark}\n")
        trap.chmod(0o755)
        async with Recorder() as recorder, FakeModel(script=plan) as model:
            await asyncio.to_thread(REPOS[self.name], Maker(self._repo, trap, recorder.url))
            self._configure(model)
            before = self._outside()
            process = await self._start()
            try:
                await self._visit()
            finally:
                await self._stop(process)
            if recorder.heard:
                self.problems.append(f"something left: {recorder.heard[:3]!r}")
            if any(SECRET.encode() in call.body for call in model.calls):
                self.problems.append("the model got a secret of the environment")
        if self._mark.exists():
            self.problems.append("the trap has run")
        if self._outside() != before:
            self.problems.append(f"written outside: {self._outside() ^ before}")
        log = self._log.read_text(errors="replace")
        if "Traceback" in log:
            self.problems.append(f"a traceback in the log: {log[-1500:]}")

    def _outside(self) -> set[str]:
        """Files beside the repository that must not change."""
        return {str(path) for path in self._folder.iterdir() if path.name not in ("log", "mark")}

    def _configure(self, model: FakeModel) -> None:
        chosen = {"model": "m", "provider": "works"}
        kind = {"type": "openai-compat", "base_url": model.base_url, "api_key": "users-key"}
        value = {
            "providers": {"works": {**kind, "models": [{"id": "m", "name": "M"}]}},
            "models": {"large": chosen, "small": chosen},
        }
        path = self._home / ".config" / "crush" / "crush.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))

    async def _start(self) -> asyncio.subprocess.Process:
        env = {
            "HOME": str(self._home),
            "PATH": os.environ.get("PATH", os.defpath),
            "TMPDIR": str(self._folder / "tmp"),
            "PYTHONPATH": str(ROOT),
            "OPENAI_API_KEY": SECRET,
            "SECRET_TOKEN": SECRET,
        }
        socket = self._folder / "tmp" / "d.sock"
        words = ["-m", "crushlite", "serve", "--host", f"unix://{socket}", "--agent", "auto"]
        with open(self._log, "wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                "--unattended",
                "0.2",
                env=env,
                cwd="/",
                stdout=log,
                stderr=log,
            )
        connector = UnixConnector(str(socket), expect_uid=None)
        self._http = HTTPClient(connector, host_header="localhost", clock=SystemClock())
        for _ in range(600):
            try:
                await self._http.request("GET", "/v1/health")
                break
            except ClientError:  # its file is there before it listens
                await asyncio.sleep(0.1)
        return process

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        await self._http.aclose()
        began = time.monotonic()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(60):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            self.problems.append("SIGTERM did not end the daemon within 60 s")
        self.seconds["leave"] = time.monotonic() - began
        if self._leave is not None and self.seconds["leave"] > self._leave:
            self.problems.append(f"SIGTERM took {self.seconds['leave']:.1f} s")

    async def _visit(self) -> None:
        opened = await self._ask("open", "POST", "/v1/workspaces", {"path": str(self._repo)})
        if opened is None or "id" not in opened:
            self.outcome = f"not opened: {(opened or {}).get('message', opened)}"
        else:
            base = f"/v1/workspaces/{opened['id']}"
            for listed in LISTS:
                await self._ask(listed, "GET", f"{base}/{listed}")
            session = await self._ask("session", "POST", f"{base}/sessions", {"title": "t"})
            wanted = {"session_id": (session or {}).get("id", ""), "prompt": "look around"}
            run = await self._ask("prompt", "POST", f"{base}/agent", wanted)
            target = f"{base}/runs/{(run or {}).get('run_id')}?wait={self._patience:g}"
            ended = await self._ask("run", "GET", target)
            self.outcome = str((ended or {}).get("outcome") or ended)
            if run is not None and (ended or {}).get("outcome") is None and "run_id" in run:
                self.problems.append(f"the run did not end: {ended}")
        await self._ask("health", "GET", "/v1/health")

    async def _ask(self, what: str, method: str, target: str, body: Any = None) -> Any:
        """The JSON of an answer; None, and a problem, if there is none in time."""
        began = time.monotonic()
        if what == "open":
            body["client_id"] = "7b4f2a3e-0000-4000-8000-000000000001"
        content = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self._http.request(
                method, target, body=content, timeout=self._patience + 10
            )
            if answer.status >= 500 and answer.status != 507:
                self.problems.append(f"{what} was answered {answer.status}: {answer.body[:300]!r}")
            return json.loads(answer.body or b"{}")
        except (ClientError, ValueError) as error:
            self.problems.append(f"{what}: {type(error).__name__}: {error}")
            return None
        finally:
            self.seconds[what] = time.monotonic() - began


async def visit(
    names: Sequence[str], *, patience: float = 60.0, leave: float | None = LEAVE_SECONDS
) -> list[Case]:
    """Visit these repositories, one after the other."""
    cases = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
            case = Case(name, Path(folder).resolve(), patience=patience, leave=leave)
            await case.run()
            cases.append(case)
            _remove_deep(Path(folder) / "repo")
    return cases


def _remove_deep(folder: Path) -> None:
    """Remove nested folders that are too deep for shutil, which recurses."""
    chain, at = [], folder / "d"
    descriptor = os.open(folder, os.O_RDONLY) if at.is_dir() else -1
    while descriptor >= 0:
        chain.append(descriptor)
        try:
            descriptor = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        except OSError:
            break
    for number, parent in reversed(list(enumerate(chain))):
        for name in os.listdir(parent) if number else []:
            (os.rmdir if name == "d" else os.unlink)(name, dir_fd=parent)
        os.close(parent)


def selected(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    return [
        name
        for name in REPOS
        if (not only or name.startswith(tuple(only))) and not name.startswith(tuple(skip))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--skip", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    names = selected(options.only, [*options.skip] or ["(none)"])
    if options.list:
        print("\n".join(names))
        return 0
    failed = 0
    for name in names:
        [case] = asyncio.run(visit([name]))
        failed += bool(case.problems)
        took = " ".join(f"{what} {seconds:.1f}" for what, seconds in case.seconds.items())
        print(f"{'FAILED' if case.problems else 'ok':6} {name:28} {case.outcome[:90]} [{took}]")
        for problem in case.problems:
            print(f"       {problem}")
        sys.stdout.flush()
    print(f"{len(names)} repositories, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
