"""Conversations that are too long for the model: how providers say it, and what is sent then."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..protocol.messages import Message
    from .providers.base import ChatMessage, ProviderError

IMAGE_TOKENS = 1500  # about what one takes
CUT_CHARS = 2000  # what is left of a long text, in a conversation that is cut to be summarized

# Each provider has words of its own. None of them is in the refusals of rate limits.
_WORDS = re.compile(
    r"context[ _-]?(?:length|window|size|limit)|maximum (?:context|prompt|input|model) "
    r"|(?:prompt|input|request|messages?)[\w ]{0,30} (?:is|are) too (?:long|large)"
    r"|too many (?:input )?tokens|reduce the length|request_too_large"
    r"|exceeds? the (?:maximum|max|available|allowed|limit)[\w ]{0,40}(?:tokens|context)"
    r"|(?:token count|tokens)[\w ()]{0,40} exceeds",
    re.IGNORECASE,
)
_STATUSES = (0, 400, 413, 422, 500)  # 0: it came inside a stream


def is_overflow(error: ProviderError) -> bool:
    """Whether a provider refused a request because the conversation is too long."""
    if error.upstream_status == 413:
        return True
    return error.upstream_status in _STATUSES and _WORDS.search(str(error)) is not None


def new_tokens(history: Sequence[Message], summary_id: str) -> int:
    """About how many tokens came into the conversation since the model answered last: prompts, and
    results of its calls. 0 if it has not answered yet: then a summary would not help."""
    tokens = 0
    for message in reversed(history):
        if message.role == "assistant" or message.id == summary_id:
            return tokens
        tokens += len(message.text) // 4
        tokens += sum(len(result.content) // 4 for result in message.tool_results)
        for part in message.parts:
            data = getattr(part, "data", "")
            kind = getattr(part, "mime_type", "")
            tokens += IMAGE_TOKENS if data and not kind.startswith("text/") else len(data) // 5
    return 0


def cut(messages: Sequence[ChatMessage], chars: int) -> list[ChatMessage]:
    """The conversation with about `chars` characters at most, if cutting long texts is enough for
    that: the newest first, as the beginning may be in the provider's cache."""
    left = sum(_length(message) for message in messages) - chars
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


def _length(message: ChatMessage) -> int:
    return len(message.text) + 4 * IMAGE_TOKENS * len(message.images)


def shorter(text: str, chars: int) -> str:
    """A text, or its two ends with so many characters together if it is longer."""
    if len(text) <= chars:
        return text
    half = chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n(... {left_out} characters left out ...)\n{text[-half:]}"
