"""Prompts, tool content and transcripts, as ACP has them and as we do.

Everything that an agent sends is checked here, whatever its type, and cut to what a transcript can
hold. Nothing here raises for what it finds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..protocol.messages import Attachment, Message

RESULT_CHARS = 60_000  # of the result of a tool call
INPUT_CHARS = 20_000  # of each text in the input of a tool call
TRANSCRIPT_CHARS = 100_000  # of a conversation that the agent does not know
_TOOL_CHARS = 1000  # of a call or a result in a transcript
_DEPTH = 20

_BEFORE = (
    "The following conversation took place in this directory before you joined it. It is context: "
    "answer only the message after it.\n\n<conversation>\n"
)
_AFTER = "\n</conversation>"


def cut(text: str, most: int) -> str:
    """A text, or its two ends with `most` characters together."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def object_of(value: Any) -> dict[str, Any]:
    """A value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any, most: int = 1000) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return (
        [item for item in value[:most] if isinstance(item, dict)] if isinstance(value, list) else []
    )


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


# Prompts ----------------------------------------------------------------------------------------


def prompt_blocks(
    prompt: str, attachments: Iterable[Attachment], offers: Mapping[str, Any], context: str
) -> list[dict[str, Any]]:
    """The blocks of a prompt, `context` first. `offers` are the agent's promptCapabilities."""
    blocks = [{"type": "text", "text": text} for text in (context, prompt) if text]
    return [*blocks, *(_attached(file, offers) for file in attachments)]


def _attached(file: Attachment, offers: Mapping[str, Any]) -> dict[str, Any]:
    name = file.file_name or file.file_path or "attachment"
    uri = Path(file.file_path).as_uri() if file.file_path.startswith("/") else f"file:///{name}"
    whole = {"uri": uri, "mimeType": file.mime_type}
    if file.is_text:
        text = file.decoded().decode("utf-8", "replace")
        if offers.get("embeddedContext"):
            return {"type": "resource", "resource": {**whole, "text": text}}
        return {"type": "text", "text": f"The file {name}:\n\n{text}"}
    if file.mime_type.startswith("image/") and offers.get("image"):
        return {"type": "image", "data": file.content, "mimeType": file.mime_type}
    if offers.get("embeddedContext") and not file.mime_type.startswith("image/"):
        return {"type": "resource", "resource": {**whole, "blob": file.content}}
    return {"type": "text", "text": f"(The user attached {name}, which you cannot be shown.)"}


# What agents send -------------------------------------------------------------------------------


def block_text(block: Any) -> str:
    """A content block as text."""
    block = object_of(block)
    kind = block.get("type")
    if kind == "text":
        return text_of(block.get("text"))
    if kind == "resource_link":
        return f"[{text_of(block.get('name')) or 'link'}]({text_of(block.get('uri'))})"
    if kind == "resource":
        resource = object_of(block.get("resource"))
        return text_of(resource.get("text")) or f"[{text_of(resource.get('uri'))}]"
    return f"[{kind}]" if kind in ("image", "audio") else ""


def result_text(content: list[dict[str, Any]], raw: Any, most: int = RESULT_CHARS) -> str:
    """What a tool call has given: its content, else its raw output."""
    pieces = [_piece(item) for item in content]
    text = "\n".join(piece for piece in pieces if piece)
    return cut(text or _raw_text(raw), most)


def shortened(content: list[dict[str, Any]], raw: Any) -> str:
    """What a tool call has given, somewhat shorter than `result_text` makes it, which so does not
    cut this text once more."""
    return result_text(content, raw, RESULT_CHARS - 100)


def _piece(item: dict[str, Any]) -> str:
    if item.get("type") == "content":
        return block_text(item.get("content"))
    if item.get("type") == "diff":
        return f"changed {text_of(item.get('path'))}"
    return ""


def _raw_text(raw: Any) -> str:
    if isinstance(raw, dict) and isinstance(raw.get("output"), str):
        return str(raw["output"])
    if raw is None or isinstance(raw, str):
        return raw or ""
    return _json(raw)


def _json(value: Any) -> str:
    return json.dumps(bounded(value, INPUT_CHARS), ensure_ascii=False)


def bounded(value: Any, most: int, depth: int = _DEPTH) -> Any:
    """A value with its long texts and lists cut."""
    if isinstance(value, str):
        return cut(value, most)
    if depth == 0 and isinstance(value, dict | list):
        return "..."
    if isinstance(value, dict):
        pairs = list(value.items())[:200]
        return {cut(key, 200): bounded(item, most, depth - 1) for key, item in pairs}
    if isinstance(value, list):
        return [bounded(item, most, depth - 1) for item in value[:200]]
    return value


def diffs(content: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Path, old text and new text of each change in the content of a tool call."""
    return [
        (text_of(item.get("path")), text_of(item.get("oldText")), text_of(item.get("newText")))
        for item in content
        if item.get("type") == "diff"
    ]


# Transcripts ------------------------------------------------------------------------------------


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as context for an agent that does not know it: its end, if it is long. Empty
    if nothing was said. A prompt that got no answer, canceled or failed, is left out: the user has
    taken it back, or sends it again."""
    pieces: list[str] = []
    asked: list[str] = []
    for message in messages:
        spoken = list(_spoken(message))
        if message.role == "user":
            asked = spoken
        elif spoken:
            pieces += [*asked, *spoken]
            asked = []
    kept: list[str] = []
    room = TRANSCRIPT_CHARS
    for piece in reversed(pieces):
        if len(piece) > room:
            kept.append("[... what was said before is left out]")
            break
        room -= len(piece)
        kept.append(piece)
    return f"{_BEFORE}{(chr(10) * 2).join(reversed(kept))}{_AFTER}" if kept else ""


def _spoken(message: Message) -> Iterator[str]:
    who = {"user": "User", "assistant": "Assistant"}.get(message.role, "")
    if who and message.text:
        yield f"{who}: {cut(message.text, TRANSCRIPT_CHARS // 4)}"
    for call in message.tool_calls:
        yield f"Assistant used {call.name}: {cut(call.input, _TOOL_CHARS)}"
    for result in message.tool_results:
        yield f"Result of {result.name}: {cut(result.content, _TOOL_CHARS)}"
