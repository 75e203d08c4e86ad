"""What of a conversation is shown, and that each of it is shown once.

Messages come as they are now, again and again: from events while they grow, and from the daemon's
records after a gap. `take` compares with what was shown and writes the difference, so a message
may come as often as it likes, from wherever. Pure but for the screen it writes to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..protocol.messages import BinaryPart, ReasoningPart, ShellCommandPart
from .common import one_line
from .render import arguments, call_line, clean, count, cut, ending_words, result_words

if TYPE_CHECKING:
    from ..protocol.messages import Message, ToolCallPart, ToolOutput, ToolResultPart
    from .chat_screen import Screen

CALL_COLUMNS = 40  # of a call that runs, beside the last line that it put out
OUTPUT_LINES = 20  # of a command that somebody typed; `/show` has the rest


@dataclass(slots=True)
class _Shown:
    """What was shown of one message."""

    text: str = ""
    whole: bool = False  # nothing more is to come
    thought: bool = False


@dataclass(slots=True)
class _Item:
    """Something that can be looked at in full."""

    title: str
    body: list[str] = field(default_factory=list)


class ChatTranscript:
    """One session on the screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._style = screen.style
        self._shown: dict[str, _Shown] = {}
        self._latest = ""  # the message whose text was streamed last
        self._calls: dict[str, ToolCallPart] = {}  # without a result yet
        self._outputs: dict[str, str] = {}  # of those that run: the last line
        self._done: set[str] = set()  # calls whose result was shown
        self._items: list[_Item] = []

    # What is going on ---------------------------------------------------------------------------

    @property
    def activity(self) -> str:
        for ident, call in reversed(self._calls.items()):
            words = call_line(call.name, arguments(call))
            if ident in self._outputs:
                words = f"{cut(words, CALL_COLUMNS)} → {self._outputs[ident]}"
            return words
        return "answering" if self._screen.streaming else "thinking"

    def output(self, payload: ToolOutput) -> None:
        lines = clean(payload.output).split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        if payload.tool_call_id in self._calls and last:
            self._outputs[payload.tool_call_id] = one_line(last)

    def item(self, number: int) -> tuple[str, list[str]] | None:
        if not 1 <= number <= len(self._items):
            return None
        return self._items[number - 1].title, self._items[number - 1].body

    @property
    def newest(self) -> int:
        return len(self._items)

    # Messages -----------------------------------------------------------------------------------

    def skip(self, message: Message) -> None:
        """It was there before, and is not shown."""
        self._shown[message.id] = _Shown(message.text, message.finish is not None, thought=True)
        self._done.update(result.tool_call_id for result in message.tool_results)
        if message.finish is None:
            self._keep_calls(message)

    def take(self, message: Message) -> None:
        shown = self._shown.setdefault(message.id, _Shown())
        if message.role == "user":
            if not shown.whole:
                shown.whole = True
                self._user(message)
        elif message.role == "tool":
            for result in message.tool_results:
                self._result(result)
        else:
            self._answer(message, shown)

    def _user(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, ShellCommandPart):
                self._shell(part)
            elif isinstance(part, BinaryPart):
                self._screen.lines([f"(attached: {clean(part.path)})"], "you", self._style.dim)
        if message.text:
            first, *rest = clean(message.text).strip("\n").split("\n")
            lines = [f"> {first}", *(f"  {line}" for line in rest)]
            self._screen.lines(lines, f"you {message.id}", self._style.cyan)

    def _shell(self, part: ShellCommandPart) -> None:
        output = clean(part.output).rstrip("\n").split("\n") if part.output else []
        number = self._keep(f"$ {one_line(part.command)}", output)
        self._screen.lines([f"$ {one_line(part.command)}"], f"shell {number}", self._style.cyan)
        self._screen.lines(output[:OUTPUT_LINES], f"shell {number}")
        told = [f"exit code {part.exit_code}"] if part.exit_code else []
        if len(output) > OUTPUT_LINES:
            told.append(f"{count(len(output) - OUTPUT_LINES, 'line')} more: /show {number}")
        if told:
            self._screen.lines([", ".join(told)], f"shell {number}", self._style.dim)

    def _answer(self, message: Message, shown: _Shown) -> None:
        if shown.whole:
            return  # an older state, or the same once more
        self._think(message, shown)
        if message.is_summary_message:
            if message.finish is not None:
                shown.whole = True
                self._summary(message)
            return
        self._grow(message, shown)
        self._keep_calls(message)
        if message.finish is not None:
            shown.whole = True
            self._screen.end()
            if told := ending_words(message.finish):
                paint = self._style.yellow if told == "canceled" else self._style.red
                self._screen.lines(f"✗ {told}".split("\n"), "ending", paint)

    def _think(self, message: Message, shown: _Shown) -> None:
        """Reasoning is told of when it is over."""
        for part in message.parts:
            if isinstance(part, ReasoningPart) and not shown.thought and part.thinking.strip():
                if not (part.finished_at or message.text or message.tool_calls or message.finish):
                    return
                shown.thought = True
                number = self._keep("reasoning", clean(part.thinking).split("\n"))
                words = count(len(part.thinking.split()), "word")
                self._screen.lines([f"· thought, {words}  /show {number}"], "tool", self._style.dim)

    def _grow(self, message: Message, shown: _Shown) -> None:
        text = message.text
        if shown.text.startswith(text):
            return  # nothing new, or an older state
        anew = not text.startswith(shown.text)
        piece = text if anew else text[len(shown.text) :]
        if not shown.text:
            piece = piece.lstrip("\n")
        shown.text = text
        if anew or message.id != self._latest:
            self._screen.end()
        if anew:
            # What was written cannot be taken back.
            self._screen.lines(["(the answer begins anew)"], "answer", self._style.dim)
        self._latest = message.id
        self._screen.stream(clean(piece))

    def _summary(self, message: Message) -> None:
        number = self._keep("summary", clean(message.text).split("\n"))
        told = f"· the conversation so far was summarized  /show {number}"
        self._screen.lines([told], "tool", self._style.dim)

    # Tools --------------------------------------------------------------------------------------

    def _keep_calls(self, message: Message) -> None:
        for call in message.tool_calls:
            if call.id not in self._done:
                self._calls[call.id] = call

    def _result(self, result: ToolResultPart) -> None:
        """A call is shown when it is over, in one line with what came of it."""
        if result.tool_call_id in self._done:
            return
        self._done.add(result.tool_call_id)
        call = self._calls.pop(result.tool_call_id, None)
        self._outputs.pop(result.tool_call_id, None)
        params = arguments(call) if call is not None else {}
        name = call.name if call is not None else result.name
        body = [f"{key}: {_plain(value)}" for key, value in params.items()]
        body = [line for text in body for line in clean(text).split("\n")]
        body += ["", *clean(result.content).rstrip("\n").split("\n")]
        number = self._keep(f"{name}", body)
        mark, paint = ("✗", self._style.red) if result.is_error else ("✓", self._style.dim)
        words = f"{mark} {cut(call_line(name, params), 100)} → {result_words(result)}"
        self._screen.lines([f"{words}  /show {number}"], "tool", paint)

    def _keep(self, title: str, body: list[str]) -> int:
        self._items.append(_Item(title, body))
        return len(self._items)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
