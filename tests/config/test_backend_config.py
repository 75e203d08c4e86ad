"""Whose configuration a workspace gets: the client's, else that of the user who runs the daemon."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from crushlite.agent.base import Agent
from crushlite.clock import SystemClock
from crushlite.config.files import Roots
from crushlite.config.wing import ConfigSetup
from crushlite.hosting.backend import Backend
from crushlite.protocol.workspaces import CreateWorkspace
from crushlite.settings import Settings
from crushlite.store import Stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.config.profile import FileProfile
    from crushlite.config.view import Config


async def silent(turn: Any) -> None:
    """An agent that gets no prompt."""


class WhoseConfigurationTests(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "project").mkdir()
        self.seen: list[Config] = []

    def configure(self, home: str, name: str, key: str = "k") -> None:
        provider = {
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": key,
            "models": [{"id": "m", "name": "M"}],
        }
        place = self.root / home / ".config" / "crush"
        place.mkdir(parents=True)
        (place / "crush.json").write_text(json.dumps({"providers": {name: provider}}))

    async def open(
        self,
        daemon: dict[str, str],
        client: list[str],
        look: Callable[[FileProfile], Any] = lambda profile: None,
    ) -> Config:
        def agents(path: Path, env: Any, config: Config) -> Agent:
            self.seen.append(config)
            return Agent(silent)

        with mock.patch.dict(os.environ, daemon, clear=True):
            clock, roots = SystemClock(), Roots(etc=self.root / "etc")
            stores = Stores(clock=clock, boot_id="boot")
            backend = Backend(
                setup=ConfigSetup(lambda: roots, agents, allow_commands=False).profile,
                clock=clock,
                settings=Settings(),
                stores=lambda: stores,
            )
            path = str(self.root / "project")
            request = CreateWorkspace(path=path, client_id=str(uuid.uuid4()), env=client)
            await backend.create(request)
            [hosted] = backend.everything()
            self.looked = look(cast("FileProfile", hosted.profile))
            await backend.shutdown()
        return self.seen[-1]

    async def test_the_client_s_own_files_win(self) -> None:
        self.configure("daemon", "of-the-daemon")
        self.configure("client", "of-the-client")
        daemon = {"HOME": str(self.root / "daemon")}
        config = await self.open(daemon, [f"HOME={self.root}/client"])
        self.assertEqual(list(config.providers), ["of-the-client"])

    async def test_a_client_without_any_gets_the_daemon_s(self) -> None:
        self.configure("daemon", "of-the-daemon")
        daemon = {"HOME": str(self.root / "daemon")}
        for env in ([], ["HOME=/nowhere"], ["PATH=/usr/bin", f"XDG_CONFIG_HOME={self.root}/x"]):
            with self.subTest(env=env):
                config = await self.open(daemon, env)
                self.assertEqual(list(config.providers), ["of-the-daemon"])

    async def test_the_variables_that_name_the_files_belong_together(self) -> None:
        self.configure("daemon", "of-the-daemon")
        self.configure("client", "of-the-client")
        daemon = {"HOME": "/nowhere", "XDG_CONFIG_HOME": f"{self.root}/daemon/.config"}
        config = await self.open(daemon, [f"HOME={self.root}/client"])
        self.assertEqual(list(config.providers), ["of-the-client"])
        config = await self.open(daemon, ["PATH=/usr/bin"])
        self.assertEqual(list(config.providers), ["of-the-daemon"])

    async def test_without_any_file_the_client_s_place_is_written(self) -> None:
        daemon = {"HOME": str(self.root / "daemon")}
        home = self.root / "client"
        await self.open(daemon, [f"HOME={home}"], lambda profile: profile.files.file(0))
        self.assertEqual(self.looked, home / ".local/share/crushlite/crush.json")
        home = self.root / "elsewhere"
        await self.open(daemon, [f"XDG_DATA_HOME={home}"], lambda profile: profile.files.file(0))
        self.assertEqual(self.looked, home / "crushlite/crush.json")

    async def test_a_variable_the_client_left_out_is_the_daemon_s(self) -> None:
        self.configure("client", "lab", "$LAB_KEY")
        daemon = {"HOME": str(self.root / "daemon"), "LAB_KEY": "the-daemons-own-key"}
        home = f"HOME={self.root}/client"
        config = await self.open(daemon, [home])
        self.assertEqual(config.providers["lab"].api_key, "the-daemons-own-key")
        config = await self.open(daemon, [home, "LAB_KEY=the-clients-own-key"])
        self.assertEqual(config.providers["lab"].api_key, "the-clients-own-key")
