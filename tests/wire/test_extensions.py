"""A Crush client in a workspace with tool servers, skills and language servers: it can decode, and
so show, all that it asks for."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support import language_server
from tests.support.crush import WireCase, configuration
from tests.support.gojson import LSP_CLIENT, MCP_CLIENT, MCP_PROMPT, SKILL, STRING, List, Map, Shape
from tests.support.mcp import scripted

SKILL_TEXT = "---\nname: release\ndescription: Make a release\n---\nFirst, the tests.\n"


class ExtensionTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        home = self.root / "home"
        toy = {
            "command": sys.executable,
            "args": ["-I", "-S", str(language_server.__file__)],
            "filetypes": ["toy"],
        }
        more = {
            "mcp": {
                "good": scripted(),
                "bad": scripted("exit=3"),
                "off": scripted(disabled=True),
            },
            "lsp": {"toy": toy},
        }
        file = home / ".config/crush/crush.json"
        file.write_text(json.dumps(configuration(self.model) | more))
        skill = home / ".config/crush/skills/release/SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(SKILL_TEXT)

    async def states(self, tui: Any) -> dict[str, Any]:
        """What the client asks after an event about a tool server."""
        await tui.post("/agent/update")
        found = await tui.get("/mcp/states", Map(MCP_CLIENT))
        self.assertEqual(await tui.get("/mcp/pending-auth", List(Map(STRING))), [])
        return dict(found)

    async def test_tool_servers_their_prompts_and_skills_are_listed_as_its_screen_expects(
        self,
    ) -> None:
        tui = await self.tui()
        wanted = {("good", "connected"), ("bad", "error")}  # in whatever order they come
        while wanted:
            told = await tui.events.wait_for("mcp_event", type="state_changed")
            wanted.discard((told["name"], told["state"]))
        states = await self.states(tui)
        self.assertEqual(set(tui.workspace["config"]["mcp"]), set(states), "its sidebar joins them")
        found = {name: state["state"] for name, state in states.items()}
        self.assertEqual(found, {"good": "connected", "bad": "error", "off": "disabled"})
        self.assertGreater(states["good"]["tool_count"], 0)
        self.assertEqual(states["good"]["prompt_count"], 1)
        self.assertTrue(states["bad"]["error"])

        [prompt] = await tui.get("/mcp/prompts", List(MCP_PROMPT))
        self.assertEqual(
            [prompt[key] for key in ("id", "client_id", "prompt_id")],
            ["good:review", "good", "review"],
        )
        args = {argument["id"]: "7" for argument in prompt["arguments"]}
        chosen = {"client_id": "good", "prompt_id": "review", "args": args}
        made = await tui.post("/mcp/get-prompt", chosen, Map(STRING))
        self.assertEqual(made["prompt"], "Review 7.")
        for what in ("tools", "prompts", "resources"):
            await tui.post(f"/mcp/refresh-{what}", {"name": "good"})

        skills = {skill["name"]: skill for skill in await tui.get("/skills", List(SKILL))}
        self.assertEqual(skills["release"]["source"], "user")
        self.assertTrue(skills["release"]["id"].endswith("/skills/release/SKILL.md"))

    async def test_a_language_server_that_a_file_starts_is_shown_with_what_it_finds(self) -> None:
        tui = await self.tui()
        path = self.project / "a.toy"
        path.write_text("BAD one\n")
        await tui.post("/lsps/start", {"path": str(path)})
        await tui.events.wait_for("lsp_event", type="state_changed", name="toy", state=2)
        await tui.events.wait_for("lsp_event", type="diagnostics_changed", name="toy")
        servers = await tui.get("/lsps", Map(LSP_CLIENT))
        self.assertEqual((servers["toy"]["state"], servers["toy"]["diagnostic_count"]), (2, 1))
        diagnostics = await tui.get("/lsps/toy/diagnostics", Map(Shape()))
        self.assertEqual([path.as_uri()], list(diagnostics))
        await tui.post("/lsps/stop")
        self.assertEqual((await tui.get("/lsps", Map(LSP_CLIENT)))["toy"]["state"], 4)
