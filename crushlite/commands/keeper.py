"""The keeper: a small process that stands between the daemon and one command.

It exists because nobody else can do what it does. A daemon that was killed with -9 kills nobody,
and a process group does not hold a `setsid` or a double fork. The keeper is the *subreaper* of its
command: whatever is orphaned below it becomes its own child, so "I have no children" means that
nothing of the command is left, however it was started. And it hangs on the daemon by a socket,
which the kernel closes however the daemon ends.

    fd 0       the channel: a stream socket to the daemon
    fd 1, 2    the command's output; the keeper lets go of it once the command runs

The daemon sends one request and nothing after it. Its shutdown of the channel, or its death, means
"kill everything". The keeper answers in lines:

    pid PID                 the main process, told by itself before it becomes the program
    started                 the program runs
    failed STAGE ERRNO      it could not be started: STAGE is start, cwd or exec
    ended CODE CUT LEFT     its main process is gone and so is everything it left behind. CUT is 1
                            if the daemon hung up first, LEFT counts those who could not be killed

Linux does all this. Where there is no subreaper (macOS) the command's process group is all that is
found; a `setsid` escapes there.

Knows nothing of: the package. It runs as `python -I -S keeper.py` before every command, so it
imports next to nothing; a start costs the price of its imports.
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
# What a command leaves behind may end by itself, as the `tee` of `> >(tee log)` does with its last
# lines, before it is killed. A hang-up is not so patient.
LINGER = 0.05
# Nobody died for so long although all were killed: they are another user's (sudo), or the kernel
# holds them.
GIVE_UP = 1.0
PAUSE = 0.005
# Passes that only stop what they find. Two processes that revive each other must both be stopped
# before one is killed; but whoever forks faster than a pass would never be killed.
STOPPING_PASSES = 4
CHASE = 200

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    request = _receive()
    if request is None:
        return
    wake = _listen_for_deaths()
    reaper = _become_subreaper()
    pid = _start(request)
    if not pid:
        return
    _say("started")
    _let_go_of_output()
    descendants = _Descendants(pid, wake, sees_all=reaper)
    cut = descendants.watch()
    left = descendants.kill()
    _say(f"ended {descendants.code} {int(cut)} {left}")


def _receive() -> list[bytes] | None:
    """The request's fields, or None if the daemon hung up before it was complete.

    A length in a line of its own, then: folder, `shell` or `argv`, the number of arguments, the
    arguments, the variables. They are separated by NUL, which none of them can hold.
    """
    size = int(sys.stdin.buffer.readline() or b"0")
    data = sys.stdin.buffer.read(size)
    return data.split(b"\0") if size and len(data) == size else None


def _say(line: str) -> None:
    try:
        os.write(CHANNEL, line.encode() + b"\n")
    except OSError:
        pass  # the daemon is dead; there is still the killing to do


def _listen_for_deaths() -> int:
    """Ignore what could end the keeper before its work is done; the fd returned wakes at a death.

    A command may well signal its parent, or every Python there is.
    """
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass  # two numbers are the threading library's own
    wake, bell = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return wake


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0


def _become_subreaper() -> bool:
    return _prctl(PR_SET_CHILD_SUBREAPER, 1) and os.path.exists("/proc/self/stat")


def _let_go_of_output() -> None:
    # Else the daemon would never see the end of it. What the keeper itself might print is lost
    # from here on; it has the channel to speak.
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


# Starting ---------------------------------------------------------------------------------------


def _start(request: list[bytes]) -> int:
    """Fork and become the command; its pid, or 0 after a failure that was reported."""
    trouble, tell = os.pipe()  # closes itself at exec, which is how success is seen
    try:
        pid = os.fork()
    except OSError as error:
        _say(f"failed start {error.errno}")
        return 0
    if pid == 0:
        _become(request, tell)
    os.close(tell)
    report = os.read(trouble, 64)
    os.close(trouble)
    if report:
        os.waitpid(pid, 0)
        _say(f"failed {report.decode()}")
        return 0
    return pid


def _become(request: list[bytes], tell: int) -> None:
    """In the child: turn into the command. Never returns."""
    stage = "start"
    try:
        folder, kind, count = request[0], request[1], int(request[2])
        arguments = request[3 : 3 + count]
        variables = dict(pair.split(b"=", 1) for pair in request[3 + count :])
        os.setsid()
        _limit()
        # Not left to the keeper: the program might kill it first, and then this pid is the trace.
        _say(f"pid {os.getpid()}")
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
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
        os.write(tell, f"{stage} {error.errno}".encode())
    finally:
        os._exit(127)


def _limit() -> None:
    import resource

    # The keeper is the one who must not survive alone: without it nobody would stop the command.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "r+b", 0) as file:
            # Of all things the command shall be what the kernel kills when memory runs out.
            file.write(b"%d" % min(int(file.read()) + 500, 1000))
    except (OSError, ValueError):
        pass  # not Linux, or a sandbox: a wish, not a promise


def _exec(
    programs: tuple[bytes, ...], arguments: list[bytes], variables: dict[bytes, bytes]
) -> None:
    for number, program in enumerate(programs, 1):
        try:
            os.execvpe(program, arguments, variables)
        except OSError:
            if number == len(programs):
                raise


# Watching and killing ---------------------------------------------------------------------------


class _Descendants:
    """Everything below the keeper. The main process is the one that was started."""

    def __init__(self, main: int, wake: int, *, sees_all: bool) -> None:
        self.main = main
        self.sees_all = sees_all  # orphans come here, and /proc shows who they are
        self.status: int | None = None  # the main process's, once it was reaped
        self.wake = wake
        self.last_death = time.monotonic()

    @property
    def code(self) -> int:
        """The exit code as a shell would give it."""
        if self.status is None:  # it would not die; this is what it will say when it does
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def watch(self) -> bool:
        """Until the command is over; whether it is because the daemon hung up."""
        while not self.main_ended():
            if self._pause(None):
                return not self.main_ended()
        until = time.monotonic() + LINGER
        while self.reap() and (left := until - time.monotonic()) > 0:
            if self._pause(left):
                break
        return False

    def _pause(self, seconds: float | None) -> bool:
        """Until somebody dies, the daemon hangs up (True) or the time is over."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        poller.register(CHANNEL, select.POLLIN)  # nothing more is sent, so this is the end
        ready = dict(poller.poll(None if seconds is None else seconds * 1000))
        self._clear()
        return CHANNEL in ready

    def _clear(self) -> None:
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            pass

    def main_ended(self) -> bool:
        """Looks without reaping, where it can: until then the pid cannot be another's."""
        if hasattr(os, "waitid"):
            found = os.waitid(os.P_PID, self.main, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return True
        self.reap()
        return self.status is not None

    def reap(self) -> bool:
        """Bury the dead; False if that was the last child."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.last_death = time.monotonic()
            if pid == self.main:
                self.status = status

    def kill(self) -> int:
        """Kill until nobody is left; returns how many could not be killed."""
        self.last_death = time.monotonic()
        if self.status is None or not self.sees_all:
            # One call against all, no fork gets past it; most commands never left their group.
            _signal_group(self.main, signal.SIGKILL)
            self._rest()
        known: set[int] = set()
        passes = 0
        while self.reap():
            passes += 1
            found = self._pass(signal.SIGSTOP)
            fresh = found - known
            known |= found
            if fresh and passes <= STOPPING_PASSES:
                continue
            found = self._pass(signal.SIGKILL)
            if time.monotonic() - self.last_death > GIVE_UP:
                return len(found)
            if fresh and self.sees_all:
                self._chase()
            else:
                self._rest()
        return 0

    def _pass(self, number: int) -> set[int]:
        """Send a signal to all that can be found."""
        if self.sees_all:
            return _signal_below(os.getpid(), number)
        _signal_group(self.main, number)
        return {self.main}

    def _rest(self) -> None:
        """A little time to die, for those who were killed."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        poller.poll(PAUSE * 1000)
        self._clear()

    def _chase(self) -> None:
        """Kill children as fast as can be: some fork and leave before /proc was read once.

        Those are always orphans, so they are always ours.
        """
        for _ in range(CHASE):
            for pid in _children():
                _signal(pid, signal.SIGKILL)
            if not self.reap():
                return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb", 0) as file:
            return [int(pid) for pid in file.read(65536).split()]
    except OSError:
        return []  # a kernel built without it: the passes over all of /proc must do


def _signal_below(top: int, number: int) -> set[int]:
    """Send a signal to every process below `top`, each as soon as it is found.

    Not after the whole of /proc was read: until a crowd that forks is stopped, it takes the time
    that the reading needs. Parents mostly come first there; who comes before its parent waits.
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
            # The command leads a session of its own, so every group in there is its alone.
            if group not in groups:
                groups.add(group)
                _signal_group(group, number)
            _signal(pid, number)
            todo += waiting.pop(pid, ())
    return found


def _processes() -> "Iterator[tuple[int, int, int]]":
    """Pid, parent and process group of all there are."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", 0) as file:
                    # Behind the name, which may hold anything: state, parent, group.
                    _, parent, group = file.read(1024).rpartition(b")")[2].split(None, 3)[:3]
            except (OSError, ValueError):
                continue  # gone meanwhile
            yield int(name), int(parent), int(group)


def _signal(pid: int, number: int) -> None:
    if pid <= 1:
        return
    try:
        os.kill(pid, number)
    except OSError:
        pass  # gone, or another user's


def _signal_group(group: int, number: int) -> None:
    if group <= 1:
        return  # 0 is our own group, and killpg(1) would be kill(-1): everybody
    try:
        os.killpg(group, number)
    except OSError:
        pass


if __name__ == "__main__":
    main()
    # At once: what the interpreter would tidy up, the kernel tidies up faster.
    os._exit(0)
