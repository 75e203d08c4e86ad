"""`crushlite` commands as real processes: what they say is kept, waits end, none survives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.testing import LocalDaemon
from tests.helpers import BoundedTestCase

if TYPE_CHECKING:
    from crushlite.agent.scripted import ScriptedRun
    from crushlite.settings import Settings

__all__ = ["PATIENCE", "ROOT", "Child", "CommandCase", "Relay", "ScriptedCase", "Terminal"]

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 50.0  # seconds: far above what anything takes, so that only a hang reaches it


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


# A session leader that opens a terminal gets it as its own: then Ctrl-C is for this process.
TAKE_TERMINAL = (
    "import os, sys\n"
    "os.close(os.open(os.ttyname(2), os.O_RDWR))\n"
    "os.execv(sys.executable, [sys.executable, '-P', '-m', 'crushlite', *sys.argv[1:]])\n"
)


class Terminal:
    """A pseudo-terminal with a command in it. `heard` is all that the command wrote to it."""

    def __init__(self) -> None:
        self._master, self._slave = pty.openpty()
        self.heard = ""
        self.process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._closed = False
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)

    async def start(self, *arguments: str, stdout: Any = None, **options: Any) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", TAKE_TERMINAL, *arguments),
            stdin=self._slave,
            stdout=self._slave if stdout is None else stdout,
            stderr=self._slave,
            start_new_session=True,
            **options,
        )

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody holds the other side any more
            self.heard += os.read(self._master, 65536).decode("utf-8", "replace")
        self._changed.set()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """As a window manager does: the kernel tells the processes in it."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    async def shows(self, text: str, start: int = 0) -> int:
        """Wait until a text was written after `start`; returns where it ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while (found := self.heard.find(text, start)) < 0:
                    self._changed.clear()
                    await self._changed.wait()
                return found + len(text)
        except TimeoutError:
            raise AssertionError(f"it never showed {text!r}: {self.heard!r}") from None

    async def end(self) -> int:
        """The exit code."""
        assert self.process is not None
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"it never ended: {self.heard!r}") from None

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            os.close(self._slave)

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        self.hang_up()


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
            *(sys.executable, "-P", "-m", "crushlite", *arguments),
            cwd=self.project,
            env={**self.env, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        child = Child(process)
        self.addAsyncCleanup(child.close)
        return child

    async def terminal(self, *arguments: str, stdout: Any = None, **env: str) -> Terminal:
        """The same in a terminal."""
        terminal = Terminal()
        self.addAsyncCleanup(terminal.close)
        terminal.resize(24, 80)
        whole = {**self.env, "TERM": "xterm", "LC_ALL": "C.UTF-8", **env}
        await terminal.start(*arguments, stdout=stdout, cwd=self.project, env=whole)
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
