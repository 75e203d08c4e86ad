"""Titles that agents make."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.agent.base import Agent
from crushlite.claims import Graces
from crushlite.errors import BadRequest
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from crushlite.titles.part import TitlesPart
from tests.support.prompts import PromptTestCase, gated, reach, until

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Participant


class Quit(BaseException):
    """Not an Exception: slips through every `except Exception`."""


class TitlingAgent:
    """An agent that thinks about a title until the test lets it, if `stubborn` also when it is
    cancelled."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.asked: list[str] = []
        self.closed = False
        self.titling, self.let_go = asyncio.Event(), asyncio.Event()

    async def run(self, turn: Turn) -> None:
        await turn.say("hello")

    async def title(self, text: str) -> str:
        self.asked.append(text)
        self.titling.set()
        try:
            await self.let_go.wait()
        finally:
            if self.stubborn:
                await self.let_go.wait()
        return f"about {text}"

    async def aclose(self) -> None:
        self.closed = True


async def title_of(client: Participant, session: str) -> str:
    return str((await client.call("GET", f"/sessions/{session}")).json["title"])


class TitleTests(PromptTestCase):
    async def test_a_title_that_a_teardown_interrupts_is_made_of_the_words_of_the_prompt(
        self,
    ) -> None:
        agent = TitlingAgent()
        settings = Settings(graces=Graces(detach=0))
        async with LocalDaemon(agent, settings=settings) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "why  is the\nsky blue " + "?" * 100, run_id="one")
            await anna.events.wait_for("run_complete")
            await reach(agent.titling)
            await anna.retire()
            ben = await daemon.join()
            self.assertEqual(await title_of(ben, session), "why is the sky blue " + "?" * 30)

    async def test_a_title_is_kept_although_its_agent_does_not_end_in_time(self) -> None:
        agent = TitlingAgent(stubborn=True)
        settings = Settings(graces=Graces(detach=0), drain=0.2)
        async with LocalDaemon(agent, settings=settings) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "why is the sky blue", run_id="one")
            await anna.events.wait_for("run_complete")
            await reach(agent.titling)
            await anna.retire()
            ben = await daemon.join()
            self.assertEqual(await title_of(ben, session), "why is the sky blue")
            agent.let_go.set()

    async def test_an_agent_that_was_replaced_is_not_closed_while_it_makes_a_title(self) -> None:
        agent = TitlingAgent()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            await anna.prompt(await anna.session(), "first", run_id="one")
            await anna.events.wait_for("run_complete")
            await reach(agent.titling)
            (hosted,) = daemon.backend.everything()
            hosted.change_agent(Agent(TitlingAgent()))
            for _ in range(10):
                await asyncio.sleep(0)
            self.assertFalse(agent.closed)
            agent.let_go.set()
            await anna.events.wait_for("session", title="about first")
            hosted.change_agent(Agent(TitlingAgent()))
            await until(lambda: agent.closed, "nothing needs it any more")

    async def test_a_teardown_costs_no_title_that_is_there(self) -> None:
        agent = TitlingAgent()
        agent.let_go.set()
        async with gated(agent, Settings(graces=Graces(detach=0))) as (daemon, _):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "first", run_id="one")
            await anna.events.wait_for("session", title="about first")
            await anna.prompt(session, "later", run_id="two")
            await anna.events.wait_for("run_complete", run_id="two")
            (hosted,) = daemon.backend.everything()
            titles, turn = (
                hosted.part(TitlesPart),
                mock.Mock(agent=hosted.runs.agents.agent, session_id=session),
            )
            late = titles.tasks.spawn(titles._title(turn, "two", "later"))
            await asyncio.sleep(0)
            late.cancel()
            await asyncio.wait([late])
            self.assertEqual(await title_of(anna, session), "about first")

    async def test_the_first_text_is_the_title_also_behind_a_file_alone(self) -> None:
        agent = TitlingAgent()
        agent.let_go.set()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            file = {"content": "aGk=", "file_name": "a.txt", "mime_type": "text/plain"}
            await anna.prompt(session, "", run_id="file", attachments=[file])
            await anna.events.wait_for("run_complete", run_id="file")
            await anna.prompt(session, "words", run_id="words")
            await anna.events.wait_for("session", title="about words")
            self.assertEqual(agent.asked, ["words"])

    async def test_a_title_that_raises_is_replaced_by_the_words_of_the_prompt(self) -> None:
        class Speechless:
            def __init__(self, error: BaseException) -> None:
                self.error = error
                self.give_up = asyncio.Event()

            async def run(self, turn: Turn) -> None:
                await turn.say("fine")

            async def title(self, text: str) -> str:
                await self.give_up.wait()
                raise self.error

        for error in (RuntimeError("no title"), SystemExit(1), BadRequest("no"), Quit("enough")):
            with self.subTest(error=error):
                agent = Speechless(error)
                async with LocalDaemon(agent) as daemon:
                    anna = await daemon.join()
                    session = await anna.session("placeholder")
                    await anna.prompt(session, "why  is the\nsky " + "blue " * 20, run_id="r")
                    await anna.events.wait_for("run_complete", run_id="r")
                    agent.give_up.set()
                    words = ("why is the sky " + "blue " * 20)[:50]
                    await anna.events.wait_for("session", action="updated", title=words)
                    listed = (await anna.call("GET", "/sessions")).json
                    self.assertEqual([each["title"] for each in listed], [words])
                    self.assertEqual(await self.outcome(anna, "r"), "completed")
                    await anna.prompt(session, "go on", run_id="next")
                    await anna.events.wait_for("run_complete", run_id="next")
