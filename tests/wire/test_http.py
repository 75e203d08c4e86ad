"""HTTP as the Crush client uses it: its unusual requests, and answers that it cannot handle."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.crush import WireCase
from tests.support.go import GoClient, Refused, Reply
from tests.support.gojson import MESSAGE, SESSION, WORKSPACE, List, marshal, unmarshal


class HttpTests(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.tui()

    async def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> Reply:
        return await self.anna.transport.round_trip(method, path, body, kind)

    async def test_a_client_that_takes_gzip_gets_streams_and_answers_as_they_are(self) -> None:
        await self.anna.send("hello " * 2000)
        await self.anna.events.wait_for("run_complete")
        self.assertIn(b"Accept-Encoding: gzip\r\n", self.anna.transport.sent[0])
        headers = self.anna.events.reply.headers
        self.assertNotIn("content-encoding", headers)
        self.assertEqual(headers["content-type"].partition(";")[0], "text/event-stream")
        self.assertEqual(headers["cache-control"], "no-cache")
        reply = await self.ask("GET", f"{self.anna.base}/sessions/{self.anna.session}/messages")
        self.assertNotIn("content-encoding", reply.headers)
        self.assertEqual(len(unmarshal(reply.body)), 2)

    async def test_the_server_answers_to_the_name_of_this_machine(self) -> None:
        client = GoClient(self.tcp.replace("127.0.0.1", "localhost"))
        self.addAsyncCleanup(client.transport.close)
        await client.call("GET", "/v1/health")
        self.assertIn(b"\r\nHost: localhost:", client.transport.sent[0])

    async def test_a_create_carries_a_whole_environment(self) -> None:
        env = [*self.env, *(f"VARIABLE_{n}={'x' * 1000}" for n in range(1000)), "ODD=a=b\u00fc\n"]
        tui = await self.tui()
        await tui.create(path=str(self.project), env=env)
        self.assertEqual(tui.workspace["env"], env)

    async def test_posts_without_a_body_have_no_content_type(self) -> None:
        await self.anna.send("hi")
        await self.anna.events.wait_for("run_complete")
        session = f"/agent/sessions/{self.anna.session}"
        for path in (
            "/agent/update",
            "/agent/init",
            f"{session}/cancel",
            f"{session}/prompts/clear",
            f"{session}/summarize",
            "/lsps/stop",
            "/project/init",
            "/config/import-copilot",
            "/questions/cancel",
        ):
            with self.subTest(path):
                reply = await self.ask("POST", self.anna.base + path)
                self.assertEqual(reply.status, 200, reply.body)
        sent = self.anna.transport.sent[-1]
        self.assertIn(b"\r\nContent-Length: 0\r\n", sent)
        self.assertNotIn(b"Content-Type", sent)

    async def test_a_body_is_json_whatever_its_type_says(self) -> None:
        body = marshal({"title": "one"})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream"):
            reply = await self.ask("POST", f"{self.anna.base}/sessions", body, kind)
            self.assertEqual((reply.status, unmarshal(reply.body)["title"]), (200, "one"))

    async def test_white_space_around_a_body_is_ignored(self) -> None:
        for body in (b'{"title":"one"}\n', b'\r\n {"title":"one"} \t\r\n\n'):
            reply = await self.ask("POST", f"{self.anna.base}/sessions", body)
            self.assertEqual(reply.status, 200, reply.body)

    async def test_a_body_that_is_no_json_is_a_400_that_says_so(self) -> None:
        for body in (b"", b"{", b"title=one", b"\xff"):
            reply = await self.ask("POST", f"{self.anna.base}/sessions", body)
            self.assertEqual(reply.status, 400)
            self.assertIn("failed to decode request", unmarshal(reply.body)["message"])

    async def test_every_refusal_has_a_message(self) -> None:
        base, client = self.anna.base, uuid.uuid4()
        create = {"id": "", "path": str(self.project), "client_id": str(client)}
        grant = {"permission": {"id": "x"}, "action": "perhaps"}
        table: list[tuple[str, str, Any, int, str]] = [
            ("POST", "/v1/workspaces", create | {"path": ""}, 400, "path is required"),
            ("POST", "/v1/workspaces", create | {"client_id": ""}, 400, "invalid client_id"),
            ("DELETE", "/v1/clients/abc", None, 400, ""),
            ("DELETE", base, None, 400, "client_id is required"),
            ("GET", f"{base}/events", None, 400, "client_id is required"),
            ("GET", f"{base}/events?client_id=abc", None, 400, "client_id is not a valid UUID"),
            ("POST", f"{base}/permissions/grant", grant, 400, "invalid permission action"),
            ("POST", "/v1/control", {"command": "dance"}, 400, "unknown command"),
            ("GET", f"{base}/lsps/gopls/diagnostics", None, 404, "LSP client not found"),
            ("GET", f"/v1/workspaces/{client}", None, 404, "workspace not found"),
        ]
        for method, path, body, status, message in table:
            with self.subTest(f"{method} {path} {message}"):
                reply = await self.ask(method, path, None if body is None else marshal(body))
                self.assertEqual(reply.status, status)
                self.assertEqual(reply.headers["content-type"], "application/json")
                told = unmarshal(reply.body)["message"]
                self.assertTrue(told and told.startswith(message), told)

    async def test_a_prompt_that_cannot_be_taken_says_why(self) -> None:
        """The TUI shows this message in its status bar, as it does for no other refusal."""
        session = (await self.anna.new_session("one"))["id"]
        for given, prompt in (("", "hi"), (session, ""), (str(uuid.uuid4()), "hi")):
            with self.assertRaises(Refused) as caught:
                await self.anna.prompt(given, prompt)
            self.assertTrue(caught.exception.message)
            self.assertIn(caught.exception.status, (400, 404, 500))

    async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow(self) -> None:
        for path in ("/v1", "/v2/health", "/v1/nothing", f"{self.anna.base}/nothing"):
            self.assertEqual((await self.ask("GET", path)).status, 404, path)
        for method, path, allowed in (
            ("POST", "/v1/health", {"GET", "HEAD"}),
            ("PUT", f"{self.anna.base}/sessions", {"GET", "HEAD", "POST"}),
            ("POST", f"{self.anna.base}/messages/user", {"GET", "HEAD"}),
        ):
            reply = await self.ask(method, path)
            self.assertEqual(reply.status, 405)
            self.assertEqual(set(reply.headers["allow"].split(", ")), allowed)

    async def test_an_empty_id_takes_its_segment_with_it(self) -> None:
        """The client joins paths like that; the answer is another route's or 404, never broken."""
        for path, status in (
            (f"{self.anna.base}/sessions//messages", 404),
            (f"{self.anna.base}/sessions/", 200),
            ("/v1/workspaces//agent", 404),
        ):
            with self.subTest(path):
                try:
                    await self.anna.call("GET", path)
                    found = 200
                except Refused as error:
                    found = error.status
                self.assertEqual(found, status)

    async def test_keys_are_read_and_extra_ones_ignored(self) -> None:
        body = {"title": "one", "later": {"deep": [1, 2]}, "cost": 0}
        made = await self.anna.post("/sessions", body, SESSION)
        self.assertEqual(made["title"], "one")

    async def test_a_prompt_of_every_character_comes_back_unchanged(self) -> None:
        text = 'a\u0000b <&> \u2028 \U0001f600 \\u0041 "quoted" \r\n\ttab'
        await self.anna.send(text)
        await self.anna.events.wait_for("run_complete")
        path = f"/sessions/{self.anna.session}/messages/user"
        [message] = await self.anna.get(path, List(MESSAGE))
        self.assertEqual(message["parts"][0], ("text", {"text": text}))

    async def test_many_calls_over_few_connections_are_never_mixed_up(self) -> None:
        client = GoClient(self.unix)
        self.addAsyncCleanup(client.transport.close)
        for number in range(50):
            made = await client.call(
                "POST", f"{self.anna.base}/sessions", {"title": f"s{number}"}, SESSION
            )
            self.assertEqual(made["title"], f"s{number}")
            await client.call("GET", self.anna.base, None, WORKSPACE)
        self.assertEqual(client.transport.dialed, 1)
