"""Real language servers in a workspace, for tests/peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.features.offers import offered_tools
from crushlite.lsp.part import LspPart
from crushlite.lsp.server import READY
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crushlite.testing.scripted import ScriptedRun


class RealServerCase(BoundedTestCase):
    async def open(self, files: Mapping[str, str], path: str) -> None:
        """A workspace with these files, whose servers are found on this path."""
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.project = self.daemon.root / "project"
        for name, text in files.items():
            (self.project / name).write_text(text)
        home = self.daemon.root / "home"
        home.mkdir(exist_ok=True)
        self.anna = await self.daemon.join(self.project, env=[f"PATH={path}", f"HOME={home}"])
        await self.anna.prompt(await self.anna.session())
        self.run_: ScriptedRun = await self.daemon.entered(1)
        self.addCleanup(self.run_.release)

    @property
    def part(self) -> LspPart:
        return self.daemon.backend.get(str(self.anna.workspace["id"])).part(LspPart)

    async def broken(self, name: str, text: str) -> str:
        """What is told of a change that breaks a file, once its server has looked at it."""
        path = self.project / name
        await self.run_.do(lambda turn: turn.file_read(str(path)))
        touching = self.part._touching
        assert touching is not None
        await asyncio.wait([touching])
        [server] = self.part.servers.values()
        self.assertEqual(server.state, READY, server.error)
        await server.heard(path, 60)
        path.write_text(text)
        return await self.part._after_change(server, path, patient=True)

    async def call(self, name: str, **arguments: Any) -> str:
        tools = {tool.name: tool for tool in await self.run_.do(offered_tools)}
        answer = await self.run_.do(lambda turn: tools[name].call(turn, arguments, "call"))
        return str(answer.text)
