"""The coder and a language server: what an edit breaks stands in the result of the edit."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from crushlite.fake_model import End, Say
from crushlite.lsp import part as part_module
from tests.support import language_server
from tests.support.configured import ConfiguredTestCase, results, use

SCRIPT = str(Path(language_server.__file__))


class CoderTests(ConfiguredTestCase):
    def prepare_home(self) -> None:
        server = {"command": sys.executable, "args": ["-I", "-S", SCRIPT], "filetypes": ["toy"]}
        self.configure(lsp={"toy": server})

    async def test_the_model_reads_what_its_edit_has_broken_and_gets_tools_to_ask(self) -> None:
        self.enterContext(mock.patch.object(part_module, "WAIT_SECONDS", 30.0))
        (self.project / "a.toy").write_text("fine\n")
        anna = await self.join(self.project)
        session = await anna.session()
        await anna.call("POST", "/permissions/skip", {"skip": True})
        await anna.call("POST", "/lsps/start", {"path": str(self.project / "a.toy")})
        await anna.events.wait_for("lsp_event", state=2)
        change = {"file_path": "a.toy", "old_string": "fine", "new_string": "BAD one"}
        self.plan = [
            use("view", "v", file_path="a.toy"),
            use("edit", "e", **change),
            use("agent", "a", prompt="look"),
            [Say("seen"), End()],
            [Say("done"), End()],
        ]
        await self.turn(anna, session, "go")
        _, edited, _ = results(await anna.messages(session))
        self.assertIn("1:1 error: BAD one (test)", edited["content"])
        offered = [
            {tool["function"]["name"] for tool in call.request["tools"]}
            for call in self.model.calls
        ]
        self.assertLess({"lsp_diagnostics", "lsp_rename", "agent"}, offered[2])
        # A sub-agent has those that only read.
        self.assertIn("lsp_diagnostics", offered[3])
        self.assertTrue({"lsp_rename", "lsp_restart", "agent", "edit"}.isdisjoint(offered[3]))

    async def test_a_session_has_the_tools_from_its_first_step_when_the_workspace_opens_again(
        self,
    ) -> None:
        (self.project / "a.toy").write_text("fine\n")
        anna = await self.join(self.project)
        session = await anna.session()
        await anna.call("POST", "/lsps/start", {"path": str(self.project / "a.toy")})
        await anna.events.wait_for("lsp_event", state=2)
        self.plan = [use("view", "v", file_path="a.toy"), [Say("seen"), End()]]
        await self.turn(anna, session, "go")
        await self.daemon.daemon.stop()
        await self.daemon.__aenter__()
        anna = await self.join(self.project)
        for again in (session, await anna.session()):
            self.plan = [[Say("done"), End()]]
            await self.turn(anna, again, "again")
        before, *_, after, _ = (call.request["tools"] for call in self.model.calls)
        self.assertIn("lsp_diagnostics", {tool["function"]["name"] for tool in before})
        self.assertEqual(after, before)
