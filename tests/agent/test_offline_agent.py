"""The offline agent: each directive in a real daemon, as a client sees it."""

from __future__ import annotations

import asyncio
import base64
import unittest.mock
from typing import Any

from crushlite.offline.agent import DIRECTIVES, HELP, OfflineAgent
from crushlite.testing import LocalDaemon, Participant, Seen
from tests.support.basics import BoundedTestCase


class Pauses:
    """Replaces asyncio inside the agent: a pause of a second lasts until the test ends it."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.over = asyncio.Semaphore(0)
        self.short = 0  # how many were shorter

    async def sleep(self, seconds: float) -> None:
        if seconds < 1:
            self.short += 1
            await asyncio.sleep(0)
            return
        self.begun.release()
        await self.over.acquire()


class OfflineCase(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        daemon = LocalDaemon(OfflineAgent(pace=0))
        self.daemon = await self.enterAsyncContext(daemon)
        self.anna: Participant = await self.daemon.join()
        self.session = await self.anna.session()

    async def ask(self, prompt: str, **fields: Any) -> Seen:
        """Post a prompt and wait for its end."""
        await self.anna.prompt(self.session, prompt, **fields)
        return await self.anna.events.wait_for("run_complete")

    async def messages(self) -> list[Seen]:
        return await self.anna.messages(self.session)

    def pauses(self) -> Pauses:
        pauses = Pauses()
        self.enterContext(unittest.mock.patch("crushlite.offline.agent.asyncio", pauses))
        return pauses

    @staticmethod
    def part(message: Seen, kind: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = [p["data"] for p in message["parts"] if p["type"] == kind]
        return found[0]


class OfflineTests(OfflineCase):
    async def test_it_quotes_what_was_written(self) -> None:
        done = await self.ask("hello, world")
        self.assertEqual((done["text"], done["error"]), ("You said: hello, world\n", None))

    async def test_a_user_who_did_not_choose_it_learns_why_it_answers(self) -> None:
        async with LocalDaemon(OfflineAgent(pace=0, why="no key is set")) as daemon:
            anna = await daemon.join()
            await anna.prompt(await anna.session(), "hello")
            ended = await anna.events.wait_for("run_complete")
        self.assertTrue(ended["text"].startswith("You said: hello\n"))
        self.assertIn("no key is set", ended["text"])
        self.assertIn("crushlite doctor", ended["text"])

    async def test_a_quote_keeps_every_character(self) -> None:
        text = "a  b\tc\u2028d\x0ce\n\nnext\r\nline /help"
        self.assertEqual((await self.ask(text))["text"], f"You said: {text}\n")

    async def test_a_long_prompt_is_quoted_with_no_more_pauses_than_a_page(self) -> None:
        pauses = self.pauses()
        text = "word " * 20_000 + "end"
        self.assertEqual((await self.ask(text))["text"], f"You said: {text}\n")
        self.assertLessEqual(pauses.short, 100)

    async def test_the_answer_is_streamed_in_pieces(self) -> None:
        await self.ask("one two three")
        texts = [event.text for event in self.anna.events.all("message", role="assistant")]
        self.assertEqual(texts[0], "")
        self.assertEqual(texts[1], "You ")
        self.assertEqual(texts[-1], "You said: one two three\n")

    async def test_a_file_alone_is_acknowledged_once(self) -> None:
        content = base64.b64encode(b"data").decode()
        files = [{"content": content, "file_name": "a.txt", "mime_type": "text/plain"}]
        for prompt in ("", "/think hm"):
            with self.subTest(prompt):
                done = await self.ask(prompt, attachments=files)
                self.assertEqual(done["text"].count("You sent a file."), 1)

    async def test_help_names_every_directive(self) -> None:
        done = await self.ask("/help")
        self.assertEqual(done["text"], HELP + "\n")
        for name in DIRECTIVES:
            self.assertIn(f"\n{name} ", HELP)

    async def test_think_shows_reasoning_before_the_answer(self) -> None:
        await self.ask("/think is it so")
        answer = (await self.messages())[1]
        self.assertEqual([p["type"] for p in answer["parts"]], ["reasoning", "text", "finish"])
        reasoning = self.part(answer, "reasoning")
        self.assertEqual(reasoning["thinking"], "is it so ")
        self.assertGreater(reasoning["finished_at"], 0)
        self.assertEqual(answer.text, "I have thought about it.\n")

    async def test_tool_runs_when_allowed(self) -> None:
        await self.anna.prompt(self.session, "/tool make test")
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual((request["tool_name"], request["action"]), ("bash", "execute"))
        self.assertEqual(request["params"]["command"], "make test")
        self.assertTrue(await self.anna.grant(request.payload))
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual(done["text"], "You allowed it.\n")
        _, step, tool, last = await self.messages()
        self.assertEqual([step.finish, tool.finish, last.finish], ["tool_use", "stop", "end_turn"])
        result = self.part(tool, "tool_result")
        self.assertEqual(result["content"], "(nothing was run) make test")
        self.assertFalse(result["is_error"])
        self.assertEqual(self.part(step, "tool_call")["id"], request["tool_call_id"])

    async def test_the_result_of_a_tool_holds_the_denial_and_its_reason(self) -> None:
        await self.anna.prompt(self.session, "/tool rm")
        request = await self.anna.events.wait_for("permission_request")
        body = {"action": "deny", "reason": "not today"}
        answer = await self.anna.call("POST", f"/permissions/{request['id']}", body)
        self.assertTrue(answer.json["resolved"])
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual(done["text"], "You did not allow it.\n")
        result = self.part((await self.messages())[2], "tool_result")
        self.assertEqual(result["content"], "User denied permission: not today")
        self.assertTrue(result["is_error"])

    async def test_ask_waits_for_the_answer(self) -> None:
        await self.anna.prompt(self.session, "/ask Go on?")
        batch = await self.anna.events.wait_for("question_batch_request")
        (question,) = batch["questions"]
        self.assertEqual(question["question"], "Go on?")
        body = {"responses": [{"request_id": question["id"], "selected_ids": ["no"]}]}
        answer = await self.anna.call("POST", f"/questions/{batch['id']}", body)
        self.assertTrue(answer.json["resolved"])
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual(done["text"], "You chose no.\n")
        result = self.part((await self.messages())[2], "tool_result")
        self.assertEqual(result["content"], 'Q1: Go on?\nUser selected: ["no"]')

    async def test_ask_that_is_dismissed_ends_the_turn(self) -> None:
        await self.anna.prompt(self.session, "/ask")
        batch = await self.anna.events.wait_for("question_batch_request")
        await self.anna.call("POST", f"/questions/{batch['id']}", {"action": "cancel"})
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual((done["text"], done["error"], done["cancelled"]), (None, None, None))
        result = self.part((await self.messages())[2], "tool_result")
        self.assertIn("dismissed", result["content"])
        self.assertTrue(result["is_error"])

    async def test_steps_fold_in_what_is_sent_meanwhile(self) -> None:
        pauses = self.pauses()
        await self.anna.prompt(self.session, "/steps 2", run_id="carrier")
        await pauses.begun.acquire()
        rider = (await self.anna.prompt(self.session, "and this")).json
        self.assertEqual(rider["state"], "queued")
        pauses.over.release()
        await pauses.begun.acquire()
        state = await self.anna.call("GET", f"/runs/{rider['run_id']}")
        self.assertEqual((state.json["state"], state.json["folded_into"]), ("folded", "carrier"))
        pauses.over.release()
        await self.anna.events.wait_for("run_complete", run_id="carrier")
        done = await self.anna.events.wait_for("run_complete", run_id=rider["run_id"])
        self.assertEqual(done["folded_into"], "carrier")
        told = [(message["role"], message.text) for message in await self.messages()]
        self.assertEqual(
            told,
            [
                ("user", "/steps 2"),
                ("assistant", ""),
                ("tool", ""),
                ("user", "and this"),
                ("assistant", "Meanwhile you said: and this\n"),
                ("tool", ""),
                ("assistant", "All steps are done.\n"),
            ],
        )

    async def test_fail_fails_with_its_message(self) -> None:
        done = await self.ask("before\n/fail out of luck\nnever said")
        self.assertEqual(done["error"], "RuntimeError: out of luck")
        self.assertEqual(done["text"], "You said: before\n")
        answer = (await self.messages())[1]
        self.assertEqual(answer.finish, "error")

    async def test_slow_can_be_canceled_in_the_middle(self) -> None:
        pauses = self.pauses()
        await self.anna.prompt(self.session, "/slow 3600")
        for _ in range(2):
            await pauses.begun.acquire()
            pauses.over.release()
        await pauses.begun.acquire()  # the third second
        receipt = await self.anna.cancel(self.session, wait=20)
        self.assertEqual([entry["was"] for entry in receipt], ["active"])
        done = await self.anna.events.wait_for("run_complete")
        self.assertEqual((done["text"], done["cancelled"]), ("1 2 ", True))
        self.assertEqual((await self.messages())[1].finish, "canceled")

    async def test_slow_counts_to_its_end(self) -> None:
        pauses = self.pauses()
        for _ in range(2):
            pauses.over.release()
        self.assertEqual((await self.ask("/slow 2"))["text"], "1 2 \n")

    async def test_directives_follow_each_other_in_order(self) -> None:
        done = await self.ask("one\n/think hm\ntwo\nthree\n/unknown 4")
        self.assertEqual(
            done["text"],
            "You said: one\nI have thought about it.\nYou said: two\nthree\n/unknown 4\n",
        )

    async def test_it_introduces_itself_as_the_model(self) -> None:
        info = (await self.anna.call("GET", "/agent")).json
        self.assertTrue(info["is_ready"])
        await self.ask("hi")
        answer = (await self.messages())[1]
        self.assertEqual((answer["model"], answer["provider"]), ("offline", "offline"))


class OutsideTests(OfflineCase):
    """Directives that touch the machine and the session."""

    async def test_run_really_runs_the_command_once_it_is_allowed(self) -> None:
        await self.anna.prompt(self.session, "/run echo made > proof; exit 3")
        request = await self.anna.events.wait_for("permission_request")
        self.assertEqual(request["params"]["command"], "echo made > proof; exit 3")
        self.assertFalse((self.daemon.root / "project" / "proof").exists())
        self.assertTrue(await self.anna.grant(request.payload))
        done = await self.anna.events.wait_for("run_complete")
        self.assertIn("exit code 3", done["text"])
        self.assertEqual((self.daemon.root / "project" / "proof").read_text(), "made\n")

    async def test_run_does_nothing_when_it_is_denied(self) -> None:
        await self.anna.prompt(self.session, "/run touch proof")
        request = await self.anna.events.wait_for("permission_request")
        await self.anna.grant(request.payload, "deny")
        await self.anna.events.wait_for("run_complete")
        self.assertFalse((self.daemon.root / "project" / "proof").exists())

    async def test_todo_ends_with_everything_completed(self) -> None:
        done = await self.ask("/todo look, leap")
        self.assertEqual(done["text"], "2 things done.\n")
        answer = await self.anna.call("GET", f"/sessions/{self.session}")
        states = [(todo["content"], todo["status"]) for todo in answer.json["todos"]]
        self.assertEqual(states, [("look", "completed"), ("leap", "completed")])

    async def test_long_answers_with_that_many_words(self) -> None:
        done = await self.ask("/long 1000")
        self.assertEqual(len(done["text"].split()), 1000)

    async def test_a_session_is_titled_after_its_first_prompt(self) -> None:
        await self.anna.prompt(self.session, "what a\nnice day")
        await self.anna.events.wait_for("session", action="updated", title="what a nice day")
