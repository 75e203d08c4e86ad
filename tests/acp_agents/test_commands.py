"""Choosing an agent for a session, and its own answers, from the terminal."""

from __future__ import annotations

import asyncio
import json
import sys

from crushlite.protocol.permissions import PermissionOption
from crushlite.settings import Settings
from tests.support.cli import ChatCase
from tests.support.hosted import QUIRKY, quirky

OPTIONS = [
    PermissionOption("one", "Allow once", "allow_once"),
    PermissionOption("all", "Always\x1b[2J allow", "allow_always"),
    PermissionOption("no", "Reject", "reject_once"),
]


class AgentCommandTests(ChatCase):
    def setUp(self) -> None:
        super().setUp()
        home = self.project.parent / "home"
        self.settings = Settings(user_files=str(home))
        file = home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = {"command": sys.executable, "args": ["-S", "-E", str(QUIRKY)]}
        file.write_text(json.dumps({"agents": {"quirky": entry}}))

    async def test_run_takes_a_name_or_a_command_and_the_session_keeps_it(self) -> None:
        await self.ended(await self.run_it("--agent", "quirky", "say one"), 0, "one\n")
        await self.ended(await self.run_it("--continue", "say two"), 0, "two\n")
        command = f"acp:{quirky()}"
        await self.ended(await self.run_it("--agent", command, "say three"), 0, "three\n")
        call = await self.run_it("--continue", "--agent", "default", "for the daemon's own")
        run = await self.daemon.entered(1)
        await run.say("here")
        run.release()
        await self.ended(call, 0, "here\n")

    async def test_run_refuses_an_agent_that_is_not_there_and_leaves_no_session(self) -> None:
        call = await self.run_it("--agent", "nobody", "hello")
        code, _ = await call.end()
        self.assertEqual(code, 2)
        self.assertIn("there is no agent 'nobody'", call.errors)
        call = await self.run_it("--agent", "offlin", "hello")
        self.assertEqual((await call.end())[0], 2)
        self.assertIn("Did you mean --agent offline?\n", call.errors)
        client = await self.daemon.join()
        self.assertEqual((await client.call("GET", "/sessions")).json, [])

    async def test_a_chat_chooses_for_the_session_to_come_and_for_the_one_that_is_open(
        self,
    ) -> None:
        window = await self.chat()
        window.enter("/agent")
        await window.shows("quirky")
        window.enter("/agent nobody")
        await window.shows("no agent nobody")
        window.enter("/agent quirky")
        await window.shows("prompts of this session go to quirky")
        window.enter("say hello")
        await window.shows("\nhello\n")
        window.enter("/agent default")
        await window.shows("go to the agent of the daemon")
        run = await self.asked(window, "and you?")
        run.release()

    async def test_the_answers_of_the_agent_can_be_chosen_by_number(self) -> None:
        window = await self.chat()
        run = await self.asked(window, "hello")
        verdict = run.begin(lambda turn: turn.permission("x", "y", options=OPTIONS))
        await window.shows("3: Reject (reject once)")
        self.assertIn(r"2: Always\x1b[2J allow (allow always)", window.seen)
        window.enter("4")
        await window.shows("please answer")
        window.enter("2")
        answer = await verdict
        self.assertEqual((bool(answer), answer.option), (True, "all"))
        verdict = run.begin(lambda turn: turn.permission("x", "z", options=OPTIONS))
        await window.shows(lambda seen: seen.count("3: Reject") == 2)
        client = await self.daemon.join()
        (request,) = (await client.call("GET", "/permissions")).json
        call = await self.start("grant", self.host, request["id"], "--option", "3")
        self.assertEqual((await call.end())[0], 0, call.errors)
        answer = await verdict
        self.assertEqual((bool(answer), answer.option), (False, "no"))
        await asyncio.sleep(0)
        run.release()
