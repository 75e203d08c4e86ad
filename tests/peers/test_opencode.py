"""`opencode acp` behind Turn, with a fake model: what a user of it does in a session."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.acp_agents.wing import AgentsWing
from crushlite.clock import SystemClock
from crushlite.commands.orphans import pids_below
from crushlite.fake_model import FakeModel, obedient
from crushlite.testing import LocalDaemon
from tests.support.hosted import HostedTestCase, is_alive
from tests.support.peers import npm_program, peer_environment
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.testing import Participant, Seen

OFF = ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "DEFAULT_PLUGINS", "SHARE")


class OpencodeTests(HostedTestCase):
    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=obedient))
        self.env = peer_environment(str(self.folder))
        self.env |= {f"OPENCODE_DISABLE_{name}": "1" for name in OFF}
        model = {"name": "m", "limit": {"context": 200_000, "output": 4096}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Fake",
            "options": {"baseURL": self.model.base_url, "apiKey": "k"},
            "models": {"m": model, "s": model},
        }
        self.project = self.folder / "project"
        self.project.mkdir()
        config = {
            "model": "fake/m",
            "small_model": "fake/s",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"bash": "ask", "edit": "ask"},
            "provider": {"fake": provider},
        }
        (self.project / "opencode.json").write_text(json.dumps(config))

    async def opencode(self) -> tuple[LocalDaemon, Participant]:
        command = shlex.join([npm_program("opencode"), "acp"])
        make = AgentsWing().agent(f"acp:{command}", SystemClock())
        daemon = await LocalDaemon(make).__aenter__()
        self.addAsyncCleanup(daemon.__aexit__, None, None, None)
        env = [f"{key}={value}" for key, value in self.env.items()]
        return daemon, await daemon.join(self.project, env=env)

    async def ask(self, client: Participant, session: str, text: str, **fields: Any) -> Seen:
        """As that of the base class, with more patience: opencode takes long to start."""
        run_id = (await client.prompt(session, text, **fields)).json["run_id"]
        for _ in range(10):
            if (await client.call("GET", f"/runs/{run_id}?wait=10")).json["state"] == "ended":
                break
        return await client.events.wait_for("run_complete", run_id=run_id)

    async def granted(self, client: Participant, option: str) -> dict[str, Any]:
        """Answer the next permission request with an option that opencode offers."""
        request = await client.events.wait_for("permission_request")
        offered = {each["id"]: each["kind"] for each in request["options"]}
        action = "allow" if offered[option].startswith("allow") else "deny"
        body = {"action": action, "option": option}
        answer = await client.call("POST", f"/permissions/{request['id']}", body)
        self.assertEqual((answer.status, answer.json["resolved"]), (200, True))
        return request.payload

    async def asked(
        self, client: Participant, session: str, text: str, option: str
    ) -> tuple[Seen, dict[str, Any]]:
        run_id = (await client.prompt(session, text)).json["run_id"]
        request = await self.granted(client, option)
        return await client.events.wait_for("run_complete", run_id=run_id), request

    async def test_a_conversation_with_tools_permissions_undo_cancel_death_and_restart(
        self,
    ) -> None:
        daemon, client = await self.opencode()
        session = await client.session()
        done = await self.ask(client, session, "good morning")
        self.assertIn("You said: good morning", done["text"])
        await self._tools(client, session)
        await self._cancel(client, session)
        await self._death(client, session)
        await self._restart(daemon, client, session)

    async def _tools(self, client: Participant, session: str) -> None:
        done, request = await self.asked(client, session, "@bash echo hi > f.txt", "once")
        self.assertIn("The tool said", done["text"])
        self.assertEqual(request["params"]["command"], "echo hi > f.txt")
        kinds = {option["kind"] for option in request["options"]}
        self.assertEqual(kinds, {"allow_once", "allow_always", "reject_once"})
        self.assertEqual((self.project / "f.txt").read_text(), "hi\n")
        changes = (await client.call("GET", f"/runs/{done['run_id']}/changes")).json
        self.assertEqual([Path(file["path"]).name for file in changes["files"]], ["f.txt"])
        undone = await client.call("POST", f"/runs/{done['run_id']}/undo", {})
        self.assertEqual(undone.status, 200, undone)
        self.assertFalse((self.project / "f.txt").exists())
        await self.asked(client, session, "@bash echo two > g.txt", "always")
        done = await self.ask(client, session, "@bash echo two > g.txt")  # not asked again
        self.assertIn("The tool said", done["text"])
        await self.asked(client, session, "@bash touch h.txt", "reject")
        self.assertFalse((self.project / "h.txt").exists())
        calls = [m for m in await client.messages(session) if m["role"] == "tool"]
        self.assertEqual(len(calls), 4)
        found = (await client.call("GET", f"/sessions/{session}")).json
        self.assertEqual((found["prompt_tokens"], found["completion_tokens"]), (10, 5))

    async def _cancel(self, client: Participant, session: str) -> None:
        for _ in range(3):
            run_id = (await client.prompt(session, "@slow 60")).json["run_id"]
            await client.events.wait_for("message", text="One moment. ")
            await client.cancel(session, wait=15)
            ended = await client.events.wait_for("run_complete", run_id=run_id)
            self.assertEqual((ended["cancelled"], ended["error"]), (True, None))
        run_id = (await client.prompt(session, "at once")).json["run_id"]
        await client.cancel(session, wait=15)  # before the model was asked
        self.assertTrue((await client.events.wait_for("run_complete", run_id=run_id))["cancelled"])
        run_id = (await client.prompt(session, "@bash sleep 600")).json["run_id"]
        await client.events.wait_for("permission_request")
        await client.cancel(session, wait=15)  # while it asks
        self.assertTrue((await client.events.wait_for("run_complete", run_id=run_id))["cancelled"])
        done = await self.ask(client, session, "and now?")
        self.assertIn("You said: and now?", done["text"])

    async def _death(self, client: Participant, session: str) -> None:
        run_id = (await client.prompt(session, "@slow 60")).json["run_id"]
        await client.events.wait_for("message", text="One moment. ")
        for pid in _opencodes():
            os.kill(pid, signal.SIGKILL)
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertIn("opencode was ended by signal 9; the next prompt starts it", ended["error"])
        done = await self.ask(client, session, "are you there?")
        self.assertIn("You said: are you there?", done["text"])
        self.assertIn("good morning", json.dumps(self.model.calls[-1].request))

    async def _restart(self, daemon: LocalDaemon, client: Participant, session: str) -> None:
        """Another daemon on the same database; nothing of the first one is left."""
        pids = _opencodes()
        self.assertTrue(pids)
        await client.events.close()
        await daemon.daemon.stop()
        await until(lambda: not any(map(is_alive, pids)), "nothing is left")
        _, client = await self.opencode()
        done = await self.ask(client, session, "still there?")
        self.assertIn("You said: still there?", done["text"])
        asked = json.dumps(self.model.calls[-1].request)
        self.assertIn("good morning", asked)
        self.assertNotIn("<conversation>", asked)  # it was resumed, not told


def _opencodes() -> list[int]:
    """The processes of opencode below this one."""
    found = []
    for pid in pids_below(os.getpid()):
        try:
            if b"opencode" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue  # it has just ended
    return found
