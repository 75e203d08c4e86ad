"""What the decoders of all kinds of providers share: JSON of unknown shape, read with care."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from ..jsontext import is_deep, loads
from .base import ProviderError
from .failures import malformed, refusal
from .reply import WHOLE

if TYPE_CHECKING:
    from ...http.sse import SSEEvent
    from .base import Piece

MOST = 10**9  # tokens, or numbers of parts
MOST_ITEMS = 2000  # parts of one event
HELD_CHARS = 1 << 20  # of what is kept back until it can be used, such as signatures

_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Decoder(Protocol):
    """Turns the events of one answer into pieces. Knows no time and no connection."""

    begun: bool  # something of the answer itself has come
    done: bool  # the server said that nothing follows

    @property
    def finished(self) -> bool:
        """Whether the answer is complete; the usage may still follow."""
        ...

    def feed(self, event: SSEEvent) -> list[Piece]:
        """Raises ProviderError for an error document, and for what cannot be understood."""
        ...

    def end(self) -> list[Piece]:
        """The last pieces, after the last event; ModelStop is the last one. Raises ProviderError if
        the answer is not complete."""
        ...


class SurrogateJoiner:
    """Makes text that comes in pieces valid. JSON can carry half of a surrogate pair at the end of
    a piece and the other half in the next: pairs are joined, lone halves become U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def __call__(self, text: str) -> str:
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if text and 0xD800 <= ord(text[-1]) <= 0xDBFF:
            text, self._half = text[:-1], text[-1]
        if _SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


def decode_json(data: str) -> Any:
    try:
        return loads(data)
    except ValueError:
        raise malformed("something that is not JSON", data) from None


def items_of(value: Any, what: str) -> list[Any]:
    """A list of an answer; empty if it is missing. Raises ProviderError if it is none, or has more
    than MOST_ITEMS entries: reading an event is one step of the event loop."""
    if not value:
        return []
    if not isinstance(value, list):
        raise malformed(f"{what} that are no list", value)
    if len(value) > MOST_ITEMS:
        raise ProviderError(f"the provider sent {len(value)} {what} at once")
    return value


def object_of(event: SSEEvent) -> dict[str, Any]:
    """The JSON object of an event. Raises ProviderError if it is an error, or no object."""
    value = decode_json(event.data)
    if not isinstance(value, dict):
        raise refusal(value) if event.event == WHOLE else malformed("no object", event.data)
    named = event.event == "error" or "error" in (value.get("object"), value.get("type"))
    if value.get("error") or named:
        raise refusal(value)
    return value


def written(value: Any) -> str:
    """An object of an answer as JSON. Raises ProviderError for one that is nested too deeply."""
    if is_deep(value):
        raise malformed("arguments that are nested too deeply")
    return "".join(json.JSONEncoder().iterencode(value))


def whole_number(value: object) -> int | None:
    """A number that counts something; None if the value is not one, or absurdly large."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        return None
    return value


def text_field(value: dict[str, Any], name: str) -> str:
    """A field that is a text; empty if it is missing or null. Raises ProviderError if it is
    anything else."""
    found = value.get(name)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise malformed(f"a {name} that is no text", found)
    return found


def stop_reason(reason: str, *, has_calls: bool) -> str:
    """The reason of a ModelStop, with one correction: many servers say that they stopped, or
    nothing, after tool calls; a few say tool_calls without any."""
    if has_calls and reason in ("end_turn", "unknown"):
        return "tool_use"
    return "unknown" if reason == "tool_use" and not has_calls else reason


def cut_off() -> ProviderError:
    """The error for a stream that ended before the answer was complete."""
    text = "the provider's stream ended before the answer was complete"
    return ProviderError(text, retryable=True)
