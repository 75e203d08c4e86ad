"""What the coder's tools do is shown in editors as it is, and valid by the published schema."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

from crushlite.acp.editor import Editor
from crushlite.clock import SystemClock
from crushlite.jsonrpc.peer import RpcPeer
from crushlite.launch import Wanted
from tests.support.crush import WireCase
from tests.support.editors import FORMS, ScriptedEditor, prompt
from tests.support.peers import FrameCheck
from tests.support.streams import stream_pair

jsonschema: Any = importlib.import_module("jsonschema")


class CheckedReader:
    """Shows every line to the check before it is read."""

    def __init__(self, reader: asyncio.StreamReader, check: FrameCheck) -> None:
        self._reader, self._check = reader, check

    async def read(self, n: int, /) -> bytes:
        line = await self._reader.readline()
        if line and "method" in (message := json.loads(line)):
            self._check.from_agent(message)
        return line


class CoderTests(WireCase):
    async def test_writing_editing_asking_and_running(self) -> None:
        (agent_reader, agent_writer), (reader, writer) = await stream_pair()
        check = FrameCheck(jsonschema.Draft202012Validator)
        script = ScriptedEditor()
        script.peer = RpcPeer(CheckedReader(reader, check), writer, script, SystemClock())
        wanted = Wanted(url=self.unix, path=str(self.project))
        serving = asyncio.create_task(Editor(agent_reader, agent_writer, wanted).run())
        reading = asyncio.create_task(script.peer.run())

        async def end() -> None:
            await script.peer.close()
            await asyncio.wait([serving, reading])
            serving.result()
            reading.result()  # raises what the check found

        self.addAsyncCleanup(end)
        await script.request("initialize", protocolVersion=1, clientCapabilities=FORMS)
        new = await script.request("session/new", cwd=str(self.project), mcpServers=[])
        models = new["configOptions"][1]
        self.assertGreater(len(models["options"]), 1)

        async def say(text: str) -> dict[str, Any]:
            """Send a prompt and allow what it asks for; returns the last update of a call."""
            asked = script.begin("session/prompt", **prompt(new["sessionId"], text))
            request = await script.asked.get()
            if request.method == "elicitation/create":
                fields = request.params["requestedSchema"]["properties"]
                content = {name: field["oneOf"][0]["const"] for name, field in fields.items()}
                request.answer.set_result({"action": "accept", "content": content})
            else:
                request.choose("allow")
            self.assertEqual(await asked, {"stopReason": "end_turn"})
            return script.kinds("tool_call_update")[-1]

        path = str(self.project / "a.txt")
        diff = {"type": "diff", "path": path, "oldText": None, "newText": "one"}
        content = (await say("@write a.txt one"))["content"]
        self.assertEqual([{**content[0], "newText": content[0]["newText"].strip()}], [diff])
        edit = {"file_path": "a.txt", "old_string": "one", "new_string": "two"}
        (changed,) = (await say(f"@tool edit {json.dumps(edit)}"))["content"]
        self.assertEqual((changed["oldText"].strip(), changed["newText"].strip()), ("one", "two"))
        ran = await say("@bash touch b; echo from a command")
        self.assertIn("from a command", ran["content"][0]["content"]["text"])
        await say("@ask")
        await script.until(lambda: bool(script.kinds("session_info_update")))
        self.assertIn("SessionNotification usage_update", check.checked)
