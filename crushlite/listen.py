"""Sockets and tokens of a daemon: private from the start, never taken from a living daemon.

asyncio's own `create_unix_server(path=...)` removes whatever socket it finds, also that of a living
daemon, so sockets are bound here and handed over. All that can go wrong is a UsageError (exit 2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from .errors import UsageError
from .unique import random_text
from .version import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PATH_LIMIT = 104  # bytes: what sockaddr_un takes on every platform we know
PROBE_SECONDS = 0.2  # for a living daemon to accept a connection
LOCK_SECONDS = 5.0  # for another process to release the lock of a directory
BACKLOG = 1024
LOOPBACK = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "[::1]": "::1", "::1": "::1"}


class Address(NamedTuple):
    """Either a path, or a loopback host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{self._authority}"

    @property
    def http_url(self) -> str:
        """The URL of a port for browsers and curl."""
        return f"http://{self._authority}"

    @property
    def _authority(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Read `unix:///path` or `tcp://127.0.0.1:PORT`. Raises UsageError for anything else."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("unix", "tcp"):
        raise UsageError(f"host {url!r}: use unix:///path/to.sock or tcp://127.0.0.1:PORT")
    if scheme == "unix":
        if not rest.startswith("/") or "\0" in rest:
            raise UsageError(f"host {url!r}: a unix socket needs an absolute path")
        return Address(path=rest)
    host, found, port = rest.rpartition(":")
    # Compared as text, never resolved: what `127.1` or a name means may be decided elsewhere.
    if found and host not in LOOPBACK:
        raise UsageError(
            f"host {url!r}: only loopback is served (127.0.0.1, localhost or [::1]); "
            "use an ssh tunnel to reach it from elsewhere"
        )
    if not found or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(f"host {url!r}: a port from 0 to 65535 is needed")
    return Address(host=LOOPBACK[host], port=int(port))


def default_socket(env: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """As `default_path`, where a Path is wanted."""
    from pathlib import Path  # only here: 4 ms, which a daemon and a client would wait for

    return Path(default_path(env, uid))


def default_path(env: Mapping[str, str] = os.environ, uid: int | None = None) -> str:
    """The socket of a user's daemon. Named after the package, so that neither a Crush server nor a
    tool that vendors this package listens on the same path."""
    owner = os.getuid() if uid is None else uid
    folder = os.path.join(_absolute(env, "TMPDIR") or "/tmp", f"{NAME}-{owner}")
    if runtime := _absolute(env, "XDG_RUNTIME_DIR"):
        folder = os.path.join(runtime, NAME)
    if "//" in folder or "/." in folder:  # one spelling, as a Path has it: paths are compared
        from pathlib import Path

        folder = str(Path(folder))
    if len(os.fsencode(f"{folder}/{NAME}.sock")) > PATH_LIMIT:
        folder = f"/tmp/{NAME}-{owner}"
    return f"{folder}/{NAME}.sock"


def default_address() -> str:
    """The URL of that socket."""
    return f"unix://{default_path()}"


def _absolute(env: Mapping[str, str], name: str) -> str:
    """The directory that a variable names; empty for a relative one, which differs by process."""
    value = env.get(name, "")
    return value if value.startswith("/") else ""


def private_directory(path: str | Path) -> None:
    """Create a directory that only its owner can enter. Raises UsageError if there is one already
    that other users own or can enter: they could put a socket or a token of theirs into it."""
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass  # checked below
    except OSError as error:
        raise UsageError(f"cannot create {path}: {error.strerror}") from None
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise UsageError(f"{path} is not a directory of ours: remove it or use --host")
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise UsageError(f"{path} is open to others: chmod 700 it or use --host")


class Listener:
    """A bound socket, and its file if it has one."""

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self.sock = sock
        self.address = address
        self._made = os.lstat(address.path) if address.path else None

    def unlink(self) -> None:
        """Remove the file, unless it is another daemon's by now. To be called while the socket is
        open: that keeps its inode number from being given to the socket of a successor."""
        made, self._made = self._made, None
        with contextlib.suppress(FileNotFoundError):
            if made is not None and os.path.samestat(os.lstat(self.address.path), made):
                os.unlink(self.address.path)

    def release(self) -> None:
        """Remove the file, then close the socket."""
        self.unlink()
        self.sock.close()


def listen(address: Address, prepare: Callable[[int], None] | None = None) -> Listener:
    """Bind and listen; raises UsageError if that is not possible. On TCP `prepare` is called with
    the port when it is bound and before a client can connect."""
    return _listen_unix(address) if address.path else _listen_tcp(address, prepare)


def _listen_unix(address: Address) -> Listener:
    if len(os.fsencode(address.path)) > PATH_LIMIT:
        raise UsageError(f"{address.path}: longer than {PATH_LIMIT} bytes; use a shorter path")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_failure(sock, address.path), directory_lock(os.path.dirname(address.path)):
        _remove_stale(address.path)
        before = os.umask(0o177)  # 0600 from the start: a chmod later would leave a gap
        try:
            sock.bind(address.path)
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
        return Listener(sock, address)


@contextlib.contextmanager
def _closed_on_failure(sock: socket.socket, where: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            reason = f"cannot listen on {where}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                reason += "; end the program that does, or choose another address"
            raise UsageError(reason) from None
        raise


@contextlib.contextmanager
def directory_lock(directory: str | Path) -> Iterator[None]:
    """Hold the lock of a directory. Raises UsageError if another process keeps it for 5 seconds.

    To probe, unlink and bind a socket are three steps: without a lock, of two daemons that start
    together the second could unlink the first one's new socket. The same goes for a token: on Linux
    both can bind one port as long as neither listens."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    reason = f"{directory} stays locked by another process: end it, or try again"
                    raise UsageError(reason) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    """Remove the socket of a daemon that is dead. Raises UsageError if the path is anything else,
    or if a daemon may still listen there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is not a socket: remove it or use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except OSError as error:
            if not is_stale(error):
                raise UsageError(f"{path} is in use and does not answer: {error}") from None
        else:
            raise UsageError(f"{path} is in use: another daemon listens there")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def is_stale(error: OSError) -> bool:
    """Whether a failed connection proves that no daemon listens; a timeout does not."""
    return isinstance(error, (ConnectionRefusedError, FileNotFoundError))


def _listen_tcp(address: Address, prepare: Callable[[int], None] | None) -> Listener:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    with _closed_on_failure(sock, address.url):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        port = sock.getsockname()[1]
        if prepare is not None:
            prepare(port)
        sock.listen(BACKLOG)
        return Listener(sock, Address(host=address.host, port=port))


class TokenFile:
    """The token of one TCP port, in a file that only its owner can read and that is removed when
    the daemon leaves. Every start has another token, also where a killed daemon left its file:
    meanwhile another user may have taken the port, to which open pages have sent the old token."""

    def __init__(self, directory: Path, port: int) -> None:
        """Writes the file. Raises UsageError if that is not possible."""
        self.path = directory / f"tcp-{port}.token"
        self.token = random_text(32)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()  # of a daemon that was killed: the port is ours now
            with os.fdopen(os.open(self.path, flags, 0o600), "w") as file:
                file.write(self.token + "\n")
            self._made = file_identity(self.path)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the file, unless another daemon that took over the port has written it."""
        if file_identity(self.path) == self._made:
            self.path.unlink(missing_ok=True)


def file_identity(path: str | Path) -> tuple[int, int, int] | None:
    """Tells a file from a successor with the same inode number; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
