"""Sessions, their to-do lists, and the files they changed."""

from __future__ import annotations

from ..records import dataclass
from .codec import omitted


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


@dataclass(slots=True)
class FileRead:
    session_id: str = ""
    path: str = ""


@dataclass(slots=True)
class ShellCommand:
    """Body of the shell route. The session in the path counts, not the one in here."""

    session_id: str = ""
    command: str = ""
    term_width: int = 0


@dataclass(slots=True)
class ShellAnswer:
    output: str
    exit_code: int
