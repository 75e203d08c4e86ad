"""Show one run in a terminal or a pipe, from its beginning to its end: for `run` and `attach`.

Only the end of the run ends it: not the finish of a message, not the end of another run, not a
stream that breaks off. Standard output gets what the run says and nothing else; what is being
waited for goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from ..client import Lost, Recovered
from ..errors import CrushliteError
from ..launch import ready_seconds
from ..protocol.messages import Message
from ..protocol.permissions import PermissionNotification, PermissionRequest
from ..protocol.questions import QuestionBatch, QuestionNotification
from .output import AnswerOutput, JSONOutput, TextOutput, call_words, is_answer, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..client import RunStream
    from ..protocol.events import Envelope
    from ..protocol.runs import RunComplete
    from .progress import Progress

CANCELED = 130
BROKEN_PIPE = 141  # what a shell reports for a program that died of SIGPIPE
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
THINKING = "thinking"


class Narrator:
    """Tells about a run: what it does, and whom it waits for. Pure, but for its `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._working: dict[str, str] = {}  # tool calls without a result, in words
        self._asked: dict[str, str] = {}  # what somebody must answer, by tool call or batch

    def take(self, payload: object) -> None:
        if isinstance(payload, Message):
            self._message(payload)
        elif isinstance(payload, PermissionRequest):
            asked = words(payload.tool_name, payload.params)
            self._ask(payload.tool_call_id, "permission", asked, "crushlite grant answers")
        elif isinstance(payload, QuestionBatch):
            asked = " / ".join(question.question for question in payload.questions)
            self._ask(payload.id, "an answer", asked, "answer in another client")
        elif isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            if asked := self._asked.pop(payload.tool_call_id, ""):
                answer = "granted" if payload.granted else "denied"
                self._progress.say(f"permission {answer}: {asked}")
        elif isinstance(payload, QuestionNotification):
            self._progress.say(f"no longer asked: {self._asked.pop(payload.batch_id, '')}")
        self._progress.doing(self._present())

    def _message(self, message: Message) -> None:
        for result in message.tool_results:
            self._working.pop(result.tool_call_id, None)
        if is_answer(message) and message.finish is None:
            self._working |= {call.id: call_words(call) for call in message.tool_calls}
        elif message.finish is not None and message.finish.reason != "tool_use":
            self._working.clear()

    def _present(self) -> str:
        for asked in self._asked.values():
            return f"waiting for an answer: {asked}"
        return next(reversed(self._working.values()), THINKING)

    def _ask(self, key: str, what: str, asked: str, how: str) -> None:
        if key not in self._asked:  # an open request is shown again after a return
            self._asked[key] = asked
            self._progress.say(f"waiting for {what}: {asked} ({how})")


class Viewer:
    """Prints a run. A reader of standard output that goes away stops it through `stop`."""

    def __init__(self, run: RunStream, progress: Progress, *, as_json: bool) -> None:
        self.run = run
        self.broken: OSError | None = None  # why standard output takes no more
        self.listeners: Sequence[Callable[[object], None]] = ()
        self.stop: Callable[[], object] = _nothing
        self._progress = progress
        self._narrator = Narrator(progress)
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        self._output: AnswerOutput = (
            JSONOutput() if as_json else TextOutput(run.session_id, terminal=self._terminal)
        )

    async def until_end(self) -> RunComplete:
        """Raises if the daemon is lost and does not come back."""
        if self.run.accepted is not None:
            self._output.accepted(self.run.accepted)
        reason = "the stream was closed"
        try:
            async with asyncio.timeout(None) as patience:
                async for event in self.run:
                    if isinstance(event.payload, Lost):
                        reason = event.payload.reason
                        self._lost(event.payload, patience)
                    elif isinstance(event.payload, Recovered):
                        patience.reschedule(None)
                        self._progress.say("the daemon is back")
                    await self._show(event)
        except TimeoutError:
            pass
        finally:
            self._output.end()
            await self._flush()
            self._progress.stop()
        if self.run.ending is None:
            raise CrushliteError(
                f"the daemon is gone and has taken the run along: {reason}. "
                f"Go on with: crushlite run --session {self.run.session_id} PROMPT"
            )
        return self.run.ending

    def _lost(self, lost: Lost, patience: asyncio.Timeout) -> None:
        if not lost.attempts:
            self._progress.say("the daemon was lost; trying to reach it again")
            self._progress.doing("reaching for the daemon")
            patience.reschedule(asyncio.get_running_loop().time() + ready_seconds())

    async def _show(self, event: Envelope) -> None:
        self._output.event(event)
        self._narrator.take(event.payload)
        for listener in self.listeners:
            listener(event.payload)
        await self._flush()

    async def _flush(self) -> None:
        text = self._output.take()
        if not text or self.broken is not None or sys.stdout is None:
            return
        self._progress.hide()
        try:
            # In a thread: a reader that stops must not keep us from hearing Ctrl-C.
            await asyncio.to_thread(_write, text)
        except OSError as error:
            self.broken = error
            # Else the interpreter would try again when it exits, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.stop()
        if not (self._terminal and self._output.midline):
            self._progress.show()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _nothing() -> None:
    """There is nothing to stop."""


def exit_code(viewer: Viewer, ending: RunComplete, progress: Progress) -> int:
    """What the end of a run is to a shell; a failure is raised, with its own words."""
    if isinstance(viewer.broken, BrokenPipeError):
        return BROKEN_PIPE
    if viewer.broken is not None:
        raise CrushliteError(f"cannot write the answer: {viewer.broken.strerror}")
    if ending.cancelled:
        progress.say("canceled")
        return CANCELED
    if ending.error:
        raise CrushliteError(ending.error)
    return 0


# Signals ------------------------------------------------------------------------------------------


class Interrupt:
    """The first signal is an order to stop, the second to leave."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.act: Callable[[], object] = task.cancel
        self.received = False

    def __call__(self) -> None:
        if self.received:
            os._exit(CANCELED)  # whatever we wait for, a stopped reader of our output included
        self.received = True
        self.act()


@contextlib.contextmanager
def signals() -> Iterator[Interrupt]:
    loop, interrupt = asyncio.get_running_loop(), Interrupt()
    # Whoever started us in the background, or with nohup, wants some of them ignored.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, interrupt)
    try:
        yield interrupt
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
