"""What a provider wants back of its own answers, and where that is stored.

Reasoning that is signed or encrypted must be returned unchanged and in its place among the text and
the tool calls. It is stored with the message, in the signature of its reasoning, so that a restart
does not lose it. Anthropic's signature of a single thought is stored as it is. Everything else is
JSON: a record, which is a list of entries in the order of the answer. An entry with a `place`
stands for what the message itself holds: a part of its text, of so many `chars`, or its next tool
call. The others belong to the provider. Each record names the API that made it, because another one
could not use it: a session may go on with another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...records import dataclass
from ..jsontext import loads
from .decoding import written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .base import ChatMessage, ToolCall

Entry = dict[str, Any]


def text_place(chars: int = 0, **more: Any) -> Entry:
    return {"place": "text", "chars": chars, **more}


def call_place(**more: Any) -> Entry:
    return {"place": "call", **more}


def signature_of(api: str, record: list[Entry]) -> str:
    """A record as the signature of a message's reasoning."""
    return written({api: record})


def record_of(message: ChatMessage, api: str) -> list[Entry]:
    """The record of a message; empty if it has none of this API."""
    signature = message.signature
    if not signature.startswith(f'{{"{api}": '):
        return []
    try:
        found = loads(signature)[api]
    except (ValueError, KeyError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Placed:
    """A part of an answer: text, or a tool call, or neither, which is the provider's own. `entry`
    is what the record says about it."""

    entry: Entry
    text: str | None = None
    call: ToolCall | None = None


def placed(record: list[Entry], message: ChatMessage) -> list[Placed]:
    """The parts of an answer in the order in which they came. What the record does not place comes
    last, the text before the calls."""
    found: list[Placed] = []
    texts = iter(_cut(record, message.text))
    calls = iter(message.tool_calls)
    for entry in record:
        match entry.get("place"):
            case "text":
                found.append(Placed(entry, next(texts)))
            case "call":
                if (call := next(calls, None)) is not None:
                    found.append(Placed(entry, call=call))
            case _:
                found.append(Placed(entry))
    found += [Placed({}, text) for text in texts]
    return found + [Placed({}, call=call) for call in calls]


def _cut(record: Iterable[Entry], text: str) -> list[str]:
    """The text, cut into as many parts as the record has places for; a part more if there is none.
    If the lengths do not fit, the first place gets all of it."""
    sizes = [entry.get("chars") for entry in record if entry.get("place") == "text"]
    lengths = [size if isinstance(size, int) and size >= 0 else 0 for size in sizes]
    # A line break at the beginning of an answer is not stored.
    if lengths and sum(lengths) == len(text) + 1:
        lengths[0] -= 1
    if not lengths or sum(lengths) != len(text) or lengths[0] < 0:
        return [text] + [""] * (len(lengths) - 1)
    parts, at = [], 0
    for length in lengths:
        parts.append(text[at : at + length])
        at += length
    return parts
