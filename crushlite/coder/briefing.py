"""What the model was told about its surroundings, kept with the session.

Providers cache the beginning of a request, so each request must begin with the bytes of the one
before it: also in later turns, after a restart, and when files have changed meanwhile. So the
system prompt is made of what was found when the session began. What changes later (a context file,
the date, whether somebody can answer) is told once, in a note of its own in front of the prompt
that came next, and stays there. Context files of deeper folders are told in the results of the
tools that touched a file there; those are stored with the conversation.

A summary takes the place of the conversation: what was told before it is told again.

Only facts are kept, not the prompt: a database that came with a project cannot choose its words.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..protocol.messages import Message, TextPart
from ..records import dataclass
from .context import FILE_CHARS, TOTAL_CHARS, block
from .history import Images, chat_messages
from .overflow import shorter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .context import ContextFile
    from .providers.base import ChatMessage

FORM = 1  # of the kept text; another one is not read
MOST_NOTES = 200
_TODAY = "Today is "
_ADDED = "The user's hooks add: "
WATCHED = "Somebody is watching again and can answer questions."
UNWATCHED = "Nobody is watching now: do not ask questions, decide yourself."


@dataclass(slots=True)
class Facts:
    """What the system prompt says about the surroundings, as it was when the session began."""

    date: str = ""
    git: str = ""
    watchers: int = 1
    interactive: bool = True
    files: list[ContextFile] = field(default_factory=list)


@dataclass(slots=True)
class BriefingNote:
    """What was told in front of a message, or behind it if that is the summary. A file without a
    text was removed."""

    message_id: str
    lines: list[str] = field(default_factory=list)
    files: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def text(self) -> str:
        parts = list(self.lines)
        changed = [block(name, text) for name, text in self.files if text is not None]
        if changed:
            parts.append("These context files are new or have changed, and hold as they are here:")
        parts += changed
        parts += [f"The context file {name} is gone." for name, text in self.files if text is None]
        body = "\n".join(parts)
        return f"<note>\n{body}\n</note>"


@dataclass(slots=True)
class Briefing:
    """`since` is the summary that the conversation begins with, empty if with its first message;
    notes and `told` are about what follows it. `told` has the digests of the context files that
    tool results have shown. `asked` are the messages that the summary has replaced although they
    were not answered yet: they are repeated behind it. The number is 0 for those that are repeated
    whole and with their files, else how many characters are left of the text. `whole_images_only`
    is set once a provider has refused a request with a damaged image: requests hold none of those
    from then on."""

    facts: Facts
    since: str = ""
    notes: list[BriefingNote] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    whole_images_only: bool = False

    def follow(self, summary_id: str) -> bool:
        """If the conversation begins with another summary now, forget what was told before it.
        Returns whether it does."""
        if self.since == summary_id:
            return False
        self.since, self.notes, self.told, self.asked = summary_id, [], {}, []
        return True

    @property
    def interactive(self) -> bool:
        """Whether somebody can answer questions, as the model was told last."""
        told = [line for note in self.notes for line in note.lines if line in (WATCHED, UNWATCHED)]
        return told[-1] == WATCHED if told else self.facts.interactive

    def untold(self, files: Sequence[ContextFile]) -> list[ContextFile]:
        """Those of some context files that the model does not know as they are now."""
        known = self._known() | self.told
        return [
            (name, text)
            for name, text in files
            if known.get(name) not in (digest(text), digest(_changed(text)))
        ]

    def news(self, now: Facts, message_id: str) -> BriefingNote | None:
        """The note that tells what has changed since the model was told last; None if nothing."""
        note = BriefingNote(message_id)
        told = [line for each in self.notes for line in each.lines]
        dated = [line for line in told if line.startswith(_TODAY)] or [_TODAY + self.facts.date]
        if dated[-1] != _TODAY + now.date:
            note.lines.append(_TODAY + now.date)
        if self.interactive != now.interactive:
            note.lines.append(WATCHED if now.interactive else UNWATCHED)
        note.files += self.untold(now.files)
        there = {name for name, _ in now.files}
        gone = [name for name, found in self._known().items() if found and name not in there]
        note.files += [(name, None) for name in gone]
        self._bound(note)
        return note if note.lines or note.files else None

    def add(self, message_id: str, text: str) -> None:
        """Tell a text with what is told in front of a message."""
        note = next((each for each in self.notes if each.message_id == message_id), None)
        if note is None:
            note = BriefingNote(message_id)
            self.notes += [note] if len(self.notes) < MOST_NOTES else []
        note.lines.append(f"{_ADDED}{text}")

    def _known(self) -> dict[str, str]:
        """The digest of each file of system prompt and notes, as told last; empty if removed."""
        known = {name: digest(text) for name, text in self.facts.files}
        for note in self.notes:
            known |= {name: digest(text) if text is not None else "" for name, text in note.files}
        return known

    def _bound(self, note: BriefingNote) -> None:
        """Tell no more in notes than system prompts may hold; then only what has changed."""
        used = sum(len(text or "") for each in self.notes for _, text in each.files)
        for index, (name, text) in enumerate(note.files):
            used += len(text or "")
            if text is not None and used > TOTAL_CHARS:
                note.files[index] = (name, _changed(text))
        if len(self.notes) >= MOST_NOTES:
            note.lines, note.files = [], []

    # Keeping -------------------------------------------------------------------------------------

    def dump(self) -> str:
        facts = self.facts
        value = {
            "form": FORM,
            "facts": [facts.date, facts.git, facts.watchers, facts.interactive, facts.files],
            "since": self.since,
            "notes": [[note.message_id, note.lines, note.files] for note in self.notes],
            "told": self.told,
            "asked": self.asked,
            "whole_images_only": self.whole_images_only,
        }
        return json.dumps(value, ensure_ascii=False)

    @classmethod
    def load(cls, kept: str) -> Briefing | None:
        """Read what `dump` wrote; None for anything else."""
        try:
            value = json.loads(kept)
            if value["form"] != FORM:
                return None
            date, git, watchers, interactive, files = value["facts"]
            facts = Facts(_text(date), _text(git), int(watchers), bool(interactive))
            facts.files = [(_text(name), _text(text)) for name, text in files]
            return cls(
                facts,
                _text(value["since"]),
                [_note(*note) for note in value["notes"][:MOST_NOTES]],
                {_text(name): _text(found) for name, found in value["told"].items()},
                [(_text(message_id), int(chars)) for message_id, chars in value["asked"]],
                _flag(value["whole_images_only"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    # The conversation ----------------------------------------------------------------------------

    def conversation(
        self, history: Sequence[Message], *, summary_id: str, takes_images: bool
    ) -> list[ChatMessage]:
        """The messages of a request, with the notes in their places."""
        images = (
            Images.NONE
            if not takes_images
            else Images.WHOLE
            if self.whole_images_only
            else Images.ALL
        )
        notes = {note.message_id: note for note in self.notes}
        with_notes: list[Message] = []
        for message in history:
            note = notes.get(message.id)
            if note is not None and message.id != summary_id:
                said = TextPart(note.text)
                with_notes.append(Message("", "user", message.session_id, [said]))
            with_notes.append(message)
        messages = chat_messages(with_notes, summary_id=summary_id, images=images)
        if not summary_id or summary_id != self.since or not messages:
            return messages
        by_id = {message.id: message for message in history if message.role == "user"}
        asked = [(by_id[each], chars) for each, chars in self.asked if each in by_id]
        if asked:
            messages[0].text += "\n\nGo on with what was asked last:"
        for message, chars in asked:
            (again,) = chat_messages([message], images=images)
            text = shorter(message.text, chars) if chars else again.text
            messages[0].text += f"\n{text}"
            messages[0].images += [] if chars else again.images
        if summary_id in notes:
            messages[0].text += f"\n\n{notes[summary_id].text}"
        return messages


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _changed(text: str) -> str:
    """What is told of a changed file if there is no room for its text; the same for the same."""
    return f"(it has changed, to version {digest(text)[:8]}: view the file)"


def _note(message_id: Any, lines: Any, files: Any) -> BriefingNote:
    return BriefingNote(
        _text(message_id),
        [_text(line) for line in lines],
        [(_text(name), None if text is None else _text(text)) for name, text in files],
    )


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("neither true nor false")
    return value


def _text(value: Any) -> str:
    """A text of bounded length. Raises TypeError for anything else."""
    if not isinstance(value, str) or len(value) > 2 * FILE_CHARS:
        raise TypeError("not a text")
    return value
