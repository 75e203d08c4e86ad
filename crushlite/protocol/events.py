"""The event envelope and the table of event kinds, for encoding and decoding."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..errors import BadRequest
from ..records import dataclass
from .codec import JSON, decode, encode, omitted
from .messages import Message, MessageDelta, ToolOutput
from .permissions import PermissionNotification, PermissionRequest
from .questions import QuestionBatch, QuestionNotification
from .runs import AgentEvent, RunComplete
from .sessions import File, Session

ACTIONS = ("created", "updated", "deleted")


@dataclass(slots=True)
class ConfigChanged:
    workspace_id: str


@dataclass(slots=True)
class Resync:
    """The stream could not be resumed: the client must read again what it shows."""

    reason: str


# What only wings publish.


@dataclass(slots=True)
class SkillState:
    """A SKILL.md that was found. `state` is 0 if it can be used; if it is 1, `error` says why it
    cannot. `warning` says what was overlooked in one that can."""

    name: str
    path: str
    state: int
    error: str = omitted()
    warning: str = omitted()


@dataclass(slots=True)
class SkillsEvent:
    """All skills that were found, after that has changed."""

    states: list[SkillState] = field(default_factory=list)


@dataclass(slots=True)
class McpEvent:
    """`type` is state_changed, or tools_, prompts_ or resources_list_changed."""

    type: str
    name: str
    state: str
    error: str = omitted()
    tool_count: int = omitted(0)
    prompt_count: int = omitted(0)
    resource_count: int = omitted(0)


@dataclass(slots=True)
class LSPEvent:
    """`type` is state_changed or diagnostics_changed."""

    type: str
    name: str
    state: int
    error: str = omitted()
    diagnostic_count: int = omitted(0)


KINDS: dict[str, type] = {
    "session": Session,
    "message": Message,
    "message_delta": MessageDelta,
    "tool_output": ToolOutput,
    "file": File,
    "permission_request": PermissionRequest,
    "permission_notification": PermissionNotification,
    "question_batch_request": QuestionBatch,
    "question_batch_notification": QuestionNotification,
    "run_complete": RunComplete,
    "agent_event": AgentEvent,
    "config_changed": ConfigChanged,
    "mcp_event": McpEvent,
    "skills_event": SkillsEvent,
    "lsp_event": LSPEvent,
}
_KIND_OF: dict[type, str] = {cls: kind for kind, cls in KINDS.items()}


@dataclass(slots=True)
class Envelope:
    """One event as a client reads it. `payload` is an object of its kind's class in KINDS, a Resync
    (with an empty action), or the raw JSON of a kind that this version does not know."""

    kind: str
    action: str
    payload: Any


def is_base(payload: object) -> bool:
    """Whether an event belongs to the base protocol. Others are for streams that can resume: the
    Crush client opens none of those."""
    if isinstance(payload, AgentEvent):
        return payload.type != "retry"
    return not isinstance(payload, ToolOutput)


def to_json(action: str, payload: object) -> JSON:
    """An event in the double envelope of the base protocol; `resync` has a single one. Raises
    TypeError for a payload that is no event."""
    if isinstance(payload, Resync):
        return {"type": "resync", "payload": {"reason": payload.reason}}
    kind = _KIND_OF.get(type(payload))
    if kind is None or action not in ACTIONS:
        raise TypeError(f"no event kind for {type(payload).__name__} {action!r}")
    return {"type": kind, "payload": {"type": action, "payload": encode(payload)}}


def parse(value: JSON) -> Envelope:
    """Read an event; one of an unknown kind gets its raw payload. Raises BadRequest."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or "payload" not in value:
        raise BadRequest("not an event: type and payload are required")
    body = value["payload"]
    if kind == "resync":
        return Envelope(kind, "", decode(Resync, body, "payload"))
    doubled = isinstance(body, dict) and body.get("type") in ACTIONS and "payload" in body
    if kind not in KINDS:
        # The whole payload, unless it is clearly a double envelope.
        action, payload = (body["type"], body["payload"]) if doubled else ("", body)
        return Envelope(kind, action, payload)
    if not doubled:
        raise BadRequest(f"not an event: {kind} needs a type in {', '.join(ACTIONS)} and a payload")
    return Envelope(kind, body["type"], decode(KINDS[kind], body["payload"], "payload"))
