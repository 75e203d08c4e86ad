"""The daemon as a process: how it starts, what it says, how it leaves, what survives its death."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import http.client
import io
import itertools
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import tty
import unittest
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from crushlite import cli
from crushlite.cli import daemon_log
from crushlite.clock import SystemClock
from crushlite.daemon import Daemon
from crushlite.errors import IllegalCall, ShuttingDown, UsageError
from crushlite.settings import Settings
from crushlite.store import Store, Stores
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.scripted import ScriptedAgent
from crushlite.version import __version__
from tests.support.curl import path_with_curl
from tests.support.places import ROOT
from tests.support.ports import reserved_port
from tests.support.workspaces import Openings, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Case = tuple[tuple[str, ...], dict[str, str], str]  # arguments, variables, what it must say

SECONDS = 60.0  # far above what anything takes, so that only a hang reaches it
QUIET = 0.4  # seconds that count as "stays"

AGENTS = """
import asyncio, logging, os, threading

async def echo(turn):
    await turn.say("echo " + turn.prompt)

def plain(turn):
    turn.say(f"plain {turn.prompt} {threading.current_thread() is threading.main_thread()}")

class Factory:
    def __init__(self, *, path, env, config):
        self.path, self.env = path, env
    async def run(self, turn):
        await turn.say(f"factory {self.path.name} {self.env.get('COLOR')}")

def make(path, env, config):
    async def made(turn):
        await turn.say(f"made {path.name}")
    return made

async def wait(turn):
    await turn.say("half an answer")
    print("entered", turn.prompt, flush=True)
    await asyncio.Event().wait()

async def stubborn(turn):
    print("entered", turn.prompt, flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("ignored", flush=True)

async def hides_in_a_thread(turn):
    print("entered", turn.prompt, flush=True)
    await asyncio.to_thread(threading.Event().wait)

def deaf(turn):
    print("entered", turn.prompt, flush=True)
    threading.Event().wait()

async def blocks_the_loop(turn):
    with open(turn.prompt) as gate:
        gate.read()
    await turn.say("through")

async def noisy(turn):
    for number in range(3000):
        logging.getLogger("crushlite.test").warning("%d %s", number, "x" * 200)
    await turn.say("said it all")

async def fails(turn):
    raise RuntimeError("two\\nlines")

number = 42
"""


class UnixHTTP(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


class Lines:
    """What a process writes, read as it comes; waiting for a line is bounded."""

    def __init__(self, stream: IO[str]) -> None:
        self.all: list[str] = []
        self._stream = stream
        self._ended = False
        self._unseen = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                with self._changed:
                    self.all.append(line)
                    self._changed.notify_all()
        except OSError as error:
            if error.errno != errno.EIO:  # the end of what comes from a terminal
                raise
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> str:
        """The next line that holds the pattern; lines before it are skipped."""
        with self._changed:
            while True:
                for at in range(self._unseen, len(self.all)):
                    if re.search(pattern, self.all[at]):
                        self._unseen = at + 1
                        return self.all[at]
                self._unseen = len(self.all)
                if self._ended or not self._changed.wait(SECONDS):
                    raise AssertionError(f"no line with {pattern!r} came: {self.text}")

    def close(self) -> None:
        self._thread.join(SECONDS)
        self._stream.close()

    @property
    def text(self) -> str:
        return "".join(self.all)


class Process:
    """A running `crushlite` command; always killed and reaped by its test case. With `terminal`,
    its standard output is one."""

    def __init__(
        self,
        case: ProcessTestCase,
        arguments: Sequence[str],
        env: dict[str, str],
        *,
        terminal: bool = False,
    ) -> None:
        ours, theirs = os.openpty() if terminal else os.pipe()
        if terminal:
            tty.setraw(theirs)  # lines come as they were written
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "crushlite", *arguments],
            cwd=case.root,
            env=case.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        assert self._popen.stderr is not None
        self.pid = self._popen.pid
        self.out = Lines(os.fdopen(ours))
        self.log = Lines(self._popen.stderr)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def exit_code(self) -> int:
        """Wait until it has left, and until everything it said was read."""
        code = self._popen.wait(SECONDS)
        self.out.close()
        self.log.close()
        return code

    def stays(self) -> bool:
        try:
            self._popen.wait(QUIET)
        except subprocess.TimeoutExpired:
            return True
        return False

    def end(self) -> None:
        self._popen.kill()
        self.exit_code()


class ProcessTestCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.socket = str(self.root / "d.sock")
        self.unix = f"unix://{self.socket}"
        self.runtime = self.root / "run"
        self.data = self.root / "data"
        (self.root / "project").mkdir()
        (self.root / "my_agents.py").write_text(AGENTS)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Nothing of the tester's own but the path."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.runtime),
            **more,
        }

    def start(self, *arguments: str, **env: str) -> Process:
        """Run a command without waiting for anything."""
        process = Process(self, arguments, env)
        self.addCleanup(process.end)
        return process

    def serve(self, *flags: str, **env: str) -> Process:
        """Run `serve` in a terminal and wait until it has said what it serves."""
        hosts = () if "--host" in flags or "CRUSHLITE_HOST" in env else ("--host", self.unix)
        process = Process(self, ("serve", *hosts, *flags), env, terminal=True)
        self.addCleanup(process.end)
        process.out.wait_for("is serving")
        process.out.wait_for("cancel -X POST")  # the last line of the greeting
        return process

    def serve_agent(self, name: str, *flags: str, **env: str) -> Process:
        """With a token-guarded TCP listener too, and the database where tests find it."""
        hosts = ("--host", self.unix, "--host", "tcp://127.0.0.1:0")
        data = ("--data-dir", str(self.data), "--agent", f"my_agents:{name}")
        return self.serve(*hosts, *data, *flags, **env)

    def tokens(self) -> list[Path]:
        return list(self.runtime.glob("crushlite/*.token"))

    def connect(self, address: str = "") -> http.client.HTTPConnection:
        """To the unix socket, or to a `127.0.0.1:PORT`."""
        if address:
            connection = http.client.HTTPConnection(address, timeout=SECONDS)
        else:
            connection = UnixHTTP(self.socket)
        self.addCleanup(connection.close)
        return connection

    def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        on: http.client.HTTPConnection | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        connection = on or self.connect()
        content = None if body is None else json.dumps(body)
        connection.request(method, target, content, headers or {})
        response = connection.getresponse()
        text = response.read()
        if on is None:
            connection.close()
        return response.status, json.loads(text) if text else None

    def get(self, target: str) -> Any:
        status, answer = self.call("GET", target)
        self.assertEqual(status, 200, answer)
        return answer

    def join(self) -> str:
        """Create the workspace; returns its path on the server."""
        self.client = str(uuid.uuid4())
        body = {"path": str(self.root / "project"), "client_id": self.client, "env": ["COLOR=red"]}
        status, answer = self.call("POST", "/v1/workspaces", body)
        self.assertEqual(status, 200, answer)
        return f"/v1/workspaces/{answer['id']}"

    def session(self, base: str) -> str:
        status, answer = self.call("POST", f"{base}/sessions", {"title": "a session"})
        self.assertEqual(status, 200, answer)
        return str(answer["id"])

    def prompt(self, base: str, session: str, text: str) -> str:
        """Post a prompt; returns its run id."""
        status, answer = self.call("POST", f"{base}/agent", {"session_id": session, "prompt": text})
        self.assertEqual(status, 202, answer)
        return str(answer["run_id"])

    def ask(self, base: str, text: str) -> dict[str, Any]:
        """Prompt a new session and wait for the end; returns the run."""
        run = self.prompt(base, self.session(base), text)
        answer = self.get(f"{base}/runs/{run}?wait={SECONDS}")
        self.assertEqual(answer["state"], "ended", answer)
        return dict(answer)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read the database of a daemon that has left."""
        with contextlib.closing(sqlite3.connect(self.data / "crushlite.db")) as conn:
            return conn.execute(query).fetchall()


class Leaving(ProcessTestCase):
    def test_a_signal_ends_the_running_turn_and_leaves_nothing_behind(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number):
                process = self.serve_agent("wait", PYTHONDEVMODE="1")
                base = self.join()
                session = self.session(base)
                stream = self.connect()
                stream.request("GET", f"{base}/events?client_id={self.client}")
                events = stream.getresponse()
                run = self.prompt(base, session, number.name)
                queued = self.prompt(base, session, "queued")
                process.out.wait_for(f"entered {number.name}")
                self.assertEqual(len(self.tokens()), 1)
                process.signal(number)
                endings = [line for line in events.read().split(b"\n\n") if b"run_complete" in line]
                self.assertEqual(process.exit_code(), 0, process.log.text)
                self.assertEqual(len(endings), 2)
                for ending, run_id in zip(endings, (run, queued), strict=True):
                    self.assertIn(f'"run_id":"{run_id}"'.encode(), ending)
                    self.assertIn(b'"cancelled":true', ending)
                outcomes = self.rows(
                    f"SELECT run_id, outcome FROM runs WHERE session_id = '{session}' ORDER BY seq"
                )
                self.assertEqual(outcomes, [(run, "canceled"), (queued, "canceled")])
                self.assertFalse(os.path.exists(self.socket))
                self.assertEqual(self.tokens(), [])
                self.assertRegex(process.log.all[-1], "left$")
                # In development mode Python names every file, task and socket left open.
                self.assertNotRegex(process.log.text, "Warning|never|ERROR")

    def test_a_second_signal_leaves_at_once_and_takes_the_files_along(self) -> None:
        process = self.serve_agent("stubborn", "--cancel-grace", "600", "--drain", "600")
        base = self.join()
        run = self.prompt(base, self.session(base), "stay")
        process.out.wait_for("entered stay")
        process.signal(signal.SIGTERM)
        process.out.wait_for("ignored")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 130)
        self.assertIn("second signal", process.log.text)
        self.assertFalse(os.path.exists(self.socket))
        self.assertEqual(self.tokens(), [])
        # What it had no time to write is written by the next one.
        self.serve_agent("echo")
        answer = self.get(f"{self.join()}/runs/{run}")
        self.assertEqual((answer["state"], answer["outcome"]), ("ended", "failed"))

    def test_while_it_leaves_by_itself_a_first_signal_does_not_cut_it_short(self) -> None:
        times = ("--cancel-grace", "0.5", "--detach-grace", "0", "--idle-timeout", "0")
        process = self.serve_agent("stubborn", *times, "--create-grace", "30")
        base = self.join()
        run = self.prompt(base, self.session(base), "stay")
        process.out.wait_for("entered")
        self.assertEqual(self.call("DELETE", f"/v1/clients/{self.client}")[0], 200)
        process.log.wait_for("leaving")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 0, process.log.text)
        self.assertEqual(self.rows("SELECT run_id, outcome FROM runs"), [(run, "canceled")])

    def test_no_agent_however_stubborn_holds_the_process(self) -> None:
        names = ("deaf", "stubborn", "hides_in_a_thread")
        for number, name in enumerate(names, 1):
            with self.subTest(name):
                process = self.serve_agent(name, "--cancel-grace", "0.2", "--drain", "0.2")
                base = self.join()
                self.prompt(base, self.session(base), "stay")
                process.out.wait_for("entered stay")
                process.signal(signal.SIGTERM)
                self.assertEqual(process.exit_code(), 0, process.log.text)
                self.assertEqual(self.rows("SELECT outcome FROM runs"), [("canceled",)] * number)
                self.assertFalse(os.path.exists(self.socket))

    def test_a_loop_that_stands_still_does_not_hold_the_process(self) -> None:
        process = self.serve_agent("blocks_the_loop", "--cancel-grace", "0.2", "--drain", "0.2")
        gate = self.root / "gate"
        os.mkfifo(gate)
        base = self.join()
        self.prompt(base, self.session(base), str(gate))
        process.log.wait_for("the event loop is blocked")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 1, process.log.text)
        self.assertIn("after it was to leave", process.log.text)

    def test_an_unused_daemon_leaves_when_its_time_is_up(self) -> None:
        for flags, env in (
            (("--idle-timeout", "0.2"), {}),
            ((), {"CRUSHLITE_IDLE_TIMEOUT": "0.2"}),
        ):
            process = self.serve(*flags, **env)
            self.assertEqual(process.exit_code(), 0, process.log.text)
            self.assertFalse(os.path.exists(self.socket))

    def test_a_workspace_keeps_the_daemon_and_its_end_lets_it_go(self) -> None:
        process = self.serve("--idle-timeout", "0", "--create-grace", "30")
        self.join()
        self.assertTrue(process.stays())
        self.assertEqual(self.call("DELETE", f"/v1/clients/{self.client}")[0], 200)
        self.assertEqual(process.exit_code(), 0, process.log.text)

    def test_a_daemon_typed_by_a_person_stays_though_nobody_uses_it(self) -> None:
        for flags in ((), ("--idle-timeout", "never")):
            process = self.serve(*flags)
            self.join()
            self.assertEqual(self.call("DELETE", f"/v1/clients/{self.client}")[0], 200)
            self.assertTrue(process.stays(), process.log.text)
            process.signal(signal.SIGTERM)
            self.assertEqual(process.exit_code(), 0)

    def test_on_a_unix_socket_only_our_own_client_may_ask_it_to_leave(self) -> None:
        process = self.serve()
        for body in ({"command": "shutdown"}, {"command": "shutdown_if_idle", "client": "crush"}):
            status, answer = self.call("POST", "/v1/control", body)
            self.assertEqual((status, answer["code"]), (409, "server_in_use"))
        self.assertEqual(self.call("GET", "/v1/health")[0], 200)
        ours = {"command": "shutdown_if_idle", "client": "crushlite"}
        self.join()
        self.assertEqual(self.call("POST", "/v1/control", ours)[0], 409)
        self.assertEqual(self.call("DELETE", f"/v1/clients/{self.client}")[0], 200)
        self.assertEqual(self.call("POST", "/v1/control", ours)[0], 200)
        self.assertEqual(process.exit_code(), 0, process.log.text)

    def test_on_tcp_an_idle_daemon_leaves_when_asked(self) -> None:
        hosts = ("--host", self.unix, "--host", "tcp://127.0.0.1:0", "--auth", "none")
        process = self.serve(*hosts)
        [address] = re.findall(r"tcp://(\S+)", process.out.text)
        self.join()
        body = {"command": "shutdown_if_idle"}
        self.assertEqual(self.call("POST", "/v1/control", body, on=self.connect(address))[0], 409)
        self.assertEqual(self.call("DELETE", f"/v1/clients/{self.client}")[0], 200)
        self.assertEqual(self.call("POST", "/v1/control", body, on=self.connect(address))[0], 200)
        self.assertEqual(process.exit_code(), 0, process.log.text)


class Surviving(ProcessTestCase):
    def test_after_kill_9_every_promised_prompt_has_its_message_and_one_ending(self) -> None:
        process = self.serve_agent("wait")
        base = self.join()
        session = self.session(base)
        runs = {self.prompt(base, session, text): text for text in ("first", "second", "third")}
        process.out.wait_for("entered first")
        process.signal(signal.SIGKILL)
        self.assertEqual(process.exit_code(), -signal.SIGKILL)
        self.assertTrue(os.path.exists(self.socket))  # stale: the next one takes it over

        self.serve_agent("echo")
        base = self.join()
        found = self.get(f"{base}/runs?session_id={session}")
        self.assertEqual([run["run_id"] for run in found], list(runs))
        self.assertEqual({(r["state"], r["outcome"]) for r in found}, {("ended", "failed")})
        messages = self.get(f"{base}/sessions/{session}/messages")
        self.assertEqual([text_of(m) for m in messages if m["role"] == "user"], list(runs.values()))
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"] * 3)
        for message in messages[1::2]:
            [finish] = [part["data"] for part in message["parts"] if part["type"] == "finish"]
            self.assertEqual(finish["reason"], "error")
            self.assertIn("interrupted", json.dumps(finish))
        self.assertEqual(self.get(f"{base}/sessions/{session}")["is_busy"], False)
        self.assertEqual(self.ask(base, "again")["text"], "echo again")

    def test_prompts_promised_at_the_very_moment_of_the_kill_survive(self) -> None:
        for enough in (1, 8, 30):
            with self.subTest(enough):
                process = self.serve_agent("echo")
                base = self.join()
                promised = self._post_until_killed(process, base, enough)
                self.assertGreaterEqual(len(promised), enough)
                restarted = self.serve_agent("echo")
                base = self.join()
                runs = {run["run_id"]: run for run in self.get(f"{base}/runs")}
                texts = [text_of(m) for m in self.get(f"{base}/messages/user")]
                for run_id, text in promised.items():
                    self.assertEqual(runs[run_id]["state"], "ended")
                    self.assertIn(runs[run_id]["outcome"], ("completed", "failed"))
                    self.assertEqual(texts.count(text), 1, text)
                self.assertEqual({run["state"] for run in runs.values()}, {"ended"})
                self.assertEqual(self.ask(base, "again")["text"], "echo again")
                restarted.signal(signal.SIGTERM)
                self.assertEqual(restarted.exit_code(), 0)

    def _post_until_killed(self, process: Process, base: str, enough: int) -> dict[str, str]:
        """Four clients post as fast as they can; the daemon is killed after `enough` promises."""
        promised: dict[str, str] = {}
        sessions = [self.session(base) for _ in range(4)]

        def post(session: str) -> None:
            connection = UnixHTTP(self.socket)
            try:
                for number in itertools.count():
                    text = f"{session} {number}"
                    body = {"session_id": session, "prompt": text}
                    status, answer = self.call("POST", f"{base}/agent", body, on=connection)
                    if status == 202:
                        promised[answer["run_id"]] = text
                    if len(promised) >= enough:
                        process.signal(signal.SIGKILL)
            except (OSError, http.client.HTTPException):
                pass  # it is dead: what was answered before counts
            finally:
                connection.close()

        threads = [threading.Thread(target=post, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        self.assertEqual(process.exit_code(), -signal.SIGKILL)
        return promised


def text_of(message: dict[str, Any]) -> str:
    return next(str(part["data"]["text"]) for part in message["parts"] if part["type"] == "text")


class ExitCodes(ProcessTestCase):
    def refused(self, code: int, cases: Sequence[Case]) -> None:
        """Each command must end with this code and say why, in words and not in a traceback."""
        running = [(case, self.start(*case[0], **case[1])) for case in cases]
        for (arguments, env, reason), process in running:
            with self.subTest(arguments=arguments, env=env):
                self.assertEqual(process.exit_code(), code, process.log.text)
                self.assertRegex(process.log.text, reason)
                self.assertNotIn("Traceback", process.log.text)
                self.assertNotIn("is serving", process.out.text)

    def test_2_for_what_is_wrong_on_the_command_line(self) -> None:
        # One of each kind; the tables are in Options, without a process each.
        self.refused(
            2,
            [
                (("serve", "--host", self.unix, "--host", "tcp://0.0.0.0:0"), {}, "only loopback"),
                (("serve",), {"CRUSHLITE_LOG_LEVEL": "loud"}, "debug, info"),
                (("serve", "--host", self.unix, "--agent", "my_agents:no"), {}, "attribute 'no'"),
            ],
        )
        self.assertFalse(os.path.exists(self.socket))

    def test_2_for_a_refused_bind_and_whoever_is_there_lives_on(self) -> None:
        first = self.serve("--host", self.unix, "--host", "tcp://127.0.0.1:0")
        [port] = re.findall(r"tcp://127.0.0.1:(\d+)", first.out.text)
        file = self.root / "file"
        file.write_text("precious")
        (self.root / "open").mkdir()
        (self.root / "open" / "crushlite").mkdir(mode=0o755)
        token = self.tokens()[0].read_text()
        good = f"unix://{self.root}/other.sock"
        self.refused(
            2,
            [
                (("serve", "--host", self.unix), {}, "another daemon listens there"),
                (("serve", "--host", f"unix://{file}"), {}, "not a socket"),
                (("serve", "--host", f"unix://{file}/x"), {}, "Not a directory"),
                (("serve", "--host", f"unix://{self.root}/no/x"), {}, "No such file"),
                (("serve", "--host", good, "--host", f"tcp://127.0.0.1:{port}"), {}, "in use"),
                (("serve",), {"XDG_RUNTIME_DIR": str(self.root / "open")}, "chmod 700"),
            ],
        )
        self.assertEqual(file.read_text(), "precious")
        self.assertFalse((self.root / "other.sock").exists())  # bound before the port was refused
        self.assertEqual(self.tokens()[0].read_text(), token)
        self.assertEqual(self.call("GET", "/v1/health")[0], 200)
        first.signal(signal.SIGTERM)
        self.assertEqual(first.exit_code(), 0)

    def test_4_and_5_for_a_database_that_is_not_to_be_touched(self) -> None:
        places = {name: self.root / name for name in ("garbage", "truncated", "newer")}
        for place in places.values():
            place.mkdir()
        (places["garbage"] / "crushlite.db").write_bytes(os.urandom(8192))
        for name in ("truncated", "newer"):
            process = self.serve("--data-dir", str(places[name]))
            process.signal(signal.SIGTERM)
            self.assertEqual(process.exit_code(), 0)
        whole = (places["truncated"] / "crushlite.db").read_bytes()
        (places["truncated"] / "crushlite.db").write_bytes(whole[: len(whole) // 2])
        with contextlib.closing(sqlite3.connect(places["newer"] / "crushlite.db")) as conn:
            conn.execute("PRAGMA user_version = 9999")
        before = {name: digest(place / "crushlite.db") for name, place in places.items()}
        serve = ("serve", "--host", self.unix, "--data-dir")
        for code, names in ((4, ("garbage", "truncated")), (5, ("newer",))):
            self.refused(code, [((*serve, str(places[n])), {}, str(places[n])) for n in names])
        after = {name: digest(place / "crushlite.db") for name, place in places.items()}
        self.assertEqual(after, before)
        self.assertFalse(os.path.exists(self.socket))

    def test_6_names_the_process_that_holds_the_data_directory(self) -> None:
        first = self.serve_agent("echo")
        other = ("serve", "--host", f"unix://{self.root}/other.sock", "--data-dir", str(self.data))
        self.refused(6, [(other, {}, f"in use by process {first.pid}")])
        self.assertFalse((self.root / "other.sock").exists())
        self.assertEqual(self.ask(self.join(), "hello")["text"], "echo hello")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Starting(ProcessTestCase):
    def test_version_and_help_name_the_commands_and_the_exit_codes(self) -> None:
        version, help_, serve = (
            self.start(*arguments)
            for arguments in (("--version",), ("--help",), ("serve", "--help"))
        )
        self.assertEqual([p.exit_code() for p in (version, help_, serve)], [0, 0, 0])
        self.assertEqual(version.out.text, f"crushlite {__version__}\n")
        for text in ("serve", "run the daemon", "Exit codes", "6 data directory in use"):
            self.assertIn(text, help_.out.text)
        for flag in (
            *("--host", "--auth", "--allow-host", "--agent", "--data-dir", "--yolo", "--log-level"),
            *("--log-format", "--create-grace", "--detach-grace", "--cancel-grace", "--drain"),
            *("--keepalive", "--coalesce", "--idle-timeout", "--unattended", "CRUSHLITE_"),
        ):
            self.assertIn(flag, serve.out.text)

    def test_the_default_socket_is_private_and_so_is_its_directory(self) -> None:
        self.start("serve").out.wait_for("is serving")
        directory = self.runtime / "crushlite"
        self.assertEqual(stat.S_IMODE(directory.stat().st_mode), 0o700)
        found = (directory / "crushlite.sock").stat()
        self.assertTrue(stat.S_ISSOCK(found.st_mode))
        self.assertEqual(stat.S_IMODE(found.st_mode), 0o600)
        self.socket = str(directory / "crushlite.sock")
        self.assertEqual(self.call("GET", "/v1/health")[0], 200)

    def test_in_a_log_there_are_addresses_and_no_lessons(self) -> None:
        process = self.start("serve", "--host", self.unix)
        process.out.wait_for("is serving")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 0)
        expected = [f"crushlite {__version__} is serving\n", f"  {self.unix}\n"]
        self.assertEqual(process.out.all, expected)

    def test_every_host_is_served_and_every_port_has_its_own_token(self) -> None:
        second = f"unix://{self.root}/second.sock"
        tcp = ("--host", "tcp://127.0.0.1:0", "--host", "tcp://[::1]:0")
        process = self.serve("--host", self.unix, "--host", second, *tcp)
        for path in (self.socket, str(self.root / "second.sock")):
            self.socket = path
            self.assertEqual(self.call("GET", "/v1/health")[0], 200)
        named = re.findall(r"tcp://(\S+):(\d+)  token in (\S+)", process.out.text)
        self.assertEqual([host for host, _, _ in named], ["127.0.0.1", "[::1]"])
        for host, port, file in named:
            self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o600)
            token = Path(file).read_text().strip()
            self.assertNotIn(token, process.out.text)
            on = self.connect(f"{host}:{port}")
            self.assertEqual(self.call("GET", "/v1/health", on=on)[0], 401)
            headers = {"Authorization": f"Bearer {token}"}
            self.assertEqual(self.call("GET", "/v1/health", on=on, headers=headers)[0], 200)
            for place in ("cmdline", "environ"):
                self.assertNotIn(token.encode(), Path(f"/proc/{process.pid}/{place}").read_bytes())
        self.assertEqual({Path(file) for _, _, file in named}, set(self.tokens()))

    def test_an_agent_is_a_coroutine_function_a_plain_one_a_class_or_a_factory(self) -> None:
        for name, text in (
            ("echo", "echo hello"),
            ("plain", "plain hello False"),
            ("Factory", "factory project red"),
            ("make", "made project"),
        ):
            with self.subTest(name):
                process = self.serve("--agent", f"my_agents:{name}")
                run = self.ask(self.join(), "hello")
                self.assertEqual((run["outcome"], run["text"]), ("completed", text))
                process.signal(signal.SIGTERM)
                self.assertEqual(process.exit_code(), 0, process.log.text)

    def test_without_an_agent_of_its_own_it_answers_offline_and_says_why(self) -> None:
        self.serve()
        run = self.ask(self.join(), "hello")
        first, _, why = run["text"].partition("\n\n")
        self.assertEqual(first, "You said: hello")
        self.assertIn("none of OPENAI_API_KEY", why)

    def test_a_coder_without_a_model_says_so_to_whoever_prompts(self) -> None:
        self.serve("--agent", "coder")
        base = self.join()
        self.assertFalse(self.get(f"{base}/agent")["is_ready"])
        body = {"session_id": self.session(base), "prompt": "hello"}
        status, answer = self.call("POST", f"{base}/agent", body)
        self.assertEqual((status, answer["code"]), (400, "no_agent"))

    def test_variables_do_what_flags_do(self) -> None:
        process = self.serve(
            CRUSHLITE_HOST=f"{self.unix} tcp://127.0.0.1:0",
            CRUSHLITE_AUTH="none",
            CRUSHLITE_ALLOW_HOST="proxy.lan:1 proxy.lan:2",
            CRUSHLITE_AGENT="my_agents:echo",
            CRUSHLITE_DATA_DIR="data",
            CRUSHLITE_YOLO="1",
            CRUSHLITE_LOG_FORMAT="json",
        )
        base = self.join()
        self.assertEqual(self.ask(base, "hello")["text"], "echo hello")
        self.assertEqual(self.get(f"{base}/permissions/skip"), {"skip": True})
        self.assertTrue((self.data / "crushlite.db").exists())
        self.assertFalse((self.root / "project" / ".crushlite").exists())
        [address] = re.findall(r"tcp://(\S+)", process.out.text)
        for host, status in (("proxy.lan:2", 200), ("proxy.lan:3", 421)):
            on = self.connect(address)
            found, _ = self.call("GET", "/v1/health", on=on, headers={"Host": host})
            self.assertEqual(found, status)
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 0)
        self.assertEqual(json.loads(process.log.all[-1])["message"], "left")

    def test_a_greeting_nobody_can_read_does_not_stop_the_daemon(self) -> None:
        read, write = os.pipe()
        os.close(read)
        with subprocess.Popen(
            [sys.executable, "-m", "crushlite", "serve", "--host", self.unix],
            env=self.environment({}),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(write)
            self.addCleanup(process.kill)
            assert process.stderr is not None
            log = Lines(process.stderr)
            log.wait_for("nobody reads")
            self.assertEqual(self.call("GET", "/v1/health")[0], 200)
            process.terminate()
            self.assertEqual(process.wait(SECONDS), 0)
            log.close()


class Options(unittest.TestCase):
    """What flags and variables become, without paying for a process each."""

    def parsed(self, *flags: str, **env: str) -> dict[str, Any]:
        with (
            mock.patch.dict(os.environ, env),
            mock.patch("crushlite.cli.daemon_log.configure"),
            mock.patch("crushlite.daemon.Daemon") as daemon,
        ):
            self.assertEqual(cli.main(["serve", *flags]), 0)
        return dict(daemon.call_args.kwargs)

    def test_the_defaults_are_those_of_the_manual(self) -> None:
        made = self.parsed()
        settings = made["settings"]
        graces = settings.graces
        self.assertEqual((graces.create, graces.detach, graces.idle), (30, 10, None))
        self.assertEqual((settings.cancel_grace, settings.drain), (5, 10))
        self.assertEqual((settings.keepalive, settings.coalesce), (15, 0.033))
        self.assertEqual((settings.unattended, settings.yolo, settings.data_dir), (60, False, ""))
        self.assertEqual((list(made["hosts"]), made["auth"]), ([], "token"))

    def test_every_time_is_a_flag_and_a_variable_and_the_flag_wins(self) -> None:
        for name in ("create-grace", "detach-grace", "idle-timeout"):
            field = name.split("-")[0]
            variable = "CRUSHLITE_" + name.upper().replace("-", "_")
            found = [
                getattr(self.parsed(*flags, **env)["settings"].graces, field)
                for flags, env in (
                    ((f"--{name}", "0.25"), {}),
                    ((), {variable: "0.5"}),
                    ((f"--{name}", "0.75"), {variable: "0.5"}),
                )
            ]
            self.assertEqual(found, [0.25, 0.5, 0.75], name)
        for name in ("cancel-grace", "drain", "keepalive", "coalesce", "unattended"):
            field, variable = name.replace("-", "_"), "CRUSHLITE_" + name.upper().replace("-", "_")
            found = [
                getattr(self.parsed(*flags, **env)["settings"], field)
                for flags, env in (
                    ((f"--{name}", "0.25"), {}),
                    ((), {variable: "0.5"}),
                    ((f"--{name}", "0.75"), {variable: "0.5"}),
                )
            ]
            self.assertEqual(found, [0.25, 0.5, 0.75], name)

    def test_words_for_never_wait_and_deny(self) -> None:
        self.assertIsNone(self.parsed("--idle-timeout", "never")["settings"].graces.idle)
        for word, value in (("wait", None), ("deny", 0.0), ("7", 7.0)):
            self.assertEqual(self.parsed("--unattended", word)["settings"].unattended, value)
        for flags, env, value in (
            (("--yolo",), {}, True),
            ((), {"CRUSHLITE_YOLO": "true"}, True),
            ((), {"CRUSHLITE_YOLO": "0"}, False),
            (("--yolo",), {"CRUSHLITE_YOLO": "no"}, True),
            ((), {"CRUSHLITE_YOLO": ""}, False),
        ):
            self.assertIs(self.parsed(*flags, **env)["settings"].yolo, value)

    def test_hosts_on_the_line_replace_those_of_the_variable(self) -> None:
        env = {"CRUSHLITE_HOST": "unix:///a unix:///b", "CRUSHLITE_ALLOW_HOST": "a:1 b:2"}
        made = self.parsed(**env)
        self.assertEqual(made["hosts"], ["unix:///a", "unix:///b"])
        self.assertEqual(made["allow_hosts"], ["a:1", "b:2"])
        made = self.parsed("--host", "unix:///c", "--allow-host", "c:3", **env)
        self.assertEqual((made["hosts"], made["allow_hosts"]), (["unix:///c"], ["c:3"]))

    def test_a_data_directory_does_not_depend_on_where_the_daemon_goes_later(self) -> None:
        made = self.parsed("--data-dir", "x")
        self.assertEqual(made["settings"].data_dir, os.path.abspath("x"))

    def refused(self, *arguments: str, **env: str) -> str:
        """What the command says when it refuses to run, which it must do with code 2."""
        said = io.StringIO()
        with (
            mock.patch.dict(os.environ, env),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch("crushlite.cli.daemon_log.configure"),
            contextlib.redirect_stderr(said),
        ):
            try:
                code: object = cli.main(arguments)
            except SystemExit as left:  # argparse does not return
                code = left.code
        self.assertEqual(code, 2, said.getvalue())
        return said.getvalue()

    def test_a_host_that_is_not_loopback_is_refused(self) -> None:
        for host in (
            *("tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.168.0.1:0", "tcp://127.1:0"),
            *("tcp://2130706433:0", f"tcp://{socket.gethostname()}x:0", "tcp://LOCALHOST:0"),
        ):
            self.assertIn("only loopback", self.refused("serve", "--host", host))
            self.assertIn("only loopback", self.refused("serve", CRUSHLITE_HOST=host))
        self.assertIn("use unix:///path", self.refused("serve", "--host", "http://localhost:1"))

    def test_a_bad_option_is_told_whether_on_the_line_or_in_a_variable(self) -> None:
        for arguments, env, reason in (
            ((), {}, "which command?"),
            (("fly",), {}, "fly"),
            (("serve", "--speed", "9"), {}, "--speed"),
            (("serve", "--auth", "maybe"), {}, "token, none"),
            (("serve", "--idle-timeout", "soon"), {}, "'soon' is not a number of seconds"),
            (("serve", "--drain=-1"), {}, "'-1' is not a number of seconds"),
            (("serve", "--coalesce", "inf"), {}, "'inf' is not a number of seconds"),
            (("serve", "--yolo=perhaps"), {}, "true or false"),
            (("serve",), {"CRUSHLITE_AUTH": "maybe"}, "token, none"),
            (("serve",), {"CRUSHLITE_LOG_LEVEL": "loud"}, "debug, info"),
            (("serve",), {"CRUSHLITE_LOG_FORMAT": "xml"}, "text, json"),
            (("serve",), {"CRUSHLITE_DRAIN": "nan"}, "'nan' is not a number"),
            (("serve",), {"CRUSHLITE_YOLO": "perhaps"}, "true or false"),
        ):
            with self.subTest(arguments=arguments, env=env):
                self.assertIn(reason, self.refused(*arguments, **env))

    def test_an_agent_that_cannot_be_found_is_told(self) -> None:
        for name, reason in (
            ("no_such_module:agent", "No module named 'no_such_module'"),
            ("json:no_such_agent", "no attribute 'no_such_agent'"),
            ("json:__doc__", "is not an agent"),
            ("json", "module:attr"),
            (":loads", "module:attr"),
            ("json:", "module:attr"),
            (".relative:echo", "relative"),
        ):
            with self.subTest(name):
                self.assertIn(reason, self.refused("serve", "--agent", name))


class FirstSteps(ProcessTestCase):
    """The lines that a newcomer is told to type, typed."""

    def follow(self, process: Process) -> None:
        greeting = process.out.text
        lines = [line.strip() for line in greeting.splitlines() if line.startswith("  ")]
        lines = lines[next(i for i, line in enumerate(lines) if line.startswith("api()")) :]
        self.assertLessEqual(len(lines), 9)
        folder = self.root / "my project"
        folder.mkdir()
        with subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=self.environment({"LC_ALL": "C.UTF-8", "PATH": path_with_curl(self.root)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as bash:
            self.addCleanup(bash.kill)
            assert bash.stdin is not None
            assert bash.stdout is not None
            said = Lines(bash.stdout)
            try:
                for line in lines:
                    if "/cancel" in line:
                        process.out.wait_for("entered Hello")
                    bash.stdin.write(line + "\n")
                    bash.stdin.flush()
                accepted = json.loads(said.wait_for('^{"run_id"'))
                receipt = {"canceled": [{"run_id": accepted["run_id"], "was": "active"}]}
                self.assertEqual(json.loads(said.wait_for("canceled.:")), receipt)
                process.signal(signal.SIGTERM)  # ends the stream, hence curl, hence bash
                bash.stdin.write("wait\n")
                bash.stdin.close()
                self.assertEqual(bash.wait(SECONDS), 0)
            finally:
                bash.kill()
                said.close()
        ending = next(line for line in said.all if '"run_complete"' in line)
        self.assertIn(accepted["run_id"], ending)
        self.assertIn('"cancelled":true', ending)
        self.assertIn("half an answer", said.text)
        self.assertEqual(process.exit_code(), 0)
        self.assertTrue((folder / ".crushlite").exists())

    def test_they_work_as_typed_on_a_unix_socket(self) -> None:
        self.socket = str(self.root / "it's mine.sock")
        self.follow(self.serve("--host", f"unix://{self.socket}", "--agent", "my_agents:wait"))

    def test_they_work_as_typed_on_tcp_with_a_token(self) -> None:
        self.follow(self.serve("--host", "tcp://127.0.0.1:0", "--agent", "my_agents:wait"))

    def test_they_work_as_typed_on_tcp_without_a_token(self) -> None:
        flags = ("--host", "tcp://[::1]:0", "--auth", "none")
        self.follow(self.serve(*flags, "--agent", "my_agents:wait"))


class Watching(ProcessTestCase):
    def test_an_agent_that_blocks_the_loop_is_named_once(self) -> None:
        process = self.serve("--agent", "my_agents:blocks_the_loop")
        gate = self.root / "gate"
        os.mkfifo(gate)
        base = self.join()
        run = self.prompt(base, self.session(base), str(gate))
        process.log.wait_for("the event loop is blocked")
        process.log.wait_for("in blocks_the_loop")  # a busy machine may be a blocker of its own
        self.assertTrue(process.stays())  # for several looks at the same stall
        gate.write_text("go")
        answer = self.get(f"{base}/runs/{run}?wait={SECONDS}")
        self.assertEqual(answer["text"], "through")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 0)
        self.assertEqual(process.log.text.count("in blocks_the_loop"), 1)

    def test_a_log_for_programs_holds_one_object_per_line(self) -> None:
        process = self.serve(
            "--agent", "my_agents:fails", "--log-format", "json", "--log-level", "debug"
        )
        run = self.ask(self.join(), "hello")
        self.assertEqual(run["outcome"], "failed")
        process.signal(signal.SIGTERM)
        self.assertEqual(process.exit_code(), 0)
        records = [json.loads(line) for line in process.log.all]
        for record in records:
            self.assertLessEqual({"time", "level", "logger", "message"}, set(record))
            self.assertRegex(record["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(record["level"], daemon_log.LEVELS)
        messages = [record["message"] for record in records]
        for message in (f"listening on {self.unix}", "received SIGTERM", "leaving", "left"):
            self.assertIn(message, messages)
        [failure] = [record for record in records if "error" in record]
        self.assertIn("RuntimeError: two\nlines", failure["error"])

    def test_a_log_nobody_reads_stops_nothing(self) -> None:
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "crushlite", "serve", "--host", self.unix),
                *("--agent", "my_agents:noisy"),
            ],
            cwd=self.root,
            env=self.environment({}),
            stdout=subprocess.PIPE,
            stderr=write,
            text=True,
        ) as process:
            os.close(write)
            self.addCleanup(process.kill)
            assert process.stdout is not None
            out = Lines(process.stdout)
            out.wait_for("is serving")
            self.assertEqual(self.ask(self.join(), "hello")["text"], "said it all")
            process.terminate()
            self.assertEqual(process.wait(SECONDS), 0)
            out.close()


class Logs(unittest.TestCase):
    def setUp(self) -> None:
        # Somebody reads in each of these: however long it takes, the lines come before the end.
        self.enterContext(mock.patch.object(daemon_log, "PATIENCE", SECONDS))

    def outlet(
        self, stream: Any, waiting: int = 100
    ) -> tuple[logging.Logger, daemon_log.QueuedHandler]:
        handler = daemon_log.QueuedHandler(stream, waiting=waiting)
        handler.setFormatter(logging.Formatter("%(message)s"))
        self.addCleanup(handler.close)
        logger = logging.Logger("crushlite.test")  # outside the tree: nothing else hears it
        logger.addHandler(handler)
        return logger, handler

    def test_lines_arrive_in_order_and_all_of_them_before_close_returns(self) -> None:
        stream = io.StringIO()
        logger, handler = self.outlet(stream)
        for number in range(50):
            logger.info("line %d", number)
        handler.close()
        self.assertEqual(stream.getvalue().splitlines(), [f"line {n}" for n in range(50)])

    def test_whoever_logs_never_waits_and_what_is_dropped_is_counted(self) -> None:
        read, write = os.pipe()
        with os.fdopen(read, encoding="utf-8") as reader, os.fdopen(write, "w") as writer:
            logger, handler = self.outlet(writer, waiting=3)
            for _ in range(200):
                logger.info("x" * 1000)  # 200 kB into a pipe of 64 that nobody reads
            dropped = handler.dropped
            self.assertGreater(dropped, 50)
            got: list[str] = []
            thread = threading.Thread(target=lambda: got.extend(reader))
            thread.start()
            with self.assertNoLogs():
                handler.close()
            logger.info("too late")
            writer.close()
            thread.join(SECONDS)
        whole = "".join(got)
        self.assertEqual(whole.count("x" * 1000 + "\n") + dropped, 200)
        # In one note or in several: that is up to when the thread that writes gets to run.
        told = re.findall(r"^\((\d+) log records were dropped\)$", whole, re.MULTILINE)
        self.assertEqual(sum(map(int, told)), dropped)

    def test_text_that_is_no_text_is_written_all_the_same(self) -> None:
        with tempfile.TemporaryFile("w+") as file:
            logger, handler = self.outlet(file)
            logger.info("a name: %s", "\udcff")
            handler.close()
            file.seek(0)
            self.assertEqual(file.read(), "a name: \\udcff\n")

    def test_only_our_own_records_are_sent_and_at_the_level_asked_for(self) -> None:
        names = ("crushlite", "asyncio")
        loggers = [logging.getLogger(name) for name in names]
        before = [(g.handlers, g.level, g.propagate) for g in loggers]
        stream = io.StringIO()
        try:
            daemon_log.configure("warning", "json", stream)
            [handler] = loggers[0].handlers
            logging.getLogger("crushlite.x").warning("heard %s", "é\n")
            logging.getLogger("crushlite.x").info("not heard")
            handler.close()
        finally:
            for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)
        [line] = stream.getvalue().splitlines()
        record = json.loads(line)
        self.assertEqual((record["level"], record["logger"]), ("warning", "crushlite.x"))
        self.assertEqual(record["message"], "heard é\n")


class SlowStores(Stores):
    """Stores whose first open waits until it is let through."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock(), boot_id=str(uuid.uuid4()))
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def open(self, data_dir: Path) -> Store:
        self.asked.set()
        await self.gate.wait()
        return await super().open(data_dir)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="crushlite-") as folder:
        yield Path(folder)


class InProcess(unittest.IsolatedAsyncioTestCase):
    async def test_a_signal_during_the_start_lets_it_leave_in_order(self) -> None:
        with short_folder() as root:
            stores = SlowStores()
            daemon = Daemon(
                agent=ScriptedAgent(),
                hosts=[f"unix://{root}/d.sock"],
                settings=Settings(data_dir=str(root / "data")),
                stores=stores,
            )
            async with asyncio.timeout(SECONDS):
                serving = asyncio.create_task(daemon.serve())
                await stores.asked.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                await daemon.backend.leaving.wait()
                stores.gate.set()
                await serving
            self.assertFalse((root / "d.sock").exists())

    async def test_whatever_goes_wrong_after_the_start_the_daemon_is_stopped(self) -> None:
        def fail(daemon: Daemon) -> None:
            raise RuntimeError("the greeting failed")

        with short_folder() as root:
            daemon = Daemon(agent=ScriptedAgent(), hosts=[f"unix://{root}/d.sock"])
            with self.assertRaisesRegex(RuntimeError, "the greeting failed"):
                async with asyncio.timeout(SECONDS):
                    await daemon.serve(fail)
            self.assertFalse((root / "d.sock").exists())

    async def test_stopping_twice_waits_for_one_end(self) -> None:
        with short_folder() as root:
            daemon = Daemon(agent=ScriptedAgent(), hosts=[f"unix://{root}/d.sock"])
            async with asyncio.timeout(SECONDS):
                await daemon.start()
                await asyncio.gather(daemon.stop(), daemon.stop())
                await daemon.stop()
            self.assertFalse((root / "d.sock").exists())

    async def test_a_daemon_that_was_never_started_can_be_stopped_and_stays_so(self) -> None:
        with short_folder() as root:
            daemon = Daemon(agent=ScriptedAgent(), hosts=[f"unix://{root}/d.sock"])
            async with asyncio.timeout(SECONDS):
                await daemon.stop()
                self.assertTrue(daemon.backend.leaving.is_set())
                for start in (daemon.start, daemon.serve):
                    with self.assertRaisesRegex(ShuttingDown, "make another one"):
                        await start()
            self.assertFalse((root / "d.sock").exists())

    async def test_a_second_start_is_refused_and_the_first_goes_on(self) -> None:
        with short_folder() as root:
            daemon = Daemon(agent=ScriptedAgent(), hosts=[f"unix://{root}/d.sock"])
            async with asyncio.timeout(SECONDS):
                await daemon.start()
                with self.assertRaisesRegex(IllegalCall, "started once"):
                    await daemon.start()
                _, writer = await asyncio.open_unix_connection(f"{root}/d.sock")
                writer.close()
                await writer.wait_closed()
                await daemon.stop()

    async def test_a_stop_during_the_start_leaves_nothing_behind(self) -> None:
        with short_folder() as root:
            openings = Openings(FakeClock())
            daemon = Daemon(
                agent=ScriptedAgent(),
                hosts=[f"unix://{root}/d.sock"],
                settings=Settings(data_dir=str(root / "data")),
                stores=openings.stores,
            )
            openings.gate.clear()
            async with asyncio.timeout(SECONDS):
                starting = asyncio.create_task(daemon.start())
                await until(lambda: openings.count == 1, "the store is being opened")
                stopping = asyncio.create_task(daemon.stop())
                await until(daemon.backend.leaving.is_set, "it is being stopped")
                openings.gate.set()
                with self.assertRaisesRegex(ShuttingDown, "while it started"):
                    await starting
                await stopping
                # Neither is the store in use any more.
                store = await openings.stores.open(root / "data")
                self.assertEqual(openings.count, 2)
                await openings.stores.release(store)
            self.assertFalse((root / "d.sock").exists())

    async def test_a_successor_keeps_its_socket_and_its_token(self) -> None:
        with short_folder() as root, mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(root)}):
            path = root / "d.sock"
            first = Daemon(agent=ScriptedAgent(), hosts=[f"unix://{path}", "tcp://127.0.0.1:0"])
            await first.start()
            second = Daemon(agent=ScriptedAgent(), hosts=[a.url for a in first.addresses])
            [old] = first.tokens.values()
            drain = first.backend.shutdown

            async def take_over() -> None:
                # The first one drains: nobody finds it any more, and the second may begin.
                self.assertFalse(path.exists())
                self.assertFalse(old.path.exists())
                await second.start()
                await drain()

            async with asyncio.timeout(SECONDS):
                with mock.patch.object(first.backend, "shutdown", take_over):
                    await first.stop()
                [token] = second.tokens.values()
                self.assertEqual(token.path.read_text().strip(), token.token)
                _, writer = await asyncio.open_unix_connection(str(path))
                writer.close()
                await writer.wait_closed()
                await second.stop()
            self.assertFalse(token.path.exists())
            self.assertFalse(path.exists())

    async def test_two_signals_at_once_leave_no_files_either(self) -> None:
        with short_folder() as root, mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(root)}):
            hosts = [f"unix://{root}/d.sock", "tcp://127.0.0.1:0"]
            daemon = Daemon(agent=ScriptedAgent(), hosts=hosts)
            started = asyncio.Event()
            left: list[tuple[int, list[Path]]] = []

            def leave(code: int) -> None:
                left.append((code, [*root.glob("*.sock"), *root.glob("crushlite/*")]))

            with mock.patch("os._exit", leave), mock.patch("logging.shutdown"):
                async with asyncio.timeout(SECONDS):
                    serving = asyncio.create_task(daemon.serve(lambda _: started.set()))
                    await started.wait()
                    self.assertEqual(len([*root.glob("*.sock"), *root.glob("crushlite/*")]), 2)
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGINT)
                    await serving
            self.assertEqual(left, [(130, [])])

    async def test_of_a_crowd_on_one_port_one_wins_and_its_token_is_the_one_in_the_file(
        self,
    ) -> None:
        crowd = 8

        async def contend(barrier: threading.Barrier, daemon: Daemon, won: list[str]) -> None:
            barrier.wait()
            try:
                await daemon.start()
            except UsageError:
                return
            [token] = daemon.tokens.values()
            won.append(token.token)
            barrier.wait()  # everybody has tried
            won.append(token.path.read_text().strip())
            await daemon.stop()

        def one(barrier: threading.Barrier, hosts: list[str], won: list[str]) -> None:
            before = len(won)
            asyncio.run(contend(barrier, Daemon(agent=ScriptedAgent(), hosts=hosts), won))
            if len(won) == before:
                barrier.wait()

        for _ in range(8):
            with (
                reserved_port() as port,
                short_folder() as root,
                mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(root)),
            ):
                hosts = [f"tcp://127.0.0.1:{port}"]
                barrier = threading.Barrier(crowd, timeout=SECONDS)
                won: list[list[str]] = [[] for _ in range(crowd)]
                threads = [threading.Thread(target=one, args=(barrier, hosts, w)) for w in won]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(SECONDS)
                [(token, found)] = [w for w in won if w]
                self.assertEqual(found, token)
                self.assertEqual(list(root.glob("crushlite/*")), [])
