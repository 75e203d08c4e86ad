"""A workspace: one directory, its sessions, its event hub, its open requests and its runs.

Holds what is not of runner.py, transcript.py or dialogs.py: sessions, and the order in which
everything ends.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from ..clock import all_done, wait_at_most
from ..errors import BadRequest, NotFound
from ..store import sessions as session_rows
from ..unique import new_id
from .runner import Runner
from .tasks import OwnedTasks
from .workspace_base import WorkspaceBase, tolerated

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from ..agent.base import Agent
    from ..protocol.permissions import PermissionRule
    from ..protocol.sessions import Session
    from ..protocol.workspaces import CreateWorkspace
    from ..wing import WorkspacePart
    from .runner import CancelResult

log = logging.getLogger(__name__)

T = TypeVar("T")

TITLE_LENGTH = 1000  # characters: a title is a line in a list, not a document


class Workspace(WorkspaceBase):
    """Implements wing.OpenWorkspace. `asked` is what its first creator asked for, without the
    environment: later creates get the same back. For the rest see its base."""

    def __init__(self, workspace_id: str, asked: CreateWorkspace, **made_of: Any) -> None:
        super().__init__(workspace_id, **made_of)
        self.asked = asked
        self.envs: dict[str, list[str]] = {}  # by client: shown to that client only
        self.closing = False
        self.runs = Runner(self)
        self._errands = OwnedTasks()  # a teardown waits for them

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

    async def carry_out(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._errands.spawn(work))

    # Runs and requests ---------------------------------------------------------------------------

    def cancel(self, session_id: str) -> CancelResult:
        """Cancel all runs of a session, and what parts do in it."""
        canceled = self.runs.cancel(session_id)
        for part in self.parts:
            with tolerated(part, "at the cancel of a session"):
                part.session_canceled(session_id)
        return canceled

    def pending(self) -> list[object]:
        """The open requests that the stream shows: sent again to clients that join late."""
        return [*self.questions.listed(), *self.permissions.on_stream()]

    # Rules ---------------------------------------------------------------------------------------

    @property
    def keeps_rules(self) -> bool:
        """Whether there is a place for rules that are for good."""
        return any(part.keeps_rules for part in self.parts)

    async def keep_rule(self, rule: PermissionRule) -> None:
        """Keep a session's rule for all, for good. If that raises, it stays the session's."""
        for part in self.parts:
            if part.keeps_rules:
                await part.keep_rule(rule)
                self.permissions.grants.remove(rule.id)

    async def remove_rule(self, rule_id: str) -> None:
        """Take back a rule, of a session or for good. Raises NotFound if there is none."""
        removed = self.permissions.grants.remove(rule_id)
        for part in self.parts:
            removed = removed or await part.remove_rule(rule_id)
        if not removed:
            raise NotFound(f"no rule {rule_id}: list W/permissions/rules")

    # Sessions ------------------------------------------------------------------------------------

    async def create_session(self, title: str, parent: str = "") -> Session:
        session = await self.insert_session(new_id(), _checked(title), parent)
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
        renamed = (session_id, _checked(title), self.clock.now())
        session = await self.store.write(session_rows.rename_session, *renamed)
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
                for part in self.parts:
                    await part.end_session(member)
            gone = await self.store.write_durably(session_rows.delete_session, session_id)
        finally:
            for member in family:  # if it is gone, the store refuses its prompts from now on
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
        if not await all_done(self.clock, list(self._errands), self.settings.drain):
            log.error("workspace %s: a request was not carried out in time", self.path)
        for part in reversed(self.parts):
            await self._close_part(part)
        self.transcript.close()
        self.hub.close()
        await self.runs.close_agents()

    async def _close_part(self, part: WorkspacePart) -> None:
        """Close a part. One that does not close in time is cancelled and left behind."""
        closing = asyncio.ensure_future(part.close())
        name = type(part).__name__
        if not await wait_at_most(self.clock, closing, self.settings.drain):
            closing.cancel()
            log.error("workspace %s: %s did not close in time", self.path, name)
        elif not closing.cancelled() and (why := closing.exception()) is not None:
            log.error("workspace %s: %s did not close", self.path, name, exc_info=why)


def _checked(title: str) -> str:
    if "\0" in title or len(title) > TITLE_LENGTH:
        raise BadRequest(f"title must be at most {TITLE_LENGTH} characters without NUL")
    return title
