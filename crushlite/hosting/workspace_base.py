"""What the objects of a workspace share: its store, its hub, its live messages, its requests.

A Workspace (workspace.py) is this, with its runs and sessions.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NotFound
from ..events import Bounds, Hub
from ..protocol.messages import FinishPart
from ..protocol.sessions import Session
from ..store import ScopedStore, sessions as session_rows
from .dialogs import Permissions, Questions
from .transcript import Transcript, new_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ..claims import Claims, Effect
    from ..clock import Clock
    from ..protocol.messages import Part
    from ..protocol.permissions import PermissionRule
    from ..settings import Settings
    from ..store import Store
    from ..wing import Author, CommandWatch, Profile, WorkspacePart
    from .endings import Endings

log = logging.getLogger(__name__)

T = TypeVar("T")


def first_of(found: Iterable[T | None], lack: str) -> T:
    """The first of what parts have. Raises NotFound, with this lack of the daemon, if none has."""
    for one in found:
        if one is not None:
            return one
    raise NotFound(f"this daemon {lack}: the wing for that is not there")


class tolerated:  # named like a function; as a generator function it took 2 % of a turn
    """Log what a part raises in the block, and go on: a part that fails does not end the turn."""

    def __init__(self, part: WorkspacePart, when: str) -> None:
        self._part, self._when = part, when

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log.exception("%s failed %s", type(self._part).__name__, self._when)
        return True


class AllWatches(list["CommandWatch"]):
    """The watches of all parts on one command. Implements wing.CommandWatch."""

    async def ended(self) -> None:
        for watch in self:
            await watch.ended()

    def dropped(self) -> None:
        for watch in self:
            watch.dropped()


class WorkspaceBase:
    """`scope` names its rows in the store; `endings` are those of the store, `claims` those of the
    server, whose effects `perform_claims` performs."""

    def __init__(  # noqa: PLR0913 - everything a workspace is made of, by keyword
        self,
        workspace_id: str,
        *,
        path: Path,
        env: Mapping[str, str],
        store: Store,
        scope: str,
        endings: Endings,
        profile: Profile,
        claims: Claims,
        perform_claims: Callable[[list[Effect]], None],
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.id, self.path, self.env, self.profile = workspace_id, path, env, profile
        self.store = ScopedStore(store, scope)
        self.endings = endings
        self.claims, self.perform_claims = claims, perform_claims
        self.clock = clock
        self.settings = settings
        self.parts: list[WorkspacePart] = []  # of the wings; none is added once it is open
        self.hub = Hub(clock=clock, bounds=Bounds(keepalive=settings.keepalive))
        show = functools.partial(self.hub.publish, "created")
        asking: dict[str, Any] = {
            "clock": clock,
            "interactive": functools.partial(claims.interactive, workspace_id),
            "unattended": settings.unattended,
        }
        self.permissions = Permissions(show, policy=profile.allows, kept=self._kept, **asking)
        self.questions = Questions(show, **asking)
        self.transcript = Transcript(
            store=self.store, hub=self.hub, clock=clock, coalesce=settings.coalesce
        )

    def _kept(self) -> list[PermissionRule]:
        """The rules that are for good."""
        return [rule for part in self.parts for rule in part.kept_rules()]

    async def insert_session(self, session_id: str, title: str, parent: str) -> Session:
        """Store a new session. To be published by the caller, if it still may."""
        now = int(self.clock.now())
        session = Session(session_id, parent, title=title, created_at=now, updated_at=now)
        await self.store.write(session_rows.insert_session, session)
        return session

    async def add_message(self, session_id: str, part: Part) -> None:
        """Add a complete message of the user; see wing.OpenWorkspace."""
        await self.store.read(session_rows.get_session, session_id)
        # Published in its place in the order, as every message; a session that is deleted after
        # this look takes it along. Writes are done in turn: after the next one it is stored.
        parts = (part, FinishPart("stop"))
        self.transcript.create(new_message("user", session_id, parts, self.clock.now()))
        await self.store.write(lambda conn, scope: None)

    async def watch_command(self, author: Author) -> AllWatches:
        """Ask every part for its watch. If one fails, or this is cancelled, none is left."""
        watches = AllWatches()
        try:
            for part in self.parts:
                watch = await part.before_command(author)
                if watch is not None:
                    watches.append(watch)
        except BaseException:
            watches.dropped()
            raise
        return watches
