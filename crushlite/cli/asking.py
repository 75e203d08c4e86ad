"""The person at the terminal answers what their own run asks.

Whole lines, as the terminal gives them: a key that was meant for something else allows nothing. A
request that somebody answers elsewhere is closed with a note, and a line that comes too late for
it, or was typed before anything was asked, is not taken for an answer to the next one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from ..errors import CrushliteError
from ..protocol.permissions import PermissionNotification, PermissionRequest

if TYPE_CHECKING:
    from ..client import RunStream
    from .progress import Progress

ANSWERS = {
    **dict.fromkeys(("y", "yes"), "allow"),
    **dict.fromkeys(("a", "always"), "allow_session"),
    **dict.fromkeys(("n", "no"), "deny"),
}
HINT = "answer here with y (yes), n (no) or a (always, in this session), and Enter"


class Asking:
    """A context in which the terminal is listened to, if there is a person at it."""

    def __init__(self, run: RunStream, progress: Progress, *, wanted: bool) -> None:
        self._workspace = run.workspace
        self._progress = progress
        self._wanted = wanted and _is_terminal()
        self._open: dict[str, PermissionRequest] = {}  # by tool call; the first one is asked
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Asking:
        if self._wanted:
            asyncio.get_running_loop().add_reader(0, self._typed)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, payload: object) -> None:
        if not self._wanted:
            return
        if isinstance(payload, PermissionRequest) and payload.tool_call_id not in self._open:
            self._open[payload.tool_call_id] = payload
            self._progress.pause()  # nothing is drawn over what is being typed
            self._progress.say(HINT)
        elif isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            self._open.pop(payload.tool_call_id, None)
            if not self._open:
                self._progress.resume()

    def _typed(self) -> None:
        if os.tcgetpgrp(0) != os.getpgrp():
            return  # we were put into the background: what is typed is the shell's
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
            if not self._open:
                self._progress.resume()

    def _stop_listening(self) -> None:
        if self._wanted:
            self._wanted = False
            asyncio.get_running_loop().remove_reader(0)


def _is_terminal() -> bool:
    return os.isatty(0) and sys.stderr is not None and sys.stderr.isatty()
