"""Features of the base protocol that crushlite does not have: their routes answer truthfully."""

from __future__ import annotations

from typing import Any

from crushlite.api.entry import Entry
from crushlite.http.messages import Request, Response
from crushlite.testing import LocalDaemon
from crushlite.wing import Wing
from tests.support.basics import BoundedTestCase

# Method, path, body, status, and the answer or words of the refusal.
ABSENT: tuple[tuple[str, str, Any, int, Any], ...] = (
    ("GET", "/lsps", None, 200, {}),
    ("POST", "/lsps/start", {"path": "/a"}, 200, None),
    ("POST", "/lsps/stop", {"path": "/a"}, 200, None),
    ("GET", "/mcp/states", None, 200, {}),
    ("GET", "/mcp/pending-auth", None, 200, []),
    ("GET", "/mcp/prompts", None, 200, []),
    ("GET", "/project/needs-init", None, 200, {"needs_init": False}),
    ("GET", "/skills", None, 200, []),
    ("GET", "/mcp/auth-url?name=gh", None, 200, {}),
    ("POST", "/mcp/read-resource", {"name": "gh", "uri": "u"}, 200, []),
    ("POST", "/mcp/refresh-tools", {"name": "gh"}, 200, None),
    ("POST", "/mcp/refresh-prompts", {"name": "gh"}, 200, None),
    ("POST", "/mcp/refresh-resources", {"name": "gh"}, 200, None),
    ("POST", "/config/import-copilot", None, 200, {"token": None, "success": False}),
)
# What wings refuse in words of their own; without them all of it is not found, whatever is sent.
REFUSED: tuple[tuple[str, str, Any, int, Any], ...] = (
    ("GET", "/lsps/gopls/diagnostics", None, 404, "no language server"),
    ("POST", "/skills/read", {"skill_id": "/a/SKILL.md"}, 404, "skill not found: /a/SKILL"),
    ("POST", "/mcp/auth", {"name": "gh"}, 404, "gh"),
    ("POST", "/mcp/auth", {"name": ""}, 400, "name is required"),
    ("POST", "/mcp/get-prompt", {"client_id": "gh", "prompt_id": "p"}, 404, "gh:p"),
    ("POST", "/mcp/docker/enable", None, 400, "not supported"),
    ("POST", "/mcp/docker/disable", None, 400, "not supported"),
    ("POST", "/config/refresh-oauth", {"provider_id": "lab"}, 404, "lab"),
)
WITHOUT = "this daemon has no part that answers this"
MODEL = {"model": "scripted", "provider": "scripted"}


class HealthWing(Wing):
    """Answers for the health of the daemon itself, and takes reports of it."""

    def routes(self) -> tuple[Entry, ...]:
        return (
            Entry("GET", "/v1/health", self.health, public=True),
            Entry("POST", "/v1/health", self.health),
        )

    async def health(self, context: Any, request: Request) -> Response:
        return Response(203)


class HealthTests(BoundedTestCase):
    async def test_a_wing_can_answer_for_the_health_of_the_daemon(self) -> None:
        async with LocalDaemon(wings=[HealthWing()]) as daemon:
            for method in ("GET", "POST", "GET"):
                self.assertEqual((await daemon.call(method, "/v1/health")).status, 203)


class FeatureTests(BoundedTestCase):
    async def test_what_there_is_none_of_is_said_to_be_none_with_and_without_wings(self) -> None:
        for wings in (None, ()):
            async with LocalDaemon(wings=wings) as daemon:
                anna = await daemon.join()
                absent = [(*row[:3], 404, WITHOUT) for row in REFUSED]
                refused = REFUSED if wings is None else absent
                for method, path, body, status, wanted in (*ABSENT, *refused):
                    with self.subTest(path, body=body, wings=wings):
                        answer = await anna.call(method, path, body)
                        self.assertEqual(answer.status, status, answer.json)
                        if status == 200:
                            self.assertEqual(answer.json, wanted)
                        else:
                            self.assertIn(wanted, answer.json["message"])

    async def test_the_address_of_a_sign_in_needs_a_name(self) -> None:
        async with LocalDaemon() as daemon:
            answer = await (await daemon.join()).call("GET", "/mcp/auth-url")
            self.assertEqual((answer.status, answer.json["message"]), (400, "name is required"))

    async def test_without_configuration_files_there_is_nothing_to_change(self) -> None:
        async with LocalDaemon(wings=[]) as daemon:
            anna = await daemon.join()
            value = {"scope": 1, "key": "options.debug", "value": True}
            other = {"model_type": "large", "model": MODEL | {"model": "other"}}
            for path, body in (("/config/set", value), ("/config/model", other)):
                answer = await anna.call("POST", path, body)
                self.assertEqual((answer.status, answer.json["code"]), (404, "not_found"))
            own = {"model_type": "large", "model": MODEL}
            self.assertEqual((await anna.call("POST", "/config/model", own)).status, 200)
            self.assertEqual((await anna.call("POST", "/agent/update")).status, 200)
