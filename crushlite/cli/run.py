"""`crushlite run`: ask once, print the answer as it comes, leave with an exit code that tells.

    subscribe -> post under a fresh run_id -> follow -> run_complete with that id -> retire

Only the end of our own run ends it: not the finish of a message, not the end of another run, not a
stream that breaks off. Standard output gets the text of our run and nothing else; what is being
waited for goes to standard error.

What is ours is decided in follow.py; the daemon is found or started in start.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import select
import signal
import stat
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.cli.follow import Follower, JSONOutput, TextOutput, one_line
from crushlite.cli.start import Wanted, here, join, own_environment, ready_seconds
from crushlite.client import ConnectionFailed
from crushlite.errors import (
    CrushliteError,
    DataDirectoryInUse,
    NotFound,
    NotQueued,
    RunNotFound,
    Unavailable,
    UsageError,
    WorkspaceClosing,
    WorkspaceNotFound,
)
from crushlite.listen import default_socket, parse_address
from crushlite.protocol.runs import RunComplete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from crushlite.client import EventStream, RemoteWorkspace
    from crushlite.protocol.runs import Accepted, RunInfo

__all__ = ["add_parser", "run"]

CANCELED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that died of SIGPIPE
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GOODBYE_SECONDS = 5.0  # for the daemon to take note that we leave
RETRY_SECONDS = 0.25  # between two attempts to reach a daemon that was lost
POSTS = 3  # attempts to post the prompt: under one run_id it is the same prompt each time
STDIN_SECONDS = 1.0  # after which we say that we wait for standard input
TITLE_CHARS = 60

# What may pass while a daemon is restarted.
PASSING = (ConnectionFailed, Unavailable, WorkspaceClosing, DataDirectoryInUse)


# The command line -------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="ask once and print the answer",
        description="Send a prompt to the agent of this directory and print its answer as it "
        "comes. If no daemon is there, one is started; it leaves after a minute without work. "
        "Standard input that is a pipe or a file is put in front of the prompt.",
        epilog="Exit codes: 0 completed, 1 failed or timed out, 2 usage, 130 canceled. Ctrl-C "
        "cancels the run and waits for its end, a second one leaves at once. If the reader of "
        "the output goes away (as head does), the run is canceled and the code is 141.",
    )
    add = parser.add_argument
    add("prompt", nargs="*", metavar="PROMPT", help="what to ask; several words are joined")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="go on in this session (default: a new one)")
    which.add_argument(
        "--continue", dest="last", action="store_true", help="go on in the session used last"
    )
    add(
        "--host",
        metavar="URL",
        default=next(iter(os.environ.get("CRUSHLITE_HOST", "").split()), None),
        help="unix:///path or tcp://127.0.0.1:PORT (default: our unix socket)",
    )
    add("--token-file", metavar="FILE", help="for TCP (default: where a daemon of ours put it)")
    add(
        "--agent",
        metavar="A",
        default=os.environ.get("CRUSHLITE_AGENT") or "auto",
        help="for a daemon that is started now: auto, coder, offline, or module:attr",
    )
    add("--yolo", action="store_true", help="never ask for permissions, if the workspace is new")
    add("--timeout", metavar="S", type=_seconds, help="cancel the run after so many seconds")
    add("--json", action="store_true", help="print one event per line instead of the text")
    add("-q", "--quiet", action="store_true", help="say only errors on standard error")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    say = _say_nothing if options.quiet else _say
    prompt = "\n\n".join(part for part in (_piped(say), " ".join(options.prompt)) if part.strip())
    if not prompt:
        raise UsageError("no prompt: give one as an argument or on standard input")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as it is when we were started with it closed
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    # Bytes of the command line that are no text cannot be sent.
    return asyncio.run(_run(options, prompt.encode("utf-8", "replace").decode(), say))


def _piped(say: Callable[[str], None]) -> str:
    """Standard input, if it is something to read and not a person or nothing at all."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    # Somebody may have given us a pipe without a thought: they should learn why nothing happens.
    if not select.select([0], [], [], STDIN_SECONDS)[0]:
        say("waiting for the end of standard input")
    with open(0, "rb", closefd=False) as stdin:
        return stdin.read().decode("utf-8", "replace").rstrip("\n")


def _token(options: argparse.Namespace) -> str:
    path = Path(options.token_file) if options.token_file else None
    if path is None and (options.host or "").startswith("tcp://"):
        # Our own token is for our own machine only.
        with contextlib.suppress(UsageError):
            port = parse_address(options.host).port
            own = default_socket().parent / f"tcp-{port}.token"
            path = own if own.exists() else None
    try:
        return path.read_text("utf-8").strip() if path is not None else ""
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the token in {path}: {error}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _say(text: str) -> None:
    """One line on standard error; if nobody can read it, so be it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"crushlite: {one_line(text)}", file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    """What --quiet says."""


# The errand ---------------------------------------------------------------------------------------


async def _run(options: argparse.Namespace, prompt: str, say: Callable[[str], None]) -> int:
    with _signals() as interrupt:
        wanted = Wanted(options.host, _token(options), options.agent, options.yolo, say)
        try:
            workspace = await join(wanted)
        except asyncio.CancelledError:
            return CANCELED  # only an interrupt cancels this task
        async with workspace.client:
            errand = _Errand(workspace, prompt, options, say)
            interrupt.act = errand.stop
            try:
                return await errand.run()
            finally:
                interrupt.act = _nothing  # a second signal still leaves at once
                await _retire(errand)


async def _retire(errand: _Errand) -> None:
    """Say goodbye, so that the daemon need not wait whether we come back."""
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await errand.workspace.client.retire()
    except (CrushliteError, TimeoutError):
        pass  # it is gone, or will notice


def _nothing() -> None:
    """There is nothing left to stop."""


class _Interrupt:
    """The first signal is an order to stop, the second to leave."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.act: Callable[[], object] = task.cancel
        self._received = False

    def __call__(self) -> None:
        if self._received:
            os._exit(CANCELED)  # whatever we wait for, a stopped reader of our output included
        self._received = True
        self.act()


@contextlib.contextmanager
def _signals() -> Iterator[_Interrupt]:
    loop, interrupt = asyncio.get_running_loop(), _Interrupt()
    # Whoever started us in the background, or with nohup, wants some of them ignored.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, interrupt)
    try:
        yield interrupt
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


class _Errand:
    """One prompt in one workspace."""

    def __init__(
        self,
        workspace: RemoteWorkspace,
        prompt: str,
        options: argparse.Namespace,
        say: Callable[[str], None],
    ) -> None:
        self.workspace = workspace
        self._prompt = prompt
        self._options = options
        self._say = say
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self._output = JSONOutput() if options.json else TextOutput(terminal=terminal)
        self._session_id = ""
        self._run_id = str(uuid.uuid4())
        self._follower: Follower | None = None  # from the promise on
        self._last_id: str | None = None  # how far the events were read
        # How it may end before its end.
        self._task = asyncio.current_task()
        self._posting = self._over = False
        self._stopped = self._timed_out = False
        self._canceling: asyncio.Task[None] | None = None
        self._broken: OSError | None = None  # why standard output takes no more

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        timer = None
        if self._options.timeout is not None:
            timer = loop.call_later(self._options.timeout, self._time_out)
        try:
            ending = await self._await_ending()
        except asyncio.CancelledError:
            # Our own doing: there was no run to cancel yet, or nobody left to cancel it.
            if not self._stopped or self._task is None:
                raise
            self._task.uncancel()
            ending = RunComplete(self._session_id, cancelled=True)
        except CrushliteError:
            self._output.end()
            await self._flush()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if self._canceling is not None:
                self._canceling.cancel()
        return self._exit_code(ending)

    def _exit_code(self, ending: RunComplete) -> int:
        if isinstance(self._broken, BrokenPipeError):
            return BROKEN_PIPE
        if self._broken is not None:
            raise CrushliteError(f"cannot write the answer: {self._broken.strerror}")
        if ending.cancelled and self._timed_out:
            raise CrushliteError(f"canceled: not done in {self._options.timeout:g} s")
        if ending.cancelled:
            self._say("canceled")
            return CANCELED
        if ending.error:
            raise CrushliteError(ending.error)
        return 0

    # Asking.

    async def _await_ending(self) -> RunComplete:
        over = await self._choose_session()
        async with self.workspace.events(reconnect=False) as events:
            follower = await self._ask(over)
            ending = await self._read(events, follower)
        while ending is None:
            ending = await self._return(follower)
        self._over = True
        if self._canceling is not None:
            self._canceling.cancel()
        if not follower.user_id and ending.message_id:
            # We did not see our turn begin, so nothing of it was shown.
            follower.catch_up(await self.workspace.messages(self._session_id), ending)
        follower.finish(ending)
        await self._flush()
        return ending

    async def _choose_session(self) -> set[str]:
        """Find or make our session; returns which of its runs are over already."""
        session_id = self._options.session
        if self._options.last:
            latest = await self.workspace.sessions()
            if not latest:
                raise CrushliteError("there is no session to continue in this directory")
            session_id = latest[0].id
        if not session_id:
            title = one_line(self._prompt)[:TITLE_CHARS]
            self._session_id = (await self.workspace.create_session(title)).id
            self._say(f"session {self._session_id}")
            return set()
        self._session_id = (await self.workspace.session(session_id)).id
        return _ended(await self.workspace.runs(self._session_id))

    async def _ask(self, over: set[str]) -> Follower:
        await self.workspace.init(interactive=False)
        self._posting = True  # from here on the prompt may be promised, and must be canceled
        accepted = await self._post()
        follower = self._follower = Follower(accepted, self._prompt, self._output, self._say)
        self._output.accepted(accepted)
        if self._stopped:
            self.stop()
        runs = self._before(await self.workspace.runs(self._session_id))
        # Those that ended since are among them: their last events are still to be read.
        follower.ahead = {run.run_id for run in runs} - over
        waiting = len({run.run_id for run in runs} - _ended(runs))
        if waiting:
            self._say(f"waiting for {waiting} earlier prompt(s) in this session")
        return follower

    async def _post(self) -> Accepted:
        for _ in range(POSTS - 1):
            try:
                return await self.workspace.prompt(
                    self._session_id, self._prompt, run_id=self._run_id
                )
            except ConnectionFailed as error:
                self._say(f"asking again: {error.message}")
        return await self.workspace.prompt(self._session_id, self._prompt, run_id=self._run_id)

    def _before(self, runs: list[RunInfo]) -> list[RunInfo]:
        ids = [run.run_id for run in runs]
        return runs[: ids.index(self._run_id)] if self._run_id in ids else runs

    # Following.

    async def _read(self, events: EventStream, follower: Follower) -> RunComplete | None:
        """Until our run has ended, or the stream has."""
        try:
            async for event in events:
                if event.kind == "resync":
                    ending = await self._catch_up(follower)
                else:
                    ending = follower.take(event)
                self._over = ending is not None
                await self._flush()
                if ending is not None:
                    return ending
        except ConnectionFailed:
            pass  # while catching up: the stream is as good as lost
        finally:
            self._last_id = events.last_id
        return None

    async def _return(self, follower: Follower) -> RunComplete | None:
        """Find the run again after the stream was lost, and follow it on."""
        self._say("the daemon was lost; trying to reach it again")
        deadline = time.monotonic() + ready_seconds()
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                events = await self._open()
                break
            except PASSING as error:
                if time.monotonic() > deadline:
                    raise CrushliteError(
                        f"the daemon is gone and has taken the run along: {error.message}. "
                        f"Go on with: crushlite run --session {self._session_id} PROMPT"
                    ) from error
        try:
            # Without a position to go on from, what was missed is read first.
            ending = await self._catch_up(follower) if self._last_id is None else None
            return ending or await self._read(events, follower)
        except ConnectionFailed:
            return None
        finally:
            await events.close()

    async def _open(self) -> EventStream:
        """A stream that is entered. A workspace that is gone is opened again: what became of the
        run stands in its database."""
        try:
            events = self.workspace.events(reconnect=False, last_id=self._last_id)
            await events.__aenter__()
        except WorkspaceNotFound:
            client, yolo = self.workspace.client, self._options.yolo
            self.workspace = await client.create(here(), env=own_environment(), yolo=yolo)
            self._last_id = None
            events = self.workspace.events(reconnect=False)
            await events.__aenter__()
        try:
            await self.workspace.init(interactive=False)
        except BaseException:
            await events.close()
            raise
        return events

    async def _catch_up(self, follower: Follower) -> RunComplete | None:
        """Events were missed: read what they would have told. First the messages: if the run goes
        on after that, all of them that follow its prompt are its own."""
        messages = await self.workspace.messages(self._session_id)
        try:
            info = await self.workspace.run(self._run_id)
        except RunNotFound as error:
            raise CrushliteError(f"what became of the run is unknown: {error.message}") from error
        ending = _ending(info) if info.state == "ended" else None
        follower.catch_up(messages, ending)
        if ending is None and not follower.user_id:
            runs = self._before(await self.workspace.runs(self._session_id))
            follower.ahead = {run.run_id for run in runs} - _ended(runs)
        return ending

    # Printing.

    async def _flush(self) -> None:
        text = self._output.take()
        if not text or self._broken is not None or sys.stdout is None:
            return
        try:
            # In a thread: a reader that stops must not keep us from hearing Ctrl-C.
            await asyncio.to_thread(_write, text)
        except OSError as error:
            self._broken = error
            # Else the interpreter would try again when it exits, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.stop()

    # Stopping.

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()

    def stop(self) -> None:
        """Cancel the run and go on until its end; without a run, leave."""
        self._stopped = True
        if self._follower is not None:
            # A cancel after the end would hit whoever comes next in the session.
            if self._canceling is None and not self._over:
                self._canceling = asyncio.create_task(self._cancel(self._follower))
        elif not self._posting and self._task is not None:
            self._task.cancel()

    async def _cancel(self, follower: Follower) -> None:
        try:
            if not await self._withdraw(follower):
                await self.workspace.cancel(self._session_id)
        except CrushliteError as error:
            self._say(f"cannot cancel: {error.message}")
            if self._task is not None:
                self._task.cancel()

    async def _withdraw(self, follower: Follower) -> bool:
        """Take back a prompt that still waits in line: a cancel would hit whoever is at work."""
        if follower.user_id:
            return False
        try:
            await self.workspace.remove(self._session_id, self._run_id)
        except (NotQueued, NotFound):
            return False
        return True


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ended(runs: Iterable[RunInfo]) -> set[str]:
    return {run.run_id for run in runs if run.state == "ended"}


def _ending(info: RunInfo) -> RunComplete:
    """The event that was missed."""
    canceled = info.outcome in ("canceled", "cleared")
    error = info.error or ("" if canceled or info.outcome == "completed" else "the run failed")
    return RunComplete(
        info.session_id, info.message_id, info.run_id, info.text, error, cancelled=canceled
    )
