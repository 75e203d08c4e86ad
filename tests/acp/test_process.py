"""The command itself, as an editor starts it: its streams, its end, and a daemon that is killed."""

from __future__ import annotations

import asyncio
import os
import signal

from crushlite.client import Client
from crushlite.jsonrpc.errors import RpcError
from tests.support.editors import ProcessCase, prompt


class ProcessTests(ProcessCase):
    async def test_a_daemon_that_is_killed_in_mid_turn_ends_the_prompt_and_not_the_thread(
        self,
    ) -> None:
        script, process = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        session = answer["sessionId"]
        asked = script.begin("session/prompt", **prompt(session, "begin\n/slow 60"))
        await script.until(lambda: "begin" in script.text())
        os.kill(await self.daemon_pid(), signal.SIGKILL)
        with self.assertRaises(RpcError) as caught:
            await asked
        self.assertIn("interrupted", caught.exception.message)

        done = await script.request("session/prompt", **prompt(session, "and now?"))
        self.assertEqual(done, {"stopReason": "end_turn"})
        self.assertTrue(script.text().endswith("You said: and now?\n"), script.text())
        self.assertEqual(script.peer.noises, 0, "nothing but frames")

        assert process.stdin is not None
        process.stdin.close()
        self.assertEqual(await process.wait(), 0)

        late, _ = await self.editor()
        params = {"sessionId": session, "cwd": self.cwd, "mcpServers": []}
        await late.request("session/load", **params)
        self.assertEqual(late.text("user_message_chunk"), "begin\n/slow 60and now?")

    async def test_the_end_of_the_input_ends_the_process_at_once_also_in_mid_turn(self) -> None:
        script, process = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        asked = script.begin("session/prompt", **prompt(answer["sessionId"], "begin\n/slow 2"))
        await script.until(lambda: "begin" in script.text())
        assert process.stdin is not None
        process.stdin.close()
        self.assertEqual(await process.wait(), 0)
        await asyncio.wait([asked])
        async with Client(self.address) as client:  # the run goes on
            workspace = await client.create(self.cwd)
            (run,) = await workspace.runs()
            ended = await workspace.run(run.run_id, wait=20)
            self.assertEqual(ended.outcome, "completed")
