"""What the tests of turns and transcripts share: a session in a real store, time that stands still,
and one time limit per test."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.claims import Graces
from crushlite.clock import FakeClock
from crushlite.commands.background import Background
from crushlite.events import Hub
from crushlite.hosting.dialogs import Permissions, Questions
from crushlite.hosting.files import FileHistory
from crushlite.hosting.lifetime import Lifetime, Lifetimes
from crushlite.hosting.prompts import TurnRequest
from crushlite.hosting.services import Services
from crushlite.hosting.transcript import Transcript
from crushlite.hosting.turn import LiveTurn
from crushlite.protocol.config import SelectedModel
from crushlite.protocol.messages import Message
from crushlite.protocol.sessions import Session
from crushlite.store import InlineExecutor, ScopedStore, Stores, messages as message_rows, sessions
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from crushlite.store import Connection
    from crushlite.wing import WorkspacePart

SESSION = "session-1"
SCOPE = ""


@dataclass(frozen=True, slots=True)
class Published:
    """One event as it left for the hub."""

    action: str
    payload: Any
    growth: bool

    @property
    def text(self) -> str:
        return str(self.payload.text)


class TappedHub(Hub):
    """A hub that also keeps what was published: a subscriber's queue would join growth."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.log: list[Published] = []

    def publish(self, action: str, payload: object, *, growth: bool = False) -> int:
        self.log.append(Published(action, payload, growth))
        return super().publish(action, payload, growth=growth)


class Bench(BoundedTestCase):
    """A session in a SQLite file whose store runs inline, and all that a turn works with."""

    coalesce = 0.05

    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.path = Path(folder)
        self.clock = FakeClock()
        stores = Stores(clock=self.clock, boot_id="boot", executor=InlineExecutor)
        self.store = await stores.open(self.path / "data")
        self.addAsyncCleanup(stores.release, self.store)
        self.hub = TappedHub(self.clock)
        self.addCleanup(self.hub.close)
        row = Session(id=SESSION, title="a session", created_at=1, updated_at=1)
        await self.store.submit(lambda conn: sessions.insert_session(conn, SCOPE, row))
        self.scoped = ScopedStore(self.store, SCOPE)
        self.parts: list[WorkspacePart] = []
        self.transcript = Transcript(
            store=self.scoped, hub=self.hub, clock=self.clock, coalesce=self.coalesce
        )
        show = functools.partial(self.hub.publish, "created")
        self.services = Services(
            path=self.path,
            env={"HOME": "/home/kim"},
            command_env=lambda: {"HOME": "/home/kim"},
            store=self.scoped,
            hub=self.hub,
            clock=self.clock,
            transcript=self.transcript,
            permissions=Permissions(show, clock=self.clock),
            questions=Questions(show, clock=self.clock),
            lifetime=self.lifetime(interactive=True),
            coalesce=self.coalesce,
            background=Background(self.clock),
            files=FileHistory(self.scoped, self.hub, self.clock, self.parts),
            parts=self.parts,
        )

    def leave(self) -> None:
        """From now on no person attends."""
        self.services = replace(self.services, lifetime=self.lifetime(interactive=False))

    def lifetime(self, *, interactive: bool) -> Lifetime:
        """The claims on a workspace that one client streams, a person's or not."""
        lifetimes = Lifetimes(Graces(), self.clock, mock.Mock())
        lifetimes.perform(lifetimes.claims.admit("client"))
        lifetimes.perform(lifetimes.claims.create("workspace", "client"))
        lifetimes.perform(lifetimes.claims.attach("workspace", "client"))
        lifetimes.claims.say_interactive("workspace", "client", interactive)
        return Lifetime(lifetimes, "workspace")

    def turn(self, prompt: str = "hello", **order: Any) -> LiveTurn:
        """A turn as the workspace would make it, except that nothing waits to be folded."""

        async def no_followups() -> list[Message]:
            return []

        fields = {"run_id": "run-1", "session_id": SESSION, "prompt": prompt, **order}
        return LiveTurn(
            self.services,
            TurnRequest(**fields),
            SelectedModel(model="m", provider="p"),
            no_followups,
        )

    async def rows(self) -> list[Message]:
        """The session's messages as the database holds them: what a restart would find."""
        await self.clock.settle()
        return await self.store.read(lambda c: message_rows.list_messages(c, SCOPE, SESSION))

    async def execute(self, statement: str) -> None:
        """Change the database behind the package's back, for example with a trigger that fails."""

        def run(conn: Connection) -> None:
            conn.execute(statement)

        await self.store.submit(run)

    def published(self, kind: type, action: str | None = None) -> list[Published]:
        return [
            event
            for event in self.hub.log
            if isinstance(event.payload, kind) and action in (None, event.action)
        ]

    def updates(self) -> list[Published]:
        return self.published(Message, "updated")
