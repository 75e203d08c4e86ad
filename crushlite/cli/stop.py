"""`crushlite stop`: ask the daemon to leave, and say what keeps it if it stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..client import Client, ConnectionFailed
from ..errors import CrushliteError, NotFound, ServerInUse, UsageError
from ..features import requests
from ..records import dataclass
from .common import add_connection, add_json, address_of, command, reached, say, show, show_json
from .lookup import SHORT
from .text import count, one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

ATTEMPTS = 5  # with a daemon that is about to leave, which may close a connection
GONE_SECONDS = 30.0  # for a daemon to end its runs and close its databases
LOOK_SECONDS = 0.1  # between two checks whether it still answers
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

DESCRIPTION = """\
Ask the daemon to leave. It does if it has no workspace open; else the clients and detached runs
that need it are named. --force ends it all the same, in order: its runs are canceled and recorded
as such, nothing that was promised is lost. If there is no daemon, the exit code is 0.
"""
EXAMPLES = """\
  crushlite stop
  crushlite stop --force     # canceling what runs
  crushlite stop --json | jq '.workspaces[].runs'
"""


@dataclass(slots=True)
class _Needed:
    """A workspace that needs the daemon, with its runs that have not ended. Without such a run, a
    client has it open."""

    path: str
    runs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    """What became of the daemon. `pid` is 0 if there was none; `workspaces` and `clients` are what
    needs one that stays."""

    address: str
    stopped: bool = False
    pid: int = 0
    clients: int = 0
    workspaces: list[_Needed] = field(default_factory=list)


def add_parser(commands: Any) -> None:
    parser = command(commands, "stop", DESCRIPTION, run, EXAMPLES)
    parser.add_argument("--force", action="store_true", help="cancel what needs it")
    add_json(parser, "what became of it, and what needs it,")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    answer = await _ask(options)
    needed = bool(answer.pid) and not answer.stopped
    if options.json:
        show_json(answer)
    elif needed:
        raise CrushliteError(_explained(answer))
    elif answer.stopped:
        show("stopped")
    else:
        say(f"no daemon at {answer.address}")
    return 1 if needed else 0


async def _ask(options: argparse.Namespace) -> _Answer:
    answer = _Answer(address_of(options))
    for attempt in range(ATTEMPTS):
        try:
            await _end(options, answer)
            break
        except ConnectionFailed as error:
            if not error.reached:
                answer.stopped = bool(answer.pid)  # it was there: another client asked it as well
                break
            if attempt == ATTEMPTS - 1:
                raise
    return answer


async def _end(options: argparse.Namespace, answer: _Answer) -> None:
    """Ask the daemon to leave, and wait until it has. If it stays, fill in what needs it. Raises
    ConnectionFailed if it is not there, or leaves at this moment."""
    async with reached(options) as client:
        with contextlib.suppress(NotFound):  # without reports, which process it is is not known
            answer.pid = (await requests.vitals(client)).pid
        process = _process(answer.address, answer.pid) if answer.pid else contextlib.nullcontext()
        with process as handle:
            try:
                await client.control()
            except ServerInUse:
                if not options.force:
                    return await _look(client, answer)
                _terminate(handle)
            await _until_gone(options, handle)
            answer.stopped = True


async def _until_gone(options: argparse.Namespace, handle: int | None) -> None:
    """Wait until the process is gone and has released the databases. Where the process cannot be
    seen: until the daemon does not answer any more. Raises CrushliteError after 30 seconds."""
    try:
        async with asyncio.timeout(GONE_SECONDS):
            if handle is not None:
                ended = asyncio.Event()
                asyncio.get_running_loop().add_reader(handle, ended.set)
                await ended.wait()
                asyncio.get_running_loop().remove_reader(handle)
            while handle is None:
                async with reached(options):
                    await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        reason = f"it has not left after {GONE_SECONDS:g} s: see crushlite logs"
        raise CrushliteError(reason) from None
    except CrushliteError:
        pass  # it does not answer any more, or not like a daemon that stays


# What needs it ----------------------------------------------------------------------------------


async def _look(client: Client, answer: _Answer) -> None:
    for info in await client.workspaces():
        try:
            runs = await client.attach(info).runs()
        except NotFound:
            continue  # closed since it was listed
        live = [run.run_id for run in runs if run.state != "ended"]
        answer.workspaces.append(_Needed(info.path, live))
    with contextlib.suppress(NotFound):
        answer.clients = (await requests.vitals(client)).clients


def _explained(answer: _Answer) -> str:
    lines = ["the daemon is needed and stays:"]
    for workspace in answer.workspaces:
        ids = ", ".join(run_id[:SHORT] for run_id in workspace.runs)
        runs = f"{count(len(workspace.runs), 'run')} ({ids})" if ids else ""
        lines.append(f"  {one_line(workspace.path)}: {runs or 'open in a client, nothing runs'}")
    clients = f"close its {count(answer.clients, 'client')} or " if answer.clients else ""
    lines.append(f"{clients}wait, then try again; or cancel what runs: crushlite stop --force")
    return "\n".join(lines)


# Its process ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _process(address: str, claimed: int) -> Iterator[int | None]:
    """A pidfd of the process that serves a unix socket; None on TCP, or where there are no pidfds.

    The system says which process that is, and it must be the one that the daemon `claimed` to be.
    The pidfd is opened while a connection is open, and the daemon answers on that connection after
    it: so no other process can have got its number. Raises ConnectionFailed if it is leaving."""
    if not address.startswith("unix://") or not hasattr(signal, "pidfd_send_signal"):
        yield None
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.ExitStack() as held:
        try:
            handle = _handle(sock, address.removeprefix("unix://"), claimed)
            held.callback(os.close, handle)
            sock.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            leaving = not sock.recv(1)
        except OSError as error:
            raise ConnectionFailed(f"the daemon has left: {error}", reached=False) from error
        if leaving:
            raise ConnectionFailed("the daemon is leaving already", reached=False)
        yield handle


def _handle(sock: socket.socket, path: str, claimed: int) -> int:
    sock.settimeout(GONE_SECONDS)
    sock.connect(path)
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if pid != claimed or pid in (0, 1, os.getpid()) or uid != os.geteuid():
        raise CrushliteError(f"process {pid} of user {uid} listens, not {claimed}: not ended")
    return os.pidfd_open(pid)


def _terminate(handle: int | None) -> None:
    if handle is None:
        raise UsageError(
            "--force needs a unix socket, Linux, and a daemon that reports; send SIGTERM to it"
        )
    signal.pidfd_send_signal(handle, signal.SIGTERM)
