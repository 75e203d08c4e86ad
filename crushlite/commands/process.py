"""Running a command, and killing it with everything it started.

Every command runs under a keeper of its own (keeper.py), which kills all that the command started
as soon as the command has ended, the daemon shuts down their channel, or the daemon dies. So there
is one way to kill a command from here, shutting down the channel, and one event to wait for: the
exit of the keeper. Waiting for the command itself, or for the end of its output, could take for
ever while a grandchild holds the pipe.

Everything happens in callbacks of the event loop: no task and no thread belongs to a command, so
nothing can be cancelled halfway. The pipe is always read, whether or not the output is wanted, and
memory does not grow with it (output.py).

Knows nothing of sessions, permissions, or which variables are secret: the environment that is given
is that of the command, with nothing added.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

from ..agent.base import Exit
from ..errors import BadRequest, CrushliteError
from ..version import NAME
from .keeper import send_signal
from .orphans import find_process, kill_orphans, pids_below
from .output import HALF, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..clock import Clock, Timer

log = logging.getLogger(__name__)

CHUNK = 65536  # what a pipe holds: one read empties it

# A keeper that is asked to kill is done in milliseconds, or after a second if some process cannot
# be killed. One that takes longer was stopped itself, or hangs.
KEEPER_SECONDS = 1.5
START_SECONDS = 30.0  # entering a folder on a server that does not answer takes for ever
RESCUE_PAUSE = 0.05
RESCUE_PASSES = 100  # a fork bomb on a slow machine needs many, and must not lose its keeper

# The keeper's code is sent over the channel, compiled: that saves 4 ms per command, and a package
# that is upgraded under a running daemon does not change the keeper it speaks with.
BOOT = "import marshal,sys;i=sys.stdin.buffer;exec(marshal.loads(i.read(int(i.readline()))))"
# All that the interpreter may need to find its libraries. The command can read the environment of
# its keeper, so the daemon's own variables, which may be secrets, are not passed on.
KEEPER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


# Starting ---------------------------------------------------------------------------------------


async def start(
    command: str | Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    clock: Clock,
    on_output: Callable[[bytes], None] | None = None,
) -> Command:
    """Run a shell text (bash, else sh) or an argument list. Returns when the program runs.

    Raises BadRequest if there is no such folder or program, CrushliteError if no process can be
    started. If this call is cancelled, or fails, nothing is left running. `on_output` is called
    with each piece of output as it comes; it must not block.
    """
    request = _request(command, os.fspath(cwd), env)
    started = Command(*_spawn(), clock, on_output)
    await started.begin(request, command, os.fspath(cwd))
    return started


async def start_piped(
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    clock: Clock,
    on_error: Callable[[bytes], None] | None = None,
) -> tuple[Command, asyncio.StreamReader, asyncio.StreamWriter]:
    """Run a program that is talked to: as `start`, and with streams to read what it prints and to
    write what it reads. The output of the command is what it prints to standard error. Closing the
    writer is the end of its input; the caller closes it in any case."""
    with contextlib.ExitStack() as on_failure:
        from_it, printed = _pipe(on_failure)
        read, to_it = _pipe(on_failure)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        reading = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: reading, from_it)
        on_failure.callback(transport.close)
        # Only the flow control of this one is used: nothing is read from this end.
        writing = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        out, _ = await loop.connect_write_pipe(lambda: writing, to_it)
        on_failure.callback(out.close)
        with printed, read:
            request = _request(arguments, os.fspath(cwd), env, read.fileno())
            command = Command(*_spawn(printed.fileno(), read.fileno()), clock, on_error)
        await command.begin(request, arguments, os.fspath(cwd))
        on_failure.pop_all()
    return command, reader, asyncio.StreamWriter(out, writing, None, loop)


def _pipe(on_failure: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """The end to read from and the end to write to, both closed on failure."""
    read, write = os.pipe()
    return (
        on_failure.enter_context(io.FileIO(read, "rb")),
        on_failure.enter_context(io.FileIO(write, "wb")),
    )


def _request(
    command: str | Sequence[str], cwd: str, env: Mapping[str, str], input_fd: int = 0
) -> bytes:
    """The request to a keeper. Raises BadRequest for what no program can be given."""
    shell = isinstance(command, str)
    arguments = ["bash", "-c", command] if isinstance(command, str) else list(command)
    if not arguments or not (command if shell else arguments[0]):
        raise BadRequest("the command is empty")
    kind = "shell" if shell else f"argv:{input_fd}" if input_fd else "argv"
    texts = [cwd, kind, str(len(arguments)), *arguments]
    for name in env:
        if not name or "=" in name:
            raise BadRequest(f"{name!r} cannot be the name of an environment variable")
    texts += [f"{name}={value}" for name, value in env.items()]
    for what, some in (("command", arguments), ("folder", [cwd]), ("environment", texts)):
        if any("\0" in text for text in some):
            raise BadRequest(f"the {what} holds a NUL character, which no program can be given")
    try:
        body = b"\0".join(os.fsencode(text) for text in texts)
    except UnicodeEncodeError:
        raise BadRequest("the command holds a character that is not valid Unicode") from None
    return b"%d\n%b" % (len(body), body)


@cache
def _keeper_code() -> bytes:
    """The compiled code of the keeper, with its length, as BOOT reads it."""
    import importlib.resources  # only now: it takes half a megabyte

    source = importlib.resources.files(__package__) / "keeper.py"
    code = marshal.dumps(compile(source.read_bytes(), source.name, "exec"))
    return b"%d\n%b" % (len(code), code)


def _spawn(
    printed_fd: int | None = None, input_fd: int | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a keeper that waits for its code and its request. Return it with our end of the
    channel. With `printed_fd`, that is where its command prints, and only the errors are its
    output. Raises CrushliteError if no process can be started."""
    piped = printed_fd is not None
    with contextlib.ExitStack() as on_failure:
        try:
            ours, theirs = socket.socketpair()
            on_failure.enter_context(ours)
            with theirs:
                keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", BOOT, f"{NAME}-keeper"],
                    bufsize=0,
                    stdin=theirs.fileno(),
                    stdout=printed_fd if piped else subprocess.PIPE,
                    stderr=subprocess.PIPE if piped else subprocess.STDOUT,
                    pass_fds=() if input_fd is None else (input_fd,),
                    cwd="/",  # a process keeps its folder from being unmounted
                    env={name: os.environ[name] for name in KEEPER_VARIABLES if name in os.environ},
                    start_new_session=True,  # a Ctrl-C at the daemon's terminal must not reach it
                )
        except OSError as error:
            raise CrushliteError(f"cannot start a process: {error.strerror}") from error
        on_failure.pop_all()
    ours.setblocking(False)
    return keeper, ours


class _StartFailed(Exception):
    """The keeper could not start the program. Arguments: the stage, and the error's number."""

    def explained(self, command: str | Sequence[str], cwd: str) -> CrushliteError:
        stage, number = self.args
        reason = os.strerror(number)
        if number == errno.E2BIG:
            return BadRequest("the command and its environment are too long for this system")
        if stage == "cwd":
            return BadRequest(f"cannot run in {cwd}: {reason}")
        if stage == "exec":
            name = "bash or sh" if isinstance(command, str) else command[0]
            return BadRequest(f"cannot run {name}: {reason}")
        return CrushliteError(f"cannot start a process: {reason}")


# A command --------------------------------------------------------------------------------------


class Command:
    """A running command. Made by `start`."""

    def __init__(
        self,
        keeper: subprocess.Popen[bytes],
        channel: socket.socket,
        clock: Clock,
        on_output: Callable[[bytes], None] | None,
    ) -> None:
        self.pid = 0  # of the program itself
        self.output = Output()
        self._clock = clock
        self._began = clock.time()
        self._on_output = on_output
        # the keeper
        output = keeper.stdout or keeper.stderr
        assert output is not None
        self._keeper = keeper
        self._channel = channel
        self._output_pipe = output
        self._pipe = output.fileno()
        os.set_blocking(self._pipe, False)
        found = find_process(self._keeper.pid)
        self._keeper_born = 0 if found is None else found.born
        self._line_begun = b""  # the beginning of a line whose rest is still to come
        self._channel_ended = False
        # As the keeper reported it: exit code, whether it was killed on request, survivors.
        self._ending: tuple[int, bool, int] | None = None
        self._rescue_timer: Timer | None = None
        self._rescues = 0
        # how it ends
        self._timed_out = False
        self._kill_requested = False
        loop = self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[Exit] = loop.create_future()
        self._pidfd = _pidfd(self._keeper.pid)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._keeper_exited)
        loop.add_reader(self._channel, self._channel_ready)
        loop.add_reader(self._pipe, self._read_output)

    def __repr__(self) -> str:
        state = "done" if self._done.done() else "ending" if self._kill_requested else "running"
        return f"<Command pid={self.pid} {state}, {self.output.total} bytes>"

    @property
    def done(self) -> asyncio.Future[Exit]:
        """Set when all processes are dead, the keeper is reaped and all descriptors are closed.
        Cancelling the future that is returned here cancels nothing else."""
        return asyncio.shield(self._done)

    async def wait(self, timeout: float | None = None) -> Exit:
        """Wait until all processes are dead; after `timeout` seconds, kill them.

        Cancelling this call leaves the command running: call `kill` to end it.
        """
        timer = None if timeout is None else self._clock.call_later(timeout, self._time_out)
        try:
            return await self.done
        finally:
            if timer is not None:
                timer.cancel()

    def kill(self) -> None:
        """Kill the command and all that it started. Returns at once; `done` is set when they are
        dead. Does nothing if the command has ended or is being killed."""
        if self._kill_requested or self._done.done():
            return
        self._kill_requested = True
        try:
            # Not close: the keeper's last line is still to come, and a copy of this socket in a
            # forked process would keep it open.
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the keeper has exited
        self._rescue_timer = self._clock.call_later(KEEPER_SECONDS, self._rescue)

    def _time_out(self) -> None:
        if not self._kill_requested and not self._done.done():
            self._timed_out = True
            self.kill()

    async def begin(self, request: bytes, command: str | Sequence[str], cwd: str) -> None:
        """Send the request to the keeper, and wait until the program runs. Called once."""
        timer = self._clock.call_later(START_SECONDS, self._time_out)
        try:
            try:
                await self._loop.sock_sendall(self._channel, _keeper_code() + request)
            except OSError:
                pass  # the keeper has exited; `_started` gets the error
            await self._started
        except BaseException as error:
            self.kill()
            await self.wait()
            if isinstance(error, _StartFailed):
                raise error.explained(command, cwd) from None
            raise
        finally:
            timer.cancel()

    # What the keeper and the program write ------------------------------------------------------

    def _channel_ready(self) -> None:
        if not self._receive() and self._channel_ended and self._pidfd is None:
            self._keeper_exited()

    def _receive(self) -> bool:
        """Read lines from the keeper and handle them. False if there are no more for now."""
        try:
            data = self._channel.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._channel_ended = True
            self._loop.remove_reader(self._channel)
            return False
        *lines, self._line_begun = (self._line_begun + data).split(b"\n")
        for line in lines:
            self._handle(line.decode().split())
        return True

    def _handle(self, words: list[str]) -> None:
        """Take note of one line of the keeper."""
        match words:
            case ["pid", pid]:
                self.pid = int(pid)
            case ["started"]:
                if not self._started.done():
                    self._started.set_result(None)
            case ["failed", stage, number]:
                self._ending = (127, False, 0)
                self._fail_start(_StartFailed(stage, int(number)))
            case ["ended", code, killed, survivors]:
                self._ending = (int(code), killed == "1", int(survivors))

    def _fail_start(self, error: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # fetched, or asyncio complains when `start` was cancelled

    def _read_output(self) -> bool:
        """Take what the pipe holds. False if there is no more for now."""
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        self.output.add(data)
        if self._on_output is not None:
            try:
                self._on_output(data)
            except Exception:
                self._on_output = None  # it would fail, and be logged, at every piece
                log.exception("the consumer of a command's output failed")
        return True

    # The end ------------------------------------------------------------------------------------

    def _keeper_exited(self) -> None:
        """Reap the keeper, which is the last process of a command to exit; set `done`."""
        if self._done.done():
            return
        if self._keeper.poll() is None:  # its socket closes a moment before it can be reaped
            self._loop.call_later(0.005, self._keeper_exited)  # real time: the kernel's doing
            return
        while self._receive():
            pass  # its last line may still be in the socket
        if self._ending is None:
            kill_orphans(self.pid, self._pipe, self._keeper_born)
        for _ in range(2 * HALF // CHUNK):  # bounded: a survivor could write for ever
            if not self._read_output():
                break
        self._close()
        default = (128 + signal.SIGKILL, self._kill_requested, 0)
        code, killed, survivors = self._ending or default
        if survivors:
            log.warning("%d processes of command %d could not be killed", survivors, self.pid)
        status = "did not start it in time" if self._timed_out else "failed"
        status = f"the keeper of a command {status} ({self._keeper.returncode})"
        self._fail_start(CrushliteError(f"{status}: {self.output.text()}"))
        late, seconds = self._timed_out, self._clock.time() - self._began
        self._done.set_result(Exit(code, killed and late, killed and not late, seconds, survivors))

    def _close(self) -> None:
        if self._rescue_timer is not None:
            self._rescue_timer.cancel()
        self._loop.remove_reader(self._pipe)
        self._output_pipe.close()
        self._channel.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    def _rescue(self) -> None:
        """The keeper does not answer: kill the processes below it from here, then the keeper.

        The keeper goes last: as long as it exists, stopped or not, the orphans of its command
        become its children.
        """
        self._rescues += 1
        below = pids_below(self._keeper.pid)
        for pid in below:
            send_signal(pid, signal.SIGKILL)
        if below and self._rescues < RESCUE_PASSES:
            self._rescue_timer = self._clock.call_later(RESCUE_PAUSE, self._rescue)
            return
        log.warning("the keeper of command %d did not answer and was killed", self.pid)
        self._keeper.kill()


def _pidfd(pid: int) -> int | None:
    """An fd that becomes readable when a child of ours has exited; None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
