"""The answer of a model in one step, put together from its pieces and kept within bounds.

The figures hold together as follows. ANSWER_BYTES counts the bytes that text, reasoning and tool
calls take as JSON, so a message with all of them is an event of at most 4 MiB. That is what the
replay ring of a workspace holds (events.Bounds.ring_bytes) and half of what one stream may hold
(Bounds.bytes, 8 MiB with its transport). So an answer costs a workspace with 8 watchers at most
4 MiB for the ring, 8 x 8 MiB for streams that are read slowly, and some copies of the message
itself (the text, its newest snapshots, the row that is being written), 4 bytes per character at
worst: about 130 MiB together, and 40 MiB with readers that keep up. Models answer with much less:
4 MiB are a million tokens.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ..records import dataclass
from . import jsontext
from .providers.base import ProviderError

if TYPE_CHECKING:
    from .providers.base import Tokens

ANSWER_BYTES = (4 << 20) - (256 << 10)  # the rest is for ids, names and the envelope
RUN_CALLS = 128  # tool calls of one answer that are run; further ones get an error as their result
MOST_CALLS = 256  # an answer with more is not used at all: each costs a message and an event


@dataclass(slots=True)
class ToolRequest:
    """A tool call of the answer. The id is set once its name is known."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)  # joined once: each join copies all of them
    arguments: str = ""  # all pieces, set by `read`
    value: Any = None  # of the arguments
    problem: str = ""  # why they have no value

    def read(self) -> None:
        """Join the pieces and parse them."""
        self.arguments = "".join(self.pieces)
        self.pieces.clear()
        try:
            self.value = jsontext.loads(self.arguments or "{}", strict=True)
        except ValueError as error:
            self.problem = f"the arguments are not valid JSON: {error}"
            return
        if not isinstance(self.value, dict):
            self.problem = "the arguments must be a JSON object"
        elif jsontext.is_deep(self.value):
            self.problem = "the arguments are not valid JSON: nested too deeply"

    @property
    def stored(self) -> str:
        """The arguments as they are recorded: they must be a JSON object."""
        return "{}" if self.problem or not self.arguments else self.arguments


@dataclass(slots=True)
class ModelAnswer:
    """The model's answer in one step, as far as it has come."""

    used: set[str] = field(default_factory=set)  # ids that no further tool call may have
    calls: dict[int, ToolRequest] = field(default_factory=dict)
    stop: str = ""
    chars: int = 0  # of text, reasoning and arguments
    text_chars: int = 0  # of text alone
    called: bool = False  # whether it asked for tools
    prompt: int | None = None
    completion: int | None = None
    cache_read: int = 0
    cache_write: int = 0
    _bytes: int = 0

    def grow(self, text: str, *others: str) -> None:
        """Count a piece: its text and what else it holds. Raises ProviderError if the answer has
        become too long: what has come before stays."""
        self.chars += len(text)
        for part in (text, *others):
            self._bytes += jsontext.size(part) if part else 0
        if self._bytes > ANSWER_BYTES:
            limit = f"{ANSWER_BYTES / (1 << 20):g} MiB"
            raise ProviderError(f"the model's answer is longer than {limit}: it was cut off there")

    def call(self, index: int) -> ToolRequest:
        """The tool call of this number. Raises ProviderError if there are too many."""
        if index not in self.calls and len(self.calls) >= MOST_CALLS:
            raise ProviderError(f"the model asked for more than {MOST_CALLS} tool calls at once")
        return self.calls.setdefault(index, ToolRequest())

    @property
    def is_heavy(self) -> bool:
        """Whether reading the arguments of all calls may take so long that it belongs in a
        thread."""
        return sum(len(piece) for call in self.calls.values() for piece in call.pieces) > (
            jsontext.LIGHT_CHARS
        )

    def read_calls(self) -> None:
        for call in self.calls.values():
            call.read()

    def count(self, tokens: Tokens) -> None:
        """Take over a report of usage; a value that it lacks stays as it is."""
        self.prompt = tokens.prompt if tokens.prompt is not None else self.prompt
        self.completion = tokens.completion if tokens.completion is not None else self.completion
        self.cache_read = tokens.cache_read or self.cache_read
        self.cache_write = tokens.cache_write or self.cache_write
