"""An editor, a browser and a Crush client on one session, and the daemon killed under them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from crushlite.client import Client
from crushlite.features import requests
from crushlite.jsonrpc.errors import RpcError
from crushlite.listen import default_socket
from tests.support.editors import ProcessCase, prompt
from tests.support.webdriver import Browser

LIVE = "document.querySelector('#connection').dataset.state === 'live'"


class BrowserTests(ProcessCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        # Only the daemon of the default socket opens the port again at which tabs wait.
        self.address = f"unix://{default_socket(self.environment())}"

    async def test_a_browser_answers_for_an_editor_and_all_go_on_after_a_kill(self) -> None:
        script, _ = await self.editor()
        answer = await script.request("session/new", cwd=self.cwd, mcpServers=[])
        session = answer["sessionId"]
        crush = await self.crush_client(session)
        browser = Browser()
        self.addCleanup(browser.close)
        page = browser.first
        async with Client(self.address) as client:
            await page.open(Path((await requests.web(client, path=self.cwd)).page).as_uri())
        await page.wait(LIVE)

        # A prompt in the editor; the permission is answered in the browser.
        asked = script.begin("session/prompt", **prompt(session, "/tool x"))
        dialog = await script.asked.get()
        await crush.events.wait_for("permission_request")
        await page.wait("document.querySelector('#permission').open")
        await page.click("#permission [data-action=allow]")
        await script.until(lambda: script.withdrawn == [dialog.id])
        self.assertEqual(await asked, {"stopReason": "end_turn"})
        await crush.events.wait_for("run_complete")

        # The daemon is killed in mid-turn: the editor gets its answer, and nothing is lost.
        asked = script.begin("session/prompt", **prompt(session, "begin\n/slow 60"))
        await page.shows("You said: begin", ".msg.assistant")
        os.kill(await self.daemon_pid(), signal.SIGKILL)
        with self.assertRaisesRegex(RpcError, "interrupted"):
            await asked
        await crush.returned()
        done = await script.request("session/prompt", **prompt(session, "on we go"))
        self.assertEqual(done, {"stopReason": "end_turn"})
        await page.shows("You said: on we go", ".msg.assistant")
        await crush.send("from Crush")
        await page.shows("You said: from Crush", ".msg.assistant")
        await script.until(lambda: "You said: from Crush" in script.text())
        self.assertEqual(script.peer.noises, 0, "nothing but frames")
