"""A command, its output, and its death.

Every command runs under a keeper of its own (keeper.py), which kills all that the command started
as soon as it ends, or we hang up, or we die. So there is one way to end a command from here: hang
up; and one fact to wait for: the keeper is gone. Waiting for the command itself, or for the end of
its output, can take for ever when a grandchild holds the pipe.

Everything happens in callbacks of the event loop; no task and no thread belongs to a command, so
nothing can be cancelled halfway. `Command.done` is set when all of it is dead, reaped and closed.

Memory does not grow with output: a capture keeps the first and the last 512 KiB. The pipe is always
read, whether or not anybody wants to know.

Knows nothing of: sessions' rules, permissions, which variables are secret. The environment given
is the environment of the command, with nothing added.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BadRequest, CrushliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..clock import Clock, Timer

log = logging.getLogger(__name__)

HALF = 512 * 1024  # kept of either end of the output, as Codex does
CHUNK = 65536  # what a pipe holds: one read empties it
SHOWN = 30_000  # bytes of output that a model gets to see, as in Crush
BINARY = 0.3  # share of bytes that no text holds

# The keeper has done its work in milliseconds, or it waits for somebody who cannot be killed and
# says so after a second. One that is silent for longer was itself stopped or is stuck.
KEEPER_PATIENCE = 1.5
START_PATIENCE = 30.0  # a folder on a server that does not answer takes for ever to enter
RESCUE_STEP = 0.05
RESCUE_STEPS = 100  # a fork bomb on a slow machine takes its time, and must not lose its keeper

# The keeper's code goes to it over the channel, compiled: that saves 4 ms per command, and a
# package that is upgraded under a running daemon does not change the keeper it speaks with.
BOOT = "import marshal,sys;i=sys.stdin.buffer;exec(marshal.loads(i.read(int(i.readline()))))"
# All that the interpreter may need to be found again. The keeper's environment can be read by the
# command, so the daemon's own, with its secrets, must not be there.
KEEPER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

CONTROL = bytes(set(range(32)) - set(b"\t\n\r\b\f\x1b")) + b"\x7f"


@dataclass(frozen=True, slots=True)
class Exit:
    code: int  # 128 + n for signal n, as shells say it
    timed_out: bool
    canceled: bool
    seconds: float
    survivors: int = 0  # processes that nobody here may kill (sudo), or that hang in the kernel


class Output:
    """The first and the last 512 KiB of a stream of bytes."""

    def __init__(self) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HALF - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * HALF:  # not at every piece: each cut moves the whole tail
            del self._tail[:-HALF]

    @property
    def dropped(self) -> int:
        return self.total - len(self._head) - min(len(self._tail), HALF)

    def text(self, limit: int = SHOWN) -> str:
        """The output as text: all of it, or its two ends with about `limit` bytes together."""
        head, tail = self._ends(limit)
        left_out = self.total - len(head) - len(tail)
        texts = [part.decode("utf-8", "replace") for part in (head, tail)]
        strange = sum(text.count("\ufffd") for text in texts)
        strange += sum(len(part) - len(part.translate(None, CONTROL)) for part in (head, tail))
        if strange > BINARY * sum(map(len, texts)):
            return f"[binary output, {self.total} bytes]"
        return f"\n... {left_out} bytes left out ...\n".join(texts) if left_out else "".join(texts)

    def _ends(self, limit: int) -> tuple[bytes, bytes]:
        head, tail = bytes(self._head), bytes(self._tail[-HALF:])
        if not self.dropped:
            head = tail = head + tail
            if len(head) <= limit:
                return head, b""
        half = limit // 2
        head, tail = head[:half], tail[max(len(tail) - half, 0) :]
        # No character is cut in two: one half ends, and the other begins, between two of them.
        head = re.sub(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z", _whole, head)
        return head, re.sub(rb"\A[\x80-\xbf]{1,3}", b"", tail)


def _whole(found: re.Match[bytes]) -> bytes:
    """A character at the end of a piece, unless some of it is missing."""
    piece = found[0]
    size = 4 if piece[0] >= 0xF0 else 3 if piece[0] >= 0xE0 else 2
    return piece if len(piece) >= size else b""


# Starting ---------------------------------------------------------------------------------------


async def start(
    command: str | Sequence[str],
    *,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    clock: Clock,
    on_output: Callable[[bytes], None] | None = None,
) -> Command:
    """Run a shell text (bash, else sh) or an argument list; returns when the program runs.

    BadRequest if there is no such folder or program. If this is canceled, or fails, nothing is
    left running. `on_output` gets the output in pieces as they come; it must not block.
    """
    request = _keeper_code() + _request(command, os.fspath(cwd), env)
    started = Command(*_spawn(), clock, on_output)
    patience = clock.call_later(START_PATIENCE, started._time_out)
    try:
        await started._begin(request)
    except BaseException as error:
        started.kill()
        await started.wait()
        if isinstance(error, _Refused):
            raise error.explained(command, os.fspath(cwd)) from None
        raise
    finally:
        patience.cancel()
    return started


def _request(command: str | Sequence[str], cwd: str, env: Mapping[str, str]) -> bytes:
    shell = isinstance(command, str)
    arguments = ["bash", "-c", command] if isinstance(command, str) else list(command)
    if not arguments or not (command if shell else arguments[0]):
        raise BadRequest("the command is empty")
    texts = [cwd, "shell" if shell else "argv", str(len(arguments)), *arguments]
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
    source = Path(__file__).with_name("keeper.py")
    code = marshal.dumps(compile(source.read_bytes(), source.name, "exec"))
    return b"%d\n%b" % (len(code), code)


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A keeper that waits for its code and its request, and our end of the channel to it."""
    with contextlib.ExitStack() as on_failure:
        try:
            ours, theirs = socket.socketpair()
            on_failure.enter_context(ours)
            with theirs:
                keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", BOOT, "crushlite-keeper"],
                    bufsize=0,
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd="/",  # so as not to hold on to a folder
                    env={name: os.environ[name] for name in KEEPER_VARIABLES if name in os.environ},
                    start_new_session=True,  # a Ctrl-C at the daemon's terminal is not for it
                )
        except OSError as error:
            raise CrushliteError(f"cannot start a process: {error.strerror}") from error
        on_failure.pop_all()
    ours.setblocking(False)
    return keeper, ours


class _Refused(Exception):
    """The keeper could not start the program: at which stage, and the error's number."""

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
        assert keeper.stdout is not None
        self._keeper = keeper
        self._channel = channel
        self._pipe = keeper.stdout.fileno()
        os.set_blocking(self._pipe, False)
        found = _process(self._keeper.pid)
        self._keeper_born = 0 if found is None else found.born
        self._said = b""  # the beginning of a line of which the rest is still to come
        self._deaf = False  # it will say no more
        self._report: list[int] | None = None  # code, cut, left: the keeper's last word
        self._patience: Timer | None = None
        self._rescues = 0
        # the ending
        self._timed_out = False
        self._hung_up = False
        loop = self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[Exit] = loop.create_future()
        self._pidfd = _pidfd(self._keeper.pid)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._gone)
        loop.add_reader(self._channel, self._on_channel)
        loop.add_reader(self._pipe, self._read)

    def __repr__(self) -> str:
        state = "done" if self._done.done() else "ending" if self._hung_up else "running"
        return f"<Command pid={self.pid} {state}, {self.output.total} bytes>"

    @property
    def done(self) -> asyncio.Future[Exit]:
        """Set when everything is dead. Canceling what is returned here cancels nothing else."""
        return asyncio.shield(self._done)

    async def wait(self, timeout: float | None = None) -> Exit:
        """Until all is over. After `timeout` seconds everything is killed.

        A wait that is canceled leaves the command running: say `kill` if that is what you mean.
        """
        timer = None if timeout is None else self._clock.call_later(timeout, self._time_out)
        try:
            return await self.done
        finally:
            if timer is not None:
                timer.cancel()

    def kill(self) -> None:
        """End it, with all it started. Returns at once; `done` tells when it has happened."""
        if self._hung_up or self._done.done():
            return
        self._hung_up = True
        try:
            # Not close: its last word is still to come, and a copy of this socket in some forked
            # process would keep it open.
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone already
        self._patience = self._clock.call_later(KEEPER_PATIENCE, self._rescue)

    def _time_out(self) -> None:
        if not self._hung_up and not self._done.done():
            self._timed_out = True
            self.kill()

    async def _begin(self, request: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._channel, request)
        except OSError:
            pass  # the keeper died; `_started` says so
        await self._started

    # What the keeper says -----------------------------------------------------------------------

    def _on_channel(self) -> None:
        if not self._hear() and self._deaf and self._pidfd is None:
            self._gone()

    def _hear(self) -> bool:
        """Take what the keeper said; False if there is no more for now."""
        try:
            data = self._channel.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._deaf = True
            self._loop.remove_reader(self._channel)
            return False
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            self._obey(line.decode().split())
        return True

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["pid", pid]:
                self.pid = int(pid)
            case ["started"]:
                if not self._started.done():
                    self._started.set_result(None)
            case ["failed", stage, number]:
                self._report = [127, 0, 0]
                self._fail(_Refused(stage, int(number)))
            case ["ended", *numbers]:
                self._report = [int(number) for number in numbers]

    def _fail(self, error: Exception) -> None:
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # a start that was canceled does not ask for it

    def _read(self) -> bool:
        """Take what the pipe holds; False if there is no more for now."""
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
                self._on_output = None  # one complaint is enough
                log.exception("the consumer of a command's output failed")
        return True

    # The end ------------------------------------------------------------------------------------

    def _gone(self) -> None:
        """The keeper has left. It is the last of its command to go."""
        if self._done.done():
            return
        if self._keeper.poll() is None:  # its socket closes a moment before it can be reaped
            self._loop.call_later(0.005, self._gone)  # the kernel's time, not the policy's
            return
        while self._hear():
            pass  # its last word may still be in the socket
        if self._report is None:
            _kill_orphans(self.pid, self._pipe, self._keeper_born)
        for _ in range(2 * HALF // CHUNK):  # a survivor could go on for ever
            if not self._read():
                break
        self._close()
        code, cut, left = self._report or (128 + signal.SIGKILL, int(self._hung_up), 0)
        if left:
            log.warning("%d processes of command %d could not be killed", left, self.pid)
        status = "did not start it in time" if self._timed_out else "failed"
        status = f"the keeper of a command {status} ({self._keeper.returncode})"
        self._fail(CrushliteError(f"{status}: {self.output.text()}"))
        late, seconds = self._timed_out, self._clock.time() - self._began
        self._done.set_result(Exit(code, bool(cut and late), bool(cut and not late), seconds, left))

    def _close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._loop.remove_reader(self._pipe)
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()
        self._channel.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    def _rescue(self) -> None:
        """The keeper is silent: do its work from here, and end it when that is done.

        Not before: as long as it exists, stopped or not, its command's orphans come to it.
        """
        self._rescues += 1
        below = _below(self._keeper.pid)
        for pid in below:
            _kill(pid)
        if below and self._rescues < RESCUE_STEPS:
            self._patience = self._clock.call_later(RESCUE_STEP, self._rescue)
            return
        log.warning("the keeper of command %d did not answer and was killed", self.pid)
        self._keeper.kill()


# The process table ------------------------------------------------------------------------------


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    born: int  # in ticks since the machine's start


def _pidfd(pid: int) -> int | None:
    """An fd that wakes when a child of ours can be reaped; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _process(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            # Behind the name, which may hold anything.
            state, parent, _, session, *rest = file.read(1024).rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None  # gone, or there is no /proc
    return _Process(pid, state.decode(), int(parent), int(session), int(rest[15]))


def _alive() -> list[_Process]:
    """Every process that is not dead; none where there is no /proc."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    found = [_process(int(name)) for name in names if name.isdigit()]
    return [process for process in found if process is not None and process.state not in "ZX"]


def _below(top: int) -> list[int]:
    """The living below a process."""
    children: dict[int, list[int]] = {}
    for process in _alive():
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    todo = [top]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _kill_orphans(leader: int, pipe: int, born: int) -> None:
    """Kill what can still be found of a command whose keeper was killed.

    Nobody has collected its orphans, so the marks are its session and the pipe it writes to. Those
    who left both behind are lost: a command that kills its keeper could kill the daemon as well.
    Nobody is touched who is older than the keeper: a mark that is wrong must not kill the innocent.
    """
    if leader <= 1 or not born:  # the program never ran, or there is no /proc
        if leader > 1:
            _kill(-leader)
        return
    name = f"pipe:[{os.fstat(pipe).st_ino}]"
    for _ in range(5):  # some may fork while we look
        found = [
            process.pid
            for process in _alive()
            if process.born >= born and process.pid not in (1, os.getpid())
            if process.session == leader or _holds(process.pid, name)
        ]
        for pid in found:
            _kill(pid)
        if not found:
            break


def _holds(pid: int, pipe: str) -> bool:
    try:
        folder = f"/proc/{pid}/fd"
        return any(os.readlink(f"{folder}/{fd}") == pipe for fd in os.listdir(folder))
    except OSError:
        return False  # gone, or another user's


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # gone, or another user's
