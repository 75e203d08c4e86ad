"""A client whose daemon is lost: what it yields, how long it tries, how it retires."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from crushlite.client import Client, ConnectionFailed, Lost, Recovered
from crushlite.errors import NoAgent, WorkspaceNotFound
from crushlite.http.messages import Response
from crushlite.protocol.events import Resync
from tests.support.client import (
    CREATE,
    EVENTS,
    INIT,
    LOOK,
    ME,
    ClientTestCase,
    Feed,
    W,
    answer,
    done,
    refused,
)
from tests.support.scenarios import scenario

GONE = refused(404, "workspace_not_found")
RETIRE = ("DELETE", "/v1/clients/{client_id}")


class NoticeTests(ClientTestCase):
    async def payloads(self, stream: Any, count: int) -> list[Any]:
        return [(await self.within(stream.__anext__())).payload for _ in range(count)]

    async def test_a_loss_is_yielded_at_once_and_a_return_before_any_newer_event(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(done(1), brief=True), Feed(done(2))]
        async with workspace.events() as stream:
            _, lost = await self.payloads(stream, 2)
            self.assertEqual(lost, Lost("the daemon ended it"))
            self.assertEqual(len(self.feeds), 1, "yielded before the first attempt to reconnect")
            back, newer = await self.payloads(stream, 2)
        self.assertEqual((back, newer.run_id), (Recovered("w1"), "r2"))

    async def test_a_workspace_that_was_created_again_comes_with_a_resync(
        self,
    ) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(done(1), brief=True), GONE, Feed(done(2))]
        async with workspace.events() as stream:
            await workspace.look("s1")
            told = await self.payloads(stream, 5)
            self.assertEqual([type(payload) for payload in told[1:4]], [Lost, Recovered, Resync])
            self.assertEqual((told[2].workspace_id, workspace.id), ("w2", "w2"))
        self.assertIn(f"POST /v1/workspaces/w2/current-session?client_id={ME}", self.targets)

    @scenario(290)
    async def test_failed_attempts_are_reported_by_twenties_and_go_on(self) -> None:
        workspace = await self.workspace()
        failures = [refused(503, "unavailable", "not now")] * 41
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), *failures, Feed(done(1))]
        async with workspace.events() as stream:
            told = await self.payloads(stream, 4)
            self.assertEqual([lost.attempts for lost in told[:3]], [0, 20, 40])
            self.assertEqual([lost.reason for lost in told[1:3]], ["not now", "not now"])
            self.assertEqual(told[3], Recovered("w1"))
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
        self.assertEqual(self.impatient.slept[-1], 10.0)

    async def test_a_stream_whose_reader_is_cancelled_on_the_way_is_still_introduced(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(done(1), brief=True), Feed(done(2))]
        heard, go = asyncio.Event(), asyncio.Event()

        async def slow() -> Response:
            heard.set()
            await go.wait()
            return Response(200)

        async with workspace.events() as stream:
            await workspace.look("s1")
            self.answers[LOOK] = [slow, Response(200)]
            self.requests.clear()
            await self.payloads(stream, 2)
            reader = asyncio.create_task(stream.__anext__())
            await self.within(heard.wait())
            reader.cancel()
            await asyncio.wait([reader])
            self.assertEqual(await self.runs_of(stream, 1), ["r2"])
        go.set()
        looks = [
            request for request in self.requests if request.head.segments[-1][0:7] == "current"
        ]
        self.assertEqual([json.loads(r.body)["session_id"] for r in looks], ["s1", "s1"])


class RecoveryTests(ClientTestCase):
    """Creating a workspace again after a 404."""

    def slow_create(self) -> tuple[asyncio.Event, asyncio.Event]:
        asked, go = asyncio.Event(), asyncio.Event()

        async def slow() -> Response:
            asked.set()
            await go.wait()
            return self.created()

        self.answers[CREATE] = [slow]
        return asked, go

    async def test_it_goes_on_when_its_reader_is_cancelled(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), GONE, Feed(done(1))]
        asked, go = self.slow_create()
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.event_of(stream))
            await self.within(asked.wait())
            reader.cancel()
            await asyncio.wait([reader])
            go.set()
            await self.until(lambda: workspace.id == "w2")
            self.assertEqual(await self.runs_of(stream, 1), ["r1"])
        self.assertEqual(self.births, 2, "what was created is used")

    @scenario(294)
    async def test_a_create_during_recovery_is_given_up_after_thirty_seconds(self) -> None:
        self.client = Client(f"unix://{self.path}", client_id=ME, clock=self.patient)
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), GONE, GONE, Feed(done(1))]
        asked, go = self.slow_create()
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.event_of(stream))
            await self.until(lambda: self.patient.pending > 0)
            await self.patient.advance(0.25)
            await self.within(asked.wait())
            await self.patient.advance(29.0)
            self.answers[CREATE] = self.created
            self.assertEqual(self.births, 1)
            await self.patient.advance(1.0)
            await self.until(lambda: self.patient.pending == 1)
            await self.patient.advance(0.5)
            self.assertIsInstance((await self.within(reader)).payload, Resync)
        go.set()

    async def test_retiring_waits_for_it(self) -> None:
        """If the create arrived last, no client would release its workspace."""
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), GONE, Feed()]
        asked, go = self.slow_create()
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.over(stream))
            await self.within(asked.wait())
            leaving = asyncio.create_task(self.client.retire())
            await self.settle()
            self.assertFalse(any(target.startswith("DELETE") for target in self.targets))
            go.set()
            await self.within(leaving)
            await stream.close()
            await self.within(reader)
        self.assertEqual(self.targets[-1], f"DELETE /v1/clients/{ME}")

    async def test_retiring_does_not_wait_for_ever(self) -> None:
        workspace = await self.workspace()
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), GONE, Feed()]
        asked, go = self.slow_create()
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.over(stream))
            await self.within(asked.wait())
            leaving = asyncio.create_task(self.client.retire())
            await self.impatient.advance(4.9)
            self.assertFalse(any(target.startswith("DELETE") for target in self.targets))
            await self.impatient.advance(0.1)
            await self.within(leaving)
            self.assertEqual(self.targets[-1], f"DELETE /v1/clients/{ME}")
            await stream.close()
            await self.within(reader)
        go.set()

    @scenario(291)
    async def test_retiring_includes_a_workspace_whose_id_was_never_received(self) -> None:
        """A client retires by its own id, so that includes a workspace whose id it never got."""
        workspace = await self.workspace()
        self.answers[CREATE] = Response(200, b'{"id":')  # carried out, and unreadable
        self.answers[EVENTS] = [Feed(b"id: e-0\n\n", brief=True), GONE]

        async def forever(delay: float) -> None:
            if len(self.impatient.slept) > 2:
                await asyncio.Event().wait()

        self.impatient.at_sleep = forever
        async with workspace.events() as stream:
            reader = asyncio.create_task(self.over(stream))
            await self.until(lambda: len(self.impatient.slept) > 2)
            await self.within(self.client.retire())
            await stream.close()
            await self.within(reader)
        self.assertEqual(self.targets[-1], f"DELETE /v1/clients/{ME}")

    @scenario(293)
    async def test_a_server_that_cannot_retire_is_sent_a_release_per_workspace(self) -> None:
        await self.workspace()
        await self.workspace()
        self.answers[RETIRE] = Response(404)
        self.answers["DELETE", W] = [GONE, Response(200)]
        await self.within(self.client.retire())
        gave = [f"DELETE /v1/workspaces/w{n}?client_id={ME}" for n in (1, 2)]
        self.assertEqual(self.targets, [f"DELETE /v1/clients/{ME}", *gave])


class ReadyTests(ClientTestCase):
    @scenario(295)
    async def test_no_agent_no_workspace_and_no_daemon_are_different_errors(self) -> None:
        workspace = await self.workspace()
        self.answers["GET", W + "/agent"] = answer({"is_ready": True})
        self.assertTrue((await self.within(workspace.ready())).is_ready)
        self.answers["GET", W + "/agent"] = answer({"is_ready": False})
        with self.assertRaisesRegex(NoAgent, "configure a model"):
            await self.within(workspace.ready())
        self.answers["GET", W + "/agent"] = GONE
        with self.assertRaises(WorkspaceNotFound):
            await self.within(workspace.ready())
        await self.stop()
        with self.assertRaises(ConnectionFailed) as caught:
            await self.within(workspace.ready())
        self.assertFalse(caught.exception.reached)

    async def test_a_workspace_of_another_client_can_be_joined_by_its_listing(self) -> None:
        self.answers["GET", "/v1/workspaces"] = answer([{"id": "w9", "path": "/q"}])
        self.answers[EVENTS] = [Feed(done(1), brief=True), GONE, Feed(done(2))]
        self.answers[INIT] = Response(200)
        (info,) = await self.within(self.client.workspaces())
        workspace = self.client.attach(info)
        async with workspace.events() as stream:
            self.assertEqual(await self.runs_of(stream, 3), ["r1", "resync", "r2"])
        created = next(r for r in self.requests if r.head.method == "POST")
        self.assertEqual(json.loads(created.body)["path"], "/q")
