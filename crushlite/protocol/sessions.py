"""Sessions, their to-do lists, the files they changed, and ids that clients choose."""

from __future__ import annotations

from ..errors import BadRequest
from ..records import dataclass
from .codec import omitted

NEVER = "0001-01-01T00:00:00Z"  # how the Crush client writes a time that has not been
ID_LENGTH = 200  # characters; long enough for any id scheme, short enough for a URL


def check_id(name: str, value: str) -> None:
    """Raise BadRequest for the id of a session or run that cannot be stored or put into a URL.
    `name` is that of the field."""
    if "\0" in value or len(value) > ID_LENGTH:
        raise BadRequest(f"{name} must be at most {ID_LENGTH} characters without NUL")


@dataclass(slots=True)
class Todo:
    content: str = ""
    status: str = "pending"
    active_form: str = ""


@dataclass(slots=True)
class Session:
    """A session. `is_busy` and `attached_clients` are set in answers only: they change without an
    event, so in an event they would soon be wrong."""

    id: str = ""
    parent_session_id: str = ""
    title: str = ""
    message_count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    summary_message_id: str = ""
    cost: float = 0.0
    todos: list[Todo] = omitted(list)
    created_at: int = 0
    updated_at: int = 0
    is_busy: bool = False
    attached_clients: int = 0


@dataclass(slots=True)
class CurrentSession:
    session_id: str = ""  # the one that a client shows; empty for none


@dataclass(slots=True)
class File:
    """One version of a file that a session changed."""

    id: str = ""
    session_id: str = ""
    path: str = ""
    content: str = ""
    version: int = 0
    created_at: int = 0
    updated_at: int = 0
