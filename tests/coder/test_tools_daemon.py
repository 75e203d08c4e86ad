"""What holds for the tools of a whole daemon, as `serve` makes it: workspaces share one bound of
searches, and the daemon's own folders are closed in each."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.tools.base import SEARCHES
from crushlite.coder.wing import CoderWing
from crushlite.commands import process
from crushlite.fake_model import End, Use
from crushlite.listen import default_socket
from tests.support.configured import ConfiguredTestCase, results, use
from tests.support.tools import SECRET

if TYPE_CHECKING:
    from crushlite.commands.process import Command
    from crushlite.testing import Participant, Seen

CALLS = SEARCHES  # of each of two workspaces


class ToolsOfADaemonTests(ConfiguredTestCase):
    async def asyncSetUp(self) -> None:
        self.plan = []
        await self.start_models(self._script, self.title)
        await self.start_daemon(find_agent("auto", SystemClock(), [CoderWing(local=())]))

    async def test_all_workspaces_together_run_so_many_searches_at_the_same_time(self) -> None:
        inside, gate, start = asyncio.Semaphore(0), asyncio.Event(), process.start

        async def held(*arguments: Any, **options: Any) -> Command:
            inside.release()
            await gate.wait()
            return await start(*arguments, **options)

        self.plan = [[*[Use("grep", '{"pattern": "x"}')] * CALLS, End()] for _ in range(2)]
        clients = [await self.join(self.folder(name)) for name in ("one", "two")]
        with mock.patch.object(process, "start", held):
            runs = [await self.prompt(each, await each.session(), "search") for each in clients]
            for each in clients:
                await each.events.wait_for(all_called)
            for _ in range(SEARCHES):
                await inside.acquire()
            for _ in range(5):  # whatever could begin now has begun
                self.assertEqual((await self.daemon.call("GET", "/v1/health")).status, 200)
            self.assertTrue(inside.locked(), "one more has begun")
            gate.set()
            for each, run in zip(clients, runs, strict=True):
                await self.ended(each, run)

    async def test_the_folders_of_the_daemon_are_closed_although_nothing_is_asked(self) -> None:
        runtime = self.folder("runtime")
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(runtime)}))
        anna = await self.join(yolo=True)
        folders = {
            "configuration": self.home / ".config/crush",
            "the user's data": self.home / ".local/share/crushlite",
            "the project's data": self.project / ".crushlite",
            "sockets and tokens": default_socket().parent,
        }
        for name, folder in folders.items():
            with self.subTest(name):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "kept").write_text(SECRET)
                seen = await self.tried(anna, "view", file_path=str(folder / "kept"))
                self.assertIn("closed to tools", seen)
                found = await self.tried(anna, "grep", pattern="secret", path=str(folder))
                self.assertIn("closed to tools", found)

    async def tried(self, client: Participant, tool: str, **arguments: Any) -> str:
        """What a tool answers the model."""
        session = await client.session()
        self.plan = [use(tool, **arguments)]
        await self.turn(client, session, "look")
        [result] = results(await client.messages(session))
        return str(result["content"])


def all_called(event: Seen) -> bool:
    """Whether this is the message with all calls of an answer."""
    parts = [part for part in event["parts"] or () if part["type"] == "tool_call"]
    return event.kind == "message" and len(parts) == CALLS
