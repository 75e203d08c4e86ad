"""Refusals begin with the words of the base protocol, which the Crush client looks for and shows to
its user, and go on to say what to do."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing.harness import Answer


class Summarizing:
    """An agent whose runs never end, and that can summarize."""

    async def run(self, turn: Turn) -> None:
        await asyncio.get_running_loop().create_future()

    async def summarize(self, turn: Turn) -> None:
        await turn.say("short")


class RefusalTests(BoundedTestCase):
    def assert_refused(self, answer: Answer, status: int, message: str) -> None:
        self.assertEqual(answer.status, status)
        words, _, advice = answer.json["message"].partition(": ")
        self.assertEqual(words, message)
        self.assertTrue(advice, "no word about what to do")

    async def test_an_unknown_workspace_is_refused(self) -> None:
        async with LocalDaemon() as daemon:
            for path in ("", "/agent", f"/events?client_id={uuid.uuid4()}"):
                with self.subTest(path):
                    answer = await daemon.call("GET", f"/v1/workspaces/{uuid.uuid4()}{path}")
                    self.assert_refused(answer, 404, "workspace not found")

    async def test_a_client_without_a_stream_is_refused_a_session(self) -> None:
        async with LocalDaemon() as daemon:
            client = await daemon.create()
            target = f"/current-session?client_id={client.id}"
            answer = await client.call("POST", target, {"session_id": ""})
            self.assert_refused(answer, 409, "client not attached")

    async def test_a_retired_client_is_refused_a_workspace(self) -> None:
        async with LocalDaemon() as daemon:
            client = await daemon.create()
            await client.retire()
            body = {"path": str(daemon.root / "project"), "client_id": client.id}
            answer = await daemon.call("POST", "/v1/workspaces", body)
            self.assert_refused(answer, 409, "client has been retired")

    async def test_a_daemon_in_use_refuses_to_leave_and_a_leaving_one_creates(self) -> None:
        async with LocalDaemon() as daemon:
            client = await daemon.create()
            for body in (
                {"command": "shutdown_if_idle", "client": "crushlite"},
                {"command": "shutdown_if_idle"},
            ):
                answer = await daemon.call("POST", "/v1/control", body)
                self.assert_refused(answer, 409, "server is hosting live workspaces")
            await client.retire()
            daemon.backend.claims.latch()
            body = {"path": str(daemon.root / "project"), "client_id": str(uuid.uuid4())}
            answer = await daemon.call("POST", "/v1/workspaces", body)
            self.assert_refused(answer, 503, "server is shutting down")

    async def test_a_summary_of_a_busy_session_is_refused(self) -> None:
        async with LocalDaemon(Summarizing()) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            answer = await anna.call("POST", f"/agent/sessions/{session}/summarize")
            self.assertEqual(answer.status, 409)
            words = "session is currently processing another request"
            self.assertIn(words, answer.json["message"])

    async def test_a_body_that_cannot_be_decoded_is_refused(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            answer = await anna.call("POST", "/sessions", {"title": 5})
            self.assert_refused(answer, 400, "failed to decode request")

    async def test_a_configuration_that_cannot_be_read_is_refused(self) -> None:
        async with LocalDaemon() as daemon:
            other = daemon.root / "other"
            other.mkdir()
            (other / "crush.json").write_text("{")
            body = {"path": str(other), "client_id": str(uuid.uuid4())}
            answer = await daemon.call("POST", "/v1/workspaces", body)
            self.assert_refused(answer, 400, "failed to initialize config")
            self.assertEqual(answer.json["code"], "bad_config")
