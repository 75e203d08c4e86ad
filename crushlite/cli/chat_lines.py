"""The input line of `chat`: bytes of keys in, a text and a cursor out. No terminal, no time.

Why not readline: it wants the terminal for itself while it waits, and in a chat the answer comes
while the user types. This editor is fed by the event loop and drawn by the screen, on one row that
scrolls sideways, so that output above it and a change of size never tear it apart.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Literal

from ..records import dataclass
from .text import width

if TYPE_CHECKING:
    from collections.abc import Callable

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|\x1b\[[0-?]*[@-~]|[^\[O])", re.S)
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_WORD_BACK = re.compile(r"\S*\s*$")
_WORD_ON = re.compile(r"\s*\S+|\s+$")
LIMIT = 1 << 20  # characters of a text


@dataclass(frozen=True, slots=True)
class Pressed:
    """What keys asked for, beyond editing: `submit` a text, `end` (^D), `clear` (^L)."""

    what: Literal["submit", "end", "clear"]
    text: str = ""


class LineEditor:
    """A text that is being typed. `complete` is called for the Tab key: it gets the beginning of a
    text and returns a longer one, or the same."""

    def __init__(self, complete: Callable[[str], str] = str) -> None:
        self.text = ""
        self.cursor = 0
        self._complete = complete
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # the beginning of an escape sequence whose rest has not come
        self._pasting = False
        self._killed = ""  # what ^Y brings back
        self._history: list[str] = []
        self._position = 0  # in the history; its length means: the text that is being typed
        self._draft = ""  # that text, while another one of the history is shown
        self._stash: list[tuple[str, int]] = []
        self._sought: str | None = None  # what ^R searches the history for, while it does
        self._found = 0  # where in the history

    # Keys ---------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Pressed]:
        """Take what was typed or pasted; returns what is to be done beyond editing."""
        text = self._decoder.decode(data)
        if self._pending == "\x1b" and not self._pasting and text[:1] not in ("[", "O"):
            self._pending = ""  # the Escape key: it must not swallow what is typed or pasted next
        text = self._pending + text
        self._pending = ""
        pressed: list[Pressed] = []
        while text:
            if self._pasting:
                text = self._paste(text)
            elif text[0] != "\x1b":
                pressed += self._key(text[0])
                text = text[1:]
            elif match := _SEQUENCE.match(text):
                text = text[match.end() :]
                self._sequence(match[0])
            else:
                self._pending, text = text, ""
        return pressed

    def _paste(self, text: str) -> str:
        """Insert everything up to the end of the paste, line breaks too; returns what follows."""
        inside, ended, rest = text.partition(_PASTED)
        if not ended:
            # A part of the end mark may have come.
            keep = next((n for n in range(5, 0, -1) if text.endswith(_PASTED[:n])), 0)
            inside, self._pending = text[: len(text) - keep], text[len(text) - keep :]
        self._pasting = not ended
        self._insert(inside.replace("\r\n", "\n").replace("\r", "\n"))
        return rest

    def _key(self, key: str) -> list[Pressed]:
        if key == "\x12":
            return self._search_further()
        if self._sought is not None and self._search_key(key):
            return []
        if key in "\r\n":
            return self._enter()
        if key == "\x04":
            if not self.text:
                return [Pressed("end")]
            self._delete(self.cursor, self.cursor + 1)
        elif key == "\x0c":
            return [Pressed("clear")]
        elif key == "\t":
            self.set(self._complete(self.text))
        elif key in _KEYS:
            _KEYS[key](self)
        elif key.isprintable():
            self._insert(key)
        return []

    def _enter(self) -> list[Pressed]:
        if self.text.endswith("\\") and self.cursor == len(self.text):
            self._delete(self.cursor - 1, self.cursor)
            self._insert("\n")
            return []
        text = self.text
        self.drop()
        return [Pressed("submit", text)]

    def _sequence(self, sequence: str) -> None:
        self._sought = None
        if sequence == _PASTE:
            self._pasting = True
        elif action := _SEQUENCES.get(sequence):
            action(self)

    # Editing ------------------------------------------------------------------------------------

    def set(self, text: str) -> None:
        """Replace the text; the cursor is at its end."""
        self.text, self.cursor = text, len(text)

    def drop(self) -> None:
        """Empty the line, end a search, and go to the end of the history."""
        self._sought = None
        self.set("")
        self._position = len(self._history)

    def _insert(self, text: str) -> None:
        text = "".join(c for c in text if c.isprintable() or c in "\n\t")
        text = text[: max(0, LIMIT - len(self.text))]
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _delete(self, start: int, end: int) -> None:
        start = max(0, start)
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    def _kill(self, start: int, end: int) -> None:
        self._killed = self.text[start:end] or self._killed
        self._delete(start, end)

    def _move(self, to: int) -> None:
        self.cursor = min(max(0, to), len(self.text))

    def _word_back(self) -> int:
        match = _WORD_BACK.search(self.text[: self.cursor])
        return match.start() if match else 0

    def _word_on(self) -> int:
        match = _WORD_ON.match(self.text[self.cursor :])
        return self.cursor + (match.end() if match else 0)

    def _yank(self) -> None:
        self._insert(self._killed)

    # History ------------------------------------------------------------------------------------

    def remember(self, text: str) -> None:
        """Add a text to the history."""
        if text.strip() and self._history[-1:] != [text]:
            self._history.append(text)
        self._position = len(self._history)

    def _go(self, step: int) -> None:
        to = self._position + step
        if not 0 <= to <= len(self._history):
            return
        if self._position == len(self._history):
            self._draft = self.text
        self._position = to
        self.set(self._history[to] if to < len(self._history) else self._draft)

    # Searching the history ----------------------------------------------------------------------

    @property
    def searching(self) -> bool:
        return self._sought is not None

    def _search_further(self) -> list[Pressed]:
        """^R: begin a search, or look for an older text."""
        if self._sought is None:
            self._sought, self._found, self._draft = "", len(self._history), self.text
        else:
            self._search(self._found - 1)
        return []

    def _search_key(self, key: str) -> bool:
        """A key during a search. False if it ends the search and means what it always does."""
        assert self._sought is not None
        if key == "\x07":  # ^G: as it was before
            self._sought = None
            self.set(self._draft)
        elif key in "\x7f\x08":
            self._sought = self._sought[:-1]
            self._search(len(self._history) - 1)
        elif key.isprintable():
            self._sought += key
            self._search(min(self._found, len(self._history) - 1))
        else:
            self._sought = None
            return False
        return True

    def _search(self, start: int) -> None:
        """Show the last text, from `start` backwards, that holds what is searched for."""
        for at in range(start, -1, -1):
            if self._sought and self._sought in self._history[at]:
                self._found = at
                return self.set(self._history[at])

    # Another text for a while: the answer to a question -----------------------------------------

    def put_aside(self) -> None:
        """Empty the line until `take_back` is called."""
        self._stash.append((self.text, self.cursor))
        self.set("")

    def take_back(self) -> None:
        """Restore the text that was put aside last."""
        self.text, self.cursor = self._stash.pop()

    # Drawing ------------------------------------------------------------------------------------

    def view(self, room: int) -> tuple[str, int]:
        """The section around the cursor that fits into `room` columns, and the cursor's column in
        it."""
        note = "" if self._sought is None else f"(search: {self._sought}) "
        shown = [*note, *(_shown(c) for c in self.text)]
        before = shown[: len(note) + self.cursor]
        column = sum(map(width, before))
        start = 0
        while column >= room and start < len(before):
            column -= width(before[start])
            start += 1
        used, end = 0, start
        while end < len(shown) and used + width(shown[end]) < room:
            used += width(shown[end])
            end += 1
        return "".join(shown[start:end]), column


def _shown(c: str) -> str:
    return "⏎" if c == "\n" else c if c.isprintable() else " "


_KEYS: dict[str, Callable[[LineEditor], None]] = {
    "\x7f": lambda line: line._delete(line.cursor - 1, line.cursor),
    "\x08": lambda line: line._delete(line.cursor - 1, line.cursor),
    "\x01": lambda line: line._move(0),
    "\x05": lambda line: line._move(len(line.text)),
    "\x02": lambda line: line._move(line.cursor - 1),
    "\x06": lambda line: line._move(line.cursor + 1),
    "\x0b": lambda line: line._kill(line.cursor, len(line.text)),
    "\x15": lambda line: line._kill(0, line.cursor),
    "\x17": lambda line: line._kill(line._word_back(), line.cursor),
    "\x19": LineEditor._yank,
    "\x10": lambda line: line._go(-1),
    "\x0e": lambda line: line._go(1),
}
_SEQUENCES: dict[str, Callable[[LineEditor], None]] = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), _KEYS["\x10"]),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), _KEYS["\x0e"]),
    **dict.fromkeys(("\x1b[C", "\x1bOC"), _KEYS["\x06"]),
    **dict.fromkeys(("\x1b[D", "\x1bOD"), _KEYS["\x02"]),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), _KEYS["\x01"]),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), _KEYS["\x05"]),
    **dict.fromkeys(
        ("\x1b[1;5D", "\x1b[1;3D", "\x1bb"), lambda line: line._move(line._word_back())
    ),
    **dict.fromkeys(("\x1b[1;5C", "\x1b[1;3C", "\x1bf"), lambda line: line._move(line._word_on())),
    "\x1b[3~": lambda line: line._delete(line.cursor, line.cursor + 1),
    "\x1b\x7f": _KEYS["\x17"],
    **dict.fromkeys(("\x1b\r", "\x1b\n"), lambda line: line._insert("\n")),
}
