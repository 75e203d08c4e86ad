"""Messages and their parts, prompts and their attachments."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import ClassVar

from ..errors import BadRequest
from .codec import omitted, omitted_list, tagged, wire


class Part:
    """A piece of a message; on the wire `{"type": tag, "data": {...}}`."""

    __slots__ = ()
    tag: ClassVar[str]


@dataclass(slots=True)
class TextPart(Part):
    tag: ClassVar[str] = "text"
    text: str = ""


@dataclass(slots=True)
class ReasoningPart(Part):
    tag: ClassVar[str] = "reasoning"
    thinking: str = ""
    signature: str = ""
    started_at: int = omitted(0)
    finished_at: int = omitted(0)


@dataclass(slots=True)
class ImageURLPart(Part):
    tag: ClassVar[str] = "image_url"
    url: str = ""
    detail: str = omitted()


@dataclass(slots=True)
class BinaryPart(Part):
    """An attached file. The keys are Go-cased on the wire; `data` is standard base64."""

    tag: ClassVar[str] = "binary"
    path: str = field(default="", metadata=wire(name="Path"))
    mime_type: str = field(default="", metadata=wire(name="MIMEType"))
    data: str = field(default="", metadata=wire(name="Data"))


@dataclass(slots=True)
class ToolCallPart(Part):
    """`input` is a string of JSON; `finished` absent means it is still streaming."""

    tag: ClassVar[str] = "tool_call"
    id: str = ""
    name: str = ""
    input: str = ""
    type: str = omitted()
    finished: bool = omitted(False)


@dataclass(slots=True)
class ToolResultPart(Part):
    """`metadata` is a string of JSON or empty; `data` is base64 media."""

    tag: ClassVar[str] = "tool_result"
    tool_call_id: str = ""
    name: str = ""
    content: str = ""
    metadata: str = ""
    is_error: bool = False
    data: str = omitted()
    mime_type: str = omitted()


@dataclass(slots=True)
class FinishPart(Part):
    """`reason` is end_turn, max_tokens, content_filter or unknown of an answer, tool_use of a step
    before the last, canceled or error of what was cut off, stop of what no model wrote."""

    tag: ClassVar[str] = "finish"
    reason: str = ""
    time: int = 0
    message: str = omitted()
    details: str = omitted()


@dataclass(slots=True)
class ShellCommandPart(Part):
    tag: ClassVar[str] = "shell_command"
    command: str = ""
    output: str = ""
    exit_code: int = 0


PARTS: dict[str, type] = {
    cls.tag: cls
    for cls in (
        TextPart,
        ReasoningPart,
        ImageURLPart,
        BinaryPart,
        ToolCallPart,
        ToolResultPart,
        FinishPart,
        ShellCommandPart,
    )
}


@dataclass(slots=True)
class Message:
    """One message of a session; an assistant message is one model step, not one turn."""

    id: str
    role: str
    session_id: str
    parts: list[Part] = field(default_factory=list, metadata=tagged(PARTS))
    model: str = ""
    provider: str = ""
    created_at: int = 0
    updated_at: int = 0
    is_summary_message: bool = omitted(False)

    @property
    def text(self) -> str:
        """The first text part: clients show only that one."""
        return next((part.text for part in self.parts if isinstance(part, TextPart)), "")

    @property
    def finish(self) -> FinishPart | None:
        return next((part for part in self.parts if isinstance(part, FinishPart)), None)

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        return [part for part in self.parts if isinstance(part, ToolResultPart)]


@dataclass(slots=True)
class ToolOutput:
    """What a running tool has put out so far: its first and last lines. Only for streams that ask
    to resume, and gone when the result is there."""

    session_id: str
    tool_call_id: str
    output: str = ""


@dataclass(slots=True)
class Attachment:
    content: str = ""
    file_path: str = ""
    file_name: str = ""
    mime_type: str = ""

    @property
    def is_text(self) -> bool:
        return self.mime_type.startswith("text/")

    def decoded(self) -> bytes:
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError):
            name = self.file_name or self.file_path
            raise BadRequest(f"attachment {name!r}: content is not valid base64") from None

    def check(self) -> None:
        for name in (self.file_path, self.file_name):
            if "\0" in name:
                raise BadRequest(f"attachment {name!r}: a name must not contain NUL")
        self.decoded()


@dataclass(slots=True)
class Prompt:
    """Body of `POST W/agent`; the last five are crushlite's own."""

    session_id: str = ""
    prompt: str = ""
    run_id: str = omitted()
    attachments: list[Attachment] = omitted_list()
    when_busy: str = omitted()
    detach: bool = omitted(False)
    max_cost: float | None = omitted(None)
    max_steps: int | None = omitted(None)
    auto_approve: bool = omitted(False)
