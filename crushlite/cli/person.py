"""The user at the terminal: whether there is one, a yes before something is done, and answers to
the permission requests of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from ..errors import CrushliteError, UsageError
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from .answers import ANSWERS
from .common import is_there, say
from .render import chosen_option, grant_words, option_lines, request_lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine
    from typing import Any

    from ..client import RemoteWorkspace
    from ..protocol.permissions import Resolution
    from .chat_dialogs import QuestionDialog
    from .progress import Progress

KEYS = {"allow_session": "a", "allow_rule": "r", "allow_always": "k"}
MEANINGS = {
    "allow_session": "for this session",
    "allow_rule": "that rule",
    "allow_always": "for good",
}
LATE_SECONDS = 2.0  # after an answer elsewhere, what is typed may still be meant for that request


async def agreed(workspace: RemoteWorkspace | None, question: str) -> bool:
    """Ask the user a question; returns whether the answer is yes. Raises UsageError if there is no
    terminal. The event stream keeps the workspace, if there is one, open meanwhile: a client
    without a stream counts as gone after a while."""
    if not is_there():
        raise UsageError(f"{question} nobody is there to ask: say --yes")
    async with workspace.events() if workspace is not None else contextlib.nullcontext():
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


def _hint(request: PermissionRequest) -> str:
    """How to answer a request."""
    words = [f"{KEYS[action]} ({MEANINGS[action]})" for action in grant_words(request)]
    first, last = ["y (yes)", "n (no)", *words[:-1]], words[-1]
    return f"answer here with {', '.join(first)} or {last}, and Enter"


class TerminalAnswers:
    """A context in which the user answers the permission requests and the questions of a run by
    typing.

    A request is shown whole before it can be answered. Whole lines are read, as the terminal gives
    them: a key that was meant for something else allows nothing. A line that was typed before
    anything was asked, or too late for a request that was answered elsewhere, is not taken as an
    answer to the next one. Without a user, or unless `wanted`, nothing is read."""

    def __init__(self, workspace: RemoteWorkspace, progress: Progress, *, wanted: bool) -> None:
        self._workspace = workspace
        self._progress = progress
        self._listening = wanted and is_there()
        self._open: dict[str, PermissionRequest] = {}  # by tool call; the first one is asked
        self._dialogs: dict[str, QuestionDialog] = {}  # questions, by batch; asked one by one
        self._asked = ""  # the id of the request that was shown last
        self._late_until = 0.0  # until then, a line may be meant for a request that is closed
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
            self._ask()
        elif isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            if self._open.pop(payload.tool_call_id, None) is not None:
                self._late_until = time.monotonic() + LATE_SECONDS
            self._ask()
        elif isinstance(payload, QuestionBatch) and payload.id not in self._dialogs:
            from .chat_dialogs import QuestionDialog  # only now: most runs ask nothing

            self._dialogs[payload.id] = QuestionDialog(payload)
            self._ask()
        elif isinstance(payload, QuestionNotification):
            if self._dialogs.pop(payload.batch_id, None) is not None:
                self._progress.say("no longer asked: it was answered elsewhere, or the run is over")
            self._ask()

    @property
    def _first(self) -> PermissionRequest | None:
        return next(iter(self._open.values()), None)

    def _ask(self) -> None:
        """Show the first request, unless it is shown."""
        request = self._first
        if request is None:
            return self._ask_question()
        if request.id == self._asked:
            return
        self._asked = request.id
        self._progress.pause()
        more = [f"  {KEYS[action]}: {words}" for action, words in grant_words(request).items()]
        more += [f"  {line}" for line in option_lines(request)]
        if self._progress.show_whole([*(f"  {line}" for line in request_lines(request)), *more]):
            self._progress.say(_hint(request))
        else:
            self._stop_listening()  # what cannot be shown must not be answered here

    def _ask_question(self) -> None:
        """Show the first question, unless it is shown; with none, let the status be drawn again."""
        dialog = next(iter(self._dialogs.values()), None)
        if dialog is None:
            self._progress.resume()
        elif dialog.id != self._asked:
            self._asked = dialog.id
            self._progress.pause()
            self._progress.show_whole(dialog.lines())

    def _answer_question(self, dialog: QuestionDialog, line: str) -> None:
        if line == "/skip":
            dialog.dismiss()
        elif shown := dialog.answer(line):
            self._progress.show_whole(shown)
        if dialog.done:
            del self._dialogs[dialog.id]
            self._spawn(self._workspace.answer(dialog.id, dialog.responses))

    def _typed(self) -> None:
        if os.tcgetpgrp(0) != os.getpgrp():
            return  # we are in the background: what is typed is for the shell
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            self._stop_listening()
        first = self._first
        for line in data.decode("utf-8", "replace").splitlines():
            if self._first is not first:
                return  # the next request is shown now: these lines were typed before
            self._line(line.strip())

    def _line(self, line: str) -> None:
        action = ANSWERS.get(line.lower())
        request = self._first
        if request is None and self._dialogs:
            self._answer_question(next(iter(self._dialogs.values())), line)
        elif request is None:
            if line:
                self._progress.say("not sent: `crushlite chat` is for conversations")
        elif request.id != self._asked:
            return  # it is not shown yet
        elif time.monotonic() < self._late_until:
            self._late_until = 0.0
            hint = _hint(request)
            self._progress.say(f"the request before was answered elsewhere: for this one, {hint}")
        elif chosen := chosen_option(request, line):
            self._grant(request, *chosen)
        elif action is None:
            self._progress.say(_hint(request))
        elif action not in ("allow", "deny", *grant_words(request)):
            self._progress.say(f"no such rule is offered for this: {_hint(request)}")
        else:
            self._grant(request, action)

    def _grant(self, request: PermissionRequest, action: str, option: str = "") -> None:
        del self._open[request.tool_call_id]
        self._spawn(self._workspace.grant(request.id, action, option=option))

    def _spawn(self, answer: Coroutine[Any, Any, Resolution]) -> None:
        task = asyncio.create_task(self._send(answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, answer: Coroutine[Any, Any, Resolution]) -> None:
        try:
            if not (await answer).resolved:
                self._progress.say("somebody else was faster")
        except CrushliteError as error:
            self._progress.say(f"the answer did not arrive: {error.message}")
        finally:
            self._ask()

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            asyncio.get_running_loop().remove_reader(0)
