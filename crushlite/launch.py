"""Find a daemon, or start one; then open a workspace in it.

    async with open_workspace("/path/to/project") as workspace:
        print((await workspace.ask("what is this?")).text)

However many clients begin at once, one of them starts a daemon and the others find it. The lock
makes that cheap, not correct: a daemon never takes the socket of a living one, so even clients
that share no lock end up with one daemon.

A daemon is ready when it answers GET /v1/health. CRUSHLITE_READY_TIMEOUT is how many seconds that
may take, 10 if it is not set. What a daemon that was started here says goes to a log file in the
directory of the default socket.

A daemon of another version is asked to leave if it has nothing to do, and replaced. One that is
needed stays and is used: any update looks like a new version, and must not end anybody's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .client import Client, ConnectionFailed
from .clock import SystemClock
from .errors import (
    BadRequest,
    CrushliteError,
    DataDirectoryInUse,
    ServerInUse,
    ShuttingDown,
    UsageError,
    WrongPeer,
)
from .listen import default_socket, parse_address, private_directory
from .version import WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .client import RemoteWorkspace
    from .clock import Clock

READY_SECONDS = 10.0
ATTEMPT_SECONDS = 0.1  # between two looks
PROBE_SECONDS = 2.0  # a daemon whose loop is blocked for a moment is a living one
HANDOVER_SECONDS = 5.0  # for a daemon that leaves to let go of its databases
GOODBYE_SECONDS = 5.0  # for the daemon to take note that we leave
IDLE_SECONDS = 60.0  # how long a daemon that was started here stays without work
TRIES = 3  # to get into a daemon before the next one leaves too
TAIL_LINES = 10
LOG_LIMIT = 1 << 20  # bytes: a longer log begins anew with the next daemon

Probe = Literal["alive", "silent", "absent"]


def _whisper(text: str) -> None:
    """For callers that do not want to know what is being waited for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which daemon to use, how to start it if it is not there, and what to ask it for."""

    url: str | None = None  # the default socket if None
    token: str = ""
    agent: str = "auto"
    path: str | os.PathLike[str] = ""  # the current directory if empty
    yolo: bool = False
    say: Callable[[str], None] = _whisper
    clock: Clock = field(default_factory=SystemClock)

    @property
    def directory(self) -> str:
        return os.path.join(here(), self.path) if self.path else here()


@contextlib.asynccontextmanager
async def open_workspace(
    path: str | os.PathLike[str] = "",
    *,
    url: str | None = None,
    token: str = "",
    agent: str = "auto",
    yolo: bool = False,
) -> AsyncIterator[RemoteWorkspace]:
    """The workspace of a directory (this one if none is given), in a daemon that is found or
    started; its client says goodbye at the end."""
    workspace = await join(Wanted(url, token, agent, path, yolo))
    async with workspace.client:
        try:
            yield workspace
        finally:
            await goodbye(workspace.client)


async def goodbye(client: Client) -> None:
    """Tell the daemon that we leave, so that it need not wait whether we come back."""
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await client.retire()
    except (CrushliteError, TimeoutError):
        pass  # it is gone, or will notice


def ready_seconds() -> float:
    """How long to wait for a daemon that starts, or for one that was lost."""
    text = os.environ.get("CRUSHLITE_READY_TIMEOUT") or str(READY_SECONDS)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"CRUSHLITE_READY_TIMEOUT={text!r} is not a number of seconds")
    return value


# Finding and starting ---------------------------------------------------------------------------


def default_address() -> str:
    return f"unix://{default_socket()}"


async def ensure_daemon(wanted: Wanted) -> str:
    """The URL of a living daemon. Nothing is started on TCP: who may use a port is for a person to
    decide. Whether somebody serves it the first request will tell."""
    address = wanted.url or default_address()
    if not address.startswith("unix://"):
        return address
    parse_address(address)
    if await _probe(address) != "alive" or await _asked_to_leave(address, wanted):
        idle = os.environ.get("CRUSHLITE_IDLE_TIMEOUT") or f"{IDLE_SECONDS:g}"
        command = [f"--host={address}", f"--agent={wanted.agent}", f"--idle-timeout={idle}"]
        command.append("--log-format=text")
        await _start(address, _Starter(address, command), wanted)
    return address


async def _probe(address: str) -> Probe:
    """Only a refused connection means that nobody is there; whoever accepts one is alive, and may
    be busy, or leaving."""
    try:
        async with Client(address) as client, asyncio.timeout(PROBE_SECONDS):
            await client.health()
    except WrongPeer:
        raise
    except ConnectionFailed as error:
        return "silent" if error.reached else "absent"
    except (CrushliteError, TimeoutError):
        return "silent"
    return "alive"


async def _asked_to_leave(address: str, wanted: Wanted) -> bool:
    """Whether a daemon of another version makes room for one of ours."""
    before = _identity(address)
    async with Client(address) as client:
        try:
            version = (await client.version()).version
            # What is not of our kind was put there by somebody, and is not ours to replace.
            if version == WIRE_VERSION or not version.startswith("crushlite-"):
                return False
            await _ask_to_leave(client)
        except CrushliteError:
            return False  # it is needed; or it has gone meanwhile, as the create will tell
    wanted.say(f"{version} makes room for {WIRE_VERSION}")
    await _until_gone(address, before, wanted.clock)
    return True


async def _ask_to_leave(client: Client) -> None:
    """Raises if it stays. A daemon that knows only the plain command is asked when it is empty."""
    try:
        await client.control("shutdown_if_idle")
    except BadRequest:
        if await client.workspaces():
            raise ServerInUse("it has workspaces") from None
        await client.control("shutdown")


async def _start(address: str, starter: _Starter, wanted: Wanted) -> None:
    clock, deadline = wanted.clock, wanted.clock.time() + ready_seconds()
    waiting = False
    with starter:
        while (state := await _probe(address)) != "alive":
            starter.check(state)
            if clock.time() > deadline:
                raise starter.failure("did not get ready in time (CRUSHLITE_READY_TIMEOUT)")
            if state == "absent" and starter.locked and not starter.spawned:
                wanted.say(f"starting a daemon at {address}")
                starter.spawn()
            elif state == "absent" and not starter.locked and starter.lock():
                continue  # whoever held the lock may have started one: look before starting another
            elif not starter.spawned and not waiting:
                waiting = True
                wanted.say(f"waiting for the daemon at {address}")
            await clock.sleep(ATTEMPT_SECONDS)


def log_path(address: str) -> Path:
    """Where a daemon that is started for an address writes its log."""
    return _own_file("daemon", address, ".log")


def _own_file(name: str, address: str, suffix: str) -> Path:
    """Kept in our own directory also for a socket elsewhere: a directory that others can write to
    is no place for it."""
    mark = ""
    if address != default_address():
        mark = "-" + hashlib.sha256(os.fsencode(address)).hexdigest()[:12]
    return default_socket().parent / f"{name}{mark}{suffix}"


class _Starter:
    """The lock, the process and the log of one start."""

    def __init__(self, address: str, command: list[str]) -> None:
        private_directory(default_socket().parent)
        self._address = address
        self._command = command
        self._lock_path = _own_file("start", address, ".lock")
        self._log_path = log_path(address)
        self._log_start = 0  # where this start begins in the log
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Starter:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
        if self._process is not None:
            # It may outlive us. If it does not, somebody has to take note of its end: whoever
            # uses this as a library would otherwise collect dead children.
            threading.Thread(target=self._process.wait, name="daemon's end", daemon=True).start()

    @property
    def locked(self) -> bool:
        return self._lock is not None

    @property
    def spawned(self) -> bool:
        return self._process is not None

    def lock(self) -> bool:
        """Try to become the one who starts. The file stays: to unlink it would make two locks."""
        descriptor = _open_private(self._lock_path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def spawn(self) -> None:
        log = _open_private(self._log_path)
        try:
            if os.fstat(log).st_size > LOG_LIMIT:
                os.ftruncate(log, 0)
            self._log_start = os.fstat(log).st_size
            # -P: the directory we stand in may hold anything, a module named like one of ours too.
            # A session of its own: Ctrl-C in this terminal is not for the daemon.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "crushlite", "serve", *self._command],
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
        """Raise if our daemon has given up, unless it did so because of another one."""
        code = self._process.poll() if self._process is not None else None
        if code is not None and state == "absent":
            error = self.failure(f"ended with exit code {code}")
            error.exit_code = code if code in range(2, 7) else 1  # those that have a meaning
            raise error

    def failure(self, what: str) -> CrushliteError:
        lines: list[str] = []
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(self._log_start if self.spawned else 0)
            lines = log.read(LOG_LIMIT).decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        told = "".join(f"\n  {line}" for line in lines) or " nothing"
        return CrushliteError(f"the daemon at {self._address} {what}; {self._log_path} says:{told}")


def _open_private(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}") from None


def _environment() -> dict[str, str]:
    """Ours, and the way to the package that is running: a checkout is found through the directory
    we stand in, which -P takes away. Not for an installed one, whose neighbours would come before
    the standard library."""
    home = Path(__file__).resolve().parents[1]
    known = os.environ.get("PYTHONPATH", "")
    if home.name in ("site-packages", "dist-packages") or str(home) in known.split(os.pathsep):
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(home), known)))}


# Getting in -------------------------------------------------------------------------------------


async def join(wanted: Wanted) -> RemoteWorkspace:
    """Open the workspace, in a daemon that stays. A daemon may decide to leave between our looking
    and our asking: then its successor is asked. The client of the workspace is the caller's to
    close."""
    clock, tries, told = wanted.clock, TRIES, ""
    patience = clock.time() + HANDOVER_SECONDS
    while True:
        address = await ensure_daemon(wanted)
        before = _identity(address)
        try:
            workspace = await _create(address, wanted)
        except (ShuttingDown, ConnectionFailed) as error:
            tries -= 1
            if not tries or not address.startswith("unix://"):
                raise
            wanted.say(f"looking for another daemon: {error.message}")
            if isinstance(error, ShuttingDown):
                await _until_gone(address, before, clock)
        except DataDirectoryInUse as error:
            if clock.time() > patience:
                raise
            if error.message != told:
                told = error.message
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
    """Say where we did not get what was asked for."""
    if workspace.info.version != WIRE_VERSION:
        wanted.say(f"the daemon is {workspace.info.version}, this is {WIRE_VERSION}")
    if wanted.yolo and not workspace.info.yolo:
        wanted.say("--yolo has no effect: the workspace was open without it")


async def _until_gone(address: str, socket: tuple[int, int, int] | None, clock: Clock) -> None:
    """Wait until the socket of a leaving daemon has gone, or is another one's."""
    deadline = clock.time() + ready_seconds()
    while socket is not None and _identity(address) == socket:
        if clock.time() > deadline:
            break  # asked once more, it will say the same or something better
        await clock.sleep(ATTEMPT_SECONDS)


def _identity(address: str) -> tuple[int, int, int] | None:
    """What tells one socket file from the next at its path; None where none is."""
    try:
        info = os.stat(address.removeprefix("unix://"))
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_ctime_ns


def here() -> str:
    try:
        return os.getcwd()
    except OSError:
        raise UsageError("the current directory is gone: go to another one") from None


def own_environment() -> list[str]:
    """What tools will see. An entry that is not text cannot be sent, and is left out."""
    entries = (f"{name}={value}" for name, value in os.environ.items())
    return [entry for entry in entries if not any("\ud800" <= c <= "\udfff" for c in entry)]
