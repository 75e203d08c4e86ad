"""Print one run from its beginning to its end: for `run`, `attach`, and `chat` without a terminal.

Only the end of the run ends this: not the finish of a message, not the end of another run, not a
stream that breaks off. Standard output gets what the run says and nothing else; what is being
waited for goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any

from ..client import Lost, Recovered
from ..errors import CrushliteError
from ..launch import ready_seconds
from ..protocol.codec import dumps, encode
from ..protocol.events import KINDS, Envelope, to_json
from ..protocol.messages import Message, TextPart, ToolCallPart, ToolOutput, ToolResultPart
from ..protocol.permissions import PermissionRequest
from ..protocol.runs import AgentEvent, RunComplete
from . import BROKEN_PIPE, CANCELED
from .common import say
from .render import Requests, ShownMessages, request_words, result_line
from .result import changed_files, denied_words, result_of
from .text import Style, clean, cut, cut_front, discard_stdout, one_line, window_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..client import RunStream
    from ..protocol.runs import Accepted
    from .progress import Progress
    from .result import RunResult

LIMIT_OPTIONS = {"cost": "--max-cost", "steps": "--max-steps", "time": "--timeout"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REQUEST_COLUMNS = 140  # of what is asked for: the words around it must fit into the note as well
BESIDE_GROWING = 20  # columns of the status line that the end of an answer leaves to the rest of it


# Standard output ----------------------------------------------------------------------------------


class AnswerOutput:
    """Turns the events of a run into text for standard output; `take` returns it."""

    midline = False  # whether the last line is not complete

    def __init__(self) -> None:
        self._pending: list[str] = []

    def take(self) -> str:
        """What was added since the last call."""
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def growing(self) -> str:
        """The last line of a text that is written later, when it is complete."""
        return ""

    def accepted(self, accepted: Accepted) -> None:
        """Called when the daemon has accepted the prompt."""

    def event(self, event: Envelope) -> None:
        """Called with each event of the run."""

    def end(self) -> None:
        """Called when no more events come."""

    def result(self, result: RunResult) -> None:
        """Called last, if the run has ended."""


class TextOutput(AnswerOutput):
    """The text of the answers as it grows: each message begins a line, the first one without the
    white space in front of it."""

    def __init__(self, session_id: str, *, terminal: bool = False) -> None:
        super().__init__()
        self._session_id = session_id
        self._terminal = terminal
        self._messages = ShownMessages()
        self._latest = ""  # the message printed last
        self._began = False

    def event(self, event: Envelope) -> None:
        payload = event.payload
        if isinstance(payload, Message) and payload.session_id == self._session_id:
            self._message(payload)
        elif isinstance(payload, RunComplete):
            # The end of the text, if its event has not come.
            parts = [TextPart(payload.text)]
            self._message(Message(payload.message_id, "assistant", self._session_id, [*parts]))
            self.end()

    def _message(self, message: Message) -> None:
        for new in self._messages.take(message):
            if new.is_answer and isinstance(new.part, TextPart):
                # What was printed cannot be taken back: a text that was rewritten is printed again.
                self._print(message.id, new.part.text, anew=new.anew)
            elif isinstance(new.part, ToolCallPart):
                self.end()  # the next text is another message's: leave the line to progress

    def _print(self, message_id: str, piece: str, *, anew: bool) -> None:
        if not self._began:
            piece = piece.lstrip()
        if self._terminal:
            piece = clean(piece)
        if not piece:
            return
        if anew or message_id != self._latest:
            self.end()
        self._pending.append(piece)
        self._latest, self._began, self.midline = message_id, True, not piece.endswith("\n")

    def end(self) -> None:
        if self.midline:
            self._pending.append("\n")
            self.midline = False


class MarkdownOutput(TextOutput):
    """Writes the answer to a terminal, its Markdown drawn: each block when it is complete, items of
    a list one by one, code line by line."""

    def __init__(self, session_id: str, style: Style) -> None:
        from .markdown_lines import MarkdownLines  # only now: it takes 4 ms to load

        super().__init__(session_id, terminal=True)
        self._lines = MarkdownLines(style)

    def growing(self) -> str:
        return next((line for line in reversed(self._lines.pending) if line.strip()), "")

    def _print(self, message_id: str, piece: str, *, anew: bool) -> None:
        piece = clean(piece) if self._began else clean(piece).lstrip()
        if not piece:
            return
        if anew or message_id != self._latest:
            self.end()
        self._latest, self._began = message_id, True
        self._write(self._lines.feed(piece, self._room))

    def end(self) -> None:
        self._write(self._lines.end(self._room))

    @property
    def _room(self) -> int:
        return window_columns(sys.stdout) - 1

    def _write(self, rows: list[str]) -> None:
        self._pending += [f"{row}\n" for row in rows]


class JSONOutput(AnswerOutput):
    """One JSON object per line: the acceptance, then the events of the run, `run_complete` last;
    behind it, with `concludes`, the result."""

    def __init__(self, *, concludes: bool) -> None:
        super().__init__()
        self._concludes = concludes

    def accepted(self, accepted: Accepted) -> None:
        self._add({"type": "accepted", "payload": encode(accepted)})

    def event(self, event: Envelope) -> None:
        if type(event.payload) in KINDS.values():
            self._add(to_json(event.action, event.payload))

    def result(self, result: RunResult) -> None:
        if self._concludes:
            self._add({"type": "result", "payload": encode(result)})

    def _add(self, value: Any) -> None:
        self._pending.append(_line(value))


class ResultOutput(AnswerOutput):
    """One JSON object: the result."""

    def result(self, result: RunResult) -> None:
        self._pending.append(_line(encode(result)))


class FinalOutput(AnswerOutput):
    """The text of the last message, when the run has ended."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def result(self, result: RunResult) -> None:
        text = result.text.strip("\n")
        if self._terminal:
            from .markdown_lines import markdown_rows  # only now: it takes 4 ms to load

            text = "\n".join(markdown_rows(clean(text), Style(sys.stdout)))
        if text.strip():
            self._pending.append(text + "\n")


def _line(value: Any) -> str:
    return dumps(value).decode("ascii") + "\n"


def output_of(form: str, session_id: str) -> AnswerOutput:
    """What writes a form of `--output`, or `events`: those of stream-json without the result."""
    style = Style(sys.stdout)
    if form in ("events", "stream-json"):
        return JSONOutput(concludes=form == "stream-json")
    if form == "json":
        return ResultOutput()
    if form == "final":
        return FinalOutput(terminal=style.terminal)
    if style.moves:
        return MarkdownOutput(session_id, style)
    return TextOutput(session_id, terminal=style.terminal)


# Standard error -----------------------------------------------------------------------------------


class RunNotes:
    """Keeps a Progress up to date: what the run does, and whose answer it waits for. With `asks`,
    questions are asked by others, in the same terminal."""

    def __init__(self, progress: Progress, *, asks: bool = False) -> None:
        self._progress = progress
        self._asks = asks
        self._messages = ShownMessages()
        self._requests = Requests()

    def take(self, payload: object, growing: str = "") -> None:
        """To be called with the payload of each event. `growing` is the end of an answer that is
        not written yet."""
        if isinstance(payload, Message):
            for new in self._messages.take(payload):
                if isinstance(new.part, ToolResultPart):
                    self._progress.tool(result_line(new), failed=new.part.is_error)
        elif isinstance(payload, ToolOutput):
            self._messages.output(payload)
        elif isinstance(payload, AgentEvent):
            if payload.type == "retry":
                self._progress.say(one_line(payload.progress))
        else:
            self._request(payload)
        self._progress.doing(self._activity(growing))

    def _request(self, payload: object) -> None:
        request, verdict = self._requests.take(payload) or (None, "")
        if request is None:
            return
        words = cut(request_words(request), REQUEST_COLUMNS)
        if not isinstance(request, PermissionRequest):
            if self._asks:
                return
            asked = f"waiting for an answer: {words} (answer in another client)"
            self._progress.say(asked if verdict == "asked" else f"no longer asked: {words}")
        elif verdict == "asked":
            self._progress.say(f"waiting for permission: {words} (crushlite grant answers)")
        else:
            given = "granted" if verdict == "allowed" else "denied"
            self._progress.say(f"permission {given}: {words}")

    def _activity(self, growing: str) -> str:
        if (request := self._requests.first) is not None:
            return f"waiting for an answer: {cut(request_words(request), REQUEST_COLUMNS)}"
        if self._messages.activity or not growing:
            return self._messages.activity or "thinking"
        room = window_columns(sys.stderr) - BESIDE_GROWING if sys.stderr is not None else 0
        return cut_front(one_line(growing[-max(0, room) :]), room) or "answering"


class RunEnded(CrushliteError):
    """The run that was followed has failed or reached a limit; its result is written."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.exit_code = result.exit_code


# The run ------------------------------------------------------------------------------------------


class RunPrinter:
    """Prints a run to its end.

    `listeners` are called with the payload of each event. `stop` is called when standard output
    cannot be written to any more; `broken` is the reason then. `asks`: a listener asks the user at
    the terminal what the run wants to know."""

    def __init__(
        self, run: RunStream, progress: Progress, form: str = "text", *, asks: bool = False
    ) -> None:
        self.run = run
        self.broken: OSError | None = None
        self.listeners: Sequence[Callable[[object], None]] = ()
        self.stop: Callable[[], object] = do_nothing
        self._progress = progress
        self._notes = RunNotes(progress, asks=asks)
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        self._form = form
        self._output = output_of(form, run.session_id)

    def skip(self, message_id: str, text: str) -> None:
        """Do not print this text of a message: it was printed before."""
        message = Message(message_id, "assistant", self.run.session_id, [TextPart(text)])
        self._output.event(Envelope("message", "updated", message))
        self._output.take()

    async def until_end(self) -> RunComplete:
        """Print until the run has ended; returns how. Raises CrushliteError if the daemon is lost
        and cannot be reached again in time."""
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
            pass  # the daemon did not come back
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

    async def conclude(self, ending: RunComplete) -> int:
        """Write the result, in the forms that have one, and say on standard error why the run is
        no success. Returns the exit code. Raises CrushliteError for a run that failed or reached a
        limit, and for an answer that could not be written."""
        result = result_of(ending)
        if self._form in ("json", "stream-json"):
            result.files_changed = await changed_files(self.run.workspace, ending.run_id)
        self._output.result(result)
        await self._flush()
        self._progress.stop()
        if isinstance(self.broken, BrokenPipeError):
            return BROKEN_PIPE
        if self.broken is not None:
            raise CrushliteError(f"cannot write the answer: {self.broken.strerror}")
        if ending.cancelled:
            self._progress.say("canceled")
        elif ending.error or ending.limit:
            words = ending.error or f"stopped at the limit of {ending.limit}"
            option = LIMIT_OPTIONS.get(ending.limit)
            raise RunEnded(f"{words} ({option})" if option else words, result)
        elif ending.denied:
            say(denied_words(ending.denied))  # with --quiet too: the exit code says so
        return result.exit_code

    def _lost(self, lost: Lost, patience: asyncio.Timeout) -> None:
        if not lost.attempts:
            self._progress.say("the daemon was lost; trying to reach it again")
            self._progress.doing("reaching for the daemon")
            patience.reschedule(asyncio.get_running_loop().time() + ready_seconds())

    async def _show(self, event: Envelope) -> None:
        self._output.event(event)
        self._notes.take(event.payload, self._output.growing())
        for listener in self.listeners:
            listener(event.payload)
        await self._flush()

    async def _flush(self) -> None:
        text = self._output.take()
        if not text or self.broken is not None or sys.stdout is None:
            return
        self._progress.hide()
        try:
            if _is_taken_at_once(text):
                _write(text)
            else:
                # In a thread: a reader that stops reading must not keep us from handling Ctrl-C.
                await asyncio.to_thread(_write, text)
        except OSError as error:
            self.broken = error
            discard_stdout()
            self.stop()
        if not (self._terminal and self._output.midline):
            self._progress.show()


def _is_taken_at_once(text: str) -> bool:
    """Whether standard output is a file, or a pipe with room for the text: then no thread has to be
    started to write it."""
    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISFIFO(mode) and len(text.encode("utf-8", "replace")) <= select.PIPE_BUF:
        return bool(select.select((), (descriptor,), (), 0)[1])
    return stat.S_ISREG(mode)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def do_nothing() -> None:
    """For an `act` or `stop` when there is nothing to stop."""


# Signals ------------------------------------------------------------------------------------------


class Interrupt:
    """What a signal does: the first one calls `act`, which cancels the task that made this unless
    it was replaced; the second one ends the process."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.act: Callable[[], object] = task.cancel
        self.received = False

    def __call__(self) -> None:
        if self.received:
            os._exit(CANCELED)  # whatever is waited for, also a reader that stopped reading
        self.received = True
        self.act()


@contextlib.contextmanager
def signals() -> Iterator[Interrupt]:
    """Handle the signals that end a command, except those that the process was started with as
    ignored, as in the background of a script or under nohup."""
    loop, interrupt = asyncio.get_running_loop(), Interrupt()
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, interrupt)
    try:
        yield interrupt
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
