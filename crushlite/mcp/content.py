"""The answers of a server as texts and media for the agent."""

from __future__ import annotations

import json
from typing import Any

from ..features.tools import ToolAnswer, ToolMedia

MOST_PARTS = 1000
MOST_MEDIA = 20
MOST_CHARS = 32 << 20  # of the text of one answer
TYPE_CHARS = 100


def tool_answer(result: dict[str, Any]) -> ToolAnswer:
    """What the agent gets for the result of `tools/call`. May take long for a large one: call it in
    a thread."""
    if result.get("resultType") == "input_required":
        return ToolAnswer(
            "the server asks for input of the user, which this client cannot give: call the tool "
            "with all that it needs, or do without it",
            is_error=True,
        )
    parts = result.get("content")
    texts, media = _read(parts if isinstance(parts, list) else [])
    if not texts and not media and result.get("structuredContent") is not None:
        texts = [json.dumps(result["structuredContent"], ensure_ascii=False, indent=1)]
    text = "\n".join(texts)[:MOST_CHARS]
    is_error = result.get("isError") is True
    if not text and not media:
        text = "the tool failed without a message" if is_error else "(the tool gave no output)"
    return ToolAnswer(text, is_error=is_error, media=tuple(media))


def _read(parts: list[Any]) -> tuple[list[str], list[ToolMedia]]:
    texts: list[str] = []
    media: list[ToolMedia] = []
    for part in parts[:MOST_PARTS]:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image", "audio") and len(media) < MOST_MEDIA:
            media += _media(part.get("mimeType"), part.get("data"))
        elif kind == "resource" and isinstance(part.get("resource"), dict):
            text, some = _resource(part["resource"])
            texts += [text] if text else []
            media += some if len(media) < MOST_MEDIA else []
        elif kind == "resource_link":
            texts.append(" ".join(str(part[key]) for key in ("uri", "name") if part.get(key)))
    if len(parts) > MOST_PARTS:
        texts.append(f"({len(parts) - MOST_PARTS} more parts are left out)")
    return texts, media


def _media(kind: Any, data: Any) -> list[ToolMedia]:
    if not isinstance(kind, str) or not isinstance(data, str):
        return []
    return [ToolMedia(kind[:TYPE_CHARS], data)]  # the model is told the type of what is not shown


def _resource(resource: dict[str, Any]) -> tuple[str, list[ToolMedia]]:
    """The text and the images of a resource. Other data are not shown: the text says so."""
    if isinstance(resource.get("text"), str):
        return resource["text"], []
    kind = resource.get("mimeType")
    if isinstance(kind, str) and kind.startswith("image/"):
        return "", _media(kind, resource.get("blob"))
    return f"({resource.get('uri')}: {kind or 'binary data'}, not shown)", []


def resource_answer(contents: list[dict[str, Any]]) -> ToolAnswer:
    """The contents of a resource for the agent."""
    read = [_resource(each) for each in contents[:MOST_PARTS]]
    text = "\n".join(text for text, _ in read if text)[:MOST_CHARS]
    return ToolAnswer(text, media=tuple(media for _, some in read for media in some)[:MOST_MEDIA])


def prompt_text(result: dict[str, Any]) -> str:
    """The messages of a prompt as one text."""
    messages = result.get("messages")
    listed = messages if isinstance(messages, list) else []
    contents = [each.get("content") for each in listed if isinstance(each, dict)]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts, _ = _read(parts)
    return "\n".join(texts)[:MOST_CHARS]
