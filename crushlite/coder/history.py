"""Stored messages as the conversation of a model request.

The stored history is what clients saw, with turns that were canceled, failed or cut off by a crash.
Providers refuse a history with a tool call that has no result, a result without a call, or an empty
assistant message, and would refuse every later request too. So it is repaired for each request.

Each stored user message becomes a message of its own, with its text exactly as typed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from ..protocol.messages import BinaryPart, ReasoningPart, ShellCommandPart
from .jsontext import loads
from .providers.base import PDF, ChatMessage, Image, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.messages import Message, ToolResultPart

FAILED = "Error: "  # before the result of a call that failed: not every provider has a flag for it
INTERRUPTED = f"{FAILED}this tool call was interrupted and has no result"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def chat_messages(
    messages: Sequence[Message], *, summary_id: str = "", images: bool = False
) -> list[ChatMessage]:
    """The conversation, beginning with the summary of this id if there is one. `images` says
    whether the model accepts images."""
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


def _results(messages: Sequence[Message], *, images: bool) -> dict[str, ChatMessage]:
    """Tool results by the id of their call, wherever they are stored."""
    return {
        result.tool_call_id: _result(result, images=images)
        for message in messages
        if message.role == "tool"
        for result in message.tool_results
    }


def _result(result: ToolResultPart, *, images: bool) -> ChatMessage:
    text = result.content
    if result.is_error and not text.startswith(FAILED):
        text = FAILED + text
    found = ChatMessage("tool", text, tool_call_id=result.tool_call_id, is_error=result.is_error)
    if result.data and images and _is_image(result.mime_type, result.data):
        found.images.append(Image(result.mime_type, result.data))
    elif result.data:
        found.text += f"\n({result.mime_type or 'data'}: not shown, this model takes no such input)"
    return found


def _user(message: Message, *, images: bool) -> ChatMessage:
    chat = ChatMessage("user", message.text)
    for part in message.parts:
        if isinstance(part, ShellCommandPart):
            chat.text += f"I ran `{part.command}` (exit code {part.exit_code}):\n{part.output}"
        elif isinstance(part, BinaryPart) and part.mime_type.startswith("text/"):
            chat.text += f'\n\n<file path="{part.path}">\n{_decoded(part.data)}\n</file>'
        elif isinstance(part, BinaryPart) and images and _is_image(part.mime_type, part.data):
            chat.images.append(Image(part.mime_type, part.data))
        elif isinstance(part, BinaryPart) and images and part.mime_type == PDF:
            chat.images.append(Image(PDF, part.data, part.path))
        elif isinstance(part, BinaryPart):
            chat.text += f"\n\n(attached file {part.path} of type {part.mime_type} is not shown)"
    return chat


def _is_image(mime_type: str, data: str) -> bool:
    """Whether providers accept this image. One that they refuse would fail every later request."""
    if mime_type not in IMAGE_TYPES:
        return False
    try:
        return bool(base64.b64decode(data, validate=True))
    except ValueError:
        return False


def _decoded(data: str) -> str:
    """The text of an attached file."""
    try:
        return base64.b64decode(data, validate=True).decode("utf-8", "replace")
    except ValueError:
        return "(this attachment is damaged)"


def _assistant(message: Message, answered: dict[str, ChatMessage]) -> list[ChatMessage]:
    """The message, followed by the results of its calls; nothing if it is empty."""
    thought = next((part for part in message.parts if isinstance(part, ReasoningPart)), None)
    calls = [ToolCall(call.id, call.name, valid_input(call.input)) for call in message.tool_calls]
    if not message.text and not calls:
        return []
    chat = ChatMessage("assistant", message.text, tool_calls=calls)
    if thought is not None:
        chat.thinking, chat.signature = thought.thinking, thought.signature
    results = [
        ChatMessage("tool", INTERRUPTED, tool_call_id=call.id, is_error=True)
        if call.id not in answered
        else answered[call.id]
        for call in calls
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
