"""`crushlite run`: ask once, print the answer as it comes, exit with a code that says how it ended.

    subscribe -> post under a fresh run_id -> follow -> run_complete with that id -> retire

Which events belong to the run is decided by the client library, what is printed of them by
follow.py.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from typing import TYPE_CHECKING, Any

from ..errors import CrushliteError, UsageError
from ..launch import goodbye, join
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch
from . import CANCELED
from .attachments import check_size, read_attachments
from .common import (
    add_connection,
    add_json,
    command,
    say,
    show,
    show_json,
    title_of,
    wanted,
)
from .follow import RunPrinter, do_nothing, exit_code, signals
from .helptext import seconds
from .lookup import find_session
from .person import TerminalAnswers
from .progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine

    from ..client import RemoteWorkspace, RunStream
    from ..protocol.messages import Attachment

STDIN_SECONDS = 1.0  # without input, before a note says what is waited for

DESCRIPTION = """\
Send a prompt to the agent of this directory and print its answer as it comes. If no daemon is
there, one is started; it leaves after a minute without work. Standard input that is a pipe or a
file is put in front of the prompt.

Exit codes: 0 completed, 1 failed, timed out or daemon lost, 2 usage, 130 canceled. Ctrl-C cancels
the run and waits for its end, a second one leaves at once. If the reader of the output goes away
(as head does), the run is canceled and the code is 141.
"""
EXAMPLES = """\
  crushlite run "why does the build fail?"
  git diff | crushlite run "write a commit message" > message.txt
  crushlite run --continue "now with a test"      # in the session used last
  crushlite run --attach screen.png "what is wrong here?"
  crushlite run --deny-after 0 "review the code"  # nobody is there to ask
  id=$(crushlite run --detach "port this to Python 3.14"); crushlite attach $id
  crushlite run --json "hello" | jq -r 'select(.type == "run_complete").payload.payload.text'
"""


# The command line -------------------------------------------------------------------------------


def add_parser(commands: Any) -> None:
    parser = command(commands, "run", DESCRIPTION, run, EXAMPLES)
    add = parser.add_argument
    add("prompt", nargs="*", metavar="PROMPT", help="what to ask; several words are joined")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="go on in this session (default: a new one)")
    which.add_argument(
        "--continue", dest="last", action="store_true", help="go on in the session used last"
    )
    add(
        "--attach",
        action="append",
        metavar="FILE",
        default=[],
        help="send a file along; repeatable",
    )
    add(
        "--effort",
        metavar="LEVEL",
        default="",
        help="how much the model reasons: none, low, medium, high ... (default: as configured)",
    )
    add("--detach", action="store_true", help="print the id of the run and leave; it goes on")
    add(
        "--yolo",
        dest="auto_approve",
        action="store_true",
        help="grant every permission that this run asks for, and of no other",
    )
    add(
        "--deny-after",
        metavar="S",
        type=seconds,
        help="deny what was not answered in so many seconds (the daemon has a limit, too)",
    )
    add("--timeout", metavar="S", type=seconds, help="cancel the run after so many seconds")
    add_json(parser, "one event per line, instead of the text,")
    add("-q", "--quiet", action="store_true", help="say only errors, and what --yolo means")
    add_connection(parser)


def run(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Read standard input and files, which may block, before there is an event loop: so Ctrl-C
    ends it. Returns what is to be run in a loop."""
    progress = Progress(quiet=options.quiet)
    if options.detach and (options.timeout is not None or options.deny_after is not None):
        raise UsageError("--timeout and --deny-after need a command that stays: not with --detach")
    attachments = read_attachments(options.attach)
    parts = (_piped(progress), " ".join(options.prompt))
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise UsageError("no prompt: give one as an argument or on standard input")
    # Bytes of the command line that are no text cannot be sent.
    prompt = prompt.encode("utf-8", "replace").decode()
    check_size(prompt, attachments)
    return _run(options, prompt, attachments, progress)


def _piped(progress: Progress) -> str:
    """What can be read from standard input, if it is a pipe, a file or a socket; else nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    # A pipe may be there by accident: then the user must learn why nothing happens.
    if not select.select([0], [], [], STDIN_SECONDS)[0]:
        progress.say("waiting for the end of standard input")
    with open(0, "rb", closefd=False) as stdin:
        return stdin.read().decode("utf-8", "replace").rstrip("\n")


# One prompt -------------------------------------------------------------------------------------


async def _run(
    options: argparse.Namespace, prompt: str, attachments: list[Attachment], progress: Progress
) -> int:
    with signals() as interrupt:
        try:
            workspace = await join(wanted(options, progress.say))
        except asyncio.CancelledError:
            return CANCELED  # only a signal cancels this task
        async with workspace.client:
            if workspace.info.warning:
                progress.say(workspace.info.warning)
            asked = _Asked(workspace, prompt, attachments, options, progress)
            interrupt.act = asked.stop
            try:
                if options.auto_approve:  # with --quiet too: it must not happen unseen
                    say("--yolo: every permission of this run is granted, nobody is asked")
                return await (asked.detach() if options.detach else asked.run())
            except asyncio.CancelledError:
                if not interrupt.received:
                    raise
                return CANCELED
            finally:
                interrupt.act = do_nothing  # a second signal still ends the process
                progress.stop()
                await goodbye(workspace.client)


class _Asked:
    """One prompt in one workspace, from its session to its exit code."""

    def __init__(
        self,
        workspace: RemoteWorkspace,
        prompt: str,
        attachments: list[Attachment],
        options: argparse.Namespace,
        progress: Progress,
    ) -> None:
        self._workspace = workspace
        self._prompt = prompt
        self._attachments = attachments
        self._options = options
        self._progress = progress
        self._run: RunStream | None = None
        self._task = asyncio.current_task()
        self._posting = False  # the prompt may have been accepted
        self._stopped = self._timed_out = False
        self._canceling: asyncio.Task[None] | None = None

    async def detach(self) -> int:
        """Post the prompt, print the id of its run, and leave the run to itself."""
        session_id = await self._session()
        self._posting = True
        accepted = await self._workspace.prompt(
            session_id,
            self._prompt,
            attachments=self._attachments,
            detach=True,
            auto_approve=self._options.auto_approve,
            reasoning_effort=self._options.effort,
        )
        if self._options.json:
            show_json(accepted)
        else:
            show(accepted.run_id)
        self._progress.say(f"follow it with: crushlite attach {accepted.run_id}")
        return 0

    async def run(self) -> int:
        """Post the prompt and print its run to the end."""
        timer = None
        if self._options.timeout is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._options.timeout, self._time_out)
        try:
            return await self._follow()
        except asyncio.CancelledError:
            # By `stop` or `_cancel`: there was no run to cancel, or no daemon to do it.
            if not self._stopped or self._task is None:
                raise
            self._task.uncancel()
            self._raise_if_timed_out()
            self._progress.say("canceled")
            return CANCELED
        finally:
            if timer is not None:
                timer.cancel()
            if self._canceling is not None:
                self._canceling.cancel()

    async def _follow(self) -> int:
        session_id = await self._session()
        await self._workspace.init(interactive=False)
        self._posting = True
        start = self._workspace.start(
            self._prompt,
            session_id,
            attachments=self._attachments,
            auto_approve=self._options.auto_approve,
            reasoning_effort=self._options.effort,
        )
        async with start as run:
            self._run = run
            if self._stopped:
                self.stop()
            if run.ahead:
                self._progress.say(f"waiting for {run.ahead} earlier prompt(s) in this session")
            self._progress.doing("waiting")
            printer = RunPrinter(run, self._progress, as_json=self._options.json)
            printer.stop = self.stop
            talks = not self._options.json and not self._options.quiet
            async with (
                _Denials(self._workspace, self._options.deny_after, self._progress) as denials,
                TerminalAnswers(self._workspace, self._progress, wanted=talks) as answers,
            ):
                printer.listeners = [denials.take, answers.take]
                ending = await printer.until_end()
        if ending.cancelled and printer.broken is None:
            self._raise_if_timed_out()
        return exit_code(printer, ending, self._progress)

    async def _session(self) -> str:
        """The id of the session that the options name, or of a new one."""
        if self._options.session:
            return await find_session(self._workspace, self._options.session)
        if self._options.last:
            return await find_session(self._workspace, "last")
        session = await self._workspace.create_session(title_of(self._prompt))
        self._progress.say(f"session {session.id}")
        return session.id

    # Stopping -----------------------------------------------------------------------------------

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()

    def _raise_if_timed_out(self) -> None:
        if self._timed_out:
            raise CrushliteError(f"canceled: not done in {self._options.timeout:g} s")

    def stop(self) -> None:
        """Cancel the run, and go on until its end. Before the prompt was posted: cancel the task
        of the command. While it is being posted: `run` stops it when it was accepted."""
        self._stopped = True
        if self._run is not None:
            if self._canceling is None and self._run.ending is None:
                self._progress.say("canceling; Ctrl-C leaves at once")
                self._canceling = asyncio.create_task(self._cancel(self._run))
        elif not self._posting and self._task is not None:
            self._task.cancel()

    async def _cancel(self, run: RunStream) -> None:
        try:
            await run.cancel()
        except CrushliteError as error:
            self._progress.say(f"cannot cancel: {error.message}")
            if self._task is not None:
                self._task.cancel()


class _Denials:
    """A context in which requests of the run are denied that are still open after a time.

    An open request is looked for among all of the workspace: the stream shows one at a time, and
    that of this run may wait behind one of another session."""

    def __init__(self, workspace: RemoteWorkspace, after: float | None, progress: Progress) -> None:
        self._workspace = workspace
        self._after = after
        self._progress = progress
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by request, call or batch

    async def __aenter__(self) -> _Denials:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def take(self, payload: object) -> None:
        """To be called with the payload of each event of the run."""
        key = ""
        if isinstance(payload, PermissionRequest | QuestionBatch):
            key = payload.id
        elif isinstance(payload, PermissionNotification):
            key = payload.tool_call_id
        if key and self._after is not None and key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._deny(key, self._after))

    async def _deny(self, key: str, after: float) -> None:
        await asyncio.sleep(after)
        reason = f"nobody answered within {after:g} s"
        try:
            for request in await self._workspace.permissions():
                if key in (request.id, request.tool_call_id):
                    await self._workspace.grant(request.id, "deny", reason)
            for batch in await self._workspace.questions():
                if batch.id == key:
                    await self._workspace.answer(batch.id, None)
        except CrushliteError as error:
            self._progress.say(f"cannot refuse what nobody answered: {error.message}")
