"""The user at the terminal: whether there is one, a yes before something is done, and answers to
the permission requests of a run."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from ..errors import CrushliteError, UsageError
from ..protocol.permissions import PermissionNotification, PermissionRequest
from .common import say

if TYPE_CHECKING:
    import argparse

    from ..client import RemoteWorkspace
    from .progress import Progress

# What is typed, and the action that it means on the wire.
ANSWERS = {
    **dict.fromkeys(("y", "yes"), "allow"),
    **dict.fromkeys(("n", "no"), "deny"),
    **dict.fromkeys(("a", "always"), "allow_session"),
}
HINT = "answer here with y (yes), n (no) or a (always, in this session), and Enter"


def is_there() -> bool:
    """Whether a user can read a question and answer it: standard input and error are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


async def agreed(workspace: RemoteWorkspace, question: str) -> bool:
    """Ask the user a question; returns whether the answer is yes. Raises UsageError if there is no
    terminal. The event stream keeps the workspace open meanwhile: a client without one counts as
    gone after a while."""
    if not is_there():
        raise UsageError(f"{question} nobody is there to ask: say --yes")
    async with workspace.events():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        try:
            answer = await _line()
        except asyncio.CancelledError:
            print(file=sys.stderr)  # Ctrl-C left the cursor behind the question
            raise
    return answer.strip().lower() in ("y", "yes")


async def _line() -> str:
    """A line of standard input. Not read before it is complete, so that the loop stays free to
    handle Ctrl-C."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    return sys.stdin.readline()


async def warn_of_yolo(workspace: RemoteWorkspace, options: argparse.Namespace) -> None:
    """Say so if --yolo took effect; with --quiet too, because it must not happen unseen."""
    if options.yolo and await workspace.skips_permissions():
        say("--yolo: every permission is granted, nobody is asked")


class TerminalAnswers:
    """A context in which the user answers the permission requests of a run by typing.

    Whole lines are read, as the terminal gives them: a key that was meant for something else allows
    nothing. A line that was typed before anything was asked, or too late for a request that was
    answered elsewhere, is not taken as an answer to the next one. Without a user, or unless
    `wanted`, nothing is read."""

    def __init__(self, workspace: RemoteWorkspace, progress: Progress, *, wanted: bool) -> None:
        self._workspace = workspace
        self._progress = progress
        self._listening = wanted and is_there()
        self._open: dict[str, PermissionRequest] = {}  # by tool call; the first one is asked
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> TerminalAnswers:
        if self._listening:
            asyncio.get_running_loop().add_reader(0, self._typed)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, payload: object) -> None:
        """To be called with the payload of each event of the run."""
        if not self._listening:
            return
        if isinstance(payload, PermissionRequest) and payload.tool_call_id not in self._open:
            self._open[payload.tool_call_id] = payload
            self._progress.pause()
            self._progress.say(HINT)
        elif isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            self._open.pop(payload.tool_call_id, None)
            self._resume()

    def _typed(self) -> None:
        if os.tcgetpgrp(0) != os.getpgrp():
            return  # we are in the background: what is typed is for the shell
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            self._stop_listening()
        for line in data.decode("utf-8", "replace").splitlines():
            self._line(line.strip())

    def _line(self, line: str) -> None:
        action = ANSWERS.get(line.lower())
        if not self._open:
            if line:
                self._progress.say("not sent: `crushlite chat` is for conversations")
        elif action is None:
            self._progress.say(HINT)
        else:
            call_id, request = next(iter(self._open.items()))
            del self._open[call_id]
            task = asyncio.create_task(self._answer(request, action))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: PermissionRequest, action: str) -> None:
        try:
            if not (await self._workspace.grant(request.id, action)).resolved:
                self._progress.say("somebody else was faster")
        except CrushliteError as error:
            self._progress.say(f"the answer did not arrive: {error.message}")
        finally:
            self._resume()

    def _resume(self) -> None:
        if not self._open:
            self._progress.resume()

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            asyncio.get_running_loop().remove_reader(0)
