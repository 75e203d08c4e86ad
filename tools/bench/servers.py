"""The servers that are compared: how each is started, its own client, its processor time, memory.

A Recipe says how to start a server; a Server is one process with a home, a project and a database
of its own. Its environment is made here and inherits nothing but the PATH: a variable such as
PYTHONDONTWRITEBYTECODE would change what is measured.
"""

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client import BenchError, Connection, Stream

HERE = Path(__file__).resolve().parent
START = 30.0  # seconds a server may take to answer


@dataclass(frozen=True)
class Recipe:
    """`serve` and `ask` are commands; `{url}` in them is replaced by the address."""

    name: str
    what: str
    serve: tuple[str, ...]
    ask: tuple[str, ...] = ()  # the server's own client with the prompt "hello"
    environment: dict[str, str] = field(default_factory=dict)
    toy: bool = False  # knows the toy contract only


def checkout(name: str, folder: Path, what: str) -> Recipe:
    """The daemon of a checkout, run by this Python, its bytecode made beforehand."""
    if not (folder / "crushlite" / "__main__.py").is_file():
        raise SystemExit(f"{folder} is no checkout of crushlite: it has no crushlite/__main__.py")
    python = sys.executable
    subprocess.run([python, "-m", "compileall", "-q", folder / "crushlite"], env={}, check=False)
    serve = (python, "-m", "crushlite", "serve", "--host", "{url}", "--auth", "none")
    ask = (python, "-m", "crushlite", "run", "--quiet", "--host", "{url}", "hello")
    return Recipe(name, what, serve, ask, {"PYTHONPATH": str(folder)})


def crush(path: str) -> Recipe:
    found = shutil.which(path)
    if found is None:
        raise SystemExit(f"--crush {path}: no such program. Leave the option out to do without it.")
    found = str(Path(found).resolve())
    ask = (found, "--host", "{url}", "run", "--quiet", "hello")
    environment = {"CRUSH_CLIENT_SERVER": "1", "CRUSH_DISABLE_METRICS": "1"}
    return Recipe("crush", found, (found, "server", "--host", "{url}"), ask, environment)


def fixed_points(python: str) -> list[Recipe]:
    """The toy servers: bare asyncio, and uvicorn with starlette if `python` has them."""
    pythons = {"asyncio": sys.executable, "starlette": python}
    probe = [python, "-c", "import uvicorn, starlette"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        del pythons["starlette"]
        advice = f"`pip install -r {HERE / 'requirements.txt'}` in an environment of its own"
        say(f"without starlette, as {python} has none: {advice}, then --fixed-points ITS_PYTHON")
    return [
        Recipe(name, "toy server", (python, str(HERE / "peers.py"), name, "{url}"), toy=True)
        for name, python in pythons.items()
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Server:
    """A running server. `cold` is the time in seconds from its start to its first 200."""

    def __init__(self, recipe: Recipe, model: str, folder: Path | None, transport: str) -> None:
        self.recipe = recipe
        self._folder = tempfile.TemporaryDirectory(prefix="bench-", dir=folder)
        self._home = Path(self._folder.name)
        config = self._home / ".config" / "crush"
        config.mkdir(parents=True)
        (config / "crush.json").write_text(json.dumps(configuration(model)))
        self._project = self._home / "project"
        self._project.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            tcp = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"unix://{self._home}/s" if transport == "unix" else tcp
        began = time.monotonic()
        self.process = self._spawn(recipe.serve)
        while True:
            try:
                Connection(self.url).call("GET", "/v1/health")
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > began + START:
                    said = self.last_words()
                    self.close()
                    raise BenchError(f"{recipe.name} did not start: {said}") from None
                time.sleep(0.002)
        self.cold = time.monotonic() - began

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        words = [word.format(url=self.url) for word in command]
        home, none = str(self._home), subprocess.DEVNULL
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": home, "XDG_RUNTIME_DIR": home}
        env |= self.recipe.environment
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=self._project, env=env, stdin=none, stdout=log, stderr=log
            )

    def last_words(self) -> str:
        return (self._home / "log").read_text(errors="replace")[-400:].strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    # What the measurements do with it -----------------------------------------------------------

    def join(self) -> None:
        """Open the project: `line` is a connection, `base` the workspace, `stream` its events."""
        self.line = Connection(self.url)
        self.stream = self.subscribe(1)[0]
        if self.recipe.toy:
            return
        self.line.call("POST", f"{self.base}/agent/init", {"interactive": True})
        deadline = time.monotonic() + START
        while not self.json("GET", f"{self.base}/agent")["is_ready"]:
            if time.monotonic() > deadline:
                raise BenchError(f"its agent was not ready after {START:g} s")
            time.sleep(0.01)

    def subscribe(self, count: int, query: str = "") -> list[Stream]:
        """Open event streams of a new client."""
        client, path = str(uuid.uuid4()), str(self._project)
        body = {"path": path, "client_id": client, "env": [f"PWD={path}"]}
        self.base = f"/v1/workspaces/{self.json('POST', '/v1/workspaces', body)['id']}"
        target = f"{self.base}/events?client_id={client}{query}"
        return [Stream(self.url, target) for _ in range(count)]

    def json(self, method: str, target: str, body: Any = None) -> Any:
        return json.loads(self.line.call(method, target, body))

    def session(self, title: str = "bench") -> str:
        return str(self.json("POST", f"{self.base}/sessions", {"title": title})["id"])

    def prompt(self, session: str, text: str, line: Connection | None = None) -> bytes:
        """Send a prompt; return the id of its run."""
        run = str(uuid.uuid4())
        body = {"session_id": session, "run_id": run, "prompt": text}
        (line or self.line).send("POST", f"{self.base}/agent", body)
        return run.encode()

    def turn(self, session: str) -> tuple[float, float]:
        """Send a prompt and wait for its end; return the seconds to the 202 and to the end."""
        began = time.monotonic()
        run = self.prompt(session, "hello")
        self.line.answer()
        promised = time.monotonic()
        return promised - began, self.stream.wait(b"run_complete", run) - began

    def ask(self) -> tuple[float, float]:
        """Run the server's own client; return its wall and processor time in seconds."""
        began = time.monotonic()
        child = self._spawn(self.recipe.ask)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise BenchError(f"its client ended with {child.returncode}: {self.last_words()}")
        return time.monotonic() - began, usage.ru_utime + usage.ru_stime

    def fill(self, session: str, messages: int) -> None:
        """Put messages into a session behind the daemon's back: posting them would take long."""
        file = self._project / ".crushlite" / "crushlite.db"
        if not file.exists():
            raise BenchError("only a database of crushlite can be filled")
        texts = {"type": "text", "data": {"text": "some words of an ordinary message, " * 6}}
        parts = json.dumps([texts, {"type": "finish", "data": {"reason": "stop", "time": 0}}])
        with contextlib.closing(sqlite3.connect(file, timeout=START)) as database:
            database.executemany(
                "INSERT INTO messages (scope, id, session_id, position, role, parts, finished,"
                " model, provider, created_at, updated_at) SELECT scope, ?, id, ?, 'user', ?, 1,"
                " '', '', 0, 0 FROM sessions WHERE id = ?",
                ((str(uuid.uuid4()), number, parts, session) for number in range(messages)),
            )
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # its log is not the daemon's

    def cpu(self) -> float:
        """Seconds of processor time so far, of all threads: the kernel has a clock for each
        process, and this is its number (clock_getcpuclockid(3)). Some kernels move it by ticks of
        10 ms, so that a short measurement may show none."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def memory(self) -> float:
        """Resident memory in KiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def configuration(model: str) -> dict[str, Any]:
    limits = {"context_window": 1_000_000, "default_max_tokens": 4096}
    models = [{"id": "fake", "name": "fake", **limits}]
    fake = {"type": "openai-compat", "base_url": model, "api_key": "none", "models": models}
    chosen = {"provider": "fake", "model": "fake"}
    return {
        "providers": {"fake": fake},
        "models": {"large": chosen, "small": chosen},
        "options": {"disable_metrics": True, "disable_default_providers": True},
    }
