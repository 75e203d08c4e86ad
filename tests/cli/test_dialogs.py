"""`crushlite chat` when it asks its user: permissions and questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crushlite.agent.base import Scope
from crushlite.protocol.questions import Choice, Question
from tests.support.cli import ChatCase

if TYPE_CHECKING:
    from crushlite.testing.scripted import ScriptedRun
    from tests.support.terminal import Shown

ALLOW = "allow? [y/n/always]"


class PermissionTests(ChatCase):
    async def request(self, terminal: Shown, **params: Any) -> tuple[ScriptedRun, Any]:
        """A run, and the future answer to its permission request, which is shown."""
        run = await self.asked(terminal, "hello", len(self.daemon.agent.runs) + 1)
        params = params or {"command": "make"}
        verdict = run.begin(
            lambda turn: turn.permission("bash", "execute", params=params, tool_call_id="c")
        )
        await terminal.shows(lambda seen: seen.endswith(ALLOW))
        return run, verdict

    async def test_yes_allows_it_once(self) -> None:
        terminal = await self.chat_process()
        run, verdict = await self.request(terminal)
        self.assertIn("? bash (execute)\n  command: make\n", terminal.seen)
        terminal.enter("y")
        self.assertTrue(await verdict)
        run.begin(lambda turn: turn.permission("bash", "execute", params={"command": "make"}))
        await terminal.shows(lambda seen: seen.count("? bash (execute)") == 2)

    async def test_no_denies_it_with_the_reason(self) -> None:
        terminal = await self.chat()
        _, verdict = await self.request(terminal)
        terminal.enter("n use the other one")
        answer = await verdict
        self.assertEqual((bool(answer), answer.reason), (False, "use the other one"))

    async def test_always_is_not_asked_again_in_the_session(self) -> None:
        terminal = await self.chat()
        run, verdict = await self.request(terminal)
        terminal.enter("always")
        self.assertTrue(await verdict)
        again = await run.do(
            lambda turn: turn.permission("bash", "execute", params={"command": "make"})
        )
        self.assertTrue(again)

    async def test_a_rule_is_kept_listed_and_taken_back(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        scope = Scope(("text",), "this very command", ("starts",), "commands that start with `x`")
        verdict = run.begin(lambda turn: turn.permission("bash", "execute", scope=scope))
        await terminal.shows("  keep: for good, in your own file, commands that start with `x`")
        await terminal.shows("allow? [y/n/always/rule/keep]")
        terminal.enter("perhaps")
        await terminal.shows("please answer y, n, always, rule or keep first")
        terminal.enter("keep")
        self.assertTrue(await verdict)
        terminal.enter("/permissions")
        await terminal.shows("bash (execute), for good")
        later = Scope(("other",), "", covered_by=(frozenset({"starts"}),))
        self.assertTrue(await run.do(lambda turn: turn.permission("bash", "execute", scope=later)))
        terminal.enter("/permissions remove 1")
        await terminal.shows("taken back: commands that start with `x`")
        run.begin(lambda turn: turn.permission("bash", "execute", scope=later))
        await terminal.shows(lambda seen: seen.count("? bash (execute)") == 2)

    async def test_anything_else_is_no_answer(self) -> None:
        terminal = await self.chat()
        _, verdict = await self.request(terminal)
        for line in ("maybe", "yes please do", ""):
            terminal.enter(line)
        await terminal.shows(lambda seen: seen.count("please answer y, n or always") == 2)
        self.assertFalse(verdict.done())
        terminal.enter("y")
        self.assertTrue(await verdict)

    async def test_what_is_asked_for_is_shown_to_its_last_character(self) -> None:
        terminal = await self.chat(columns=60)
        command = "ls\x1b[8m\u202e; " + "x" * 100 + " rm -rf ~"
        await self.request(terminal, command=command)
        joined = terminal.seen.replace("\n", "").replace(" ", "")
        self.assertIn(r"ls\x1b[8m\u202e;" + "x" * 100 + "rm-rf~", joined)

    async def test_a_change_is_shown_as_a_diff(self) -> None:
        terminal = await self.chat()
        old, new = "a\nb\nc\n", "a\nB\nc\n"
        await self.request(terminal, file_path="/x.py", old_content=old, new_content=new)
        self.assertIn("  file_path: /x.py\n", terminal.seen)
        self.assertIn("   a\n  -b\n  +B\n   c\n", terminal.seen)

    async def test_an_answer_elsewhere_closes_it_here(self) -> None:
        terminal = await self.chat()
        anna = await self.daemon.join()
        _, verdict = await self.request(terminal)
        request = await anna.events.wait_for("permission_request")
        await anna.grant(request.payload)
        self.assertTrue(await verdict)
        await terminal.shows("· answered elsewhere: allowed\n")
        # A user who was about to answer does not send a prompt instead.
        terminal.enter("y")
        await terminal.shows("answered already, so this was not sent: y")
        self.assertEqual(len(self.daemon.agent.runs), 1)

    async def test_a_draft_survives_a_request_and_is_no_answer_to_it(self) -> None:
        terminal = await self.chat_process()
        anna = await self.daemon.join()
        run = await self.asked(terminal, "hello")
        terminal.press("a draft that ends with ")
        await terminal.shows("> a draft that ends with")
        verdict = run.begin(lambda turn: turn.permission("bash", "execute"))
        await terminal.shows(lambda seen: seen.endswith(ALLOW))
        terminal.enter("y")  # by a user who may not have seen it
        await terminal.shows("please answer it first; your text is kept")
        self.assertFalse(verdict.done())
        request = await anna.events.wait_for("permission_request")
        await anna.grant(request.payload, "deny")
        self.assertFalse(await verdict)
        await terminal.shows("· answered elsewhere: denied")
        await terminal.shows(lambda seen: seen.endswith("> a draft that ends with y"))

    async def test_a_request_that_was_open_before_is_shown(self) -> None:
        anna = await self.daemon.join()
        session = await anna.session()
        await anna.prompt(session, "hello")
        run = await self.daemon.entered(1)
        verdict = run.begin(lambda turn: turn.permission("bash", "execute"))
        await anna.events.wait_for("permission_request")
        terminal = await self.chat("--continue")
        await terminal.shows(lambda seen: seen.endswith(ALLOW))
        terminal.enter("y")
        self.assertTrue(await verdict)

    async def test_only_requests_of_the_session_are_asked_even_if_others_came_first(self) -> None:
        terminal = await self.chat()
        run = await self.asked(terminal, "hello")
        anna = await self.daemon.join()
        await anna.prompt(await anna.session(), "elsewhere")
        other = await self.daemon.entered(2)
        other.begin(lambda turn: turn.permission("foreign", "execute", tool_call_id="f"))
        await anna.events.wait_for("permission_request", tool_name="foreign")
        verdict = run.begin(lambda turn: turn.permission("ours", "execute", tool_call_id="o"))
        seen = await terminal.shows(lambda seen: seen.endswith(ALLOW))
        self.assertIn("? ours (execute)", seen)
        terminal.enter("y")
        self.assertTrue(await verdict)
        await run.say("done")
        self.assertNotIn("foreign", await terminal.shows("\ndone\n"))

    async def test_a_cancel_closes_it(self) -> None:
        terminal = await self.chat()
        await self.request(terminal)
        terminal.press("\x03")
        await terminal.shows("no longer asked")
        await terminal.shows("✗ canceled")
        await self.idle(terminal)


class QuestionTests(ChatCase):
    async def ask(self, terminal: Shown, *questions: Question) -> Any:
        run = await self.asked(terminal, "hello")
        return run.begin(lambda turn: turn.ask(list(questions)))

    def choice(self, kind: str) -> Question:
        choices = [
            Choice("r", "Red", "hot"),
            Choice("g", "Green", "x"),
            Choice("b", "Blue", "y"),
        ]
        return Question("q1", kind, "", "Which colour?", "Paint it.", choices)

    async def test_a_choice_is_made_by_number(self) -> None:
        terminal = await self.chat_process()
        answers = await self.ask(terminal, self.choice("single_choice"))
        seen = await terminal.shows(lambda seen: seen.endswith("your answer:"))
        self.assertIn("  Paint it.\n  1  Red: hot\n  2  Green: x\n  3  Blue: y\n", seen)
        for line in ("7", "1 2"):
            terminal.enter(line)
        await terminal.shows(lambda seen: seen.count("a number from 1 to 3") == 2)
        terminal.enter("2")
        self.assertEqual([each.selected_ids for each in await answers], [["g"]])

    async def test_several_questions_are_asked_one_by_one_and_answered_together(self) -> None:
        terminal = await self.chat()
        answers = await self.ask(
            terminal,
            self.choice("multi_choice"),
            Question("q2", "yes_no", "", "Sure?", "It stays."),
            Question("q3", "free_text", "", "Why?", "I wonder."),
        )
        await terminal.shows("(1 of 3) Which colour?")
        terminal.enter("1, 3")
        await terminal.shows("(2 of 3) Sure?")
        terminal.enter("y")
        await terminal.shows("(3 of 3) Why?")
        self.assertFalse(answers.done())
        terminal.enter("//because")
        colours, sure, why = await answers
        self.assertEqual((colours.selected_ids, sure.yes), (["r", "b"], True))
        self.assertEqual(why.fill_in_text, "/because")

    async def test_a_question_can_be_skipped(self) -> None:
        terminal = await self.chat()
        answers = await self.ask(terminal, self.choice("single_choice"))
        await terminal.shows("your answer:")
        terminal.enter("/skip")
        self.assertIsNone(await answers)

    async def test_a_question_answered_elsewhere_closes_here(self) -> None:
        terminal = await self.chat()
        anna = await self.daemon.join()
        answers = await self.ask(terminal, self.choice("single_choice"))
        await terminal.shows("your answer:")
        batch = await anna.events.wait_for("question_batch_request")
        asked = batch["questions"][0]["id"]
        reply = {"responses": [{"request_id": asked, "selected_ids": ["b"]}]}
        await anna.call("POST", f"/questions/{batch['id']}", reply)
        self.assertEqual([each.selected_ids for each in await answers], [["b"]])
        await terminal.shows("· answered elsewhere\n")
