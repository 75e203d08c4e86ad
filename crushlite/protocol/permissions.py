"""Permission requests, their notifications and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .codec import omitted

ACTIONS = ("allow", "allow_session", "deny")


@dataclass(slots=True)
class PermissionRequest:
    """`params` is always an object: the Crush client decodes it by tool name."""

    id: str = ""
    session_id: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    description: str = ""
    action: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(slots=True)
class PermissionNotification:
    tool_call_id: str
    granted: bool = False
    denied: bool = False


@dataclass(slots=True)
class Grant:
    """Body of `permissions/grant`. Only the id inside `permission` is believed: everything else
    about the request is read from the daemon's own record."""

    permission: dict[str, Any] = field(default_factory=dict)
    action: str = ""


@dataclass(slots=True)
class PermissionAnswer:
    action: str = ""
    reason: str = omitted()


@dataclass(slots=True)
class PermissionSkip:
    skip: bool = False


@dataclass(slots=True)
class Resolution:
    """`by` is the client id of the answer that won, empty if it gave none."""

    resolved: bool
    by: str = ""
