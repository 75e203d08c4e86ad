"""The conversation of a chat on its screen: what is new in messages, and all of it on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.messages import (
    BinaryPart,
    FinishPart,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolResultPart,
)
from ..records import dataclass
from .render import ShownMessages, ending_words, item_lines, prompt_lines, result_line, shell_lines
from .text import clean, count, one_line

if TYPE_CHECKING:
    from ..protocol.messages import Message, ToolOutput
    from ..protocol.sessions import Todo
    from .chat_screen import Screen
    from .render import NewPart

OUTPUT_LINES = 20  # of a command that the user typed; `/show` has the rest


def todo_words(todos: list[Todo]) -> str:
    """How far the agent's list of things to do is, for the status line; empty if all is done."""
    done = sum(each.status == "completed" for each in todos)
    if done == len(todos):
        return ""
    now = next((each for each in todos if each.status == "in_progress"), None)
    doing = f", now {one_line(now.active_form or now.content)}" if now is not None else ""
    return f", {done} of {len(todos)} done{doing}"


@dataclass(slots=True)
class Item:
    """Something that is shown in one line, and in full by `/show`."""

    title: str
    body: list[str]


class ChatView:
    """One session on the screen."""

    def __init__(self, screen: Screen) -> None:
        self.items: list[Item] = []  # as `/show` numbers them, from 1 on
        self._screen = screen
        self._style = screen.style
        self._messages = ShownMessages()
        self._latest = ""  # the message whose text was streamed last

    @property
    def activity(self) -> str:
        """What the agent is doing, for the status line."""
        return self._messages.activity or ("answering" if self._screen.streaming else "thinking")

    def output(self, payload: ToolOutput) -> None:
        """A running tool has put out more."""
        self._messages.output(payload)

    def error_shown(self, message_id: str, error: str) -> bool:
        """Whether the end of a message has shown this error."""
        return self._messages.error_shown(message_id, error)

    def skip(self, message: Message) -> None:
        """Do not show what is there of a message now; what is added to it later is shown."""
        self._messages.take(message)

    def take(self, message: Message) -> None:
        """Show what is new in a message."""
        for new in self._messages.take(message):
            if isinstance(new.part, TextPart):
                self._text(new, new.part)
            elif isinstance(new.part, ShellCommandPart):
                self._shell(new.part)
            elif isinstance(new.part, BinaryPart):
                line = f"(attached: {clean(new.part.path)})"
                self._screen.lines([line], f"you {message.id}", self._style.dim)
            elif isinstance(new.part, ReasoningPart):
                self._thought(new.part)
            elif isinstance(new.part, ToolResultPart):
                self._result(new, new.part)
            elif isinstance(new.part, FinishPart) and message.role == "assistant":
                self._finish(new.part)

    def _text(self, new: NewPart, part: TextPart) -> None:
        message = new.message
        if message.role == "user":
            self._screen.lines(prompt_lines(part.text), f"you {message.id}", self._style.cyan)
        elif message.is_summary_message:
            number = self._keep("summary", clean(part.text).split("\n"))
            line = f"· the conversation so far was summarized  /show {number}"
            self._screen.lines([line], "tool", self._style.dim)
        elif new.is_answer:
            self._stream(new, part)

    def _stream(self, new: NewPart, part: TextPart) -> None:
        ident = new.message.id
        if new.anew or ident != self._latest:
            self._screen.end()
        if new.anew:
            # What was written cannot be taken back.
            self._screen.lines(["(the answer begins anew)"], "answer", self._style.dim)
        self._latest = ident
        self._screen.stream(clean(part.text))

    def _shell(self, part: ShellCommandPart) -> None:
        command, output = f"$ {one_line(part.command)}", shell_lines(part)
        number = self._keep(command, output)
        self._screen.lines([command], f"shell {number}", self._style.cyan)
        self._screen.lines(output[:OUTPUT_LINES], f"shell {number}")
        notes = [f"exit code {part.exit_code}"] if part.exit_code else []
        if len(output) > OUTPUT_LINES:
            notes.append(f"{count(len(output) - OUTPUT_LINES, 'line')} more: /show {number}")
        if notes:
            paint = self._style.red if part.exit_code else self._style.dim
            self._screen.lines([", ".join(notes)], f"shell {number}", paint)

    def _thought(self, part: ReasoningPart) -> None:
        number = self._keep("reasoning", clean(part.thinking).split("\n"))
        words = count(len(part.thinking.split()), "word")
        self._screen.lines([f"· thought, {words}  /show {number}"], "tool", self._style.dim)

    def _result(self, new: NewPart, part: ToolResultPart) -> None:
        """A call is shown when it is over, in one line with its result."""
        number = self._keep(new.call.name if new.call else part.name, item_lines(new))
        paint = self._style.red if part.is_error else self._style.dim
        self._screen.lines([f"{result_line(new)}  /show {number}"], "tool", paint)

    def _finish(self, finish: FinishPart) -> None:
        self._screen.end()
        if words := ending_words(finish):
            paint = self._style.yellow if finish.reason == "canceled" else self._style.red
            self._screen.lines(f"✗ {words}".split("\n"), "ending", paint)

    def _keep(self, title: str, body: list[str]) -> int:
        self.items.append(Item(title, body))
        return len(self.items)
