"""What a second review against the contract found, each as the invariant that was broken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crushlite.claims import Graces
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from tests.support.prompts import PATIENCE, PromptTestCase, gated, reach

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.testing import Participant, Seen


class _Titling:
    """An agent that thinks about a title until the test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.titling, self.let_go = asyncio.Event(), asyncio.Event()

    async def run(self, turn: Turn) -> None:
        await turn.say("hello")

    async def title(self, text: str) -> str:
        self.asked.append(text)
        self.titling.set()
        await self.let_go.wait()
        return f"about {text}"


async def title_of(client: Participant, session: str) -> str:
    return str((await client.call("GET", f"/sessions/{session}")).json["title"])


class TitleTests(PromptTestCase):
    async def test_a_title_that_a_teardown_interrupts_is_the_prompt_s_own_words(self) -> None:
        agent = _Titling()
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

    async def test_a_teardown_costs_no_title_that_is_there(self) -> None:
        agent = _Titling()
        agent.let_go.set()
        async with gated(agent, Settings(graces=Graces(detach=0))) as (daemon, _):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "first", run_id="one")
            await anna.events.wait_for("session", title="about first")
            await anna.prompt(session, "later", run_id="two")
            await anna.events.wait_for("run_complete", run_id="two")
            (hosted,) = daemon.backend.everything()
            titles, titling = hosted.workspace.runs.titles, hosted.workspace.agent
            assert titling is not None
            late = titles.tasks.spawn(titles._title(titling, "two", session, "later"))
            await asyncio.sleep(0)
            late.cancel()
            await asyncio.wait([late])
            self.assertEqual(await title_of(anna, session), "about first")

    async def test_the_first_text_is_the_title_also_behind_a_file_alone(self) -> None:
        agent = _Titling()
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


class OrderTests(PromptTestCase):
    async def test_a_shell_record_stands_where_it_was_told(self) -> None:
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
            told = list(dict.fromkeys(event["id"] for event in anna.events.all("message")))
            listed = [message["id"] for message in await anna.messages(session)]
            self.assertEqual(listed, told)


def is_shell_record(event: Seen) -> bool:
    types = [part["type"] for part in event["parts"]] if event.kind == "message" else []
    return "shell_command" in types


class ApprovalTests(PromptTestCase):
    async def test_a_prompt_may_approve_all_that_its_own_run_asks_for(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            sessions = [await anna.session(), await anna.session()]
            await anna.prompt(sessions[0], "go", run_id="free", auto_approve=True)
            free = await daemon.entered(1)
            await anna.prompt(sessions[1], "go", run_id="bound")
            bound = await daemon.entered(2)
            verdict = await free.do(lambda turn: turn.permission("bash", "execute"))
            self.assertTrue(verdict)
            asking = bound.begin(lambda turn: turn.permission("bash", "execute"))
            await anna.events.wait_for("permission_request", session_id=sessions[1])
            (open_,) = (await anna.call("GET", "/permissions")).json
            answer = await anna.call("POST", f"/permissions/{open_['id']}", {"action": "deny"})
            self.assertTrue(answer.json["resolved"])
            async with asyncio.timeout(PATIENCE):
                self.assertFalse(await asking)
            for run in (free, bound):
                run.release()

    async def test_an_approved_turn_neither_joins_nor_is_joined(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            ben = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "asks", run_id="asks")
            asks = await daemon.entered(1)
            await anna.prompt(session, "free", auto_approve=True)
            await ben.prompt(session, "steers")
            self.assertEqual(len(await asks.do(lambda turn: turn.followups())), 1, "only Ben's")
            asks.release()
            free = await daemon.entered(2)
            await ben.prompt(session, "steers again")
            self.assertEqual(await free.do(lambda turn: turn.followups()), [])
            free.release()
            self.assertEqual((await daemon.entered(3)).prompt, "steers again")
            wrong = await anna.try_prompt(session, "x", auto_approve=True, when_busy="steer")
            self.assertEqual(wrong.status, 400)
            self.assertIn("turn of its own", wrong.json["message"])
            other = await anna.try_prompt(session, "asks", run_id="asks", auto_approve=True)
            self.assertEqual((other.status, other.json["code"]), (409, "run_id_reused"))


class ReceiptTests(PromptTestCase):
    async def test_a_receipt_says_what_the_list_of_runs_says(self) -> None:
        """While the ending ahead of it is being written, the next run has not begun."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "one", run_id="one")
            run = await daemon.entered(1)
            await anna.prompt(session, "two", run_id="two")
            gate.shut()
            run.release()
            await gate.reached()
            shown = (await anna.call("GET", "/runs/two")).json["state"]
            receipt = await anna.cancel(session)
            self.assertIn({"run_id": "two", "was": shown}, receipt)
            gate.open()
            self.assertEqual(await self.outcome(anna, "two"), "canceled")


class OneRunTests(PromptTestCase):
    async def test_one_run_can_be_canceled_without_those_behind_it(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            for text in ("one", "two", "three"):
                await anna.prompt(session, text, run_id=text)
            await daemon.entered(1)
            for run_id, was in (("two", "queued"), ("one", "active")):
                hit = await anna.call("POST", f"/runs/{run_id}/cancel?wait=20")
                self.assertEqual(hit.json, {"canceled": [{"run_id": run_id, "was": was}]})
                self.assertNotEqual(await self.outcome(anna, run_id), "completed")
            third = await daemon.entered(2)
            self.assertEqual(third.prompt, "three")
            third.release()
            ended = [await self.outcome(anna, run_id) for run_id in ("one", "two", "three")]
            self.assertEqual(ended, ["canceled", "cleared", "completed"])
            again = await anna.call("POST", "/runs/one/cancel?wait=20")
            self.assertEqual((again.status, again.json), (200, {"canceled": []}))
            unknown = await anna.call("POST", "/runs/nobody/cancel")
            self.assertEqual((unknown.status, unknown.json["code"]), (404, "run_not_found"))
            self.assert_ended_once(anna.events, "one", "two", "three")

    async def test_a_run_that_was_folded_has_no_turn_of_its_own_to_cancel(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "carrier", run_id="carrier")
            run = await daemon.entered(1)
            await anna.prompt(session, "rider", run_id="rider", when_busy="steer")
            self.assertEqual(len(await run.do(lambda turn: turn.followups())), 1)
            refused = await anna.call("POST", "/runs/rider/cancel")
            self.assertEqual((refused.status, refused.json["code"]), (409, "not_queued"))
            self.assertIn("carrier", refused.json["message"])
            hit = await anna.call("POST", "/runs/carrier/cancel?wait=20")
            self.assertEqual(len(hit.json["canceled"]), 1)
            for run_id in ("carrier", "rider"):
                self.assertEqual(await self.outcome(anna, run_id), "canceled")


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
            self.assertEqual(hosted.workspace.runs._runs._dropped, set())
