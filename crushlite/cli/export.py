"""A session with everything that belongs to it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from ..protocol.messages import Message  # noqa: TC001 - the codec reads type hints
from ..protocol.runs import RunInfo  # noqa: TC001
from ..protocol.sessions import File, Session  # noqa: TC001
from ..records import dataclass

if TYPE_CHECKING:
    from ..client import RemoteWorkspace


@dataclass(slots=True)
class SessionExport:
    session: Session
    messages: list[Message] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    runs: list[RunInfo] = field(default_factory=list)


async def export(workspace: RemoteWorkspace, session_id: str) -> SessionExport:
    return SessionExport(
        await workspace.session(session_id),
        await workspace.messages(session_id),
        await workspace.files(session_id),
        await workspace.runs(session_id),
    )
