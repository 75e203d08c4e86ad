"""`acpx`, a client for the command line, drives `crushlite acp` with everything that it can do: of
what the shim offers it has no forms, and nothing that deletes a session."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from crushlite.client import Client
from crushlite.clock import SystemClock
from crushlite.features import requests
from tests.support.editors import CoderShimCase, ProcessCase, ShimCase
from tests.support.mcp_server import scripted
from tests.support.peers import FrameCheck, npm_program, peer_environment

if TYPE_CHECKING:
    from pathlib import Path

jsonschema: Any = importlib.import_module("jsonschema")


class AcpxCase(ShimCase):
    def wrapped(self, name: str = "agent", *, hide: str = "^$") -> tuple[str, str]:
        """The option for an agent that keeps what is said, to be checked. `hide` is taken out of
        its messages: a capability that acpx shall not see."""
        self.frames: Path = self.root / "frames"  # a file for each direction of each process
        self.frames.mkdir(exist_ok=True)
        wrapper = self.root / name
        heard, said = (f'"{self.frames}/$$.{way}"' for way in ("in", "out"))
        shim = f"{shlex.join(self.command)} | sed -u {shlex.quote(f's/{hide}//')}"
        wrapper.write_text(f"#!/bin/sh\ntee {heard} | {shim} | tee {said}\n")
        wrapper.chmod(0o755)
        return "--agent", str(wrapper)

    async def acpx(self, *arguments: str, said: str = "", code: int = 0) -> str:
        """What it has printed; `said` is its input."""
        environment = peer_environment(str(self.root), **self.environment())
        environment["PATH"] = peer_environment(str(self.root))["PATH"]
        process = await asyncio.create_subprocess_exec(
            *(npm_program("acpx"), "--cwd", self.cwd, "--ttl", "20", *arguments),
            env=environment,
            cwd=self.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.addAsyncCleanup(self.end, process)
        output, errors = await process.communicate(said.encode())
        self.assertEqual(process.returncode, code, (output, errors))
        return output.decode()

    async def json(self, *arguments: str, **more: Any) -> Any:
        """The last line that it has printed."""
        output = await self.acpx("--format", "json", *arguments, **more)
        return json.loads(output.splitlines()[-1])

    def said(self) -> str:
        """All that we have sent so far."""
        return "".join(path.read_text("utf-8") for path in self.frames.glob("*.out"))

    async def until_said(self, text: str) -> None:
        while text not in self.said():
            await SystemClock().sleep(0.05)

    def check_frames(self) -> list[str]:
        """Check everything that we have sent; returns what it was, by the names of types."""
        checked: list[str] = []
        check = FrameCheck(jsonschema.Draft202012Validator)
        for path in self.frames.glob("*.in"):
            check.open.clear()
            for line in path.read_text("utf-8").splitlines():
                check.to_agent(json.loads(line))
            for line in path.with_suffix(".out").read_text("utf-8").splitlines():
                check.from_agent(json.loads(line))
            checked += check.checked
        return checked


class AcpxTests(ProcessCase, AcpxCase):
    async def test_a_prompt_with_a_permission_a_plan_and_thoughts(self) -> None:
        agent = self.wrapped()
        lines = "hello\n/think it over\n/todo a, b\n/run echo out\n/ask Go on?"
        said = await self.acpx(*agent, "--approve-all", "exec", lines)
        for text in ("You said: hello", "[plan]", "It ended with exit code 0.", "**Go on?**"):
            self.assertIn(text, said)
        said = await self.acpx(*agent, "--deny-all", "exec", "/run echo out", code=5)
        self.assertIn("You did not allow it.", said)
        checked = self.check_frames()
        self.assertIn("RequestPermissionRequest", checked)
        for kind in ("plan", "agent_thought_chunk", "tool_call_update"):
            self.assertIn(f"SessionNotification {kind}", checked)


class AcpxCoderTests(CoderShimCase, AcpxCase):
    BLOCKS = (
        {"type": "text", "text": "see "},
        {"type": "resource_link", "uri": "file:///etc/a.py", "name": "a.py"},
        {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside"}},
        {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
    )

    async def test_a_session_from_its_beginning_to_its_end(self) -> None:
        command = self.root / "home/.config/crush/commands/look.md"
        command.parent.mkdir()
        command.write_text("Look at $ARGUMENTS")
        server = {"name": "mine", "env": [], **scripted()}
        (self.project / ".acpxrc.json").write_text(json.dumps({"mcpServers": [server]}))
        agent, s = self.wrapped(), ("-s", "s")
        session = (await self.json(*agent, "sessions", "new", "--name", "s"))["acpxSessionId"]
        ensured = await self.json(*agent, "sessions", "ensure", "--name", "s")
        self.assertEqual(ensured["acpxSessionId"], session)

        # Every kind of block, from standard input; it resumes the session for that.
        said = await self.acpx(*agent, "prompt", *s, "-f", "-", said=json.dumps(self.BLOCKS))
        self.assertIn("see @/etc/a.py\n\n@/b.txt\n```\ninside\n```", said)
        self.assertIn("attached file image of type image/png", said)

        # A change of a file, allowed by a rule of its own for this tool.
        rules = json.dumps({"autoApprove": ["edit"], "defaultAction": "deny"})
        write = (*agent, "--policy", rules, "prompt", *s, "@write a.txt one")
        self.assertEqual((await self.json(*write))["result"], {"stopReason": "end_turn"})
        self.assertEqual((self.project / "a.txt").read_text().strip(), "one")
        self.assertIn('"type":"diff"', self.said())

        await self.queue_and_cancel(agent, s)
        await self.choose_and_share(agent, s, session)
        listed = (await self.json(*agent, "sessions", "list"))["sessions"]
        self.assertEqual([info["sessionId"] for info in listed], [session])
        await self.acpx(*agent, "sessions", "close", "s")

        # It loads a session if the agent cannot resume one.
        agent = self.wrapped("old", hide='"resume":{},')
        resume = ("sessions", "new", "--name", "t", "--resume-session", session)
        self.assertEqual((await self.json(*agent, *resume))["acpxSessionId"], session)
        checked = self.check_frames()
        responses = ("Initialize", "NewSession", "ResumeSession", "LoadSession", "ListSessions")
        for name in (*responses, "Prompt", "SetSessionMode", "SetSessionConfigOption"):
            self.assertIn(f"{name}Response", checked)
        updates = ("user_message_chunk", "agent_message_chunk", "tool_call", "tool_call_update")
        more = ("usage_update", "session_info_update", "available_commands_update")
        for kind in (*updates, *more, "config_option_update", "current_mode_update"):
            self.assertIn(f"SessionNotification {kind}", checked)

    async def choose_and_share(
        self, agent: tuple[str, str], s: tuple[str, str], session: str
    ) -> None:
        """A mode, a model, a prompt of somebody else, and what acpx knows of all that."""
        await self.acpx(*agent, "set-mode", *s, "auto")
        other = next(name for name in self.model.models if name != self.asked[-1]["model"])
        await self.acpx(*agent, "set", *s, "model", f"fake/{other}")
        await self.acpx(*agent, "--deny-all", "prompt", *s, "@bash touch b.txt")
        self.assertTrue((self.project / "b.txt").exists())
        self.assertEqual(self.asked[-1]["model"], other)
        async with Client(self.unix) as client:
            workspace = await client.create(self.cwd)
            await workspace.prompt(session, "from elsewhere")
            await self.until_said("You said: from elsewhere")
            self.assertEqual(
                [each.name for each in await requests.tool_servers(workspace)], ["mine"]
            )
        await self.acpx(*agent, "set", *s, "mode", "ask")
        status = await self.json(*agent, "status", *s)
        self.assertEqual((status["mode"], status["model"]), ("ask", f"fake/{other}"))

    async def queue_and_cancel(self, agent: tuple[str, str], s: tuple[str, str]) -> None:
        """The output of a command while it runs, a prompt behind it, and a cancel of the first."""
        asked = asyncio.create_task(
            self.acpx(*agent, "--approve-all", "prompt", *s, "@bash echo fir''st; sleep 60")
        )
        await self.until_said("first")
        queued = await self.json(*agent, "prompt", *s, "--no-wait", "/look this")
        self.assertEqual(queued["action"], "prompt_queued")
        self.assertTrue((await self.json(*agent, "cancel", *s))["cancelled"])
        self.assertIn("[done] cancelled", await asked)
        await self.until_said("You said: Look at this")
