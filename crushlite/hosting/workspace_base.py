"""What the objects of a workspace share: its store, its hub, its live messages, its requests.

A Workspace (workspace.py) is this, with its runs and sessions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..commands.background import Background
from ..events import Bounds, Hub
from ..protocol.sessions import Session
from ..store import ScopedStore, files as file_rows, sessions as session_rows
from .dialogs import Permissions, Questions
from .transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..claims import Claims, Effect
    from ..clock import Clock
    from ..protocol.permissions import PermissionRule
    from ..settings import Settings
    from ..store import Store
    from ..store.files import Change
    from ..wing import Profile, WorkspacePart
    from .endings import Endings

PUBLISHED = 200  # versions of files in one report that are sent to clients: the rest they can read


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
        interactive = functools.partial(claims.interactive, workspace_id)
        unattended = settings.unattended
        self.permissions = Permissions(
            show,
            clock=clock,
            interactive=interactive,
            policy=profile.allows,
            kept=self._kept_rules,
            unattended=unattended,
        )
        self.questions = Questions(
            show, clock=clock, interactive=interactive, unattended=unattended
        )
        self.transcript = Transcript(
            store=self.store, hub=self.hub, clock=clock, coalesce=settings.coalesce
        )
        self.background = Background(clock)

    def _kept_rules(self) -> list[PermissionRule]:
        return [rule for part in self.parts for rule in part.kept_rules()]

    async def insert_session(self, session_id: str, title: str, parent: str) -> Session:
        """Store a new session. To be published by the caller, if it still may."""
        now = int(self.clock.now())
        session = Session(session_id, parent, title=title, created_at=now, updated_at=now)
        await self.store.write(session_rows.insert_session, session)
        return session

    async def record_changes(self, session_id: str, changes: Sequence[Change]) -> None:
        """Keep versions of files in the session's history, and publish them. Before it awaits
        anything, it calls `file_changed` of every part."""
        for change in changes:
            for part in self.parts:
                part.file_changed(change)
        now = self.clock.now()
        files = await self.store.write(file_rows.record_changes, session_id, changes, now)
        for file in files[:PUBLISHED]:
            self.hub.publish("created", file)
