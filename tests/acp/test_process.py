"""The command itself, as an editor starts it: its streams and its end."""

from __future__ import annotations

from crushlite.client import Client
from crushlite.jsonrpc.errors import RpcError
from tests.support.editors import ProcessCase, prompt


class ProcessTests(ProcessCase):
    async def test_the_end_of_the_input_ends_the_process_at_once_also_in_mid_turn(self) -> None:
        script, process = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        asked = script.begin("session/prompt", **prompt(answer["sessionId"], "begin\n/slow 2"))
        await script.until(lambda: "begin" in script.text())
        assert process.stdin is not None
        process.stdin.close()
        self.assertEqual(await process.wait(), 0)
        self.assertEqual(script.peer.noises, 0, "nothing but frames")
        with self.assertRaisesRegex(RpcError, "the run goes on"):
            await asked
        async with Client(self.address) as client:  # the run goes on
            workspace = await client.create(self.cwd)
            (run,) = await workspace.runs()
            ended = await workspace.run(run.run_id, wait=20)
            self.assertEqual(ended.outcome, "completed")
