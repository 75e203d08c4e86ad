"""A session as a Markdown document, for reading and for keeping."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING

from ..protocol.messages import (
    BinaryPart,
    FinishPart,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from .render import ShownMessages, arguments, ending_words, shell_lines
from .text import clean, one_line

if TYPE_CHECKING:
    from ..protocol.messages import Message, Part
    from .export import SessionExport


def markdown(export: SessionExport) -> str:
    """The whole session. Tools and reasoning are folded; texts are as they were written."""
    session = export.session
    lines = [f"# {one_line(session.title) or 'Untitled'}", ""]
    lines.append(f"Session `{session.id}`, begun {_local_time(session.created_at)}.")
    if session.prompt_tokens or session.completion_tokens:
        tokens = f"{session.prompt_tokens} tokens in, {session.completion_tokens} out"
        lines.append(f"{tokens}, cost {session.cost:.4f}.")
    shown, heading = ShownMessages(), ""
    for message in export.messages:
        parts = shown.take(message, final=True)
        written = [line for new in parts for line in _part(new.part)]
        if written and (speaker := _speaker(message)) != heading:
            lines += ["", f"## {speaker}"]
            heading = speaker
        lines += written
    if changed := sorted({file.path for file in export.files}):
        lines += ["", "## Files", "", *(f"- `{clean(path)}`" for path in changed)]
    return "\n".join(lines) + "\n"


def _local_time(instant: float) -> str:
    return datetime.datetime.fromtimestamp(instant).strftime("%Y-%m-%d %H:%M:%S")


def _speaker(message: Message) -> str:
    if message.role == "user":
        return "You"
    return "Summary" if message.is_summary_message else "Assistant"


def _part(part: Part) -> list[str]:
    if isinstance(part, TextPart):
        return ["", clean(part.text).strip()] if part.text.strip() else []
    if isinstance(part, ReasoningPart):
        return _folded("Reasoning", part.thinking)
    if isinstance(part, ToolCallPart):
        given = json.dumps(arguments(part), indent=2, ensure_ascii=False)
        return _folded(f"Tool: {part.name}", given, "json")
    if isinstance(part, ToolResultPart):
        return _folded("Failed" if part.is_error else "Result", part.content)
    if isinstance(part, ShellCommandPart):
        lines = [f"$ {part.command}", *shell_lines(part), f"[exit code {part.exit_code}]"]
        return ["", *_fenced("\n".join(lines))]
    if isinstance(part, BinaryPart):
        return ["", f"(attached: `{clean(part.path)}`, {part.mime_type})"]
    if isinstance(part, FinishPart) and (words := ending_words(part)):
        return ["", f"*{one_line(words)}*"]
    return []


def _folded(title: str, text: str, language: str = "") -> list[str]:
    """A code block under a title that a reader can open."""
    summary = one_line(title).replace("&", "&amp;").replace("<", "&lt;")
    head = f"<details><summary>{summary}</summary>"
    return ["", head, "", *_fenced(text, language), "", "</details>"]


def _fenced(text: str, language: str = "") -> list[str]:
    """A code block whose fence is longer than any in the text, so that the text cannot end it."""
    text = clean(text).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]
