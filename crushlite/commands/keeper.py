"""The keeper: a small process between the daemon and one command. It kills what the command leaves.

The daemon cannot do that itself: after a kill -9 it kills nothing, and a process group loses every
process that calls `setsid` or forks twice. The keeper is the *subreaper* of its command: a process
below it whose parent exits becomes the keeper's own child. So when the keeper has no children,
nothing of the command is left, however it was started. A socket connects it to the daemon; the
kernel closes it however the daemon ends.

    fd 0       the channel: a stream socket to the daemon
    fd 1, 2    the command's output; the keeper closes its copies once the command runs
    fd n       what the command reads, if the request says `argv:n`; else it reads nothing

The daemon sends one request and nothing after it. When it shuts the channel down, or dies, the
keeper kills everything. The keeper answers in lines:

    pid PID                      the main process, sent by itself before it becomes the program
    started                      the program runs
    failed STAGE ERRNO           it could not be started: STAGE is start, cwd or exec
    ended CODE KILLED SURVIVORS  the main process has exited, and everything below the keeper is
                                 dead. KILLED is 1 if the end of the channel came first;
                                 SURVIVORS counts the processes that could not be killed

This is what happens on Linux. Where there is no subreaper (macOS), only the command's process group
is killed, and a process that called `setsid` escapes.

The keeper knows nothing of the package. It runs as `python -I -S` before every command and imports
next to nothing, because each start pays for its imports.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
else:
    try:
        import _signal as signal  # without the enums of `signal`: 4 ms less on every command
    except ImportError:
        import signal

CHANNEL = 0
SHELLS = (b"bash", b"/bin/bash", b"sh", b"/bin/sh")
# Seconds that the processes a command leaves behind have to exit by themselves, as the `tee` of
# `> >(tee log)` does after its last lines. Not granted when the daemon wants the command dead.
LINGER = 0.05
# If no process has exited for so many seconds of killing, the rest cannot be killed: they belong to
# another user (sudo), or hang in the kernel.
GIVE_UP = 1.0
PAUSE = 0.005
# Passes that only stop processes. Two processes that restart each other must both be stopped before
# one is killed; but processes that fork faster than a pass would never be killed that way.
STOPPING_PASSES = 4
CHILD_PASSES = 200

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    request = _receive()
    if request is None:
        return
    wake = _prepare_signals()
    reaper = _become_subreaper()
    pid = _start(request)
    if not pid:
        return
    _send("started")
    _release_pipes(_input_of(request))
    descendants = _Descendants(pid, wake, sees_all=reaper)
    killed = descendants.watch()
    survivors = descendants.kill()
    _send(f"ended {descendants.code} {int(killed)} {survivors}")


def _receive() -> list[bytes] | None:
    """Read the request. Return its fields, or None if the channel ended before it was complete.

    A length in a line of its own, then: folder, `shell`, `argv` or `argv:n`, the number of
    arguments, the arguments, the variables. They are separated by NUL, which none of them can hold.
    """
    size = int(sys.stdin.buffer.readline() or b"0")
    data = sys.stdin.buffer.read(size)
    return data.split(b"\0") if size and len(data) == size else None


def _send(line: str) -> None:
    """Send a line to the daemon, if it still lives."""
    try:
        os.write(CHANNEL, line.encode() + b"\n")
    except OSError:
        pass  # the daemon is dead; the command must be killed all the same


def _prepare_signals() -> int:
    """Ignore every signal that can be ignored: a command may signal its parent, or every Python
    process. Return an fd that becomes readable when a child exits."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass  # two numbers are reserved by the threading library
    wake, wake_writer = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return wake


def _prctl(option: int, value: int) -> bool:
    """Call prctl(2). Return whether it succeeded; False on other systems than Linux."""
    if sys.platform != "linux":
        return False
    import ctypes

    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0


def _become_subreaper() -> bool:
    """Make the keeper the parent of all orphans below it. Return whether that worked."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1) and os.path.exists("/proc/self/stat")


def _input_of(request: list[bytes]) -> int:
    """The descriptor that the command reads from; 0 if it has none."""
    return int(request[1].partition(b":")[2] or b"0")


def _release_pipes(command_input: int) -> None:
    """Close the keeper's copies of the command's pipes, or the daemon would never see the end of
    one. What the keeper prints from here on is lost; it reports through the channel."""
    if command_input:
        os.close(command_input)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


# Starting ---------------------------------------------------------------------------------------


def _start(request: list[bytes]) -> int:
    """Fork; the child becomes the command. Return its pid, or 0 after reporting a failure."""
    error_reader, error_writer = os.pipe()  # exec closes it: reading nothing means success
    try:
        pid = os.fork()
    except OSError as error:
        _send(f"failed start {error.errno}")
        return 0
    if pid == 0:
        _become_command(request, error_writer)
    os.close(error_writer)
    report = os.read(error_reader, 64)
    os.close(error_reader)
    if report:
        os.waitpid(pid, 0)
        _send(f"failed {report.decode()}")
        return 0
    return pid


def _become_command(request: list[bytes], error_writer: int) -> None:
    """In the child: exec the program, or write `STAGE ERRNO` to `error_writer`. Never returns."""
    stage = "start"
    try:
        folder, kind, count = request[0], request[1], int(request[2])
        arguments = request[3 : 3 + count]
        variables = dict(pair.split(b"=", 1) for pair in request[3 + count :])
        os.setsid()
        _set_limits()
        # Sent by the child, not by the keeper: the program might kill the keeper first, and then
        # this pid is how the daemon finds the command.
        _send(f"pid {os.getpid()}")
        command_input = _input_of(request)
        os.dup2(command_input or os.open("/dev/null", os.O_RDONLY), 0)
        if command_input:
            os.close(command_input)
        for number in range(1, signal.NSIG):  # an ignored signal stays ignored after exec
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)
                except (OSError, ValueError):
                    pass
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "cwd"
        os.chdir(folder)
        stage = "exec"
        _exec(SHELLS if kind == b"shell" else (arguments[0],), arguments, variables)
    except OSError as error:
        os.write(error_writer, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def _set_limits() -> None:
    """In the child: die with the keeper, dump no core, be killed first when memory runs out."""
    import resource

    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without its keeper nothing would stop the command
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "r+b", 0) as file:
            file.write(b"%d" % min(int(file.read()) + 500, 1000))
    except (OSError, ValueError):
        pass  # not Linux, or a sandbox: the command runs without it


def _exec(
    programs: tuple[bytes, ...], arguments: list[bytes], variables: dict[bytes, bytes]
) -> None:
    """Exec the first of `programs` that can be run. Raises the last one's OSError."""
    for number, program in enumerate(programs, 1):
        try:
            os.execvpe(program, arguments, variables)
        except OSError:
            if number == len(programs):
                raise


# Watching and killing ---------------------------------------------------------------------------


class _Descendants:
    """All processes below the keeper. `main` is the pid of the command itself."""

    def __init__(self, main: int, wake: int, *, sees_all: bool) -> None:
        self.main = main
        self.sees_all = sees_all  # orphans become our children, and /proc lists them
        self.status: int | None = None  # of the main process, once it was reaped
        self.wake = wake
        self.last_exit = time.monotonic()

    @property
    def code(self) -> int:
        """The exit code of the main process, as a shell gives it."""
        if self.status is None:  # it could not be killed; when it dies, SIGKILL is the reason
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def watch(self) -> bool:
        """Wait until the main process has exited (and, for LINGER seconds, what it left behind) or
        the channel has ended. True if the end of the channel came first."""
        while not self.main_exited():
            if self._wait(None):
                return not self.main_exited()
        until = time.monotonic() + LINGER
        while self.reap() and (left := until - time.monotonic()) > 0:
            if self._wait(left):
                break
        return False

    def _wait(self, seconds: float | None, channel: bool = True) -> bool:
        """Wait for a child to exit, for the end of the channel, or for the timeout. True if the
        channel has ended. Without `channel` its end is not waited for."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if channel:  # the daemon sends no more: readable means ended
            poller.register(CHANNEL, select.POLLIN)
        ready = dict(poller.poll(None if seconds is None else seconds * 1000))
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass
        return CHANNEL in ready

    def main_exited(self) -> bool:
        """Whether the main process has exited. Does not reap it where that is possible: until it is
        reaped, its pid cannot be given to another process."""
        if hasattr(os, "waitid"):
            found = os.waitid(os.P_PID, self.main, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return True
        self.reap()
        return self.status is not None

    def reap(self) -> bool:
        """Reap all children that have exited. False if no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.last_exit = time.monotonic()
            if pid == self.main:
                self.status = status

    def kill(self) -> int:
        """Kill all processes below the keeper. Return how many could not be killed."""
        self.last_exit = time.monotonic()
        if self.status is None or not self.sees_all:
            # One call that no fork gets past; most commands never leave their process group.
            send_signal(-self.main, signal.SIGKILL)
            self._wait(PAUSE, channel=False)
        known: set[int] = set()
        passes = 0
        while self.reap():
            passes += 1
            found = self._signal_all(signal.SIGSTOP)
            fresh = found - known
            known |= found
            if fresh and passes <= STOPPING_PASSES:
                continue
            found = self._signal_all(signal.SIGKILL)
            if time.monotonic() - self.last_exit > GIVE_UP:
                return len(found)
            if fresh and self.sees_all:
                self._kill_children()
            else:
                self._wait(PAUSE, channel=False)
        return 0

    def _signal_all(self, number: int) -> set[int]:
        """Send a signal to every process that can be found. Return their pids."""
        if self.sees_all:
            return _signal_below(os.getpid(), number)
        send_signal(-self.main, number)
        return {self.main}

    def _kill_children(self) -> None:
        """Kill our direct children over and over, as fast as possible. Some processes fork and exit
        before /proc was read once; what they forked is orphaned, and so our child."""
        for _ in range(CHILD_PASSES):
            for pid in _children():
                send_signal(pid, signal.SIGKILL)
            if not self.reap():
                return


def _children() -> list[int]:
    """The pids of the keeper's direct children; empty if the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb", 0) as file:
            return [int(pid) for pid in file.read(65536).split()]
    except OSError:
        return []  # a kernel built without it: the passes over all of /proc must do


def _signal_below(top: int, number: int) -> set[int]:
    """Send a signal to every process below `top`, each as soon as it is found. Return their pids.

    Processes that fork go on forking until they are signalled, so this does not wait until all of
    /proc was read. Parents mostly come before their children there; a child that comes first waits
    for its parent.
    """
    found: set[int] = set()
    groups = {0, os.getpgrp()}
    waiting: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, group in _processes():
        if parent != top and parent not in found:
            waiting.setdefault(parent, []).append((pid, group))
            continue
        todo = [(pid, group)]
        while todo:
            pid, group = todo.pop()
            found.add(pid)
            # The command leads a session of its own, so no process outside is in its groups.
            if group not in groups:
                groups.add(group)
                send_signal(-group, number)
            send_signal(pid, number)
            todo += waiting.pop(pid, ())
    return found


def _processes() -> "Iterator[tuple[int, int, int]]":
    """Pid, parent and process group of every process of the system."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", 0) as file:
                    # After the program's name, which may hold anything: state, parent, group.
                    _, parent, group = file.read(1024).rpartition(b")")[2].split(None, 3)[:3]
            except (OSError, ValueError):
                continue  # it has exited meanwhile
            yield int(name), int(parent), int(group)


def send_signal(target: int, number: int) -> None:
    """Send a signal to a process or, with minus its number, to a process group. Never to our own
    group (0), nor to every process there is (-1)."""
    if -1 <= target <= 1:
        return
    try:
        os.kill(target, number)
    except OSError:
        pass  # it has exited, or belongs to another user


if __name__ == "__main__":
    main()
    os._exit(0)  # without the interpreter's own cleanup, which the kernel does faster
