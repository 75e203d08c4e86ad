"""What the tests of turns and transcripts share: a session in a real store, time that stands still,
and one time limit per test."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from crushlite.agent.base import Agent, Info
from crushlite.claims import Claims, Graces
from crushlite.events import Hub
from crushlite.filehistory.part import HistoryPart
from crushlite.hosting import workspace_base
from crushlite.hosting.endings import Endings
from crushlite.hosting.turn import LiveTurn
from crushlite.hosting.workspace_base import WorkspaceBase
from crushlite.protocol.codec import decode, loads
from crushlite.protocol.config import SelectedModel
from crushlite.protocol.messages import Message, Prompt
from crushlite.protocol.sessions import Session
from crushlite.settings import Settings
from crushlite.shell.part import ShellPart
from crushlite.store import Stores, messages as message_rows, sessions
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.inline import InlineExecutor
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crushlite.agent.base import Turn
    from crushlite.store import Connection
    from crushlite.wing import OpenWorkspace

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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log: list[Published] = []

    def publish(
        self, action: str, payload: object, *, growth: bool = False, more: bool = False
    ) -> int:
        self.log.append(Published(action, payload, growth))
        return super().publish(action, payload, growth=growth, more=more)


class SilentAgent:
    """The agent of turns whose calls are made by the test."""

    def info(self) -> Info:
        return Info(selected=SelectedModel(model="m", provider="p"))

    async def run(self, turn: Turn) -> None:
        pass


class Bench(BoundedTestCase):
    """A session in a SQLite file whose store runs inline, and all that a turn works with."""

    coalesce = 0.05

    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.path = Path(folder)
        self.clock = FakeClock()
        stores = Stores(
            clock=self.clock, boot_id="boot", executor=InlineExecutor, sharing_seconds=0
        )
        self.store = await stores.open(self.path / "data")
        self.addAsyncCleanup(stores.release, self.store)
        row = Session(id=SESSION, title="a session", created_at=1, updated_at=1)
        await self.store.submit(lambda conn: sessions.insert_session(conn, SCOPE, row))
        profile = mock.Mock()
        profile.command_env.side_effect = dict
        profile.allows.return_value = False
        with mock.patch.object(workspace_base, "Hub", TappedHub):
            self.workspace = WorkspaceBase(
                "workspace",
                path=self.path,
                env={"HOME": "/home/kim"},
                store=self.store,
                scope=SCOPE,
                endings=Endings(self.store, self.clock),
                profile=profile,
                claims=self.claims(interactive=True),
                perform_claims=mock.Mock(),
                clock=self.clock,
                settings=Settings(coalesce=self.coalesce, unattended=None),
            )
        hub = self.workspace.hub
        assert isinstance(hub, TappedHub)
        self.hub = hub
        self.addCleanup(self.hub.close)
        self.scoped, self.transcript = self.workspace.store, self.workspace.transcript
        self.parts = self.workspace.parts

    def shell(self) -> ShellPart:
        """A part that runs the commands of turns; the test adds it to the parts."""
        return ShellPart(cast("OpenWorkspace", self.workspace))

    def history(self) -> HistoryPart:
        """A part that keeps versions of files; the test adds it to the parts."""
        return HistoryPart(cast("OpenWorkspace", self.workspace))

    def leave(self) -> None:
        """From now on no person attends."""
        self.workspace.claims = self.claims(interactive=False)

    def claims(self, *, interactive: bool) -> Claims:
        """The claims on a workspace that one client streams, a person's or not."""
        claims = Claims(Graces())
        claims.admit("client")
        claims.create("workspace", "client")
        claims.attach("workspace", "client")
        claims.say_interactive("workspace", "client", interactive)
        return claims

    def turn(
        self,
        prompt: str = "hello",
        *,
        fold: Callable[[LiveTurn], Awaitable[list[Message]]] | None = None,
        **order: Any,
    ) -> LiveTurn:
        """A turn as the workspace would make it, except that only `fold` brings prompts into it."""
        fields = {"run_id": "run-1", "session_id": SESSION, "prompt": prompt, **order}
        return LiveTurn(self.workspace, Prompt(**fields), Agent(SilentAgent()), fold=fold)

    async def rows(self) -> list[Message]:
        """The session's messages as the database holds them: what a restart would find."""
        await self.clock.settle()
        return await self.store.read(lambda c: message_rows.list_messages(c, SCOPE, SESSION))

    async def seen(self) -> list[Message]:
        """The session's messages as clients read them."""
        listed = loads(b"[%b]" % b",".join(await self.transcript.messages_json(SESSION)))
        return [decode(Message, message) for message in listed]

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
