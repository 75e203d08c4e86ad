"""The official Python SDK's client drives `crushlite acp` through everything; each message that we
send is valid by the published schema, and each request is answered once."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from crushlite.acp.editor import Editor
from crushlite.client import Client
from crushlite.clock import SystemClock
from crushlite.errors import CrushliteError
from crushlite.features import requests
from crushlite.launch import Wanted
from tests.support.basics import BoundedTestCase
from tests.support.crush import WireCase
from tests.support.editors import ProcessCase
from tests.support.mcp_server import scripted
from tests.support.peers import FrameCheck
from tests.support.streams import stream_pair

if TYPE_CHECKING:
    from collections.abc import Callable

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
        content = {
            name: field.one_of[0].const if getattr(field, "one_of", None) else "yes"
            for name, field in mode.requested_schema.properties.items()
        }
        return acp.AcceptElicitationResponse(action="accept", content=content)

    def on_connect(self, connection: Any) -> None:
        pass

    def text(self, kind: str = "agent_message_chunk") -> str:
        contents = [update.content for update in self.updates if update.session_update == kind]
        return "".join(content.text for content in contents if content.type == "text")

    def kinds(self) -> set[str]:
        return {update.session_update for update in self.updates}

    def of_kind(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until an update or a request has made the condition true."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def until_text(self, text: str) -> None:
        await self.until(lambda: text in self.text())


def tap(writer: Any, check: FrameCheck) -> None:
    """Show every message that is written to the check. The SDK takes nothing but a StreamWriter."""
    write = writer.write

    def tapped(data: bytes) -> None:
        for line in data.splitlines():
            check.to_agent(json.loads(line))
        write(data)

    writer.write = tapped


class SdkCase(BoundedTestCase):
    async def connect_to(
        self,
        client: SdkClient,
        writer: Any,
        reader: asyncio.StreamReader,
        *,
        has_forms: bool = True,
    ) -> tuple[Any, FrameCheck]:
        """A connection over the streams of the agent, which has said hello. At the end of the test
        no request may be open, and every message must be valid."""
        check = FrameCheck(jsonschema.Draft202012Validator)
        shown = asyncio.StreamReader(limit=1 << 26)

        async def forward() -> None:
            while line := await reader.readline():
                check.from_agent(json.loads(line))
                shown.feed_data(line)
            shown.feed_eof()

        forwarding = asyncio.create_task(forward())
        tap(writer, check)
        connection = acp.connect_to_agent(client, writer, shown, use_unstable_protocol=True)

        async def end() -> None:
            await connection.close()
            writer.close()
            await forwarding  # raises what the check found
            self.assertEqual(check.open, {})

        self.addAsyncCleanup(end)
        forms = acp.ElicitationCapabilities(form=acp.ElicitationFormCapabilities())
        capabilities = schema.ClientCapabilities(elicitation=forms if has_forms else None)
        answer = await connection.initialize(1, client_capabilities=capabilities)
        self.assertEqual(answer.protocol_version, 1)
        return connection, check

    async def say(self, connection: Any, session: str, *lines: str) -> str:
        answer = await connection.prompt(session, [acp.text_block("\n".join(lines))])
        return str(answer.stop_reason)


class SdkTests(ProcessCase, SdkCase):
    async def connect(self, client: SdkClient) -> tuple[Any, FrameCheck]:
        process = await self.start()
        assert process.stdout is not None

        async def ended() -> None:
            self.assertEqual(await process.wait(), 0)

        self.addAsyncCleanup(ended)
        return await self.connect_to(client, process.stdin, process.stdout)

    async def test_the_whole_of_the_protocol(self) -> None:
        client = SdkClient()
        connection, check = await self.connect(client)
        with self.assertRaises(CrushliteError, msg="a daemon was started before it was needed"):
            await self.daemon_pid()
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
        await client.until_text("You said: begun")
        await connection.cancel(session)
        self.assertEqual(await asked, "cancelled")

        await connection.set_session_mode(session, "auto")
        await self.say(connection, session, "/run true")
        self.assertEqual(len(client.permissions), 1, "not asked any more")
        options = await connection.set_config_option("mode", session, "ask")
        self.assertEqual(options.config_options[0].current_value, "ask")
        with self.assertRaisesRegex(acp.RequestError, "as asked"):
            await self.say(connection, session, "/fail as asked")

        await self.close_and_come_back(connection, client, session)
        late = SdkClient()
        other, late_check = await self.connect(late)
        await other.load_session(self.cwd, session, mcp_servers=[])
        self.assertIn("still here", late.text("user_message_chunk"))
        self.assertIn("You said: hello", late.text())
        self.assertGreater(len(check.checked), 40)
        self.assertIn("SessionNotification tool_call", late_check.checked)

    async def close_and_come_back(self, connection: Any, client: SdkClient, session: str) -> None:
        listed = await connection.list_sessions(cwd=self.cwd)
        self.assertEqual([info.session_id for info in listed.sessions], [session])
        await connection.close_session(session)
        said = client.text()
        await connection.resume_session(session, self.cwd, mcp_servers=[])
        self.assertEqual(client.text(), said, "nothing is replayed")
        self.assertEqual(await self.say(connection, session, "still here"), "end_turn")

    async def test_a_permission_that_another_editor_answered_is_taken_back(self) -> None:
        slow, quick = SdkClient(), SdkClient()
        slow.answer = asyncio.Event()
        first, check = await self.connect(slow)
        session = (await first.new_session(self.cwd, mcp_servers=[])).session_id
        second, _ = await self.connect(quick)
        asked = asyncio.create_task(self.say(first, session, "/tool x"))
        await slow.until(lambda: slow.permissions)
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
        await client.until_text("You said: begun")
        os.kill(await self.daemon_pid(), signal.SIGKILL)
        with self.assertRaisesRegex(acp.RequestError, "interrupted"):
            await asked
        self.assertEqual(await self.say(connection, session, "and now"), "end_turn")
        self.assertIn("You said: and now", client.text())


class SdkCoderTests(WireCase, SdkCase):
    """With a model, and the tools, commands and other clients that a user has."""

    async def connect(self, client: SdkClient, **more: Any) -> Any:
        (agent_reader, agent_writer), (reader, writer) = await stream_pair()
        wanted = Wanted(url=self.unix, path=str(self.project))
        serving = asyncio.create_task(Editor(agent_reader, agent_writer, wanted).run())

        async def ended() -> None:
            await serving

        self.addAsyncCleanup(ended)
        connection, _ = await self.connect_to(client, writer, reader, **more)
        return connection

    async def test_what_tools_do_is_shown_live_and_when_it_is_loaded(self) -> None:
        client, cwd = SdkClient(), str(self.project)
        connection = await self.connect(client)
        session = (await connection.new_session(cwd, mcp_servers=[])).session_id

        # A change of a file: what is asked and what was done are diffs at a place.
        await self.say(connection, session, "@write a.txt one")
        path = str(self.project / "a.txt")
        ((asked, _),) = client.permissions
        self.assertEqual((asked.kind, asked.locations[0].path), ("edit", path))
        (done,) = client.of_kind("tool_call_update")[-1].content
        for diff in (asked.content[0], done):
            self.assertEqual((diff.type, diff.path, diff.old_text), ("diff", path, None))
            self.assertEqual(diff.new_text.strip(), "one")
        edit = {"file_path": "a.txt", "old_string": "one", "new_string": "two"}
        await self.say(connection, session, f"@tool edit {json.dumps(edit)}")
        (done,) = client.of_kind("tool_call_update")[-1].content
        self.assertEqual((done.old_text.strip(), done.new_text.strip()), ("one", "two"))

        # The output of a command, while it runs.
        waits = "echo first; until [ -e go ]; do sleep 0.05; done; echo last"
        running = asyncio.create_task(self.say(connection, session, f"@bash {waits}"))
        await client.until(lambda: self.output(client, status=None))
        (self.project / "go").touch()
        await running
        self.assertIn("first\nlast", self.output(client, status="completed"))

        late = SdkClient()
        await (await self.connect(late)).load_session(cwd, session, mcp_servers=[])
        written, edited = (each.content[0] for each in late.of_kind("tool_call_update")[:2])
        self.assertIn("+one", written.content.text)
        self.assertEqual((edited.type, edited.new_text.strip()), ("diff", "two"))
        self.assertIn("first\nlast", self.output(late, status="completed"))

    async def test_tool_servers_of_the_editor_are_used_while_its_session_is_open(self) -> None:
        client, cwd = SdkClient(), str(self.project)
        connection = await self.connect(client)
        program = scripted()
        server = schema.McpServerStdio(name="mine", env=[], **program)
        session = (await connection.new_session(cwd, mcp_servers=[server])).session_id
        async with Client(self.unix) as shared:
            workspace = await shared.create(cwd)

            async def states() -> list[str]:
                return [state.state for state in await requests.tool_servers(workspace)]

            while await states() != ["connected"]:
                await SystemClock().sleep(0.05)
            call = 'mcp_mine_echo {"text": "from the server"}'
            await self.say(connection, session, f"@tool {call}")
            self.assertIn("The tool said: from the server", client.text())
            await connection.close_session(session)
            while await states():
                await SystemClock().sleep(0.05)

    async def test_forms_models_commands_and_other_clients(self) -> None:
        command = self.root / "home/.config/crush/commands/look.md"
        command.parent.mkdir()
        command.write_text("Look at $ARGUMENTS")
        client, cwd = SdkClient(), str(self.project)
        connection = await self.connect(client)
        new = await connection.new_session(cwd, mcp_servers=[])
        session = new.session_id

        await self.say(connection, session, "@ask")
        self.assertIn('User selected: ["pg"]', client.text())
        self.assertIn("usage_update", client.kinds())
        models = new.config_options[1]
        (other,) = {option.value for option in models.options} - {models.current_value}
        await connection.set_config_option("model", session, other)
        await client.until(lambda: client.of_kind("available_commands_update"))
        listed = client.of_kind("available_commands_update")[-1].available_commands
        self.assertIn("look", [each.name for each in listed])
        await self.say(connection, session, "/look this")
        self.assertIn("You said: Look at this", client.text())
        self.assertEqual(self.asked[-1]["model"], other.partition("/")[2])

        async with Client(self.unix) as shared:
            workspace = await shared.create(cwd)
            await workspace.prompt(session, "from elsewhere")
            await client.until_text("You said: from elsewhere")
        self.assertEqual(client.text("user_message_chunk"), "from elsewhere")

        # An editor without forms; the SDK has no name for the request that deletes.
        late = SdkClient()
        plain = await self.connect(late, has_forms=False)
        second = (await plain.new_session(cwd, mcp_servers=[])).session_id
        self.assertEqual(await self.say(plain, second, "@ask"), "end_turn")
        self.assertIn("**Which database?**", late.text())
        await plain._conn.send_request("session/delete", {"sessionId": second})
        found = await connection.list_sessions(cwd=cwd)
        self.assertEqual([info.session_id for info in found.sessions], [session])

    def output(self, client: SdkClient, *, status: str | None) -> str:
        """The last text of a tool call in this status; without one, what a running call said."""
        texts = [
            content.content.text
            for update in client.of_kind("tool_call_update")
            if update.status == status
            for content in update.content or ()
            if content.type == "content"
        ]
        return next((text for text in reversed(texts) if "first" in text), "")
