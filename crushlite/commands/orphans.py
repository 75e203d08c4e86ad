"""Finding and killing a command's processes from the daemon, through /proc.

This is only for a keeper that was stopped or killed: as long as a keeper works, it does all the
killing itself. Without /proc (macOS) nothing is found.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from .keeper import send_signal


class ProcessEntry(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    born: int  # in ticks since the machine's start


def find_process(pid: int) -> ProcessEntry | None:
    """What the kernel says of a process; None if it does not exist, or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            # After the program's name, which may hold anything.
            state, parent, _, session, *rest = file.read(1024).rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return ProcessEntry(pid, state.decode(), int(parent), int(session), int(rest[15]))


def pids_below(top: int) -> list[int]:
    """The living processes below a process."""
    children: dict[int, list[int]] = {}
    for process in _living():
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    todo = [top]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_orphans(leader: int, pipe: int, born: int) -> None:
    """Kill what can still be found of a command whose keeper, born at `born`, was killed.

    Its orphans have gone to init, so a process counts as the command's by its session, which
    `leader` leads, or by the output `pipe` that it holds. One that has left both is not found: a
    command that kills its keeper could kill the daemon as well. Nothing older than the keeper is
    killed, so that a wrong match does no harm.
    """
    if leader <= 1:
        return  # the program never ran
    if not born:  # there is no /proc
        return send_signal(-leader, signal.SIGKILL)
    name = f"pipe:[{os.fstat(pipe).st_ino}]"
    for _ in range(5):  # they may fork between listing and killing
        found = [
            process.pid
            for process in _living()
            if process.born >= born and process.pid not in (1, os.getpid())
            if process.session == leader or _holds(process.pid, name)
        ]
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        if not found:
            break


def _living() -> list[ProcessEntry]:
    """Every process of the system that has not exited; none without /proc."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    found = [find_process(int(name)) for name in names if name.isdigit()]
    return [process for process in found if process is not None and process.state not in "ZX"]


def _holds(pid: int, pipe: str) -> bool:
    """Whether a process has the pipe of this name open."""
    try:
        folder = f"/proc/{pid}/fd"
        return any(os.readlink(f"{folder}/{fd}") == pipe for fd in os.listdir(folder))
    except OSError:
        return False  # it has exited, or belongs to another user
