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
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client import BenchError, Connection, Stream

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
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


def this_checkout() -> Recipe:
    state = git("describe", "--always", "--dirty")
    return checkout("here", ROOT, f"commit {state}" if state else str(ROOT))


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


def git(*arguments: str) -> str:
    """What a git command prints, or an empty string if it fails."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


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
        self.project = self._home / "project"
        self.project.mkdir()
        # Bound for as long as the server lives: nobody else gets the port before it listens there.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        tcp = f"tcp://127.0.0.1:{self._port.getsockname()[1]}"
        self.url = f"unix://{self._home}/s" if transport == "unix" else tcp
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        began = time.monotonic()
        self.process = self._spawn(self.recipe.serve)
        while True:
            try:
                Connection(self.url).call("GET", "/v1/health")
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > began + START:
                    said = self.last_words()
                    self.close()
                    raise BenchError(f"{self.recipe.name} did not start: {said}") from None
                time.sleep(0.002)
        self.cold = time.monotonic() - began

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        words = [word.format(url=self.url) for word in command]
        home, none = str(self._home), subprocess.DEVNULL
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": home, "XDG_RUNTIME_DIR": home}
        env |= self.recipe.environment
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                words, cwd=self.project, env=env, stdin=none, stdout=log, stderr=log
            )

    def last_words(self) -> str:
        return (self._home / "log").read_text(errors="replace")[-400:].strip()

    def stop(self) -> None:
        """End the process in order, as a user would; `start` begins another with the same files."""
        self.process.terminate()
        self.process.wait(START)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._port.close()
        self._folder.cleanup()

    # What the measurements do with it -----------------------------------------------------------

    def join(self, project: str = "project") -> float:
        """Open a project, one in the home: `line` is a connection, `base` the workspace, `stream`
        its events. Return the seconds until the workspace was there, and wait for its agent."""
        self.line = Connection(self.url)
        self.project = self._home / project
        self.project.mkdir(exist_ok=True)
        began = time.monotonic()
        client = self._workspace()
        took = time.monotonic() - began
        self.stream = Stream(self.url, f"{self.base}/events?client_id={client}")
        if self.recipe.toy:
            return took
        self.line.call("POST", f"{self.base}/agent/init", {"interactive": True})
        deadline = time.monotonic() + START
        while not self.json("GET", f"{self.base}/agent")["is_ready"]:
            if time.monotonic() > deadline:
                raise BenchError(f"its agent was not ready after {START:g} s")
            time.sleep(0.01)
        return took

    def _workspace(self) -> str:
        """Open the project for a new client; return the id of the client."""
        client, path = str(uuid.uuid4()), str(self.project)
        body = {"path": path, "client_id": client, "env": [f"PWD={path}"]}
        self.base = f"/v1/workspaces/{self.json('POST', '/v1/workspaces', body)['id']}"
        return client

    def subscribe(self, count: int, query: str = "") -> list[Stream]:
        """Open event streams of a new client."""
        client = self._workspace()
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

    def turn(self, session: str, text: str = "hello") -> tuple[float, float]:
        """Send a prompt and wait for its end; return the seconds to the 202 and to the end."""
        began = time.monotonic()
        run = self.prompt(session, text)
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

    @property
    def database(self) -> Path:
        file = self.project / ".crushlite" / "crushlite.db"
        if not file.exists():
            raise BenchError("only a database of crushlite can be filled")
        return file

    def cpu(self) -> float:
        """Seconds of processor time so far, of all threads: the kernel has a clock for each
        process, and this is its number (clock_getcpuclockid(3)). Some kernels move it by ticks of
        10 ms, so that a short measurement may show none."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def memory(self) -> float:
        """Resident memory in KiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024


@contextlib.contextmanager
def fake_model() -> Iterator[str]:
    """The address of a model in a process of its own."""
    command = [sys.executable, str(HERE / "peers.py"), "model"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as model:
        assert model.stdout is not None
        yield model.stdout.readline().decode().strip()


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
