"""Every route of the base protocol, with the requests of the Crush client. None may be missing: the
client does not take 404 or 405 for a feature that is not there."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.crush import WireCase
from tests.support.go import Refused
from tests.support.gojson import (
    AGENT_INFO,
    AGENT_SESSION,
    CONFIG,
    FILE,
    INT,
    LSP_CLIENT,
    MCP_CLIENT,
    MESSAGE,
    NEEDS_INIT,
    PROVIDER,
    RESOLVED,
    SELECTED_MODEL,
    SESSION,
    SHELL_ANSWER,
    SKILL,
    SKIP,
    STRING,
    TIME,
    VERSION,
    WORKSPACE,
    List,
    Map,
    Shape,
    unmarshal,
)

ANY = Shape()
NOTHING = None  # the client does not look at the body
MODEL = {"model": "small-model", "provider": "fake"}


class RouteTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna, self.ben = await self.tui(), await self.tui()
        await self.anna.send("hi")
        await self.anna.events.wait_for("run_complete")

    async def walk(self, *routes: tuple[str, Any, Shape | None]) -> None:
        """Send requests: each is `METHOD /path`, a body, and the shape of the answer. A path
        without a version is below the workspace."""
        for line, body, shape in routes:
            with self.subTest(line):
                method, _, path = line.partition(" ")
                target = path if path.startswith("/v1") else self.anna.base + path
                await self.anna.call(method, target, body, shape)

    async def test_the_server_and_its_workspaces(self) -> None:
        await self.walk(
            ("GET /v1/health", None, NOTHING),
            ("GET /v1/version", None, VERSION),
            ("GET /v1/config", None, Map(ANY)),
            ("GET /v1/workspaces", None, List(WORKSPACE)),
            ("GET ", None, WORKSPACE),
            ("GET /config", None, CONFIG),
            ("GET /providers", None, List(PROVIDER)),
            (f"POST /current-session?client_id={self.anna.id}", {"session_id": ""}, NOTHING),
            (f"DELETE ?client_id={uuid.uuid4()}", None, NOTHING),
            (f"DELETE /v1/clients/{uuid.uuid4()}", None, NOTHING),
        )

    async def test_sessions_and_files(self) -> None:
        session = f"/sessions/{self.anna.session}"
        read = {"session_id": self.anna.session, "path": "/a"}
        await self.walk(
            ("GET /sessions", None, List(SESSION)),
            ("POST /sessions", {"title": "one"}, SESSION),
            (f"GET {session}", None, SESSION),
            (f"PUT {session}", {"id": self.anna.session, "title": "two"}, SESSION),
            (f"GET {session}/history", None, List(FILE)),
            (f"GET {session}/messages", None, List(MESSAGE)),
            (f"GET {session}/messages/user", None, List(MESSAGE)),
            ("GET /messages/user", None, List(MESSAGE)),
            (f"GET {session}/filetracker/files", None, List(STRING)),
            ("POST /filetracker/read", read, NOTHING),
            (f"GET /filetracker/lastread?session_id={self.anna.session}&path=/a", None, TIME),
            (f"DELETE {session}", None, NOTHING),
        )

    async def test_the_agent_and_what_it_asks(self) -> None:
        session = f"/agent/sessions/{self.anna.session}"
        bang = {"session_id": "", "command": "true", "term_width": 80}
        grant = {"permission": {"id": str(uuid.uuid4())}, "action": "allow"}
        answer = {"batch_request_id": "", "responses": [{"request_id": "q1", "yes": True}]}
        await self.walk(
            ("GET /agent", None, AGENT_INFO),
            ("POST /agent/init", None, NOTHING),
            ("POST /agent/update", None, NOTHING),
            (f"GET {session}", None, AGENT_SESSION),
            (f"POST {session}/cancel", None, NOTHING),
            (f"GET {session}/prompts/queued", None, INT),
            (f"GET {session}/prompts/list", None, List(STRING)),
            (f"POST {session}/prompts/clear", None, NOTHING),
            (f"POST {session}/summarize", None, NOTHING),
            (f"POST {session}/shell", bang, SHELL_ANSWER),
            ("GET /agent/default-small-model?provider_id=fake", None, SELECTED_MODEL),
            ("GET /permissions/skip", None, SKIP),
            ("POST /permissions/skip", {"skip": False}, NOTHING),
            ("POST /permissions/grant", grant, RESOLVED),
            ("POST /questions/answer", answer, RESOLVED),
            ("POST /questions/cancel", None, RESOLVED),
        )

    async def test_what_there_is_none_of(self) -> None:
        await self.walk(
            ("GET /lsps", None, Map(LSP_CLIENT)),
            ("POST /lsps/start", {"path": "/a"}, NOTHING),
            ("POST /lsps/stop", None, NOTHING),
            ("GET /project/needs-init", None, NEEDS_INIT),
            ("POST /project/init", None, NOTHING),
            ("GET /project/init-prompt", None, Map(STRING)),
            ("GET /skills", None, List(SKILL)),
            ("GET /mcp/states", None, Map(MCP_CLIENT)),
            ("GET /mcp/pending-auth", None, List(Map(STRING))),
            ("GET /mcp/auth-url?name=srv", None, Map(STRING)),
            ("GET /mcp/prompts", None, List(Map(ANY))),
            ("POST /mcp/read-resource", {"name": "srv", "uri": "u"}, List(Map(ANY))),
            *(
                (f"POST /mcp/refresh-{w}", {"name": "srv"}, NOTHING)
                for w in ("tools", "prompts", "resources")
            ),
            ("POST /config/import-copilot", None, Map(ANY)),
        )
        prompt = await self.anna.get("/project/init-prompt", Map(STRING))
        self.assertIn("AGENTS.md", prompt["prompt"])

    async def test_what_cannot_be_done_is_refused_with_words_and_is_no_unknown_route(self) -> None:
        get = {"client_id": "srv", "prompt_id": "p", "args": {}}
        for line, body in (
            ("GET /lsps/gopls/diagnostics", None),
            ("POST /skills/read", {"skill_id": "/path/SKILL.md"}),
            ("POST /mcp/auth", {"name": "srv"}),
            ("POST /mcp/get-prompt", get),
            ("POST /mcp/docker/enable", None),
            ("POST /mcp/docker/disable", None),
            ("POST /config/refresh-oauth", {"scope": 0, "provider_id": "hyper"}),
        ):
            with self.subTest(line):
                method, _, path = line.partition(" ")
                with self.assertRaises(Refused) as caught:
                    await self.anna.call(method, self.anna.base + path, body)
                self.assertNotEqual(caught.exception.status, 405)
                self.assertTrue(caught.exception.message)
                self.assertNotEqual(caught.exception.message, "no such route")


class ConfigTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna, self.ben = await self.tui(), await self.tui()

    async def change(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Change the configuration; both clients get an event, read it again, and have the same."""
        await self.anna.post(f"/config/{path}", body)
        for tui in (self.anna, self.ben):
            await tui.events.wait_for("config_changed", workspace_id=tui.workspace["id"])
            await tui.refresh()
        self.assertEqual(self.anna.workspace["config"], self.ben.workspace["config"])
        return dict(self.anna.workspace["config"])

    async def test_a_value_is_set_and_removed_in_both_scopes(self) -> None:
        for scope in (0, 1):
            body = {"scope": scope, "key": "options.tui.transparent", "value": True}
            config = await self.change("set", body)
            self.assertIs(config["options"]["tui"]["transparent"], True)
            body = {"scope": scope, "key": "options.tui.transparent"}
            config = await self.change("remove", body)
            self.assertFalse(config["options"]["tui"]["transparent"])

    async def test_compact_mode(self) -> None:
        config = await self.change("compact", {"scope": 0, "enabled": True})
        self.assertIs(config["options"]["tui"]["compact_mode"], True)

    async def test_recent_models_are_written_by_the_client(self) -> None:
        body = {"scope": 0, "key": "recent_models.large", "value": [MODEL]}
        config = await self.change("set", body)
        [recent] = config["recent_models"]["large"]
        self.assertEqual((recent["model"], recent["provider"]), ("small-model", "fake"))

    async def test_a_key_is_taken_and_never_shown(self) -> None:
        body = {"scope": 0, "provider_id": "fake", "kind": "string", "api_key": "k-very-secret-123"}
        await self.change("provider-key", body)
        reply = await self.anna.transport.round_trip("GET", self.anna.base)
        self.assertNotIn(b"k-very-secret-123", reply.body)
        await self.anna.send("hi")
        await self.anna.events.wait_for("run_complete")
        asked = [call.headers["authorization"] for call in self.model.calls]
        self.assertEqual(set(asked), {"Bearer k-very-secret-123"})

    async def test_a_key_of_an_unknown_kind_is_400(self) -> None:
        body = {"scope": 0, "provider_id": "fake", "kind": "x", "api_key": "k"}
        with self.assertRaises(Refused) as caught:
            await self.anna.post("/config/provider-key", body)
        self.assertEqual(caught.exception.status, 400)
        self.assertTrue(caught.exception.message.startswith('unsupported api key kind "x"'))

    async def test_a_chosen_model_outlives_the_workspace(self) -> None:
        body = {"scope": 1, "model_type": "large", "model": MODEL}
        await self.change("model", body)
        await self.anna.goodbye()
        await self.ben.goodbye()
        carl = await self.tui()
        self.assertEqual(carl.agent["model"]["id"], "small-model")
        reply = await carl.transport.round_trip("GET", f"{carl.base}/config")
        self.assertEqual(unmarshal(reply.body)["models"]["large"]["model"], "small-model")
