"""Several clients of one session, editors among them; and editors that come and go at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING

from crushlite.client import Client
from crushlite.jsonrpc.errors import PeerError, RpcError
from tests.support.editors import ProcessCase, prompt

if TYPE_CHECKING:
    from tests.support.editors import ScriptedEditor


class SharingTests(ProcessCase):
    async def test_an_editor_a_crush_client_and_another_client_share_a_session_that_outlives_a_kill(
        self,
    ) -> None:
        script, _ = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        session = answer["sessionId"]
        crush = await self.crush_client(session)

        # A prompt in the editor, whose permission is answered elsewhere.
        asked = script.begin("session/prompt", **prompt(session, "/tool x"))
        dialog = await script.asked.get()
        shown = await crush.events.wait_for("permission_request")
        async with Client(self.address) as client:
            workspace = await client.create(self.cwd)
            (request,) = await workspace.permissions()
            self.assertEqual(request.id, shown["id"])
            self.assertTrue((await workspace.grant(request.id, "allow")).resolved)
        await script.until(lambda: script.withdrawn == [dialog.id])
        self.assertEqual(await asked, {"stopReason": "end_turn"})
        await crush.events.wait_for("run_complete")

        # A prompt there is seen in the editor.
        await crush.send("from Crush")
        await script.until(lambda: "You said: from Crush" in script.text())
        self.assertEqual(script.text("user_message_chunk"), "from Crush")

        # The daemon is killed in mid-turn.
        asked = script.begin("session/prompt", **prompt(session, "begin\n/slow 60"))
        await script.until(lambda: "You said: begin" in script.text())
        os.kill(await self.daemon_pid(), signal.SIGKILL)
        with self.assertRaisesRegex(RpcError, "interrupted"):
            await asked
        await crush.returned()
        done = await script.request("session/prompt", **prompt(session, "on we go"))
        self.assertEqual(done, {"stopReason": "end_turn"})
        async with Client(self.address) as client:
            workspace = await client.create(self.cwd)
            said = [message.text for message in await workspace.user_messages(session)]
        self.assertEqual(said, ["on we go", "begin\n/slow 60", "from Crush", "/tool x"])
        self.assertEqual(script.peer.noises, 0, "nothing but frames")


class ComingAndGoingTests(ProcessCase):
    EDITORS = 10

    async def test_editors_that_are_killed_at_random_lose_no_session_and_leave_nothing(
        self,
    ) -> None:
        rng = random.Random(17)
        first, _ = await self.editor()  # keeps the workspace open
        await first.request("session/new", cwd=self.cwd, mcpServers=[])
        sessions: list[str] = []
        for group in (range(5), range(5, self.EDITORS)):
            await asyncio.gather(*(self.one(rng.random(), number, sessions) for number in group))
        listed = await first.request("session/list", cwd=self.cwd)
        self.assertLessEqual(set(sessions), {entry["sessionId"] for entry in listed["sessions"]})
        async with Client(self.address) as client:
            workspace = await client.create(self.cwd)
            runs = await workspace.runs()
            ended = [await workspace.run(run.run_id, wait=30) for run in runs]
            self.assertEqual({run.outcome for run in ended}, {"completed"})
            self.assertEqual(len(ended), self.EDITORS)

    async def one(self, chance: float, number: int, sessions: list[str]) -> None:
        """An editor that begins a prompt and then ends in one way or another."""
        script, process = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        sessions.append(answer["sessionId"])
        text = f"editor {number}\n/long 2000"
        asked = script.begin("session/prompt", **prompt(answer["sessionId"], text))
        await script.until(lambda: f"editor {number}" in script.text())
        if chance < 0.4:
            process.kill()
        elif chance < 0.6:
            process.send_signal(signal.SIGTERM)
        else:
            assert process.stdin is not None
            process.stdin.close()
        await process.wait()
        await self.settled(asked, script)

    async def settled(self, asked: asyncio.Task[object], script: ScriptedEditor) -> None:
        """The prompt was answered just before, or its editor is gone."""
        try:
            await asked
        except PeerError:
            self.assertTrue(script.peer.is_gone)
