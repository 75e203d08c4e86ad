"""Refusals begin with the words of the base protocol, which the Crush client shows its user, and go
on to say what to do; endings close what an agent left open."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing.harness import Answer


class RefusalTests(BoundedTestCase):
    def assert_refused(self, answer: Answer, status: int, message: str) -> None:
        self.assertEqual(answer.status, status)
        words, _, advice = answer.json["message"].partition(": ")
        self.assertEqual(words, message)
        self.assertTrue(advice, "no word about what to do")

    async def test_a_workspace_that_is_not_there(self) -> None:
        async with LocalDaemon() as daemon:
            for path in ("", "/agent", f"/events?client_id={uuid.uuid4()}"):
                with self.subTest(path):
                    answer = await daemon.call("GET", f"/v1/workspaces/{uuid.uuid4()}{path}")
                    self.assert_refused(answer, 404, "workspace not found")

    async def test_a_client_without_a_stream_shows_no_session(self) -> None:
        async with LocalDaemon() as daemon:
            client = await daemon.create()
            target = f"/current-session?client_id={client.id}"
            answer = await client.call("POST", target, {"session_id": ""})
            self.assert_refused(answer, 409, "client not attached")

    async def test_a_retired_client(self) -> None:
        async with LocalDaemon() as daemon:
            client = await daemon.create()
            await client.retire()
            body = {"path": str(daemon.root / "project"), "client_id": client.id}
            answer = await daemon.call("POST", "/v1/workspaces", body)
            self.assert_refused(answer, 409, "client has been retired")

    async def test_a_server_in_use_stays_and_one_that_leaves_takes_nobody(self) -> None:
        async with LocalDaemon() as daemon:
            leave = {"command": "shutdown_if_idle", "client": "crushlite"}
            client = await daemon.create()
            answer = await daemon.call("POST", "/v1/control", leave)
            self.assert_refused(answer, 409, "server is hosting live workspaces")
            await client.retire()
            daemon.backend.claims.latch()
            body = {"path": str(daemon.root / "project"), "client_id": str(uuid.uuid4())}
            answer = await daemon.call("POST", "/v1/workspaces", body)
            self.assert_refused(answer, 503, "server is shutting down")


class EndingTests(BoundedTestCase):
    """What an ending writes for an agent that left a call open."""

    async def history(self, *, cancel: bool) -> list[dict[str, Any]]:
        inside = asyncio.Event()

        async def agent(turn: Turn) -> None:
            await turn.tool_call("bash", {"command": "make"}, id="call")
            inside.set()
            if not cancel:
                raise RuntimeError("boom")
            await asyncio.Event().wait()

        async with LocalDaemon(agent) as daemon:
            client = await daemon.join()
            session = await client.session()
            await client.prompt(session, run_id="one")
            await inside.wait()
            if cancel:
                await client.cancel(session, wait=20)
            await client.events.wait_for("run_complete", run_id="one")
            return [message.payload for message in await client.messages(session)]

    async def test_a_cancel(self) -> None:
        _user, assistant, tool = await self.history(cancel=True)
        finish = assistant["parts"][-1]["data"]
        self.assertEqual(finish["reason"], "canceled")
        self.assertTrue(finish["message"])
        result = tool["parts"][0]["data"]
        self.assertIn("user cancelled", result["content"])
        self.assertIs(result["is_error"], True)

    async def test_a_failure(self) -> None:
        _user, assistant, tool = await self.history(cancel=False)
        finish = assistant["parts"][-1]["data"]
        self.assertEqual(finish["reason"], "error")
        self.assertIn("boom", finish["details"])
        result = tool["parts"][0]["data"]
        self.assertIn("failed", result["content"])
        self.assertIs(result["is_error"], True)
