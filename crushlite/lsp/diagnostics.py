"""What language servers find wrong, bounded in number and length, and in words for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records import dataclass
from .positions import start_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_FILES = 500  # with diagnostics, of one server
MOST_PER_FILE = 200
MOST = 10_000  # of one server
MESSAGE_CHARS = 300
SHOWN = 20  # in the result of an edit
SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    line: int  # from 1 on
    column: int
    severity: int  # 1 is an error, 4 a hint
    message: str  # on one line
    source: str
    code: str

    @property
    def words(self) -> str:
        """On one line, for the model."""
        origin = " ".join(each for each in (self.source, self.code) if each)
        kind = SEVERITIES[self.severity]
        return f"{self.line}:{self.column} {kind}: {self.message}" + f" ({origin})" * bool(origin)

    @property
    def identity(self) -> tuple[int, str, str]:
        """What stays the same when lines above are added or removed."""
        return self.severity, self.message, self.code

    @property
    def wire(self) -> dict[str, Any]:
        place = {"line": self.line - 1, "character": self.column - 1}
        return {
            "range": {"start": place, "end": place},
            "severity": self.severity,
            "message": self.message,
            "source": self.source,
            "code": self.code,
        }


def read(values: Any) -> list[Diagnostic]:
    """The diagnostics of a file as a server sends them, the worst first; what is none is left
    out."""
    if not isinstance(values, list):
        return []
    found = [_diagnostic(value) for value in values[: 4 * MOST_PER_FILE] if isinstance(value, dict)]
    found.sort(key=lambda each: (each.severity, each.line, each.column))
    return found[:MOST_PER_FILE]


def _diagnostic(value: dict[str, Any]) -> Diagnostic:
    place, severity, code = start_of(value.get("range")), value.get("severity"), value.get("code")
    message = value.get("message")
    if isinstance(message, dict):  # marked up, in newer versions of the protocol
        message = message.get("value")
    return Diagnostic(
        place.line + 1,
        place.column + 1,
        int(severity) if isinstance(severity, int) and severity in SEVERITIES else 1,
        _line(message),
        _line(value.get("source"))[:40],
        _line(code if isinstance(code, str) else str(code) if isinstance(code, int) else "")[:60],
    )


def _line(text: object) -> str:
    cut = text[: 4 * MESSAGE_CHARS] if isinstance(text, str) else ""
    return " ".join(cut.split())[:MESSAGE_CHARS]


def new_ones(before: Iterable[Diagnostic], after: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Those that were not there before, wherever they stand now."""
    left = [each.identity for each in before]
    found = []
    for each in after:
        if each.identity in left:
            left.remove(each.identity)
        else:
            found.append(each)
    return found


def block(shown: str, lines: Sequence[str]) -> str:
    """Diagnostics as the model reads them. What a server says cannot end the block."""
    body = "\n".join(lines).replace("</diagnostics", "<\\/diagnostics")
    return f'<diagnostics file="{shown}">\n{body}\n</diagnostics>'


def after_change(shown: str, before: Iterable[Diagnostic], after: Sequence[Diagnostic]) -> str:
    """What the model is told of a file that it has changed: what is new, and how much else there
    is. Empty if there is nothing."""
    serious = [each for each in after if each.severity <= 2]
    new = new_ones(before, serious)
    old = len(serious) - len(new)
    lines = [each.words for each in new[:SHOWN]]
    if len(new) > SHOWN:
        lines.append(f"... and {len(new) - SHOWN} more: lsp_diagnostics lists them")
    if new and old:
        lines.append(f"({old} more were there before)")
    return block(shown, lines) if new else ""
