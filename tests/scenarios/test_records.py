"""What sessions and messages hold, as clients and models meet it."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Usage
from crushlite.client import Client
from crushlite.clock import SystemClock
from crushlite.coder.history import Images, chat_messages
from crushlite.errors import BadRequest
from crushlite.protocol.messages import BinaryPart, FinishPart, Message, TextPart
from crushlite.protocol.sessions import Session
from crushlite.store import Stores, messages, runs, sessions
from crushlite.store.runs import RunRow
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.cli import ScriptedCase
from tests.support.prompts import PATIENCE, PromptTestCase, gated
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Seen

PIXEL = base64.b64encode(b"\x89PNG not really").decode()


class MediaScenarios(BoundedTestCase):
    def sent(self, *files: BinaryPart) -> tuple[str, list[str]]:
        """What a model that takes images is sent of a prompt with files: text, and images."""
        message = Message("m", "user", "s", [TextPart("look"), *files, FinishPart("stop")])
        [chat] = chat_messages([message], images=Images.ALL)
        return chat.text, [image.data for image in chat.images]

    @scenario(255)
    def test_a_broken_or_unknown_image_is_sent_as_text(self) -> None:
        """A provider refuses a request with a broken image, and every later one with it."""
        text, images = self.sent(BinaryPart("a.png", "image/png", PIXEL))
        self.assertEqual((text, images), ("look", [PIXEL]))
        for bad in ("no base64!", PIXEL[:-1], "", "====", "\u00e9"):
            text, images = self.sent(
                BinaryPart("a.png", "image/png", bad), BinaryPart("b.png", "image/png", PIXEL)
            )
            with self.subTest(bad):
                self.assertEqual(images, [PIXEL])
                self.assertIn("a.png", text)
        text, images = self.sent(BinaryPart("a.tiff", "image/tiff", PIXEL))
        self.assertEqual(images, [])
        self.assertIn("a.tiff", text)
        text, images = self.sent(BinaryPart("a.txt", "text/plain", "no base64!"))
        self.assertIn("damaged", text)


class ContinueScenarios(ScriptedCase):
    async def session(self, title: str, parent: str = "") -> str:
        [hosted] = self.daemon.backend.everything()
        return (await hosted.create_session(title, parent)).id

    async def assert_refused(self, *arguments: str) -> None:
        child = await self.run_it(*arguments, "hello")
        await self.ended(child, 1, "")
        self.assertIn("no session", child.errors)

    @scenario(253)
    async def test_only_a_known_session_that_is_no_child_can_be_continued(self) -> None:
        anna = await self.daemon.join()
        await self.assert_refused("--continue")  # there is none
        await self.assert_refused("--session", "nope")
        session = await anna.session("first")
        child = await self.session("inside", session)
        await self.assert_refused("--session", child)
        await self.assert_refused("--session", f"{session}$$call_1")
        command, scripted = await self.begun("--session", session, "hello")
        self.assertEqual(scripted.turn.session_id, session)
        scripted.release()
        await self.ended(command, 0, "one \n")

    @scenario(254)
    async def test_the_last_session_is_never_a_child(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session("first")
        await self.session("used last, but a part of the first", session)
        command, scripted = await self.begun("--continue", "hello")
        self.assertEqual(scripted.turn.session_id, session)
        scripted.release()
        await self.ended(command, 0, "one \n")


class ClientScenarios(BoundedTestCase):
    @scenario(230)
    async def test_each_action_of_a_grant_decides_as_it_says(self) -> None:
        """Each of the three answers does what it says."""
        asked: list[bool] = []

        async def agent(turn: Any) -> None:
            for _ in range(2):
                verdict = await turn.permission("bash", "execute", params={}, path="/p")
                asked.append(bool(verdict))

        for action, wanted, requests in (
            ("allow", [True, True], 2),
            ("allow_session", [True, True], 1),
            ("deny", [False, False], 2),
        ):
            asked.clear()
            async with LocalDaemon(agent) as daemon, Client(f"unix://{daemon.socket}") as client:
                workspace = await client.create(str(daemon.root / "project"))
                answered = 0
                async with workspace.start("go") as run:
                    async for event in run:
                        if event.kind == "permission_request":
                            resolution = await workspace.grant(event.payload.id, action)
                            self.assertTrue(resolution.resolved)
                            answered += 1
            with self.subTest(action):
                self.assertEqual((asked, answered), (wanted, requests))


def is_shell_record(event: Seen) -> bool:
    types = [part["type"] for part in event["parts"]] if event.kind == "message" else []
    return "shell_command" in types


class OrderTests(PromptTestCase):
    async def test_a_shell_record_is_listed_where_it_was_published(self) -> None:
        """Between two steps of a turn, and before any of them is written."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            run = await daemon.entered(1)
            await run.do(lambda turn: turn.say("step one"))
            gate.shut()
            body = {"command": "echo in between"}
            path = f"/agent/sessions/{session}/shell"
            shell = asyncio.create_task(anna.call("POST", path, body))
            await anna.events.wait_for(is_shell_record)
            await run.do(lambda turn: turn.step())
            await run.do(lambda turn: turn.say("step two"))
            await anna.events.wait_for("message", text="step two")
            self.assertFalse(shell.done(), "answered before it is on record")
            gate.open()
            async with asyncio.timeout(PATIENCE):
                self.assertEqual((await shell).status, 200)
            run.release()
            await anna.events.wait_for("run_complete")
            published = list(dict.fromkeys(event["id"] for event in anna.events.all("message")))
            listed = [message["id"] for message in await anna.messages(session)]
            self.assertEqual(listed, published)


class DeletedTests(PromptTestCase):
    async def test_a_deleted_session_is_unknown_and_leaves_nothing_in_the_machine(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            await daemon.entered(1)
            self.assertEqual((await anna.call("DELETE", f"/sessions/{session}")).status, 200)
            late = await anna.try_prompt(session, "late")
            self.assertEqual((late.status, late.json["code"]), (404, "session_not_found"))
            (hosted,) = daemon.backend.everything()
            self.assertEqual(hosted.runs._runs._dropped, set())


class AgentValueTests(PromptTestCase):
    """Python takes 1 for true and 1.5 for a count; the wire and the rows do not."""

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.anna = await self.daemon.join()
        self.session = await self.anna.session()
        self.run_id = str((await self.anna.prompt(self.session, "hello")).json["run_id"])
        self.script = await self.daemon.entered(1)

    async def test_flags_that_are_merely_true_leave_the_history_readable(self) -> None:
        truthy: Any = 1

        async def tool(turn: Turn) -> None:
            call = await turn.tool_call("ls", "{}", finished=truthy)
            await turn.tool_result(call, "no such folder", is_error=truthy)

        await self.script.do(tool)
        self.script.release()
        self.assertEqual(await self.outcome(self.anna, self.run_id), "completed")
        history = await self.anna.messages(self.session)
        self.assert_valid_history(history)
        self.assertIs(history[1]["parts"][0]["data"]["finished"], True)
        self.assertIs(history[2]["parts"][0]["data"]["is_error"], True)

    async def test_a_fraction_of_a_token_is_refused_and_counters_stay_integers(self) -> None:
        part: Any = 1.5
        with self.assertRaises(BadRequest):
            await self.script.do(lambda turn: turn.usage(Usage(part, 2)))
        with self.assertRaises(BadRequest):
            await self.script.do(lambda turn: turn.usage(Usage(1, part)))
        await self.script.do(lambda turn: turn.usage(Usage(10, 20, 0.5)))
        shown = (await self.anna.call("GET", f"/sessions/{self.session}")).json
        counters = (shown["prompt_tokens"], shown["completion_tokens"])
        self.assertEqual(repr(counters), "(10, 20)")


class RecoveryTests(PromptTestCase):
    async def test_a_recovered_attachment_keeps_the_name_that_it_would_have_had(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-")))
        clock = SystemClock()
        attachments = '[{"content":"Zm9v","file_name":"a.txt","mime_type":"text/plain"}]'
        row = RunRow("run", "session", "digest", "hello", attachments, boot_id="first")
        stores = Stores(clock=clock, boot_id="first")
        store = await stores.open(folder)
        await store.submit(lambda c: sessions.insert_session(c, "", Session(id="session")))
        await store.submit(lambda c: runs.insert_run(c, "", row))
        await stores.release(store)
        stores = Stores(clock=clock, boot_id="second")
        store = await stores.open(folder)
        self.addAsyncCleanup(stores.release, store)
        user = (await store.read(lambda c: messages.list_messages(c, "", "session")))[0]
        self.assertIn(BinaryPart("a.txt", "text/plain", "Zm9v"), user.parts)


class RenameTests(unittest.IsolatedAsyncioTestCase):
    async def test_a_put_without_a_title_keeps_the_one_there_is(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session("kept")
            bodies: tuple[dict[str, Any], ...] = ({}, {"title": ""}, {"cost": 3.0})
            for body in bodies:
                answer = await anna.call("PUT", f"/sessions/{session}", body)
                self.assertEqual((answer.status, answer.json["title"]), (200, "kept"))
            answer = await anna.call("PUT", f"/sessions/{session}", {"title": "new"})
            self.assertEqual(answer.json["title"], "new")
            self.assertEqual((await anna.call("PUT", "/sessions/none", {})).status, 404)
