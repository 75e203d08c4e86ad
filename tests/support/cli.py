"""`crushlite` commands as real processes: what they say is kept, waits end, none survives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT
from tests.support.terminal import COMMAND, PATIENCE, Terminal

if TYPE_CHECKING:
    from crushlite.agent.scripted import ScriptedRun
    from crushlite.settings import Settings

__all__ = ["PATIENCE", "ROOT", "ChatCase", "Child", "CommandCase", "Relay", "ScriptedCase"]


class Child:
    """A command under test: what it says is kept, waits are bounded, and it does not survive."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out = bytearray()
        self.err = bytearray()
        self._changed = asyncio.Event()
        self._readers = [
            asyncio.create_task(self._read(stream, heard))
            for stream, heard in ((process.stdout, self.out), (process.stderr, self.err))
            if stream is not None
        ]

    async def _read(self, stream: asyncio.StreamReader, heard: bytearray) -> None:
        while data := await stream.read(65536):
            heard += data
            self._changed.set()
        self._changed.set()

    async def prints(self, text: str) -> None:
        await self._until(self.out, text)

    async def notes(self, text: str) -> None:
        await self._until(self.err, text)

    async def _until(self, heard: bytearray, text: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while text.encode() not in heard:
                    if all(reader.done() for reader in self._readers):
                        raise AssertionError(f"it ended without {text!r}: {self}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it never said {text!r}: {self}") from None

    async def end(self) -> tuple[int, str]:
        """Its exit code, and all it printed."""
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*self._readers)
                return await self.process.wait(), self.out.decode()
        except TimeoutError:
            raise AssertionError(f"it never ended: {self}") from None

    def __repr__(self) -> str:
        return f"stdout {bytes(self.out)!r}, stderr {bytes(self.err)!r}"

    @property
    def errors(self) -> str:
        return self.err.decode()

    async def close(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.end()


class CommandCase(BoundedTestCase):
    """A home of its own, so that neither real configuration nor a real daemon is met."""

    def setUp(self) -> None:
        super().setUp()
        # A test run in the background of a script has SIGINT ignored, one under nohup SIGHUP, and
        # children inherit that.
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
                self.addCleanup(signal.signal, number, signal.SIG_IGN)
        # Short: a socket's path must fit into 104 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="cl-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.project = self.root / "project"
        self.project.mkdir()
        self.socket = self.root / "crushlite" / "crushlite.sock"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.root),
            "PYTHONPATH": str(ROOT),
            "CRUSHLITE_AGENT": "offline",  # none that looks for a model server on this machine
            "CRUSHLITE_READY_TIMEOUT": str(PATIENCE),
            "CRUSHLITE_IDLE_TIMEOUT": "30",  # should a test fail to end what it started
        }

    async def start(self, *arguments: str, stdin: Any = subprocess.DEVNULL, **env: str) -> Child:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *arguments),
            cwd=self.project,
            env={**self.env, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        child = Child(process)
        self.addAsyncCleanup(child.close)
        return child

    async def terminal(
        self, *arguments: str, columns: int = 80, stdout: Any = None, **env: str
    ) -> Terminal:
        """The same in a terminal."""
        terminal = Terminal(columns)
        self.addAsyncCleanup(terminal.close)
        whole = {**self.env, **env}
        await terminal.start(*COMMAND, *arguments, stdout=stdout, cwd=self.project, env=whole)
        return terminal

    async def serve(self, host: Path) -> Child:
        """A daemon with the offline agent, listening when this returns."""
        child = await self.start("serve", "--agent=offline", f"--host=unix://{host}")
        await child.prints("is serving")
        return child

    def daemon_at(self, path: Path) -> int | None:
        """A descriptor of the daemon that serves a socket, whoever it is; None if nobody does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                return None
            found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", found)[0]
        self.assertNotIn(pid, (0, 1, os.getpid()))
        return os.pidfd_open(pid)

    def end_daemon(self, path: Path) -> None:
        """End the daemon that a command started, and wait until it is gone."""
        descriptor = self.daemon_at(path)
        if descriptor is None:
            return
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            self.wait_for_exit(descriptor)
        finally:
            os.close(descriptor)

    def wait_for_exit(self, descriptor: int) -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        self.assertTrue(poller.poll(PATIENCE * 1000), "the daemon never left")


class ScriptedCase(CommandCase):
    """`run` against a daemon in this process, whose agent does what the test says."""

    settings: Settings | None = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(settings=self.settings))
        self.project = self.daemon.root / "project"
        self.host = f"--host=unix://{self.daemon.socket}"

    async def run_it(self, *arguments: str, **rest: Any) -> Child:
        return await self.start("run", self.host, *arguments, **rest)

    async def begun(self, *arguments: str) -> tuple[Child, ScriptedRun]:
        """A command whose run is inside the agent and has said something."""
        child = await self.run_it(*arguments)
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        await child.prints("one ")
        return child, scripted

    async def ended(self, child: Child, code: int, printed: str) -> None:
        self.assertEqual(await child.end(), (code, printed), child.errors)


class ChatCase(ScriptedCase):
    """`chat` in a terminal of the test's."""

    async def chat(self, *arguments: str, columns: int = 80, host: str = "") -> Terminal:
        """A chat that is ready for keys."""
        terminal = await self.terminal("chat", host or self.host, *arguments, columns=columns)
        await terminal.shows("/help")  # where the line breaks is up to the path before it
        return terminal

    async def asked(self, terminal: Terminal, text: str, number: int = 1) -> ScriptedRun:
        """A prompt that is inside the agent, and shown."""
        terminal.enter(text)
        run = await self.daemon.entered(number)
        await terminal.shows(f"> {text}\n")
        return run

    async def idle(self, terminal: Terminal) -> None:
        """Nothing is at work any more."""
        await terminal.shows(lambda seen: seen.endswith("\n\n>"))


class Relay:
    """Stands between a client and a daemon, to cut their connections."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self._target = path, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()
