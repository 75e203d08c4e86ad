"""Find a daemon, or start one; then open a workspace in it.

    async with open_workspace("/path/to/project") as workspace:
        print((await workspace.ask("what is this?")).text)

However many clients begin at once, one of them starts a daemon and the others find it. A lock saves
the others from starting one too; it is not what makes this correct: a daemon never takes the socket
of a living one.

A daemon is ready when it answers GET /v1/health, within CRUSHLITE_READY_TIMEOUT seconds (10 if that
is not set). The output of one that was started here goes to a log file in the directory of the
default socket. One of another version is asked to leave if it has nothing to do, and replaced; one
that is needed stays and is used: any update looks like a new version, and must not end work.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeVar

from . import errors, listen
from .client import Client, ConnectionFailed
from .clock import SystemClock, seconds_of
from .errors import CrushliteError, ShuttingDown, UsageError
from .itself import here, own_environment, python_command, python_path, require_text
from .records import dataclass
from .version import WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from .client import RemoteWorkspace
    from .clock import Clock
    from .protocol.workspaces import VersionInfo

READY_SECONDS = 10.0
ATTEMPT_SECONDS = 0.1  # between two attempts to reach a daemon
PROBE_SECONDS = 2.0  # for an answer: a daemon whose loop is blocked for a moment is a living one
HANDOVER_SECONDS = 5.0  # for a daemon that leaves to release its databases
GOODBYE_SECONDS = 5.0  # for the daemon to note that a client leaves
IDLE_SECONDS = 60.0  # how long a daemon that was started here stays without work
TRIES = 3  # attempts to open a workspace in a daemon that does not leave meanwhile
TAIL_LINES = 10
LOG_LIMIT = 1 << 20  # bytes: a longer log is emptied when the next daemon starts

T = TypeVar("T")
Probe = Literal["alive", "silent", "absent"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which daemon to use, how to start it if it is not there, and what to ask it for.

    `command` is the argv that starts a daemon, which must listen on `url`; if empty, `python -P -m
    PACKAGE serve` of this very package, with `agent`, else with that of CRUSHLITE_AGENT, else
    `auto`. With an `agent`, a daemon that serves another one is replaced if it is idle, and else
    refused. `say` is called with a line of text when there is something to wait for."""

    url: str | None = None  # the default socket if None
    token: str = ""
    agent: str = ""
    path: str | os.PathLike[str] = ""  # the current directory if empty
    yolo: bool = False
    say: Callable[[str], None] = lambda text: None
    clock: Clock = field(default_factory=SystemClock)
    command: Sequence[str] = ()

    @property
    def directory(self) -> str:
        return os.path.join(here(), self.path) if self.path else here()


def open_workspace(
    path: str | os.PathLike[str] = "",
    *,
    url: str | None = None,
    token: str = "",
    agent: str = "",
    yolo: bool = False,
    command: Sequence[str] = (),
) -> contextlib.AbstractAsyncContextManager[RemoteWorkspace]:
    """A context with the workspace of a directory (the current one if none is given), in a daemon
    that is found or started. See `Wanted` for the arguments, and `joined`."""
    return joined(Wanted(url, token, agent, path, yolo, command=command))


@contextlib.asynccontextmanager
async def joined(wanted: Wanted) -> AsyncIterator[RemoteWorkspace]:
    """Open the workspace as `join` does. At the end its client leaves the daemon and is closed."""
    workspace = await join(wanted)
    async with workspace.client:
        try:
            yield workspace
        finally:
            await goodbye(workspace.client)


async def goodbye(client: Client) -> None:
    """Tell the daemon that a client leaves and will not come back. No answer is no error."""
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await client.retire()
    except (CrushliteError, TimeoutError):
        pass  # it is gone, or will notice


def ready_seconds() -> float:
    """How long to wait for a daemon that starts or was lost. Raises UsageError if
    CRUSHLITE_READY_TIMEOUT is no number of seconds."""
    text = os.environ.get("CRUSHLITE_READY_TIMEOUT") or str(READY_SECONDS)
    try:
        return seconds_of(text)
    except ValueError:
        raise UsageError(f"CRUSHLITE_READY_TIMEOUT={text!r} is not a number of seconds") from None


# Finding and starting ---------------------------------------------------------------------------


async def ensure_daemon(wanted: Wanted) -> str:
    """Find a living daemon or start one; returns its URL. Raises CrushliteError if it does not get
    ready, UsageError if it serves another agent than the wanted one. A TCP address is returned as
    it is: none is started on a port, because who may use that is for a person to decide."""
    address = wanted.url or listen.default_address()
    if not address.startswith("unix://"):
        if wanted.agent:
            async with Client(address, token=wanted.token) as client:
                _require_agent(await client.version(), address, wanted)
        return address
    listen.parse_address(address)
    state, info = await _asked(address, Client.version)  # which shows that it is alive, too
    if state != "alive" or (info is not None and await _asked_to_leave(address, info, wanted)):
        await _start(address, "absent" if state == "alive" else state, wanted)
    return address


async def _asked(
    address: str, question: Callable[[Client], Awaitable[T]]
) -> tuple[Probe, T | None]:
    """Ask a daemon, and return its answer if it gives one. One that accepts the connection and does
    not answer is `silent`: it may be busy, or leaving."""
    try:
        async with Client(address) as client, asyncio.timeout(PROBE_SECONDS):
            return "alive", await question(client)
    except errors.WrongPeer:
        raise
    except (CrushliteError, TimeoutError) as error:
        unreached = isinstance(error, ConnectionFailed) and not error.reached
        return "absent" if unreached else "silent", None


async def _asked_to_leave(address: str, info: VersionInfo, wanted: Wanted) -> bool:
    """Ask a daemon of another version, or with another agent than the one that is wanted, to leave;
    returns whether it did. Raises UsageError if it stays, and serves another agent."""
    before = listen.file_identity(address.removeprefix("unix://"))
    other = bool(info.agent and wanted.agent and info.agent != wanted.agent)
    # A server that is no crushlite was put there on purpose, and is not ours to replace.
    if not info.version.startswith("crushlite-") or (info.version == WIRE_VERSION and not other):
        _require_agent(info, address, wanted)
        return False
    async with Client(address) as client:
        try:
            await _ask_to_leave(client)
        except CrushliteError:
            _require_agent(info, address, wanted)
            return False  # it is needed
    successor = f"one with --agent {wanted.agent}" if other else WIRE_VERSION
    wanted.say(f"{info.version} makes room for {successor}")
    await _until_gone(address, before, wanted.clock)
    return True


def _require_agent(daemon: VersionInfo, address: str, wanted: Wanted) -> None:
    """Raise UsageError if a daemon serves another agent than the one that is wanted."""
    if wanted.agent in ("", daemon.agent) or daemon.version != WIRE_VERSION:
        return
    served = f"--agent {daemon.agent}" if daemon.agent else "an agent of its own"
    raise UsageError(
        f"--agent {wanted.agent} has no effect: the daemon at {address} is in use with {served}. "
        "End it with `crushlite stop`, or use a daemon of its own with --host unix:///PATH"
    )


async def _ask_to_leave(client: Client) -> None:
    """Raises CrushliteError if the daemon stays. An old one knows only the unconditional command,
    which it gets if it has no workspace."""
    try:
        await client.control("shutdown_if_idle")
    except errors.BadRequest:
        if await client.workspaces():
            raise
        await client.control("shutdown")


async def _start(address: str, state: Probe, wanted: Wanted) -> None:
    """Start a daemon, or wait for one that another client starts, if the last probe found `state`.
    Raises CrushliteError if it does not answer in time, or ends."""
    clock, deadline = wanted.clock, wanted.clock.time() + ready_seconds()
    waiting = False
    with _Starter(address, wanted) as starter:
        while state != "alive":
            starter.check(state)
            if clock.time() > deadline:
                raise starter.failure("did not get ready in time (CRUSHLITE_READY_TIMEOUT)")
            if state == "absent" and starter.locked is not None and not starter.spawned:
                wanted.say(f"starting a daemon at {address}")
                starter.spawn()
            elif state == "absent" and starter.locked is None and starter.lock():
                # The client that held the lock before may have started one: probe before spawning.
                state, _ = await _asked(address, Client.health)
                continue
            elif not starter.spawned and not waiting:
                waiting = True
                wanted.say(f"waiting for the daemon at {address}")
            await clock.sleep(ATTEMPT_SECONDS)
            state, _ = await _asked(address, Client.health)


def log_path(address: str) -> Path:
    """The log file of a daemon that is started for an address."""
    return _own_file("daemon", address, ".log")


def _own_file(name: str, address: str, suffix: str) -> Path:
    """A file about an address, in the directory of the default socket. Also for a socket elsewhere:
    a directory that others can write to is no place for it."""
    mark = ""
    if address != listen.default_address():
        import hashlib  # only here: it takes 3 ms, and the default address is the usual one

        mark = "-" + hashlib.sha256(os.fsencode(address)).hexdigest()[:12]
    return listen.default_socket().parent / f"{name}{mark}{suffix}"


class _Starter:
    """The lock, the process and the log of one start."""

    def __init__(self, address: str, wanted: Wanted) -> None:
        listen.private_directory(listen.default_socket().parent)
        self._address = address
        self._command = list(wanted.command) or _serve_command(address, wanted.agent)
        self._lock_path = _own_file("start", address, ".lock")
        self._log_path = log_path(address)
        self._log_start = 0  # where this start begins in the log
        self.locked: int | None = None  # the descriptor of the lock file, while we hold the lock
        self.spawned: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Starter:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.locked is not None:
            os.close(self.locked)
        if self.spawned is not None:
            # It may outlive this process. If it does not, its end must be waited for: a program
            # that uses this as a library would otherwise collect dead children.
            threading.Thread(target=self.spawned.wait, name="daemon's end", daemon=True).start()

    def lock(self) -> bool:
        """Try to become the client that starts a daemon; returns whether this worked. The file
        stays when the lock is released: without it there could be two locks."""
        descriptor = _open_private(self._lock_path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self.locked = descriptor
        return True

    def spawn(self) -> None:
        """Start the process, with its output in the log. Raises CrushliteError if that fails."""
        log = _open_private(self._log_path)
        try:
            if os.fstat(log).st_size > LOG_LIMIT:
                os.ftruncate(log, 0)
            self._log_start = os.fstat(log).st_size
            # A session of its own: Ctrl-C in this terminal is not for the daemon.
            self.spawned = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            raise CrushliteError(f"cannot start a daemon: {error}") from None
        finally:
            os.close(log)

    def check(self, state: Probe) -> None:
        """Raise CrushliteError if the process has ended, and not because of another daemon."""
        if self.spawned and state == "absent" and (code := self.spawned.poll()) is not None:
            error = self.failure(f"ended with exit code {code}")
            error.exit_code = code if code in range(2, 7) else 1  # those that have a meaning
            raise error

    def failure(self, what: str) -> CrushliteError:
        """An error that says what happened, with the end of the log."""
        lines: list[str] = []
        with contextlib.suppress(OSError), self._log_path.open("rb") as file:
            file.seek(self._log_start if self.spawned else 0)
            lines = file.read(LOG_LIMIT).decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        log = "".join(f"\n  {line}" for line in lines) or " nothing"
        return CrushliteError(f"the daemon at {self._address} {what}; {self._log_path} says:{log}")


def _open_private(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}") from None


def _serve_command(address: str, agent: str) -> list[str]:
    """The argv of `serve` of this very package."""
    idle = os.environ.get("CRUSHLITE_IDLE_TIMEOUT") or f"{IDLE_SECONDS:g}"
    options = [f"--host={address}", f"--idle-timeout={idle}"]
    if agent:
        options.append(f"--agent={agent}")
    return python_command(__package__, "serve", *options, "--log-format=text")


def _environment() -> dict[str, str]:
    """The environment of a daemon: ours, with a PYTHONPATH that leads to this very package."""
    ours = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""))}
    return {name: value for name, value in ours.items() if value or name != "PYTHONPATH"}


# Opening the workspace --------------------------------------------------------------------------


async def join(wanted: Wanted) -> RemoteWorkspace:
    """Open the workspace, in a daemon that is found or started; if it leaves before it is asked, in
    its successor. The caller closes the client of the workspace. Raises UsageError for a directory
    that no request can name."""
    require_text(wanted.directory)
    clock, tries, said = wanted.clock, TRIES, ""
    patience = clock.time() + HANDOVER_SECONDS
    while True:
        address = await ensure_daemon(wanted)
        before = listen.file_identity(address.removeprefix("unix://"))
        try:
            workspace = await _create(address, wanted)
        except (ShuttingDown, ConnectionFailed) as error:
            tries -= 1
            if not tries or not address.startswith("unix://"):
                raise
            wanted.say(f"looking for another daemon: {error.message}")
            if isinstance(error, ShuttingDown):
                await _until_gone(address, before, clock)
        except errors.DataDirectoryInUse as error:
            if clock.time() > patience:
                raise
            if error.message != said:
                said = error.message
                wanted.say(f"waiting: {error.message}")
            await clock.sleep(5 * ATTEMPT_SECONDS)
        else:
            _compare(workspace, wanted)
            return workspace


async def _create(address: str, wanted: Wanted) -> RemoteWorkspace:
    client = Client(address, token=wanted.token)
    try:
        return await client.create(wanted.directory, env=own_environment(), yolo=wanted.yolo)
    except BaseException:
        await client.aclose()
        raise


def _compare(workspace: RemoteWorkspace, wanted: Wanted) -> None:
    """Say where the workspace is not what was asked for."""
    if workspace.info.version != WIRE_VERSION:
        wanted.say(f"the daemon is {workspace.info.version}, this is {WIRE_VERSION}")
    if wanted.yolo and not workspace.info.yolo:
        wanted.say("--yolo has no effect: the workspace was open without it")


async def _until_gone(address: str, socket: tuple[int, int, int] | None, clock: Clock) -> None:
    """Wait until the socket of a leaving daemon is gone or replaced, at most `ready_seconds`."""
    deadline = clock.time() + ready_seconds()
    while socket is not None and listen.file_identity(address.removeprefix("unix://")) == socket:
        if clock.time() > deadline:
            break  # the caller asks it again, and reports what it answers
        await clock.sleep(ATTEMPT_SECONDS)
