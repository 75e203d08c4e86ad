"""How things of the daemon look in a terminal: harmless, short, and honest where it matters.

Two ways with characters that a terminal would obey. Text that is only read goes through `clean`,
which takes them away. What somebody is asked to allow goes through `visible`, which shows them:
there nothing may be hidden.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from .common import one_line, printable, width

if TYPE_CHECKING:
    from ..protocol.messages import FinishPart, ToolCallPart, ToolResultPart
    from ..protocol.permissions import PermissionRequest

# Whole sequences, so that nothing of them is left: CSI, OSC and other strings, two-byte ones.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]"
)
_FIRST = ("command", "file_path", "path", "pattern", "url", "query", "question", "description")
_DIFFED = ("old_content", "new_content")
_TRIVIAL: tuple[Any, ...] = (None, "", False, 0, [], {})


def clean(text: str) -> str:
    """Text of several lines, for reading: colours, cursor movements and the like are gone."""
    return printable(_ANSI.sub("", text))


def visible(text: str) -> str:
    """Text of several lines with everything that does not show itself spelt out, but for tabs."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii")
        for c in text.expandtabs(4)
    )


def cut(text: str, room: int) -> str:
    """What fits into so many columns; the end shows that something is missing."""
    if width(text) <= room:
        return text
    kept, used = [], 0
    for c in text:
        used += width(c)
        if used > room - 1:
            break
        kept.append(c)
    return "".join(kept) + "…" if room > 0 else ""


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# Tool calls -------------------------------------------------------------------------------------


def arguments(call: ToolCallPart) -> dict[str, Any]:
    """The input of a call; empty if it is no object (yet)."""
    try:
        value = json.loads(call.input)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def call_line(name: str, params: dict[str, Any]) -> str:
    """A tool call in one line: its name, what says best what it does, then the other inputs."""
    telling = next((key for key in _FIRST if isinstance(params.get(key), str)), "")
    words = [name, str(params.get(telling, ""))]
    if asked := _questions(params):
        return one_line(f"{name} {asked}")
    words += [
        f"{key}={_short(value)}"
        for key, value in params.items()
        if key != telling and key not in (*_DIFFED, "description") and value not in _TRIVIAL
    ]
    return one_line(" ".join(word for word in words if word))


def _questions(params: dict[str, Any]) -> str:
    asked = params.get("questions")
    texts = (
        [item.get("question") for item in asked if isinstance(item, dict)]
        if isinstance(asked, list)
        else []
    )
    return " / ".join(text for text in texts if isinstance(text, str))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(one_line(text), 40)


def result_words(result: ToolResultPart) -> str:
    """What came of a call, in a few words: how much, and of a failure or a short one, what."""
    lines = [line for line in clean(result.content).splitlines() if line.strip()]
    if not lines:
        return "failed" if result.is_error else "no output"
    if result.is_error or len(lines) == 1:
        more = f" (+{count(len(lines) - 1, 'line')})" if len(lines) > 1 else ""
        return cut(one_line(lines[0]), 100) + more
    return count(len(lines), "line")


def ending_words(finish: FinishPart) -> str:
    """What must be said about how a message ended; empty for a usual end."""
    if finish.reason == "canceled":
        return "canceled"
    if finish.reason == "error":
        told = [part for part in (finish.message, finish.details) if part]
        if len(told) == 2 and told[1].lower().startswith(told[0].lower()):
            del told[0]  # which the other says again
        return clean(": ".join(told)) or "failed"
    if finish.reason == "max_tokens":
        return "cut off: the answer reached the length limit of the model"
    if finish.reason == "content_filter":
        return "stopped by the provider's content filter"
    return ""


# Permission requests ------------------------------------------------------------------------------


def request_lines(request: PermissionRequest) -> list[str]:
    """All that somebody needs to see who is asked to allow something. Nothing is hidden: not what
    a terminal would obey, and not the end of a long command."""
    params = request.params
    lines = [f"{request.tool_name} ({request.action})" if request.action else request.tool_name]
    texts = [value for value in params.values() if isinstance(value, str) and value]
    if request.description and not any(text in request.description for text in texts):
        lines.append(request.description)  # else it says again what the parameters say
    lines += [
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in params.items()
        if key not in (*_DIFFED, "description") and value not in _TRIVIAL
    ]
    if request.path and request.path not in params.values():
        lines.append(f"in: {request.path}")
    shown = [line for text in lines for line in visible(text).split("\n")]
    return shown + _diff(params)


def _diff(params: dict[str, Any]) -> list[str]:
    old, new = (str(params.get(key, "")).splitlines() for key in _DIFFED)
    changes = difflib.unified_diff(old, new, "before", "after", lineterm="", n=2)
    return [visible(line) for line in changes]
