"""Permission requests, their notifications and answers."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..records import dataclass
from .codec import omitted

PERMISSION_ACTIONS = ("allow", "allow_session", "deny")
# Our own: grant the rule that is offered with the request, for the session or for good.
RULE_ACTIONS = ("allow_rule", "allow_always")


@dataclass(slots=True)
class PermissionOption:
    """An answer that the agent itself offers to a request. `kind` is allow_once, allow_always,
    reject_once or reject_always; `name` is what the user reads."""

    id: str = ""
    name: str = ""
    kind: str = ""

    @property
    def allows(self) -> bool:
        return self.kind.startswith("allow")


@dataclass(slots=True)
class PermissionRequest:
    """A tool call that waits for a permission. `params` is always an object: the Crush client
    decodes it by tool name. `scope` says what `allow_session` would cover; if empty, every request
    of this session with the same tool, action and path. `rule` says what `allow_rule`, for the
    session, and `allow_always`, for good, would cover; if empty, neither can be chosen. `options`
    are answers of the agent's own: a client may choose one of them instead, by its id."""

    id: str = ""
    session_id: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    description: str = ""
    action: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    scope: str = omitted()
    rule: str = omitted()
    options: list[PermissionOption] = omitted(list)


@dataclass(slots=True)
class PermissionNotification:
    """A tool call waits for a permission (neither field is true), or was granted or denied it."""

    tool_call_id: str
    granted: bool = False
    denied: bool = False


@dataclass(slots=True)
class Grant:
    """Body of `permissions/grant`. Of `permission` only the id is used: the daemon has the rest."""

    permission: dict[str, Any] = field(default_factory=dict)
    action: str = ""


@dataclass(slots=True)
class PermissionAnswer:
    action: str = ""
    reason: str = omitted()  # of a denial, for the model
    option: str = omitted()  # the id of one of the request's options; the action must fit it


@dataclass(slots=True)
class PermissionRule:
    """What is allowed without asking. It covers requests with this tool, action and path that have
    these parts; `words` tells the user what that is. Without a `session_id` it is for all sessions,
    and kept in a file of the user."""

    id: str
    tool_name: str
    action: str
    path: str
    words: str
    parts: list[str] = field(default_factory=list)
    session_id: str = omitted()
    created_at: int = omitted(0)  # of a session's rule


@dataclass(slots=True)
class PermissionSkip:
    skip: bool = False  # grant permissions without asking


@dataclass(slots=True)
class Resolution:
    """Answer to an answer. `resolved`: it was the first one, and counts. `by` is the client id of
    the one that counts, empty if that client gave none."""

    resolved: bool
    by: str = ""
