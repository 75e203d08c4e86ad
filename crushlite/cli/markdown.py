"""A session as a Markdown document, for reading and for keeping."""

from __future__ import annotations

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
from .common import one_line, when
from .render import arguments, clean, ending_words

if TYPE_CHECKING:
    from ..client import SessionExport
    from ..protocol.messages import Message, Part


def markdown(export: SessionExport) -> str:
    """The whole session. Tools and reasoning are folded; texts are as they were written."""
    session = export.session
    lines = [f"# {one_line(session.title) or 'Untitled'}", ""]
    lines.append(f"Session `{session.id}`, begun {when(session.created_at)}.")
    if session.prompt_tokens or session.completion_tokens:
        tokens = f"{session.prompt_tokens} tokens in, {session.completion_tokens} out"
        lines.append(f"{tokens}, cost {session.cost:.4f}.")
    speaker = ""
    for message in export.messages:
        told = _told(message)
        if told and (heading := _speaker(message)) != speaker:
            lines += ["", f"## {heading}"]
            speaker = heading
        lines += told
    if changed := sorted({file.path for file in export.files}):
        lines += ["", "## Files", "", *(f"- `{clean(path)}`" for path in changed)]
    return "\n".join(lines) + "\n"


def _speaker(message: Message) -> str:
    if message.role == "user":
        return "You"
    if message.is_summary_message:
        return "Summary"
    return "Assistant"


def _told(message: Message) -> list[str]:
    return [line for part in message.parts for line in _part(part)]


def _part(part: Part) -> list[str]:
    if isinstance(part, TextPart):
        return ["", clean(part.text).strip()] if part.text.strip() else []
    if isinstance(part, ReasoningPart):
        return _folded("Reasoning", part.thinking, "") if part.thinking.strip() else []
    if isinstance(part, ToolCallPart):
        told = json.dumps(arguments(part), indent=2, ensure_ascii=False)
        return _folded(f"Tool: {part.name}", told, "json")
    if isinstance(part, ToolResultPart):
        return _folded("Failed" if part.is_error else "Result", part.content, "")
    if isinstance(part, ShellCommandPart):
        return ["", *_fenced(f"$ {part.command}\n{part.output}[exit code {part.exit_code}]", "")]
    if isinstance(part, BinaryPart):
        return ["", f"(attached: `{clean(part.path)}`, {part.mime_type})"]
    if isinstance(part, FinishPart) and (told := ending_words(part)):
        return ["", f"*{one_line(told)}*"]
    return []


def _folded(title: str, text: str, language: str) -> list[str]:
    summary = one_line(title).replace("&", "&amp;").replace("<", "&lt;")
    head = f"<details><summary>{summary}</summary>"
    return ["", head, "", *_fenced(text, language), "", "</details>"]


def _fenced(text: str, language: str) -> list[str]:
    """A code block that its content cannot end."""
    text = clean(text).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]
