"""What a hosted agent is sent is valid by the published schema, and an agent that was made with the
official SDK takes it."""

from __future__ import annotations

import base64
import importlib
import json
import shlex
from typing import Any

from crushlite.acp_agents.wing import AgentsWing
from crushlite.clock import SystemClock
from crushlite.testing import LocalDaemon
from tests.support.hosted import HostedTestCase
from tests.support.peers import FrameCheck, python_program

jsonschema: Any = importlib.import_module("jsonschema")

# With the SDK everything that comes is checked before the agent sees it.
SDK_AGENT = """
import asyncio
from acp import Agent, InitializeResponse, NewSessionResponse, PromptResponse, run_agent
from acp import text_block, update_agent_message

class Echo(Agent):
    def on_connect(self, conn):
        self.conn = conn

    async def initialize(self, protocol_version, **more):
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd, mcp_servers, **more):
        return NewSessionResponse(session_id="s1")

    async def prompt(self, prompt, session_id, **more):
        text = "".join(getattr(block, "text", "") for block in prompt)
        await self.conn.session_update(session_id, update_agent_message(text_block("echo " + text)))
        return PromptResponse(stop_reason="end_turn")

asyncio.run(run_agent(Echo()))
"""


class FrameTests(HostedTestCase):
    async def test_every_frame_is_valid_by_the_schema(self) -> None:
        client, session = await self.join(await self.host("--offer", "broken-resume,load"))
        content = base64.b64encode(b"x").decode()
        files = [
            {"content": content, "file_name": name, "mime_type": kind}
            for name, kind in (("a", "text/plain"), ("b", "image/png"), ("c", "application/pdf"))
        ]
        await self.ask(client, session, "blocks", attachments=files)
        for option in ("folder", "no", ""):
            await client.prompt(session, "ask f.txt")
            request = await client.events.wait_for("permission_request")
            answer = {"action": "deny" if option == "no" else "allow", "option": option}
            await client.call("POST", f"/permissions/{request['id']}", answer)
            await client.events.wait_for("run_complete")
        await client.prompt(session, "hang")
        await client.events.wait_for("message", text="begun")
        await client.cancel(session, wait=10)
        await self.ask(client, session, "noise")
        await self.ask(client, session, "die")
        await self.ask(client, session, "say on")
        check = FrameCheck(jsonschema.Draft202012Validator)
        for line in self.log.read_text().splitlines():
            frame = json.loads(line)
            if "result" in frame:  # the agent asks nothing else that is offered
                check.to_agent({"id": frame["id"], "method": "session/request_permission"})
            check.from_agent(frame)
        for name in ("Initialize", "NewSession", "ResumeSession", "LoadSession", "Prompt"):
            self.assertIn(f"{name}Request", check.checked)
        self.assertEqual(check.checked.count("RequestPermissionResponse"), 3)
        self.assertIn("CancelNotification", check.checked)


class SdkTests(HostedTestCase):
    async def test_an_agent_made_with_the_sdk_answers(self) -> None:
        script = self.folder / "echo.py"
        script.write_text(SDK_AGENT)
        command = shlex.join([python_program("python"), str(script)])
        make = AgentsWing().agent(f"acp:{command}", SystemClock())
        async with LocalDaemon(make) as daemon:
            client, session = await self.join(daemon)
            self.assertEqual((await self.ask(client, session, "hello"))["text"], "echo hello")
            self.assertEqual((await self.ask(client, session, "again"))["text"], "echo again")
