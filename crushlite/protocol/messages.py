"""Messages and their parts, prompts and their attachments."""

from __future__ import annotations

import base64
import binascii
from dataclasses import field, replace
from typing import ClassVar

from ..errors import BadRequest
from ..records import dataclass
from .codec import omitted, tagged, wire
from .config import SelectedModel  # noqa: TC001 - the codec reads type hints


class Part:
    """A part of a message; on the wire `{"type": tag, "data": {...}}`."""

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
    """An attached file; its content is standard base64."""

    tag: ClassVar[str] = "binary"
    path: str = field(default="", metadata=wire(name="Path"))
    mime_type: str = field(default="", metadata=wire(name="MIMEType"))
    data: str = field(default="", metadata=wire(name="Data"))


@dataclass(slots=True)
class ToolCallPart(Part):
    """`input` is a string of JSON; while it is still streaming, `finished` is left out."""

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
    """Ends a message. `reason` is end_turn, max_tokens, content_filter or unknown for the last step
    of a turn, tool_use for a step before it, canceled or error for a step that was cut off, and
    stop for a message that no model wrote. `withheld`: a prompt that no model is shown, because a
    hook refused it, or it was canceled before the hook had answered."""

    tag: ClassVar[str] = "finish"
    reason: str = ""
    time: int = 0
    message: str = omitted()
    details: str = omitted()
    withheld: bool = omitted(False)


@dataclass(slots=True)
class ShellCommandPart(Part):
    tag: ClassVar[str] = "shell_command"
    command: str = ""
    output: str = ""
    exit_code: int = 0


PARTS: dict[str, type] = {
    cls.tag: cls
    for cls in (
        *(TextPart, ReasoningPart, ImageURLPart, BinaryPart),
        *(ToolCallPart, ToolResultPart, FinishPart, ShellCommandPart),
    )
}


@dataclass(slots=True)
class Message:
    """One message of a session; one of an assistant is one step of a turn."""

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
        """The first text part, the only one that clients show; empty if there is none."""
        for part in self.parts:  # a loop: this is asked for each message of each request to a model
            if isinstance(part, TextPart):
                return part.text
        return ""

    @property
    def finish(self) -> FinishPart | None:
        for part in reversed(self.parts):  # from the end: it is the last part
            if isinstance(part, FinishPart):
                return part
        return None

    @property
    def tool_calls(self) -> list[ToolCallPart]:
        return [part for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResultPart]:
        return [part for part in self.parts if isinstance(part, ToolResultPart)]


@dataclass(slots=True)
class ToolOutput:
    """The output of a running tool so far: its first and last lines. Only on streams that can
    resume, and not stored: the tool's result replaces it."""

    session_id: str
    tool_call_id: str
    output: str = ""


@dataclass(slots=True)
class MessageDelta:
    """What was appended to a part of a message: on streams that asked for deltas, instead of the
    whole message. `part` counts from 0, `offset` in characters (Unicode code points)."""

    message_id: str
    part: int
    offset: int
    text: str

    @classmethod
    def between(cls, before: Message, after: Message) -> MessageDelta | None:
        """The difference of two states of a message, if text or reasoning that both have got longer
        in the second; None if more than that may differ."""
        found = None
        if len(before.parts) != len(after.parts):
            return None
        for index, (old, new) in enumerate(zip(before.parts, after.parts, strict=True)):
            if isinstance(old, TextPart) and isinstance(new, TextPart):
                start, text = len(old.text), new.text
            elif isinstance(old, ReasoningPart) and isinstance(new, ReasoningPart):
                if old.signature != new.signature:
                    return None
                start, text = len(old.thinking), new.thinking
            else:
                continue
            if len(text) == start:
                continue
            if found is not None or len(text) < start:
                return None
            found = cls(after.id, index, start, text[start:])
        return found

    def until(self, later: Message) -> MessageDelta:
        """What was appended to the same part from where this begins to a later state."""
        part = later.parts[self.part]
        text = part.text if isinstance(part, TextPart) else ""
        text = part.thinking if isinstance(part, ReasoningPart) else text
        return replace(self, text=text[self.offset :])

    def applied(self, before: Message) -> Message | None:
        """The message with this appended; None if it does not continue that state."""
        old = before.parts[self.part] if 0 <= self.part < len(before.parts) else None
        new: Part
        if isinstance(old, TextPart) and len(old.text) == self.offset:
            new = TextPart(old.text + self.text)
        elif isinstance(old, ReasoningPart) and len(old.thinking) == self.offset:
            new = replace(old, thinking=old.thinking + self.text)
        else:
            return None
        parts = [*before.parts]
        parts[self.part] = new
        return replace(before, parts=parts)


@dataclass(slots=True)
class Attachment:
    content: str = ""
    file_path: str = ""
    file_name: str = ""
    mime_type: str = ""

    @property
    def is_text(self) -> bool:
        return self.mime_type.startswith("text/")

    def part(self) -> BinaryPart:
        """The part of a message that holds it."""
        return BinaryPart(self.file_path or self.file_name, self.mime_type, self.content)

    def decoded(self) -> bytes:
        """The content as bytes. Raises BadRequest."""
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError):
            name = self.file_name or self.file_path
            raise BadRequest(f"attachment {name!r}: content is not valid base64") from None

    def check(self) -> None:
        """Raise BadRequest for a name that cannot be stored, or a content that is not base64."""
        for name in (self.file_path, self.file_name):
            if "\0" in name:
                raise BadRequest(f"attachment {name!r}: a name must not contain NUL")
        self.decoded()


@dataclass(slots=True)
class Prompt:
    """Body of `POST W/agent`. The fields from `when_busy` on are not in the base protocol."""

    session_id: str = ""
    prompt: str = ""
    run_id: str = omitted()
    attachments: list[Attachment] = omitted(list)
    when_busy: str = omitted()
    detach: bool = omitted(False)
    max_cost: float | None = omitted(None)
    max_steps: int | None = omitted(None)
    auto_approve: bool = omitted(False)
    reasoning_effort: str = omitted()
    think: bool | None = omitted(None)
    models: dict[str, SelectedModel] = omitted(dict)  # by role: `large`, `small`
    max_seconds: float | None = omitted(None)  # from the start of its turn
