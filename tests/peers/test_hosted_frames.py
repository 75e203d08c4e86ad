"""What a hosted agent is sent is valid by the published schema, and an agent that was made with the
official SDK takes it."""

from __future__ import annotations

import base64
import json
import shlex
from typing import TYPE_CHECKING, Any

import jsonschema

from crushlite.acp_agents.wing import AgentsWing
from crushlite.clock import SystemClock
from crushlite.testing import LocalDaemon
from tests.support.hosted import HostedTestCase
from tests.support.peers import acp_schema, python_program

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        checked = list(self.invalid())
        self.assertGreater(len(checked), 12)
        self.assertEqual([flaw for flaw in checked if flaw], [])

    def invalid(self) -> Iterator[str]:
        """For each frame that the agent got, what is wrong with it; empty if nothing."""
        schema = acp_schema()
        for line in self.log.read_text().splitlines():
            frame = json.loads(line)
            self.assertEqual(frame["jsonrpc"], "2.0")
            if "method" in frame:
                kind = "Request" if "id" in frame else "Notification"
                yield self._flaw(schema, frame["method"], kind, frame["params"])
            elif "result" in frame:
                # The agent asks nothing else that is offered.
                yield self._flaw(schema, "session/request_permission", "Response", frame["result"])

    def _flaw(self, schema: dict[str, Any], method: str, kind: str, value: Any) -> str:
        (name,) = [
            name
            for name, each in schema["$defs"].items()
            if each.get("x-method") == method and name.endswith(kind)
        ]
        try:
            jsonschema.validate(value, {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
        except jsonschema.ValidationError as error:
            return f"{method}: {error.message}"
        return ""


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
