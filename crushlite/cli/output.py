"""What of a run goes to standard output: its text, or one JSON object per event.

Knows nothing of connections, files or time: events go in, text comes out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..protocol.codec import dumps, encode
from ..protocol.events import KINDS, to_json
from ..protocol.messages import Message
from ..protocol.runs import RunComplete
from .common import one_line, printable

if TYPE_CHECKING:
    from ..protocol.events import Envelope
    from ..protocol.messages import ToolCallPart
    from ..protocol.runs import Accepted

WORDS_CHARS = 140  # of a tool call: what stands around it must fit into the note too

# The inputs of a tool call that say best what it does, the first that is there.
TELLING = ("command", "file_path", "path", "pattern", "url", "query", "question", "description")


class AnswerOutput:
    """Collects what goes to standard output; `take` hands it over."""

    midline = False  # whether the last line is not complete

    def __init__(self) -> None:
        self._pending: list[str] = []

    def take(self) -> str:
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def accepted(self, accepted: Accepted) -> None:
        """The daemon has promised the run."""

    def event(self, event: Envelope) -> None:
        """Something happened in our run."""

    def end(self) -> None:
        """There is nothing more to come."""


class TextOutput(AnswerOutput):
    """The text alone: each piece once, each message on a line of its own, no blanks in front."""

    def __init__(self, session_id: str, *, terminal: bool = False) -> None:
        super().__init__()
        self._session_id = session_id
        self._terminal = terminal
        self._shown: dict[str, str] = {}  # by message, as it came
        self._latest = ""  # the message shown last
        self._began = False

    def event(self, event: Envelope) -> None:
        payload = event.payload
        if isinstance(payload, Message) and payload.session_id == self._session_id:
            if is_answer(payload):
                self.grow(payload.id, payload.text)
                if any(call.finished for call in payload.tool_calls):
                    self.end()  # the next text is another message's: leave the line to progress
        elif isinstance(payload, RunComplete):
            self.grow(payload.message_id, payload.text)
            self.end()

    def grow(self, message_id: str, text: str) -> None:
        """A message has this text now."""
        shown = self._shown.get(message_id, "")
        if shown.startswith(text):
            return  # nothing new, or an older state of the message
        self._shown[message_id] = text
        # What was printed cannot be taken back: a text that was rewritten is printed again.
        anew = message_id != self._latest or not text.startswith(shown)
        piece = text.removeprefix(shown)
        if not self._began:
            piece = piece.lstrip()
        if self._terminal:
            piece = printable(piece)
        if not piece:
            return
        if anew:
            self.end()
        self._pending.append(piece)
        self._latest, self._began, self.midline = message_id, True, not piece.endswith("\n")

    def end(self) -> None:
        if self.midline:
            self._pending.append("\n")
            self.midline = False


class JSONOutput(AnswerOutput):
    """One JSON object per line: the promise, then the events of the run, `run_complete` last."""

    def accepted(self, accepted: Accepted) -> None:
        self._add({"type": "accepted", "payload": encode(accepted)})

    def event(self, event: Envelope) -> None:
        if type(event.payload) in KINDS.values():
            self._add(to_json(event.action, event.payload))

    def _add(self, value: Any) -> None:
        self._pending.append(dumps(value).decode("ascii") + "\n")


def is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.is_summary_message


def words(name: str, params: dict[str, Any]) -> str:
    """A tool call in a few words."""
    found = (params[key] for key in TELLING if isinstance(params.get(key), str))
    return one_line(f"{name} {next(found, '')}"[:WORDS_CHARS])


def call_words(call: ToolCallPart) -> str:
    try:
        value = json.loads(call.input)
    except ValueError:
        value = None
    return words(call.name, value if isinstance(value, dict) else {})
