"""`crushlite` commands for tests: called in this process, or as processes of their own.

A test that is not about a process calls `main(argv)` in a thread (`Call`): a process takes a
quarter of a second to start. Waits are bounded, and nothing outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli import follow, main
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.places import ROOT
from tests.support.terminal import COMMAND, PATIENCE, Shown, Terminal, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crushlite.settings import Settings
    from crushlite.testing.scripted import ScriptedRun

__all__ = [
    "PATIENCE",
    "ROOT",
    "Call",
    "ChatCase",
    "Child",
    "CommandCase",
    "Relay",
    "ScriptedCase",
    "Started",
]


class Started:
    """A command under test: `out` and `err` are what it has written so far."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether nothing more is written."""
        raise NotImplementedError

    async def code(self) -> int:
        """Wait for its end; returns the exit code."""
        raise NotImplementedError

    async def prints(self, text: str) -> None:
        """Wait until it has written a text to standard output."""
        await self._until(self.out, text)

    async def notes(self, text: str) -> None:
        """Wait until it has written a text to standard error."""
        await self._until(self.err, text)

    async def _until(self, heard: bytearray, text: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while text.encode() not in heard:
                    if self.over and text.encode() not in heard:
                        raise AssertionError(f"it ended without {text!r}: {self}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it never said {text!r}: {self}") from None

    async def end(self) -> tuple[int, str]:
        """Wait for its end; returns the exit code and all it printed."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.code(), self.out.decode()
        except TimeoutError:
            raise AssertionError(f"it never ended: {self}") from None

    def __repr__(self) -> str:
        return f"stdout {bytes(self.out)!r}, stderr {bytes(self.err)!r}"

    @property
    def errors(self) -> str:
        return self.err.decode()


class Child(Started):
    """A command as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self.process = process
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

    @property
    def over(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def code(self) -> int:
        await asyncio.gather(*self._readers)
        return await self.process.wait()

    async def close(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.end()


class Call(Started):
    """`main(argv)` in a thread of this process, with an event loop of its own."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        super().__init__()
        self.interrupt: Callable[[], object] | None = None  # in its loop: what Ctrl-C does
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self.streams = {"stdout": self._stream(self.out), "stderr": self._stream(self.err)}
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._run, argv), daemon=True)
        thread.start()

    def _stream(self, heard: bytearray) -> io.TextIOWrapper:
        raw: Any = _Kept(heard, lambda: self._loop.call_soon_threadsafe(self._changed.set))
        return io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)

    def _run(self, argv: tuple[str, ...]) -> None:
        _CALL.set(self)
        code: int | BaseException
        try:
            code = main(argv)
        except SystemExit as left:  # argparse exits by itself
            code = int(left.code or 0)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits for it
            code = error
        self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int | BaseException) -> None:
        if isinstance(code, int):
            self._code.set_result(code)
        else:
            self._code.set_exception(code)
        self._changed.set()

    @property
    def over(self) -> bool:
        return self._code.done()

    async def code(self) -> int:
        return await asyncio.shield(self._code)

    async def close(self) -> None:
        if not self.over and self.interrupt is not None:
            self.interrupt()  # once: a second one would end this process
        await self.end()


_CALL: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call", default=None)


class _Kept(io.BytesIO):
    """Keeps what is written in a bytearray, and says so."""

    def __init__(self, heard: bytearray, written: Callable[[], object]) -> None:
        super().__init__()
        self._heard, self._written = heard, written

    def write(self, data: Any) -> int:
        self._heard += data
        self._written()
        return len(data)


class _OfCall:
    """In place of sys.stdout or sys.stderr: that of the call to which the running code belongs.
    Threads that asyncio starts for a call belong to it too, because they copy its context."""

    def __init__(self, name: str) -> None:
        self._name, self._else = name, getattr(sys, name)

    def __getattr__(self, attribute: str) -> Any:
        call = _CALL.get()
        return getattr(call.streams[self._name] if call is not None else self._else, attribute)


class _Interrupt(follow.Interrupt):
    """Can be called from the test."""

    def __init__(self) -> None:
        super().__init__()
        loop, call = asyncio.get_running_loop(), _CALL.get()
        if call is not None:
            call.interrupt = lambda: loop.call_soon_threadsafe(self)


class CommandCase(BoundedTestCase):
    """A home of its own, so that neither real configuration nor a real daemon is met. It is that of
    this process as well: environment, current directory and standard input are put back later."""

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
        self._take_over_this_process()

    def _take_over_this_process(self) -> None:
        environment = {**self.env, "TERM": "xterm"}
        self.enterContext(mock.patch.dict(os.environ, environment, clear=True))
        self.enterContext(contextlib.chdir(self.project))
        for name in ("stdout", "stderr"):
            self.enterContext(mock.patch.object(sys, name, _OfCall(name)))
        # A thread cannot handle signals.
        self.enterContext(mock.patch.object(follow, "SIGNALS", ()))
        self.enterContext(mock.patch.object(follow, "Interrupt", _Interrupt))
        before = os.dup(0)
        self.addCleanup(os.close, before)
        self.addCleanup(os.dup2, before, 0)
        self._give_input(None)

    def _give_input(self, given: bytes | int | None) -> None:
        """Make some bytes, or an open file, or nothing, the standard input of this process."""
        if given is None:
            source = os.open(os.devnull, os.O_RDONLY)
        elif isinstance(given, bytes):
            source, sink = os.pipe()
            with open(sink, "wb") as pipe:
                pipe.write(given)  # little enough for the buffer of a pipe
        else:
            source = os.dup(given)
        os.dup2(source, 0)
        os.close(source)

    async def start(self, *arguments: str, stdin: bytes | int | None = None) -> Call:
        """Call a command in this process. `stdin` is what it reads, or a descriptor."""
        os.environ.update(self.env)
        os.chdir(self.project)
        self._give_input(stdin)
        call = Call(arguments)
        self.addAsyncCleanup(call.close)
        return call

    async def spawn(
        self,
        *arguments: str,
        command: Sequence[str] = COMMAND,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        **env: str,
    ) -> Child:
        """Start a command as a process of its own. `command` is what comes before its arguments."""
        process = await asyncio.create_subprocess_exec(
            *(*command, *arguments),
            cwd=self.project,
            env={**self.env, **env},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        child = Child(process)
        self.addAsyncCleanup(child.close)
        return child

    async def run_process(self, *arguments: str) -> tuple[int, str, str]:
        """A command as a process, to its end: exit code, standard output, standard error."""
        child = await self.spawn(*arguments)
        code, printed = await child.end()
        return code, printed, child.errors

    async def terminal(
        self, *arguments: str, columns: int = 80, stdout: Any = None, **env: str
    ) -> Terminal:
        """Start a command as a process with a terminal of its own."""
        terminal = Terminal(columns)
        self.addAsyncCleanup(terminal.close)
        whole = {**self.env, **env}
        await terminal.start(*COMMAND, *arguments, stdout=stdout, cwd=self.project, env=whole)
        return terminal

    async def chat(self, *arguments: str, columns: int = 80) -> Window:
        """A chat in a window of this process, ready for keys."""
        os.environ.update(self.env)
        os.chdir(self.project)
        window = Window(columns)
        self.addAsyncCleanup(window.close)
        window.start(*arguments)
        await window.shows("/help")  # where the line breaks is up to the path before it
        return window

    async def serve(self, host: Path) -> Child:
        """A daemon with the offline agent as a process, listening when this returns."""
        child = await self.spawn("serve", "--agent=offline", f"--host=unix://{host}")
        await child.prints("is serving")
        return child

    def daemon_at(self, path: Path) -> int | None:
        """A pidfd of the daemon that serves a socket; None if there is none."""
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
    """Commands against a daemon in this process, whose agent does what the test says."""

    settings: Settings | None = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(settings=self.settings))
        self.project = self.daemon.root / "project"
        self.host = f"--host=unix://{self.daemon.socket}"

    async def run_it(self, *arguments: str, stdin: bytes | int | None = None) -> Call:
        return await self.start("run", self.host, *arguments, stdin=stdin)

    async def begun(self, *arguments: str) -> tuple[Call, ScriptedRun]:
        """A call of `run` whose run is inside the agent and has said something."""
        child = await self.run_it(*arguments)
        return child, await self._said_one(child)

    async def begun_process(self, *arguments: str) -> tuple[Child, ScriptedRun]:
        """The same as a process."""
        child = await self.spawn("run", self.host, *arguments)
        return child, await self._said_one(child)

    async def _said_one(self, child: Started) -> ScriptedRun:
        scripted = await self.daemon.entered(1)
        await scripted.say("one ")
        await child.prints("one ")
        return scripted

    async def ended(self, child: Started, code: int, printed: str) -> None:
        """Insist on how a command ends and on all it printed."""
        self.assertEqual(await child.end(), (code, printed), child.errors)


class ChatCase(ScriptedCase):
    """`chat` in a window of this process, or as a process in a terminal."""

    async def chat(self, *arguments: str, columns: int = 80) -> Window:
        return await super().chat(self.host, *arguments, columns=columns)

    async def chat_process(self, *arguments: str, columns: int = 80, host: str = "") -> Terminal:
        """A chat as a process in a terminal, ready for keys."""
        terminal = await self.terminal("chat", host or self.host, *arguments, columns=columns)
        await terminal.shows("/help")
        return terminal

    async def asked(self, window: Shown, text: str, number: int = 1) -> ScriptedRun:
        """Type a prompt; returns when it is inside the agent, shown, and the chat is busy."""
        window.enter(text)
        run = await self.daemon.entered(number)
        prompt = f"> {text}\n"
        await window.shows(lambda seen: prompt in seen and "thinking" in seen.rpartition(prompt)[2])
        return run

    async def idle(self, window: Shown) -> None:
        """Wait until nothing is at work any more."""
        await window.shows(lambda seen: seen.endswith("\n\n>"))


class Relay:
    """A socket between clients and a daemon, whose connections can be cut."""

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
