"""A workspace: one directory, its sessions, its event hub, its open requests and its runs.

The runs are performed by runner.py, the live messages kept by transcript.py, requests decided by
pending.py. This file puts them together and holds what is left: sessions, and the order in which
everything ends.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import within
from ..commands.background import Background
from ..errors import BadRequest, SessionBusy
from ..events import Bounds, Hub
from ..protocol.sessions import Session
from ..store import files as file_rows, sessions as session_rows
from ..undo.changes import Changes
from ..undo.undoing import Undoing
from .dialogs import Permissions, Questions
from .runner import Runner
from .transcript import Transcript
from .turn import Services

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from ..agent.base import Agent
    from ..clock import Clock
    from ..protocol.changes import ChangedRun, RunChanges, UndoAnswer
    from ..protocol.sessions import File
    from ..settings import Settings
    from ..store import Store
    from .endings import Endings
    from .runner import Detached

log = logging.getLogger(__name__)

T = TypeVar("T")

TITLE_LENGTH = 1000  # characters: a title is a line in a list, not a document


@dataclass(frozen=True, slots=True)
class Home:
    """Where a workspace lives: its directory, its environment, and its rows in the store."""

    path: Path
    env: Mapping[str, str]
    store: Store
    scope: str
    endings: Endings  # of the store, shared by all workspaces in it


@dataclass(frozen=True, slots=True)
class Ties:
    """What a workspace asks and tells its owner: is anybody watching, which detached runs keep it
    alive, and which tools are allowed without asking."""

    interactive: Callable[[], bool]
    detached: Detached
    policy: Callable[[str, str], bool]


class Workspace:
    def __init__(
        self,
        workspace_id: str,
        home: Home,
        agent: Agent | None,
        clock: Clock,
        settings: Settings,
        ties: Ties,
    ) -> None:
        self.id = workspace_id
        self.home = home
        self.hub = Hub(clock=clock, bounds=Bounds(keepalive=settings.keepalive))
        show = functools.partial(self.hub.publish, "created")
        self.permissions = Permissions(
            show,
            clock=clock,
            interactive=ties.interactive,
            policy=ties.policy,
            unattended=settings.unattended,
        )
        self.questions = Questions(
            show,
            clock=clock,
            interactive=ties.interactive,
            unattended=settings.unattended,
        )
        self.transcript = Transcript(
            store=home.store,
            scope=home.scope,
            hub=self.hub,
            clock=clock,
            coalesce=settings.coalesce,
        )
        services = Services(
            path=home.path,
            env=home.env,
            store=home.store,
            scope=home.scope,
            hub=self.hub,
            clock=clock,
            transcript=self.transcript,
            permissions=self.permissions,
            questions=self.questions,
            interactive=ties.interactive,
            coalesce=settings.coalesce,
            background=Background(clock),
            changes=Changes(home.path, home.store, home.scope, self.hub, clock),
        )
        self.background = services.background
        self._undoing = Undoing(services.changes, home.store, home.scope)
        self.runs = Runner(services, agent, settings, ties.detached, home.endings)
        self.clock = clock
        self._drain = settings.drain
        self._errands: set[asyncio.Task[Any]] = set()  # a teardown waits for them

    @property
    def agent(self) -> Agent | None:
        return self.runs.staff.agent

    def pending(self) -> list[object]:
        """The open requests that the stream shows: re-sent to whoever joins late."""
        shown = self.permissions.on_stream()
        return [*self.questions.listed(), *([shown] if shown is not None else [])]

    # Sessions ------------------------------------------------------------------------------------

    async def create_session(self, title: str, parent: str = "") -> Session:
        now = int(self.clock.now())
        session = Session(
            id=str(uuid.uuid4()),
            parent_session_id=parent,
            title=_title(title),
            created_at=now,
            updated_at=now,
        )
        await self._write(session_rows.insert_session, session)
        self.hub.publish("created", copy.copy(session))
        return session

    async def session(self, session_id: str) -> Session:
        return self._seen(await self._read(session_rows.get_session, session_id))

    async def sessions(self) -> list[Session]:
        """Top-level sessions, the one changed last first."""
        return [self._seen(session) for session in await self._read(session_rows.list_sessions)]

    async def rename_session(self, session_id: str, title: str) -> Session:
        now = self.clock.now()
        session: Session = await self._write(
            session_rows.rename_session, session_id, _title(title), now
        )
        self.hub.publish("updated", copy.copy(session))
        return self._seen(session)

    async def delete_session(self, session_id: str) -> None:
        """Cancel, wait until nothing of it runs, then remove it with all it owns."""
        await self._errand(self._delete_session(session_id))

    async def _delete_session(self, session_id: str) -> None:
        session: Session = await self._read(session_rows.get_session, session_id)
        family = [session_id, *await self._read(session_rows.child_ids, session_id)]
        try:
            for member in family:
                await self.runs.drop(member)
                await self.runs.chores.end_shells(member)
                await self.background.kill_session(member)
            gone = await self._write(session_rows.delete_session, session_id, promise=True)
        finally:
            for member in family:  # if it is gone, the store refuses its prompts from now on
                self.runs.chores.forget(member)
                self.runs.readmit(member)
        self.transcript.forget(gone)
        for member in gone:
            self.permissions.forget_session(member)
        self.hub.publish("deleted", session)

    # Files ---------------------------------------------------------------------------------------

    async def history(self, session_id: str) -> list[File]:
        """Every stored version of every file the session changed."""
        files: list[File] = await self._read(file_rows.list_files, session_id)
        return files

    async def read_files(self, session_id: str) -> list[str]:
        """What the session has read, the last read first."""
        paths: list[str] = await self._read(file_rows.list_read, session_id)
        return paths

    async def mark_read(self, session_id: str, path: str) -> None:
        await self._write(file_rows.mark_read, session_id, path, self.clock.now())

    async def last_read(self, session_id: str, path: str) -> float | None:
        at: float | None = await self._read(file_rows.last_read, session_id, path)
        return at

    async def changed_runs(self) -> list[ChangedRun]:
        """The runs that changed files, and their undoings: the latest is last."""
        found: list[ChangedRun] = await self._read(file_rows.changed_runs)
        return found

    async def run_changes(self, run_id: str) -> RunChanges:
        return await self._undoing.look(run_id)

    async def undo(self, run_id: str, *, dry_run: bool, partial: bool) -> UndoAnswer:
        """Put back what a run changed. Not while its session works: it may be at these files."""

        def allowed(session_id: str) -> None:
            if self.runs.busy(session_id) and not dry_run:
                raise SessionBusy(
                    f"session is currently processing another request: {session_id} is busy, wait "
                    "for its run or cancel it"
                )

        return await self._errand(
            self._undoing.undo(run_id, allowed, dry_run=dry_run, partial=partial)
        )

    def _seen(self, session: Session) -> Session:
        session.is_busy = self.runs.busy(session.id)
        return session

    def totals(self) -> Counter[str]:
        """What only grows, for whoever adds it up over all workspaces."""
        hub = self.hub.statistics()
        return Counter(
            published=hub.published,
            conflated=hub.conflated,
            closed_slow=hub.closed_slow,
            closed_failed=hub.failed,
            abandoned=self.runs.turns.abandoned,
            **{outcome.value: number for outcome, number in self.runs.closing.ended.items()},
        )

    # The end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Runs and their endings first, then the streams, then the agent: any other order would
        lose the last words or write to a closed database."""
        await self.runs.close()
        if self._errands:  # what a request has begun is carried out, whoever leaves meanwhile
            carried_out = asyncio.ensure_future(asyncio.wait(set(self._errands)))
            if not await within(self.clock, carried_out, self._drain):
                log.error("workspace %s: a request was not carried out in time", self.home.path)
                carried_out.cancel()
        await self.runs.chores.close()
        await self.background.close()
        self.transcript.flush_all()
        self.hub.close()
        await self.runs.let_agents_go()

    async def _errand(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return await asyncio.shield(task)

    # Inside --------------------------------------------------------------------------------------

    async def _read(self, query: Callable[..., Any], *args: Any) -> Any:
        scope = self.home.scope
        return await self.home.store.read(lambda conn: query(conn, scope, *args))

    async def _write(self, query: Callable[..., Any], *args: Any, promise: bool = False) -> Any:
        scope = self.home.scope
        return await self.home.store.submit(lambda conn: query(conn, scope, *args), promise=promise)


def _title(title: str) -> str:
    if "\0" in title or len(title) > TITLE_LENGTH:
        raise BadRequest(f"title must be at most {TITLE_LENGTH} characters without NUL")
    return title
