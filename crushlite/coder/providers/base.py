"""Requests to a model and the pieces of its answers, the same for every kind of provider.

A provider is asked with a ModelRequest and answers with a stream of Pieces. It knows nothing of
turns and sessions, and of tools only their descriptions. It neither retries nor stores: its errors
say whether a retry can help, and the loop decides.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ProviderFailed
from ...records import dataclass
from ..jsontext import loads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as it is described to the model; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    input: str  # valid JSON: malformed input was replaced before it was stored

    @property
    def arguments(self) -> dict[str, Any]:
        """The input taken apart; empty if it is no JSON object."""
        try:
            value = loads(self.input or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Image:
    """An image, or a PDF document: a provider that does not take documents says so in its place."""

    mime_type: str
    data: str  # base64
    name: str = ""  # of its file

    @property
    def is_document(self) -> bool:
        return self.mime_type == PDF

    @property
    def left_out(self) -> str:
        """What stands for a document in a request to a server that does not take any."""
        return f"(attached file {self.name} of type {self.mime_type} is not shown)"


@dataclass(slots=True)
class ChatMessage:
    """`role` is user, assistant or tool. A tool message answers one call."""

    role: str
    text: str = ""
    images: list[Image] = field(default_factory=list)
    thinking: str = ""
    signature: str = ""  # what its provider wants back with it, unchanged; see returned.py
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str = ""
    is_error: bool = False


@dataclass(slots=True)
class ModelRequest:
    """What a model is asked. Optional settings that are empty are not sent."""

    model: str
    system: str
    messages: list[ChatMessage]
    tools: list[ToolSpec] = field(default_factory=list)
    max_tokens: int = 0  # 0: the provider's default
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    reasoning_effort: str = ""
    think: bool = False

    def reason(self, effort: str, think: bool | None) -> None:
        """Reason as a prompt wishes; what it leaves open stays as it is configured."""
        if think is not None:
            self.think = think
            # An effort is reasoning, and "none" is not.
            configured = self.reasoning_effort if self.reasoning_effort != "none" else ""
            self.reasoning_effort = configured if think else "none"
        self.reasoning_effort = effort or self.reasoning_effort

    @property
    def chars(self) -> int:
        """About how long it is, without the descriptions of the tools."""
        total = len(self.system)
        for message in self.messages:
            total += len(message.text) + len(message.thinking) + len(message.signature)
            for call in message.tool_calls:
                total += len(call.input)
            for image in message.images:
                total += len(image.data)
        return total


# Pieces of an answer, in the order in which the provider streams them.


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a tool call, which `index` counts within the answer. Id and name come with the
    first part; the `arguments` of all parts are one JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Usage as far as the provider reports it. A later report replaces the values that it has."""

    prompt: int | None = None  # without cache reads and writes
    completion: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


@dataclass(frozen=True, slots=True)
class ModelStop:
    """The answer is complete: end_turn, tool_use, max_tokens, content_filter or unknown."""

    reason: str


Piece = Text | Thought | CallPiece | Tokens | ModelStop


class ProviderError(ProviderFailed):
    """The provider refused, failed or broke off. The message quotes the provider.

    `retryable` is false if a retry cannot help, as after a status of 400, 401, 403 or 404.
    `upstream_status` is the provider's HTTP status, 0 if there was none. `overflow` is true if the
    conversation does not fit into the model's context window. `said` is the message without advice.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        retryable: bool = False,
        retry_after: float = 0.0,
        overflow: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(f"{message}. {advice}" if advice else message)
        self.said = message
        self.upstream_status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.overflow = overflow


class ModelClient(Protocol):
    def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Ask the model. The last piece is a ModelStop, or ProviderError is raised. Closing the
        generator, or cancelling its consumer, closes the connection to the provider at once."""
        ...

    async def aclose(self) -> None: ...
