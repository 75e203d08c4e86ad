"""What passes between the model loop and a provider, the same for every kind of provider.

A provider is asked with a ModelRequest and answers with a stream of Pieces. It knows nothing of
turns, sessions or tools beyond their descriptions; it neither retries nor stores. What can be
retried is said by the error it raises, and the loop decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ProviderFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told about it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    input: str  # a string of JSON, valid: malformed ones were replaced before they were stored


@dataclass(frozen=True, slots=True)
class Image:
    mime_type: str
    data: str  # base64


@dataclass(slots=True)
class ChatMessage:
    """`role` is user, assistant or tool. A tool message answers one call."""

    role: str
    text: str = ""
    images: list[Image] = field(default_factory=list)
    thinking: str = ""
    signature: str = ""  # of the thinking; some providers want it back unchanged
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str = ""
    is_error: bool = False


@dataclass(slots=True)
class ModelRequest:
    model: str
    system: str
    messages: list[ChatMessage]
    tools: list[ToolSpec] = field(default_factory=list)
    max_tokens: int = 0  # 0: the provider's default
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str = ""
    think: bool = False


# Pieces of an answer, in the order the provider streams them.


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of the `index`-th tool call of this answer: id and name come with the first part,
    `arguments` is appended."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Usage as far as the provider reports it; a later report replaces the values it has."""

    prompt: int | None = None  # cache reads and writes not included
    completion: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


@dataclass(frozen=True, slots=True)
class ModelStop:
    """The answer is complete: end_turn, tool_use, max_tokens, content_filter or unknown."""

    reason: str


Piece = Text | Thought | CallPiece | Tokens | ModelStop


class ProviderError(ProviderFailed):
    """The provider refused, failed or broke off. The message holds the provider's own words.

    `retryable` is false for what will not get better by itself: 400, 401, 403, 404.
    """

    def __init__(
        self, message: str, *, status: int = 0, retryable: bool = False, retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.upstream_status = status
        self.retryable = retryable
        self.retry_after = retry_after


class ModelClient(Protocol):
    def stream(self, request: ModelRequest) -> AsyncIterator[Piece]:
        """Ask the model. The stream always ends with Stop or raises ProviderError; closing the
        iterator, or cancelling its consumer, closes the connection to the provider at once."""
        ...

    async def aclose(self) -> None: ...
