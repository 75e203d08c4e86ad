"""What was typed in earlier chats: a file that only its owner can read.

One JSON text per line, because prompts may have several lines. Where it cannot be read or written,
the chat goes on without it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..version import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = 1000  # lines; a file with twice as many is cut back to these
LONGEST = 10_000  # characters of a line: a pasted file is no history


def history_path(env: Mapping[str, str] = os.environ) -> Path:
    named = env.get("XDG_STATE_HOME", "")
    home = Path(named) if named.startswith("/") else Path.home() / ".local/state"
    return home / NAME / "chat_history"


class HistoryFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The texts, the oldest first. Lines that are damaged are left out."""
        try:
            lines = self._path.read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
        if len(lines) > 2 * KEPT:
            self._rewrite(lines[-KEPT:])
        found = (_text(line) for line in lines[-KEPT:])
        return [text for text in found if text]

    def append(self, text: str) -> None:
        """Add a text, unless it begins with a blank (as in shells) or is very long."""
        if text.startswith(" ") or len(text) > LONGEST:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "a", encoding="ascii") as file:
                file.write(json.dumps(text) + "\n")
        except OSError:
            pass  # as in a read-only home

    def _rewrite(self, lines: list[str]) -> None:
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.replace(fresh, self._path)
        except OSError:
            fresh.unlink(missing_ok=True)


def _text(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
