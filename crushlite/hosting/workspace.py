"""A workspace: one directory, its sessions, its event hub, its open requests and its runs.

The runs are performed by runner.py, the live messages kept by transcript.py, requests decided by
dialogs.py. This file puts them together and holds what is left: sessions, and the order in which
everything ends.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import all_done, wait_at_most
from ..commands.background import Background
from ..errors import BadRequest, NotFound
from ..events import Bounds, Hub
from ..protocol.sessions import Session
from ..store import ScopedStore, files as file_rows, sessions as session_rows
from .dialogs import Permissions, Questions
from .files import FileHistory
from .runner import Runner
from .services import Services
from .shell import END_SECONDS, Shells
from .transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping, Sequence
    from pathlib import Path

    from ..agent.base import Agent
    from ..clock import Clock
    from ..protocol.permissions import PermissionRule
    from ..protocol.sessions import File
    from ..settings import Settings
    from ..store import Store
    from ..store.files import Change
    from ..wing import Profile, WorkspacePart
    from .endings import Endings
    from .lifetime import Lifetime
    from .runner import CancelResult

log = logging.getLogger(__name__)

T = TypeVar("T")

TITLE_LENGTH = 1000  # characters: a title is a line in a list, not a document


class Workspace:
    """`scope` names its rows in the store; `endings` are those of the store. Implements
    wing.OpenWorkspace."""

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
        lifetime: Lifetime,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self.id, self.path, self.env, self.profile = workspace_id, path, env, profile
        self.store = ScopedStore(store, scope)
        self.clock = clock
        self.hub = Hub(clock=clock, bounds=Bounds(keepalive=settings.keepalive))
        self.closing = False
        self.parts: list[WorkspacePart] = []
        show = functools.partial(self.hub.publish, "created")

        def watched() -> bool:
            return lifetime.interactive

        alone = settings.unattended
        self.permissions = Permissions(
            show,
            clock=clock,
            interactive=watched,
            policy=profile.allows,
            kept=self._kept_rules,
            unattended=alone,
        )
        self.questions = Questions(show, clock=clock, interactive=watched, unattended=alone)
        self.transcript = Transcript(
            store=self.store, hub=self.hub, clock=clock, coalesce=settings.coalesce
        )
        self.background = Background(clock)
        self._files = FileHistory(self.store, self.hub, clock, self.parts)
        services = Services(
            path=path,
            env=env,
            command_env=functools.partial(profile.command_env, env),
            store=self.store,
            hub=self.hub,
            clock=clock,
            transcript=self.transcript,
            permissions=self.permissions,
            questions=self.questions,
            lifetime=lifetime,
            background=self.background,
            files=self._files,
            coalesce=settings.coalesce,
            parts=self.parts,
        )
        self.shells = Shells(services, endings)
        self.runs = Runner(services, functools.partial(profile.make_agent, env), settings, endings)
        self._drain = settings.drain
        self._errands: set[asyncio.Task[Any]] = set()  # a teardown waits for them

    # For wings -----------------------------------------------------------------------------------

    def part(self, kind: type[T]) -> T:
        for part in self.parts:
            if isinstance(part, kind):
                return part
        raise NotFound(f"this workspace has no {kind.__name__}: the wing is not there")

    def busy(self, session_id: str) -> bool:
        return self.runs.busy(session_id)

    def change_agent(self, agent: Agent | None) -> None:
        if not self.closing:
            self.runs.change_agent(agent)

    async def record_changes(self, session_id: str, changes: Sequence[Change]) -> None:
        await self._files.record(session_id, changes)

    async def carry_out(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that goes on when its request is gone; a teardown waits for it."""
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return await asyncio.shield(task)

    # Runs and requests ---------------------------------------------------------------------------

    @property
    def agent(self) -> Agent | None:
        return self.runs.agents.agent

    def cancel(self, session_id: str) -> CancelResult:
        """Cancel all runs of a session, and kill its shell commands."""
        self.shells.kill(session_id)
        return self.runs.cancel(session_id)

    def pending(self) -> list[object]:
        """The open requests that the stream shows: sent again to clients that join late."""
        shown = self.permissions.on_stream()
        return [*self.questions.listed(), *([shown] if shown is not None else [])]

    # Rules ---------------------------------------------------------------------------------------

    def _kept_rules(self) -> list[PermissionRule]:
        return [rule for part in self.parts for rule in part.kept_rules()]

    @property
    def keeps_rules(self) -> bool:
        """Whether there is a place for rules that are for good."""
        return any(part.keeps_rules for part in self.parts)

    async def keep_rule(self, rule: PermissionRule) -> None:
        """Keep a rule of a session for good, for all sessions. If that fails it stays a rule of the
        session, and the error is raised."""
        for part in self.parts:
            if part.keeps_rules:
                await part.keep_rule(rule)
                self.permissions.grants.remove(rule.id)

    async def remove_rule(self, rule_id: str) -> None:
        """Take back a rule, of a session or for good. Raises NotFound if there is none."""
        if self.permissions.grants.remove(rule_id):
            return
        for part in self.parts:
            if part.keeps_rules and any(rule.id == rule_id for rule in part.kept_rules()):
                return await part.remove_rule(rule_id)
        raise NotFound(f"no rule {rule_id}: list W/permissions/rules")

    # Sessions ------------------------------------------------------------------------------------

    async def create_session(self, title: str, parent: str = "") -> Session:
        now = int(self.clock.now())
        session = Session(
            id=str(uuid.uuid4()),
            parent_session_id=parent,
            title=_checked(title),
            created_at=now,
            updated_at=now,
        )
        await self.store.write(session_rows.insert_session, session)
        self.hub.publish("created", copy.copy(session))
        return session

    async def session(self, session_id: str) -> Session:
        return self._with_busy(await self.store.read(session_rows.get_session, session_id))

    async def sessions(self, apart: Collection[str] = ()) -> list[bytes | Session]:
        """Top-level sessions, the one changed last first: those that are busy, have todos or are in
        `apart` as objects, the others as JSON."""
        apart = {*apart, *(session_id for session_id, _ in self.runs.states())}
        listed = await self.store.read(session_rows.session_texts, apart)
        return [one if isinstance(one, bytes) else self._with_busy(one) for one in listed]

    async def rename_session(self, session_id: str, title: str) -> Session:
        now = self.clock.now()
        session = await self.store.write(
            session_rows.rename_session, session_id, _checked(title), now
        )
        self.hub.publish("updated", copy.copy(session))
        return self._with_busy(session)

    async def delete_session(self, session_id: str) -> None:
        """Cancel, wait until nothing of it runs, then remove it with all it owns."""
        await self.carry_out(self._delete_session(session_id))

    async def _delete_session(self, session_id: str) -> None:
        session = await self.store.read(session_rows.get_session, session_id)
        family = [session_id, *await self.store.read(session_rows.child_ids, session_id)]
        try:
            for member in family:
                await self.runs.drop(member)
                await self.shells.end(member)
                await self.background.kill_session(member)
            gone = await self.store.write_durably(session_rows.delete_session, session_id)
        finally:
            for member in family:  # if it is gone, the store refuses its prompts from now on
                self.runs.titles.forget(member)
                self.runs.readmit(member)
        self.transcript.forget(gone)
        for member in gone:
            self.permissions.grants.forget_session(member)
        for part in self.parts:
            part.session_deleted(session_id)
        self.hub.publish("deleted", session)

    def _with_busy(self, session: Session) -> Session:
        session.is_busy = self.runs.busy(session.id)
        return session

    # Files ---------------------------------------------------------------------------------------

    async def history(self, session_id: str) -> list[File]:
        """Every stored version of every file the session changed."""
        return await self.store.read(file_rows.list_files, session_id)

    async def read_files(self, session_id: str) -> list[str]:
        """What the session has read, the last read first."""
        return await self.store.read(file_rows.list_read, session_id)

    async def mark_read(self, session_id: str, path: str) -> None:
        await self.store.write(file_rows.mark_read, session_id, path, self.clock.now())

    async def last_read(self, session_id: str, path: str) -> float | None:
        return await self.store.read(file_rows.last_read, session_id, path)

    def totals(self) -> Counter[str]:
        """What only grows, to be added up over all workspaces."""
        return Counter(
            published=self.hub.current,
            conflated=self.hub.conflated,
            closed_slow=self.hub.closed_slow,
            closed_failed=self.hub.failed,
            abandoned=self.runs.abandoned,
            **{outcome.value: number for outcome, number in self.runs.outcomes.items()},
        )

    # The end -------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """From this call on nothing new is accepted, and everything is canceled."""
        self.closing = True
        self.runs.begin_close()

    async def close(self) -> None:
        """Runs and their endings first, then the streams, then the agent: any other order would
        lose the last events or write to a closed database."""
        self.closing = True
        await self.runs.close()
        if not await all_done(self.clock, list(self._errands), self._drain):
            log.error("workspace %s: a request was not carried out in time", self.path)
        await self.shells.close()
        await self.runs.titles.tasks.end(END_SECONDS)
        await self.background.close()
        for part in reversed(self.parts):
            await self._close_part(part)
        self.transcript.close()
        self.hub.close()
        await self.runs.close_agents()

    async def _close_part(self, part: WorkspacePart) -> None:
        """Close a part of a wing. One that does not close in time is cancelled and left behind: it
        may ignore that, too."""
        closing = asyncio.ensure_future(part.close())
        name = type(part).__name__
        if not await wait_at_most(self.clock, closing, self._drain):
            closing.cancel()
            log.error("workspace %s: %s did not close in time", self.path, name)
        elif not closing.cancelled() and closing.exception() is not None:
            log.error(
                "workspace %s: %s did not close", self.path, name, exc_info=closing.exception()
            )


def _checked(title: str) -> str:
    if "\0" in title or len(title) > TITLE_LENGTH:
        raise BadRequest(f"title must be at most {TITLE_LENGTH} characters without NUL")
    return title
