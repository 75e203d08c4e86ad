"""Conversations that are too long for the model: how they are measured, and what is sent then."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.messages import Message
    from .providers.base import ChatMessage

IMAGE_TOKENS = 1500  # about what one takes
CUT_CHARS = 2000  # what is left of a long text, in a conversation that is cut to be summarized


def new_tokens(history: Sequence[Message], summary_id: str) -> int:
    """About how many tokens came into the conversation since the model answered last: prompts, and
    results of its calls. 0 if it has not answered yet: then a summary would not help."""
    tokens = 0
    for message in reversed(history):
        if message.role == "assistant" or message.id == summary_id:
            return tokens
        tokens += len(message.text) // 4
        for result in message.tool_results:
            tokens += len(result.content) // 4 + (IMAGE_TOKENS if result.data else 0)
        for part in message.parts:
            data = getattr(part, "data", "")
            kind = getattr(part, "mime_type", "")
            tokens += IMAGE_TOKENS if data and not kind.startswith("text/") else len(data) // 5
    return 0


def cut(messages: Sequence[ChatMessage], chars: int) -> list[ChatMessage]:
    """The conversation with about `chars` characters at most, if cutting long texts is enough for
    that: the newest first, as the beginning may be in the provider's cache."""
    left = length(messages) - chars
    result = list(messages)
    for index in reversed(range(len(result))):
        if left <= 0:
            break
        message = result[index]
        if _length(message) <= 2 * CUT_CHARS:
            continue
        kept = dataclasses.replace(message, images=[], text=shorter(message.text, CUT_CHARS))
        left -= _length(message) - _length(kept)
        result[index] = kept
    return result


def length(messages: Sequence[ChatMessage]) -> int:
    """About how many characters a conversation takes; images count as the texts that take as many
    tokens."""
    return sum(map(_length, messages))


def _length(message: ChatMessage) -> int:
    return len(message.text) + 4 * IMAGE_TOKENS * len(message.images)


def shorter(text: str, chars: int) -> str:
    """A text, or its two ends with so many characters together if it is longer."""
    if len(text) <= chars:
        return text
    half = chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n(... {left_out} characters left out ...)\n{text[-half:]}"
