"""The official Python SDK's client drives `crushlite acp` through everything; each message that we
send is valid by the published schema."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from typing import Any

from tests.support.editors import ProcessCase
from tests.support.peers import FrameCheck

acp: Any = importlib.import_module("acp")
schema: Any = importlib.import_module("acp.schema")
jsonschema: Any = importlib.import_module("jsonschema")


class SdkClient:
    """An editor as the SDK wants one."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.permissions: list[Any] = []
        self.choice = "allow"
        self.answer: asyncio.Event | None = None  # answers wait for it
        self.forms: list[Any] = []
        self.changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **more: Any
    ) -> Any:
        self.permissions.append((tool_call, options))
        self.changed.set()
        if self.answer is not None:
            await self.answer.wait()
        outcome = {"outcome": "selected", "optionId": self.choice}
        return schema.RequestPermissionResponse.model_validate({"outcome": outcome})

    async def create_elicitation(self, message: str, mode: Any, **more: Any) -> Any:
        self.forms.append((message, mode))
        fields = mode.requested_schema.properties
        return acp.AcceptElicitationResponse(action="accept", content=dict.fromkeys(fields, "yes"))

    def on_connect(self, connection: Any) -> None:
        pass

    def text(self, kind: str = "agent_message_chunk") -> str:
        contents = [update.content for update in self.updates if update.session_update == kind]
        return "".join(content.text for content in contents if content.type == "text")

    def kinds(self) -> set[str]:
        return {update.session_update for update in self.updates}

    async def until(self, text: str) -> None:
        while text not in self.text():
            self.changed.clear()
            await self.changed.wait()


def tap(writer: Any, check: FrameCheck) -> None:
    """Show every message that is written to the check. The SDK takes nothing but a StreamWriter."""
    write = writer.write

    def tapped(data: bytes) -> None:
        for line in data.splitlines():
            check.to_agent(json.loads(line))
        write(data)

    writer.write = tapped


class SdkTests(ProcessCase):
    async def connect(self, client: SdkClient) -> tuple[Any, FrameCheck]:
        process = await self.start()
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        check = FrameCheck(jsonschema.Draft202012Validator)
        shown = asyncio.StreamReader(limit=1 << 26)

        async def forward(source: asyncio.StreamReader) -> None:
            while line := await source.readline():
                check.from_agent(json.loads(line))
                shown.feed_data(line)
            shown.feed_eof()

        forwarding = asyncio.create_task(forward(stdout))
        tap(stdin, check)
        connection = acp.connect_to_agent(client, stdin, shown, use_unstable_protocol=True)

        async def end() -> None:
            await connection.close()
            stdin.close()
            self.assertEqual(await process.wait(), 0)
            await forwarding  # raises what the check found

        self.addAsyncCleanup(end)
        forms = acp.ElicitationCapabilities(form=acp.ElicitationFormCapabilities())
        capabilities = schema.ClientCapabilities(elicitation=forms)
        answer = await connection.initialize(1, client_capabilities=capabilities)
        self.assertEqual(answer.protocol_version, 1)
        return connection, check

    async def say(self, connection: Any, session: str, *lines: str) -> str:
        answer = await connection.prompt(session, [acp.text_block("\n".join(lines))])
        return str(answer.stop_reason)

    async def test_the_whole_of_the_protocol(self) -> None:
        client = SdkClient()
        connection, check = await self.connect(client)
        new = await connection.new_session(self.cwd, mcp_servers=[])
        session = new.session_id
        self.assertEqual([option.id for option in new.config_options], ["mode", "model"])

        lines = ("hello", "/think about it", "/todo a, b", "/run echo out", "/ask Go on?")
        self.assertEqual(await self.say(connection, session, *lines), "end_turn")
        for text in ("You said: hello", "2 things done.", "exit code 0", "You chose yes"):
            self.assertIn(text, client.text())
        self.assertIn("about it", client.text("agent_thought_chunk"))
        kinds = {"plan", "tool_call", "tool_call_update", "session_info_update"}
        self.assertLessEqual(kinds, client.kinds())
        self.assertEqual(len(client.permissions), 1)
        self.assertEqual(len(client.forms), 1)

        blocks = [
            acp.text_block("see "),
            acp.resource_link_block("a.py", f"file://{self.cwd}/a.py"),
            acp.resource_block(acp.embedded_text_resource("file:///b.txt", "inside")),
            acp.image_block("iVBORw0KGgo=", "image/png"),
        ]
        await connection.prompt(session, blocks)
        self.assertIn("You sent a file.\nYou said: see @a.py", client.text())

        asked = asyncio.create_task(self.say(connection, session, "begun", "/slow 60"))
        await client.until("You said: begun")
        await connection.cancel(session)
        self.assertEqual(await asked, "cancelled")

        await connection.set_session_mode(session, "auto")
        await self.say(connection, session, "/run true")
        self.assertEqual(len(client.permissions), 1, "not asked any more")
        options = await connection.set_config_option("mode", session, "ask")
        self.assertEqual(options.config_options[0].current_value, "ask")
        with self.assertRaisesRegex(acp.RequestError, "as asked"):
            await self.say(connection, session, "/fail as asked")

        listed = await connection.list_sessions(cwd=self.cwd)
        self.assertEqual([info.session_id for info in listed.sessions], [session])
        await connection.close_session(session)
        await connection.resume_session(session, self.cwd, mcp_servers=[])
        self.assertEqual(await self.say(connection, session, "still here"), "end_turn")

        late = SdkClient()
        other, late_check = await self.connect(late)
        await other.load_session(self.cwd, session, mcp_servers=[])
        self.assertIn("still here", late.text("user_message_chunk"))
        self.assertIn("You said: hello", late.text())
        self.assertGreater(len(check.checked), 40)
        self.assertIn("SessionNotification tool_call", late_check.checked)

    async def test_a_permission_that_another_editor_answered_is_taken_back(self) -> None:
        slow, quick = SdkClient(), SdkClient()
        slow.answer = asyncio.Event()
        first, check = await self.connect(slow)
        session = (await first.new_session(self.cwd, mcp_servers=[])).session_id
        second, _ = await self.connect(quick)
        asked = asyncio.create_task(self.say(first, session, "/tool x"))
        while not slow.permissions:
            slow.changed.clear()
            await slow.changed.wait()
        await second.load_session(self.cwd, session, mcp_servers=[])
        self.assertEqual(await asked, "end_turn")
        self.assertIn("You allowed it.", slow.text())
        self.assertIn("CancelRequestNotification", check.checked)
        slow.answer.set()  # late: ignored
        self.assertEqual(await self.say(first, session, "again"), "end_turn")

    async def test_a_daemon_killed_in_mid_turn(self) -> None:
        client = SdkClient()
        connection, _ = await self.connect(client)
        session = (await connection.new_session(self.cwd, mcp_servers=[])).session_id
        asked = asyncio.create_task(self.say(connection, session, "begun", "/slow 60"))
        await client.until("You said: begun")
        os.kill(await self.daemon_pid(), signal.SIGKILL)
        with self.assertRaisesRegex(acp.RequestError, "interrupted"):
            await asked
        self.assertEqual(await self.say(connection, session, "and now"), "end_turn")
        self.assertIn("You said: and now", client.text())
