"""Stored messages as the conversation of a model request.

The stored history is what clients saw, with turns that were canceled, failed or cut off by a crash.
Providers refuse a history with a tool call that has no result, a result without a call, or an empty
assistant message, and would refuse every later request too. So it is repaired for each request.

Each stored user message becomes a message of its own, with its text exactly as typed.
"""

from __future__ import annotations

import base64
from enum import Enum
from typing import TYPE_CHECKING

from ..protocol.messages import BinaryPart, ReasoningPart, ShellCommandPart, ToolCallPart
from .images import image_problem, image_type
from .jsontext import loads
from .providers.base import PDF, ChatMessage, Image, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.messages import Message, ToolResultPart
    from .providers.base import ProviderError

FAILED = "Error: "  # before the result of a call that failed: not every provider has a flag for it
INTERRUPTED = f"{FAILED}this tool call was interrupted and has no result"
REFUSED = (400, 415, 422)  # statuses of providers that do not take what was sent
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class Images(Enum):
    """Which attached images and documents a request holds. The others are only named in it."""

    NONE = "none"
    ALL = "all"
    WHOLE = "whole"  # those that look undamaged, and are what they are called


def chat_messages(
    messages: Sequence[Message], *, summary_id: str = "", images: Images = Images.NONE
) -> list[ChatMessage]:
    """The conversation, beginning with the summary of this id if there is one. `images` says
    which images and documents the model is shown."""
    start = next((n for n, m in enumerate(messages) if summary_id and m.id == summary_id), None)
    answered = _results(messages[start or 0 :], images=images)
    chat: list[ChatMessage] = []
    for message in messages[start or 0 :]:
        if start is not None and message.id == summary_id:
            chat.append(ChatMessage("user", f"Summary of our conversation so far:\n{message.text}"))
        elif message.is_summary_message:
            continue  # an older summary, or one that was never finished
        elif message.role == "user":
            chat.append(_user(message, images=images))
        elif message.role == "assistant":
            chat += _assistant(message, answered)
    return chat


def _results(messages: Sequence[Message], *, images: Images) -> dict[str, ChatMessage]:
    """Tool results by the id of their call, wherever they are stored."""
    return {
        result.tool_call_id: _result(result, images=images)
        for message in messages
        if message.role == "tool"
        for result in message.tool_results
    }


def _result(result: ToolResultPart, *, images: Images) -> ChatMessage:
    text = result.content
    if result.is_error and not text.startswith(FAILED):
        text = FAILED + text
    found = ChatMessage("tool", text, tool_call_id=result.tool_call_id, is_error=result.is_error)
    if result.data:
        problem = _problem(result.mime_type, result.data, images)
        if problem:
            found.text += f"\n({result.mime_type or 'data'}: not shown, {problem})"
        else:
            found.images.append(Image(result.mime_type, result.data))
    return found


def _user(message: Message, *, images: Images) -> ChatMessage:
    chat = ChatMessage("user", message.text)
    for part in message.parts:
        if isinstance(part, ShellCommandPart):
            chat.text += f"I ran `{part.command}` (exit code {part.exit_code}):\n{part.output}"
        elif not isinstance(part, BinaryPart):
            continue
        elif part.mime_type.startswith("text/"):
            chat.text += f'\n\n<file path="{part.path}">\n{_decoded(part.data)}\n</file>'
        else:
            problem = _problem(part.mime_type, part.data, images)
            if problem:
                what = f"attached file {part.path} of type {part.mime_type}"
                chat.text += f"\n\n({what} is not shown: {problem})"
            else:
                name = part.path if part.mime_type == PDF else ""
                chat.images.append(Image(part.mime_type, part.data, name))
    return chat


def refused_for_image(error: ProviderError, messages: Sequence[ChatMessage]) -> bool:
    """Whether the provider may have refused this conversation because an image is damaged."""
    refused = error.upstream_status in REFUSED and not error.overflow
    images = (image for message in messages for image in message.images)
    return refused and any(_damage(image.mime_type, image.data) for image in images)


def _problem(mime_type: str, data: str, images: Images) -> str:
    """Why the model is not shown an image or a document; empty if it is."""
    if images is Images.NONE or mime_type not in (*IMAGE_TYPES, PDF):
        return "this model takes no such input"
    if images is Images.ALL:
        return "" if _content(data) else "it is damaged"
    return _damage(mime_type, data)


def _damage(mime_type: str, data: str) -> str:
    """What is wrong with an image or a document; empty if it is what it is called, and whole."""
    content = _content(data)
    if mime_type == PDF:
        return "" if b"%PDF-" in content[:1024] else "it is damaged"
    if image_type(content) != mime_type:
        return f"it is damaged, or no {mime_type}"
    return image_problem(content)


def _content(data: str) -> bytes:
    """What base64 text holds; nothing if it is damaged."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        return b""


def _decoded(data: str) -> str:
    """The text of an attached file."""
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "replace")
    except ValueError:
        return "(this attachment is damaged)"


def _assistant(message: Message, answered: dict[str, ChatMessage]) -> list[ChatMessage]:
    """The message, followed by the results of its calls; nothing if it is empty."""
    chat = ChatMessage("assistant", message.text)
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            chat.tool_calls.append(ToolCall(part.id, part.name, valid_input(part.input)))
        elif isinstance(part, ReasoningPart) and not chat.thinking:
            chat.thinking, chat.signature = part.thinking, part.signature
    if not chat.text and not chat.tool_calls:
        return []
    results = [
        ChatMessage("tool", INTERRUPTED, tool_call_id=call.id, is_error=True)
        if call.id not in answered
        else answered[call.id]
        for call in chat.tool_calls
    ]
    return [chat, *results]


def valid_input(text: str) -> str:
    """The arguments of a tool call if they are a JSON object, else `{}`."""
    try:
        value = loads(text, strict=True)  # it is sent to providers with every later request
    except ValueError:
        return "{}"
    return text if isinstance(value, dict) else "{}"


def estimated_tokens(*texts: str) -> int:
    """About how many tokens the texts have, four characters to a token: for servers that report no
    usage."""
    return sum(len(text) for text in texts) // 4
