"""The daemon under fire, for fuzz_http.py, fuzz_json.py and schema/run.py: a child process with a
unix socket and a TCP port, one open workspace with a client that stays, and a probe beside it.

The probe asks for the health of the daemon on a connection of its own, again and again. From the
time of each answer the time is taken off for which the daemon's main thread, or the probe itself,
was ready to run and had no processor: on a busy machine that is not the daemon's doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CLIENT = "6f1a4b0e-0000-4000-8000-00000000f022"
PATIENCE = 60.0  # seconds for an answer: a daemon that needs longer hangs
MANY_LINES = 20  # of the log that are printed with a finding
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d+)")


class Finding(Exception):
    """Something that must not happen."""


class Target:
    """Starts a daemon; `with` ends it and raises Finding if its log holds a traceback, or if it
    was not alive."""

    def __init__(self, agent: str = "offline", **variables: str) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="crushlite-fuzz-", ignore_cleanup_errors=True
        )
        folder = Path(self._folder.name)
        self.project = folder / "project"
        self.project.mkdir()
        self.socket = str(folder / "daemon.sock")
        self._log = folder / "log"
        places = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "crushlite", "serve", "--agent", agent),
                *("--host", f"unix://{self.socket}", "--host", "tcp://127.0.0.1:0"),
            ],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **places, **variables},
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
        )
        said = b"".join(self._line() for _ in range(3))
        found = re.search(rb"tcp://127\.0\.0\.1:(\d+)  token in (\S+)", said)
        if found is None:
            raise Finding(f"the daemon did not start: {said!r}")
        self.port = int(found[1])
        self.token = Path(found[2].decode()).read_text().strip()
        self._open_workspace()
        self._probe: subprocess.Popen[bytes] | None = None

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _open_workspace(self) -> None:
        """A workspace with a client, so that no request can make an idle daemon leave."""
        made = self.call("POST", "/v1/workspaces", {"path": str(self.project), "client_id": CLIENT})
        self.workspace = made["id"]
        self._events = self.connect()
        target = f"/v1/workspaces/{self.workspace}/events?client_id={CLIENT}"
        self._events.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self._events.settimeout(None)
        self._drain = subprocess.Popen(["cat"], stdin=self._events, stdout=subprocess.DEVNULL)
        sessions = f"/v1/workspaces/{self.workspace}/sessions"
        self.session = self.call("POST", sessions, {"title": "fuzz"})["id"]

    def connect(self, *, tcp: bool = False) -> socket.socket:
        if tcp:
            return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(self.socket)
        return sock

    def call(self, method: str, target: str, body: Any = None) -> Any:
        """One good request on the unix socket; the JSON of its answer."""
        raw = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        with self.connect() as sock:
            sock.sendall(head.encode() + raw)
            status, answer = next(answers(sock.makefile("rb")))
        if status >= 300:
            raise Finding(f"{method} {target} was answered {status}: {answer!r}")
        return json.loads(answer) if answer.strip() else None

    # The probe.

    def start_probe(self) -> None:
        self._probe = subprocess.Popen(
            [sys.executable, __file__, self.socket, str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def stop_probe(self) -> dict[str, float]:
        assert self._probe is not None
        out, _ = self._probe.communicate(b"")
        found: dict[str, float] = json.loads(out)
        return found

    # The end.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        alive = self.process.poll() is None
        if alive:
            with contextlib.suppress(Finding, OSError):
                self.call("GET", "/v1/health")
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        left = self.process.poll()
        if left is None:
            self.process.kill()
        self._events.close()
        self._drain.kill()
        self._drain.wait()
        log = self._log.read_text(errors="replace")
        self._folder.cleanup()
        wrong = [word for word in ("Traceback", "internal error", "Task exception") if word in log]
        if kind is None and (wrong or not alive or left != 0):
            tail = "\n".join(log.splitlines()[-MANY_LINES:])
            raise Finding(f"alive: {alive}, exit {left}, log holds {wrong}\n{tail}")


def answers(file: IO[bytes]) -> Any:
    """Read the answers on a connection one by one: status and body."""
    while line := file.readline():
        status, length = int(line.split()[1]), 0
        while (header := file.readline()) not in (b"\r\n", b""):
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        yield status, file.read(length)


def statuses(raw: bytes) -> list[int]:
    """The statuses of all answers in what a server has sent."""
    found, at = [], 0
    while at < len(raw):
        end = raw.find(b"\r\n\r\n", at)
        match = _STATUS.match(raw, at, at + 64)
        if end < 0 or match is None:
            break
        found.append(int(match[1]))
        length = _LENGTH.search(raw, at, end + 2)
        at = end + 4 + (int(length[1]) if length is not None and match[1] != b"304" else 0)
    return found


def _waited(pid: int) -> float:
    """Seconds for which the main thread of a process was ready and had no processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def probe(path: str, pid: int) -> None:
    """Measure until standard input ends, then print the figures."""
    import select

    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    sock.connect(path)
    file = sock.makefile("rb")
    worst = net_worst = 0.0
    count = slow = 0
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        before, own, other = time.perf_counter(), _waited(os.getpid()), _waited(pid)
        sock.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        status, _ = next(answers(file))
        took = time.perf_counter() - before
        net = took - (_waited(pid) - other) - (_waited(os.getpid()) - own)
        assert status == 200, status
        worst, net_worst, count = max(worst, took), max(net_worst, net), count + 1
        slow += net > 0.1
    print(json.dumps({"probes": count, "worst": worst, "net_worst": net_worst, "slow": slow}))


if __name__ == "__main__":
    probe(sys.argv[1], int(sys.argv[2]))
