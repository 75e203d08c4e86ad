"""Which events belong to our run, and what of them to show.

Events do not say which run they belong to, but a session has one run at a time. So our messages
are those between the user message with our prompt, once every run ahead of ours has ended, and our
run_complete. Where that was not seen, after a gap in the stream, the transcript is read instead:
another run's text is never shown, ours perhaps later.

Knows nothing of connections, files or time: events go in, text and notes come out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crushlite.protocol.codec import dumps, encode
from crushlite.protocol.events import Envelope, to_json
from crushlite.protocol.messages import Message
from crushlite.protocol.permissions import PermissionNotification, PermissionRequest
from crushlite.protocol.questions import QuestionBatch, QuestionNotification
from crushlite.protocol.runs import RunComplete
from crushlite.protocol.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.protocol.runs import Accepted

__all__ = ["Follower", "JSONOutput", "Output", "TextOutput", "one_line"]

NOTE_CHARS = 200
WORDS_CHARS = 140  # of a tool call: what stands around it must fit into the note too

# The inputs of a tool call that say best what it does, the first that is there.
TELLING = ("command", "file_path", "path", "pattern", "url", "query", "question", "description")

# A terminal obeys these; what a model writes must not command it.
CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Output:
    """Collects what goes to standard output; `take` hands it over."""

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

    def grow(self, message_id: str, text: str) -> None:
        """A message of our run has this text now."""

    def end(self) -> None:
        """The run is over."""


class TextOutput(Output):
    """The text alone: each piece once, each message on a line of its own, no blanks in front."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._unwanted = CONTROLS if terminal else {}
        self._shown: dict[str, str] = {}  # by message, as it came
        self._latest = ""  # the message shown last
        self._began = False
        self._midline = False

    def grow(self, message_id: str, text: str) -> None:
        shown = self._shown.get(message_id, "")
        if shown.startswith(text):
            return  # nothing new, or an older state of the message
        self._shown[message_id] = text
        # What was printed cannot be taken back: a text that was rewritten is printed again.
        anew = message_id != self._latest or not text.startswith(shown)
        piece = text.removeprefix(shown)
        if not self._began:
            piece = piece.lstrip()
        piece = piece.translate(self._unwanted)
        if not piece:
            return
        if anew and self._midline:
            self._pending.append("\n")
        self._pending.append(piece)
        self._latest, self._began, self._midline = message_id, True, not piece.endswith("\n")

    def end(self) -> None:
        if self._midline:
            self._pending.append("\n")
            self._midline = False


class JSONOutput(Output):
    """One JSON object per line: the promise, then the events of the run, `run_complete` last."""

    def accepted(self, accepted: Accepted) -> None:
        self._add({"type": "accepted", "payload": encode(accepted)})

    def event(self, event: Envelope) -> None:
        self._add(to_json(event.action, event.payload))

    def _add(self, value: Any) -> None:
        self._pending.append(dumps(value).decode("ascii") + "\n")


class Follower:
    """Finds the events of one run among those of its workspace."""

    def __init__(
        self, accepted: Accepted, prompt: str, output: Output, say: Callable[[str], None]
    ) -> None:
        self.ahead: set[str] = set()  # runs that must end before ours begins
        self.user_id = ""  # the message that began our turn; empty until it was seen
        self._run_id = accepted.run_id
        self._session_id = accepted.session_id
        self._prompt = prompt
        self._output = output
        self._say = say
        self._family = {accepted.session_id}  # our session, and those of agents that work for it
        self._messages: set[str] = set()  # our assistant messages
        self._calls: set[str] = set()  # tool calls that were announced
        self._asked: dict[str, str] = {}  # what somebody must answer, by tool call or batch

    def take(self, event: Envelope) -> RunComplete | None:
        """Look at an event; returns the end of our run if this is it."""
        payload = event.payload
        if isinstance(payload, RunComplete):
            self.ahead.discard(payload.run_id)
            return payload if payload.run_id == self._run_id else None
        if isinstance(payload, Message) and not self.user_id:
            self._begin(event.action, payload)
        if isinstance(payload, Session) and payload.parent_session_id in self._family:
            self._family.add(payload.id)
        if self._is_ours(payload):
            self._output.event(event)
            self._show(event.action, payload)
        return None

    def catch_up(self, messages: list[Message], ending: RunComplete | None) -> None:
        """Show what the transcript holds of our run: of a run that has ended up to its last
        message, of one that goes on everything since it began."""
        ids = [message.id for message in messages]
        if ending is not None and ending.message_id in ids:
            messages = messages[: ids.index(ending.message_id) + 1]
        elif ending is not None or not self.user_id:
            return
        # The newest prompt with our words, where we did not see it come: what follows it is ours.
        begins = [
            index
            for index, message in enumerate(messages)
            if message.id == self.user_id
            or (not self.user_id and message.role == "user" and message.text == self._prompt)
        ]
        for message in messages[begins[-1] + 1 :] if begins else ():
            if _is_answer(message):
                self._messages.add(message.id)
                self._output.event(Envelope("message", "updated", message))
                self._reveal(message)

    def finish(self, ending: RunComplete) -> None:
        """Show what is missing of the last message, and the end."""
        self._output.grow(ending.message_id, ending.text)
        self._output.event(Envelope("run_complete", "updated", ending))
        self._output.end()

    def _begin(self, action: str, message: Message) -> None:
        ours = ("created", self._session_id, "user", self._prompt)
        if not self.ahead and (action, message.session_id, message.role, message.text) == ours:
            self.user_id = message.id

    def _is_ours(self, payload: object) -> bool:
        if isinstance(payload, PermissionNotification):
            return payload.tool_call_id in self._calls or payload.tool_call_id in self._asked
        if isinstance(payload, QuestionNotification):
            return payload.batch_id in self._asked
        run_id = getattr(payload, "run_id", "")
        if run_id:
            return bool(run_id == self._run_id)
        session = payload.id if isinstance(payload, Session) else getattr(payload, "session_id", "")
        return bool(self.user_id) and session in self._family

    def _show(self, action: str, payload: object) -> None:
        if isinstance(payload, Message) and payload.session_id == self._session_id:
            if action == "created" and _is_answer(payload):
                self._messages.add(payload.id)
            if payload.id in self._messages:
                self._reveal(payload)
        elif isinstance(payload, PermissionRequest):
            words = _words(payload.tool_name, payload.params)
            self._ask(payload.tool_call_id, "permission", words)
        elif isinstance(payload, QuestionBatch):
            words = " / ".join(question.question for question in payload.questions)
            self._ask(payload.id, "an answer", words)
        elif isinstance(payload, PermissionNotification) and (payload.granted or payload.denied):
            words = self._asked.pop(payload.tool_call_id, "")
            if words:
                self._say(f"permission {'granted' if payload.granted else 'denied'}: {words}")
        elif isinstance(payload, QuestionNotification):
            self._say(f"answered: {self._asked.pop(payload.batch_id)}")

    def _reveal(self, message: Message) -> None:
        self._output.grow(message.id, message.text)
        for call in message.tool_calls:
            if call.finished and call.id not in self._calls:
                self._calls.add(call.id)
                self._say(f"tool: {_words(call.name, _object(call.input))}")

    def _ask(self, key: str, what: str, words: str) -> None:
        if key not in self._asked:  # an open request is shown again after a return
            self._asked[key] = words
            self._say(f"waiting for {what}: {words} (answer in another client)")


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.is_summary_message


def _words(name: str, params: dict[str, Any]) -> str:
    """A tool call in a few words."""
    found = (params[key] for key in TELLING if isinstance(params.get(key), str))
    return one_line(f"{name} {next(found, '')}"[:WORDS_CHARS])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def one_line(text: str) -> str:
    """Fit for a note: no line breaks, nothing that a terminal would obey, not too long."""
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return shown if len(shown) <= NOTE_CHARS else shown[: NOTE_CHARS - 3] + "..."
