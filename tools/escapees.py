"""Cancel commands that try to get away, again and again, and count who did.

    python tools/escapees.py --times 100
    python tools/escapees.py --times 100 --daemon-kills 20

Each kind of command makes processes that a plain kill would miss. Once they all run the command is
canceled, and when it is reported as ended every one of them must be dead: those that told their
pid, and whatever else has the command's mark among its arguments. With `--daemon-kills` the same
commands run in a process that is then killed with -9. Exit 0 only if nobody was left, all ended
within 2 s, and memory did not grow by 8 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import select
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.agent.base import Exit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.commands.process import Command, start  # noqa: E402

LIMIT = 2.0
GROWTH = 8 * 2**20
PATIENCE = 20.0
FOLDER = "/"
ENV = {"PATH": os.environ.get("PATH", os.defpath)}

# Leaves its parent and its group faster than /proc can be read: fork, exit, setsid, and again.
COMET = """
import os
age = 0
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    age += 1
    if age == 20:
        print("pid", os.getpid(), flush=True)
"""
# Two of them, each in a session of its own: whoever dies is started again by the other.
TWINS = """
import os, time
def twin(other):
    os.setsid()
    print("pid", os.getpid(), flush=True)
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        try:
            os.kill(other, 0)
        except ProcessLookupError:
            me = os.getpid()
            other = os.fork()
            if not other:
                twin(me)
        time.sleep(0.0005)
if not os.fork():
    twin(99999999)
time.sleep(600)
"""
# 127 processes and as many sessions; it is canceled while it still grows.
BOMB = """
import os, time
print("pid", os.getpid(), flush=True)
def grow(depth):
    for _ in range(2 if depth else 0):
        if not os.fork():
            os.setsid()
            return grow(depth - 1)
grow(6)
time.sleep(600)
"""


def _python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(code)} MARK"


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    text: str  # MARK is an argument of every process, and a duration for sleep
    pids: int  # how many processes say who they are before they are killed
    size: int = 0  # how many bytes are written before they are killed


KINDS = [
    Kind("background", "sleep MARK & echo pid $!; echo pid $$; wait", 2),
    Kind(
        "fork chain",
        "f() { (echo pid $BASHPID; [ $1 = 1 ] && exec sleep MARK; f $(($1 - 1))) & wait; }; f 5",
        5,
    ),
    Kind("setsid", "setsid bash -c 'echo pid $$; exec sleep MARK' & wait", 1),
    Kind(
        "double fork",
        "(env -i setsid bash -c '(echo pid $BASHPID; exec sleep MARK) & exit' &); "
        "echo pid $$; sleep MARK",
        2,
    ),
    Kind("nohup", "nohup bash -c 'echo pid $$; exec sleep MARK' & wait", 1),
    Kind("deaf", "trap '' TERM INT HUP QUIT; echo pid $$; while :; do sleep MARK; done", 1),
    Kind("mute", "(echo pid $BASHPID; exec >&- 2>&-; exec sleep MARK) & wait", 1),
    Kind("flood", "echo pid $$; exec yes MARK", 1, size=32 * 2**20),
    Kind("twins", _python(TWINS), 2),
    Kind("bomb", _python(BOMB), 1),
    Kind("comet", _python(COMET) + " & exec sleep MARK", 1),
]


@dataclass
class Prey:
    """A command under way, and the processes that have told their pid."""

    mark: str
    command: Command | None = None
    pidfds: list[int] = field(default_factory=list)
    told: int = 0

    @classmethod
    async def release(cls, kind: Kind) -> Prey:
        """Start one, and wait until all of it is there."""
        prey = cls(f"600.{random.randrange(10**9):09}")
        waiter = Lines(kind.pids, kind.size)
        text = kind.text.replace("MARK", prey.mark)
        prey.command = await start(
            text, cwd=FOLDER, env=ENV, clock=SystemClock(), on_output=waiter.feed
        )
        try:
            async with asyncio.timeout(PATIENCE):
                pids = await waiter.pids
        except BaseException:
            prey.command.kill()
            raise
        prey.told = len(pids)
        prey.pidfds = open_all(pids)
        return prey

    async def cancel(self) -> tuple[float, Exit]:
        """Seconds from the cancel to the report that it has ended."""
        assert self.command is not None
        began = time.monotonic()
        self.command.kill()
        async with asyncio.timeout(PATIENCE):
            ended = await self.command.wait()
        return time.monotonic() - began, ended

    def left(self) -> int:
        """How many are alive now. Those with both a pid and a mark count twice."""
        alive = sum(not is_dead(fd) for fd in self.pidfds)
        for fd in self.pidfds:
            os.close(fd)
        self.pidfds = []
        return alive + len(marked(self.mark))


class Lines:
    """Collects the first pids that a command tells; the flood that may follow is only counted."""

    def __init__(self, count: int, size: int) -> None:
        self.pids: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._count = count
        self._size = size
        self._total = 0
        self._text = b""

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        if len(self._text) < 65536:
            self._text += data
        if self._total < self._size or self.pids.done():
            return
        whole = self._text[: self._text.rfind(b"\n") + 1]
        found = [int(line[4:]) for line in whole.split(b"\n") if line.startswith(b"pid ")]
        if len(found) >= self._count:
            self.pids.set_result(found)


def open_all(pids: list[int]) -> list[int]:
    """Of each process an fd that stays its own, even if its pid is given to another."""
    found = []
    for pid in pids:
        try:
            found.append(os.pidfd_open(pid))
        except ProcessLookupError:
            pass  # dead already: a comet's first pid, for example
    return found


def is_dead(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def marked(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                arguments = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in arguments:
                found.append(int(name))
    return found


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def hunt(kind: Kind) -> tuple[float, int]:
    """Run one command of a kind and cancel it: seconds until the end, and how many are left."""
    prey = await Prey.release(kind)
    seconds, ended = await prey.cancel()
    return seconds, prey.left() + ended.survivors


async def kill_daemon() -> tuple[float, int]:
    """Kill -9 a process that has a command of every kind running, and wait for all of them."""
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--victim", stdout=asyncio.subprocess.PIPE
    )
    assert daemon.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = await daemon.stdout.readline()
    pids, marks = (part.split() for part in line.decode().split(";"))
    pidfds = open_all([int(pid) for pid in pids])
    began = time.monotonic()
    daemon.kill()
    try:
        async with asyncio.timeout(LIMIT):
            for fd in pidfds:
                await readable(fd)
    except TimeoutError:
        pass  # who is left is counted below
    seconds = time.monotonic() - began
    left = sum(not is_dead(fd) for fd in pidfds) + sum(len(marked(mark)) for mark in marks)
    for fd in pidfds:
        os.close(fd)
    await daemon.communicate()
    return seconds, left


async def readable(fd: int) -> None:
    """A pidfd becomes readable when its process ends."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)


async def victim() -> None:
    """Be the daemon: run a command of every kind, say who is there, and wait to be killed.

    The keepers count too: each is the parent of its command.
    """
    preys = [await Prey.release(kind) for kind in KINDS]
    commands = [prey.command for prey in preys if prey.command is not None]
    everybody = [command.pid for command in commands]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(b")")[2].split()[1]) == os.getpid():
                everybody.append(int(name))
    marks = [prey.mark for prey in preys]
    print(*everybody, ";", *marks, flush=True)
    await asyncio.Event().wait()


async def repeat(name: str, times: int, once: Callable[[], Awaitable[tuple[float, int]]]) -> bool:
    """Print one line of figures; whether nobody was left and nobody was late."""
    seconds, left, before = [], 0, resident()
    for _ in range(times):
        took, alive = await once()
        seconds.append(took)
        left += alive
    seconds.sort()
    growth = resident() - before
    middle, worst = seconds[len(seconds) // 2] * 1e3, seconds[-1] * 1e3
    print(
        f"{name:12} {times:4} times, {left} left, median {middle:6.1f} ms, worst {worst:6.1f} ms, "
        f"memory {growth / 2**20:+.1f} MiB"
    )
    return not left and seconds[-1] < LIMIT and growth < GROWTH


async def main() -> int:
    parser = argparse.ArgumentParser(description="cancel commands that try to get away")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="only this one")
    parser.add_argument("--daemon-kills", type=int, default=0)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        await victim()
    good = True
    for kind in KINDS:
        if options.kind in (None, kind.name):
            good &= await repeat(kind.name, options.times, lambda kind=kind: hunt(kind))  # type: ignore[misc]
    if options.daemon_kills:
        good &= await repeat("daemon kill", options.daemon_kills, kill_daemon)
    print("ok: nobody got away" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
