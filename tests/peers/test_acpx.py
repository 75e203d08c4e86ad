"""`acpx`, a client for the command line, drives `crushlite acp`."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
from typing import Any

from crushlite.clock import SystemClock
from tests.support.editors import ProcessCase
from tests.support.peers import FrameCheck, npm_program, peer_environment

jsonschema: Any = importlib.import_module("jsonschema")


class AcpxTests(ProcessCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        # What we write is kept, to be checked.
        self.log = self.root / "frames"
        wrapper = self.root / "agent"
        wrapper.write_text(f"#!/bin/sh\n{shlex.join(self.command)} | tee -a {self.log}\n")
        wrapper.chmod(0o755)
        self.agent = str(wrapper)

    async def acpx(self, *arguments: str, code: int = 0) -> str:
        environment = peer_environment(str(self.root), **self.environment())
        environment["PATH"] = peer_environment(str(self.root))["PATH"]
        process = await asyncio.create_subprocess_exec(
            *(npm_program("acpx"), "--cwd", self.cwd, "--ttl", "20", *arguments),
            env=environment,
            cwd=self.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.addAsyncCleanup(self.end, process)
        output, errors = await process.communicate()
        self.assertEqual(process.returncode, code, (output, errors))
        return output.decode()

    def check_frames(self) -> list[str]:
        """Everything that we sent; answers are not checked, for want of the requests."""
        check = FrameCheck(jsonschema.Draft202012Validator)
        for line in self.log.read_text("utf-8").splitlines():
            message = json.loads(line)
            if "method" in message:
                check.from_agent(message)
        return check.checked

    async def test_a_prompt_with_a_permission(self) -> None:
        agent = ("--agent", self.agent)
        said = await self.acpx(*agent, "--approve-all", "exec", "hello\n/run echo out")
        self.assertIn("You said: hello", said)
        self.assertIn("It ended with exit code 0.", said)
        said = await self.acpx(*agent, "--deny-all", "exec", "/run echo out", code=5)
        self.assertIn("You did not allow it.", said)
        self.assertIn("RequestPermissionRequest", self.check_frames())

    async def test_a_session_with_a_name_goes_on(self) -> None:
        agent = ("--agent", self.agent)
        await self.acpx(*agent, "sessions", "new", "--name", "s")
        self.assertIn("You said: one", await self.acpx(*agent, "prompt", "-s", "s", "one"))
        self.assertIn("You said: two", await self.acpx(*agent, "prompt", "-s", "s", "two"))
        asked = asyncio.create_task(self.acpx(*agent, "prompt", "-s", "s", "three\n/slow 60"))
        while "three" not in self.log.read_text("utf-8"):
            await SystemClock().sleep(0.1)
        await self.acpx(*agent, "cancel", "-s", "s")
        self.assertIn("You said: three", await asked)
        await self.acpx(*agent, "sessions", "close", "s")
        self.check_frames()
