"""What sessions and messages hold, as clients and models meet it."""

from __future__ import annotations

import base64
from typing import Any

from crushlite.client import Client
from crushlite.coder.history import chat_messages
from crushlite.protocol.messages import BinaryPart, FinishPart, Message, TextPart
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.cli import ScriptedCase
from tests.support.scenarios import scenario

PIXEL = base64.b64encode(b"\x89PNG not really").decode()


class MediaScenarios(BoundedTestCase):
    def sent(self, *files: BinaryPart) -> tuple[str, list[str]]:
        """What a model that takes images is sent of a prompt with files: text, and images."""
        message = Message("m", "user", "s", [TextPart("look"), *files, FinishPart("stop")])
        [chat] = chat_messages([message], images=True)
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
        return (await hosted.workspace.create_session(title, parent)).id

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


NOT_APPLICABLE = (
    (
        18,
        "noninteractive_waits_for_tool_servers_interactive_does_not",
        "no tool servers are started, so there are none that a run could wait for",
    ),
    (
        246,
        "estimated_flag_survives_save",
        "a session keeps counters and no flag: estimated tokens are counted and cost nothing, "
        "which is decided when they are reported, and nothing is left to survive",
    ),
    (
        251,
        "subagent_child_session",
        "there is no tool that starts an agent of its own; child sessions exist for those who "
        "bring one, and are hidden, deleted and read like any other",
    ),
)
