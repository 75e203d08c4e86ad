"""Summaries and shell commands: both go on when the client that asked for them disconnects, and
leave nothing half done when they are killed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.prompts import SUMMARY as WISH
from crushlite.commands import process
from crushlite.delegation.storing import store
from crushlite.errors import TurnOver
from crushlite.fake_model import End, Fail, Say
from crushlite.settings import Settings
from crushlite.testing import LocalDaemon
from crushlite.titles import part as titles_part
from tests.support.basics import BoundedTestCase
from tests.support.configured import (
    ConfiguredTestCase,
    chat,
    marked,
    new_mark,
    results,
    shape,
    until,
    use,
)
from tests.support.prompts import Gate
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.agent.base import Turn
    from crushlite.commands.process import Command
    from crushlite.fake_model import ModelCall
    from crushlite.testing import Answer, Participant, Seen, Stores

SUMMARY = "We said hello."
AS_USER = ("user", f"Summary of our conversation so far:\n{SUMMARY}")


def is_finished_summary(event: Seen) -> bool:
    return event.kind == "message" and bool(event["is_summary_message"]) and event.finish != ""


class SummaryCase(ConfiguredTestCase):
    """Anna is the client, with a session that has one turn."""

    described = {"cost_per_1m_in": 1000.0, "cost_per_1m_out": 10000.0}

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.join()
        self.session = await self.anna.session()
        self.base = f"/agent/sessions/{self.session}"

    async def summarize(self) -> Answer:
        return await self.anna.call("POST", f"{self.base}/summarize")

    async def known(self) -> dict[str, Any]:
        return await self.session_of(self.anna, self.session)


# O. Summarize ------------------------------------------------------------------------------------


class SummaryScenarios(SummaryCase):
    @scenario(258)
    async def test_a_summary_is_flagged_and_later_requests_begin_with_it(self) -> None:
        """The summary is flagged, the session points to it, and later requests begin with it."""
        self.plan.append(use("todos", todos=[{"content": "Port the parser", "status": "pending"}]))
        await self.turn(self.anna, self.session, "hello")
        before = shape(await self.anna.messages(self.session))
        spent = (await self.known())["cost"]
        self.plan.append([Say(SUMMARY), End(usage=(100, 7))])
        self.assertEqual((await self.summarize()).status, 200)
        *history, summary = await self.anna.messages(self.session)
        self.assertEqual(shape(history), before)
        self.assertEqual(shape([summary]), [("assistant", "end_turn", SUMMARY)])
        self.assertTrue(summary["is_summary_message"])
        known = await self.known()
        self.assertEqual(known["summary_message_id"], summary["id"])
        self.assertEqual((known["prompt_tokens"], known["completion_tokens"]), (0, 7))
        self.assertAlmostEqual(known["cost"] - spent, 0.17)
        asked = self.model.requests[-1]
        last = self.model.requests[-2]
        self.assertEqual(asked["tools"], last["tools"])
        self.assertEqual(asked["messages"][: len(last["messages"])], last["messages"])
        self.assertEqual(chat(asked)[0], ("user", "hello"))
        self.assertIn("Port the parser", chat(asked)[-1][1])
        await self.anna.events.wait_for("session", summary_message_id=summary["id"])
        self.assertEqual(len(self.anna.events.all("run_complete")), 1, "it is no prompt's run")
        await self.turn(self.anna, self.session, "go on")
        self.assertEqual(chat(self.model.requests[-1]), [AS_USER, ("user", "go on")])

    @scenario(258)
    async def test_a_second_summary_takes_the_place_of_the_first(self) -> None:
        """It is made from the first one and what followed that; later requests begin with it."""
        await self.turn(self.anna, self.session, "hello")
        self.plan.append([Say(SUMMARY), End()])
        await self.summarize()
        self.plan.append([Say("Sure."), End()])
        await self.turn(self.anna, self.session, "go on")
        self.plan.append([Say("All of it."), End()])
        await self.summarize()
        self.assertEqual(
            chat(self.model.requests[-1])[:-1], [AS_USER, ("user", "go on"), ("assistant", "Sure.")]
        )
        await self.turn(self.anna, self.session, "and on")
        self.assertEqual(
            chat(self.model.requests[-1]),
            [("user", "Summary of our conversation so far:\nAll of it."), ("user", "and on")],
        )

    @scenario(259)
    async def test_a_session_without_messages_is_not_summarized(self) -> None:
        """A session without messages is not summarized; one that is unknown is a 404."""
        self.assertEqual((await self.summarize()).status, 200)
        self.assertEqual(await self.anna.messages(self.session), [])
        self.assertEqual((await self.known())["summary_message_id"], "")
        self.assertEqual(self.model.requests, [])
        answer = await self.anna.call("POST", "/agent/sessions/unknown/summarize")
        self.assertEqual((answer.status, answer.json["code"]), (404, "session_not_found"))

    @scenario(262)
    async def test_a_failed_summary_holds_the_error_and_is_not_used(self) -> None:
        """The provider's error is the answer, and is in a summary message that is not used."""
        self.plan.append([Say("Hi."), End()])
        await self.turn(self.anna, self.session, "hello")
        self.plan.append([Fail(400, "the model is out of paper")])
        answer = await self.summarize()
        self.assertEqual(answer.status, 502)
        self.assertIn("the model is out of paper", answer.json["message"])
        failed = (await self.anna.messages(self.session))[-1]
        self.assertTrue(failed["is_summary_message"])
        self.assertEqual(failed.finish, "error")
        self.assertIn("the model is out of paper", failed["parts"][-1]["data"]["details"])
        known = await self.known()
        self.assertEqual((known["summary_message_id"], known["is_busy"]), ("", False))
        await self.turn(self.anna, self.session, "go on")
        self.assertEqual(
            chat(self.model.requests[-1]),
            [("user", "hello"), ("assistant", "Hi."), ("user", "go on")],
        )

    @scenario(262)
    async def test_a_model_that_says_nothing_leaves_no_summary(self) -> None:
        """An empty answer is an error: an empty summary would lose the conversation."""
        await self.turn(self.anna, self.session, "hello")
        before = shape(await self.anna.messages(self.session))
        self.plan.append([End()])
        self.assertEqual((await self.summarize()).status, 502)
        self.assertEqual(shape(await self.anna.messages(self.session)), before)
        self.assertEqual((await self.known())["summary_message_id"], "")


class UnderWay(SummaryCase):
    """The test plays the model, and so decides how long a summary takes."""

    scripted = False

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        await self.say("hello", "Hi.")
        self.before = shape(await self.anna.messages(self.session))

    async def say(self, text: str, answer: str) -> None:
        """A turn in which the model answers with a text."""
        number = len(self.model.calls) + 1
        run_id = await self.prompt(self.anna, self.session, text)
        call = await self.model.call(number)
        await call.text(answer)
        await call.finish()
        await self.ended(self.anna, run_id)

    async def begin(self) -> tuple[asyncio.Task[Answer], ModelCall]:
        """A summary of which half has been streamed."""
        number = len(self.model.calls) + 1
        asking = asyncio.create_task(self.summarize())
        self.addCleanup(asking.cancel)
        call = await self.model.call(number)
        await call.text("We said")
        await self.anna.events.wait_for("message", is_summary_message=True, text="We said")
        return asking, call

    async def complete(self, call: ModelCall) -> None:
        await call.text(" hello.")
        await call.finish()

    async def assert_unsummarized(self) -> None:
        """Check that nothing is left of a summary in the history, in the rows and in the next
        request."""
        self.assertEqual(shape(await self.anna.messages(self.session)), self.before)
        known = await self.known()
        self.assertEqual((known["summary_message_id"], known["is_busy"]), ("", False))
        await self.say("go on", "Sure.")
        self.assertEqual(
            chat(self.model.requests[-1]),
            [("user", "hello"), ("assistant", "Hi."), ("user", "go on")],
        )


class SummaryUnderWay(UnderWay):
    @scenario(260)
    async def test_a_busy_session_is_not_summarized(self) -> None:
        """A session with a run is not summarized, nor is one that is being summarized."""
        run_id = await self.prompt(self.anna, self.session, "more")
        turn = await self.model.call(2)
        answer = await self.summarize()
        self.assertEqual((answer.status, answer.json["code"]), (409, "session_busy"))
        await turn.finish()
        await self.ended(self.anna, run_id)
        self.assertEqual(len(self.model.calls), 2)
        asking, call = await self.begin()
        self.assertEqual((await self.summarize()).status, 409)
        self.assertTrue(await self.anna.busy(self.session))
        await self.complete(call)
        self.assertEqual((await asking).status, 200)
        self.assertFalse(await self.anna.busy(self.session))

    @scenario(261)
    async def test_a_canceled_summary_is_deleted(self) -> None:
        """A canceled summary is deleted and answered with 200; the history is as before."""
        asking, call = await self.begin()
        [canceled] = await self.anna.cancel(self.session, wait=10)
        self.assertEqual(canceled["was"], "active")
        self.assertEqual((await asking).status, 200)
        await call.gone()
        await self.anna.events.wait_for("message", action="deleted", is_summary_message=True)
        await self.assert_unsummarized()

    @scenario(261)
    async def test_a_teardown_deletes_a_summary_under_way(self) -> None:
        """A workspace that closes deletes an unfinished summary; opened again, it has none."""
        asking, call = await self.begin()
        await self.anna.retire()
        async with asyncio.timeout(30):
            await asking
        await call.gone()
        self.anna = await self.join()
        await self.assert_unsummarized()

    @scenario(261)
    async def test_a_deleted_session_takes_its_summary_along(self) -> None:
        """Deleting a session ends its summary first; no event of it follows."""
        asking, call = await self.begin()
        answer = await self.anna.call("DELETE", f"/sessions/{self.session}")
        self.assertEqual(answer.status, 200)
        async with asyncio.timeout(30):
            self.assertIn((await asking).status, (200, 404))
        await call.gone()
        await self.anna.events.wait_for("session", action="deleted", id=self.session)
        await self.settle(self.anna)
        last = [e for e in self.anna.events.seen if e["session_id"] == self.session][-1]
        gone = self.anna.events.all("session", action="deleted", id=self.session)[0]
        seen = self.anna.events.seen
        self.assertLess(seen.index(last), seen.index(gone))

    @scenario(262)
    async def test_what_a_failed_summary_had_said_stays_beneath_its_error(self) -> None:
        """Clients see how far it came; it is in no later request."""
        asking, call = await self.begin()
        call.raw(b'data: {"error": {"message": "out of paper", "code": 400}}\n\n')
        call.end()
        self.assertEqual((await asking).status, 502)
        *history, failed = await self.anna.messages(self.session)
        self.assertEqual(shape(history), self.before)
        self.assertEqual(shape([failed]), [("assistant", "error", "We said")])
        self.assertEqual((await self.known())["summary_message_id"], "")
        await self.say("go on", "Sure.")
        self.assertEqual(
            chat(self.model.requests[-1]),
            [("user", "hello"), ("assistant", "Hi."), ("user", "go on")],
        )

    @scenario(265)
    async def test_a_summary_goes_on_when_its_client_disconnects(self) -> None:
        """The client that asked may disconnect: the summary is finished and used."""
        http = self.daemon.connect()
        target = f"{self.anna.base}{self.base}/summarize"
        asking = asyncio.create_task(self.daemon.call("POST", target, http=http))
        call = await self.model.call(2)
        asking.cancel()
        await asyncio.wait([asking])
        await http.aclose()
        await call.text("We said")
        await self.anna.events.wait_for("message", is_summary_message=True, text="We said")
        self.assertTrue(await self.anna.busy(self.session))
        await self.complete(call)
        done = await self.anna.events.wait_for(is_finished_summary)
        self.assertEqual((done.text, done.finish), (SUMMARY, "end_turn"))
        await self.anna.events.wait_for("session", summary_message_id=done["id"])

    @scenario(265)
    async def test_prompts_queue_behind_a_summary_and_begin_with_it(self) -> None:
        """A prompt that is sent meanwhile is listed as queued, and runs after the summary."""
        asking, call = await self.begin()
        run_id = await self.prompt(self.anna, self.session, "go on")
        self.assertEqual((await self.run_info(self.anna, run_id))["state"], "queued")
        queue = (await self.anna.call("GET", f"{self.base}/prompts")).json
        self.assertEqual([prompt["text"] for prompt in queue], ["go on"])
        await self.complete(call)
        self.assertEqual((await asking).status, 200)
        turn = await self.model.call(3)
        self.assertEqual(chat(turn.request), [AS_USER, ("user", "go on")])
        await turn.finish()
        await self.ended(self.anna, run_id)

    @scenario(265)
    async def test_prompts_behind_a_summary_that_fails_or_is_canceled_are_taken_all_the_same(
        self,
    ) -> None:
        """A prompt behind a summary that fails or is canceled does not stay in the queue."""
        asking, call = await self.begin()
        run_id = await self.prompt(self.anna, self.session, "one")
        call.drop()
        call = await self.model.call(3)
        call.error(400, "no more")
        self.assertEqual((await asking).status, 502)
        turn = await self.model.call(4)
        self.assertEqual(chat(turn.request)[-1], ("user", "one"))
        await turn.finish()
        await self.ended(self.anna, run_id)
        asking, call = await self.begin()
        await self.anna.cancel(self.session)
        run_id = await self.prompt(self.anna, self.session, "two")
        turn = await self.model.call(6)
        self.assertEqual(chat(turn.request)[-1], ("user", "two"))
        await turn.finish()
        await self.ended(self.anna, run_id)
        self.assertEqual((await asking).status, 200)


class SummaryCommitTests(UnderWay):
    """The test decides when the store commits."""

    def make_stores(self) -> Stores:
        self.gate = Gate(SystemClock())
        return self.gate.stores

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.addCleanup(self.gate.open)  # before the daemon stops: it waits for its commits

    async def test_a_cancel_during_the_commit_of_a_summary_leaves_no_half_truth(self) -> None:
        asking, call = await self.begin()
        self.gate.shut()
        await self.complete(call)
        storing = asyncio.Event()

        async def entered(*args: Any, **fields: Any) -> None:
            storing.set()
            await store(*args, **fields)

        with mock.patch("crushlite.delegation.summaries.store", entered):
            while not storing.is_set():  # what the turn stores before that: its usage
                if self.gate.held:
                    self.gate.let()
                await asyncio.sleep(0)
        await self.gate.reached()
        await self.anna.cancel(self.session)
        self.gate.open()
        self.assertEqual((await asking).status, 200)
        summary = (await self.anna.messages(self.session))[-1]
        self.assertEqual(shape([summary]), [("assistant", "end_turn", SUMMARY)])
        self.assertEqual((await self.known())["summary_message_id"], summary["id"])
        await self.anna.events.wait_for("session", summary_message_id=summary["id"])


class AutoSummaryScenarios(ConfiguredTestCase):
    async def workspace_with(self, window: int, **options: Any) -> Participant:
        """A client of a workspace whose model has this context window."""
        self.described = {"context_window": window}
        self.configure(options=options)
        return await self.join(self.folder(f"case-{len(list(self.daemon.root.iterdir()))}"))

    async def summarizes(
        self, client: Participant, prompt: str, usage: tuple[int, int] | None
    ) -> bool:
        """Whether a step with a tool call and this usage is followed by a summary."""
        asked = len(self.model.requests)
        self.plan.append([*use("bash", command="echo hi", description="")[:-1], End(usage=usage)])
        session = await client.session()
        run_id = await self.prompt(client, session, prompt)
        await self.model.call(asked + 2)
        summarized = chat(self.model.requests[asked + 1])[-1][1].startswith(WISH)
        ended = await self.ended(client, run_id)
        self.assertEqual(ended["error"], None)
        known = await self.session_of(client, session)
        self.assertEqual(bool(known["summary_message_id"]), summarized)
        self.assertEqual(len(self.model.requests) - asked, 3 if summarized else 2)
        return summarized

    @scenario(266)
    async def test_a_session_is_summarized_when_little_of_the_window_is_left(self) -> None:
        """A summary is made with 20,000 tokens left of a large window, or a fifth of a small
        one."""
        for window, options, usage, expected in (
            (300_000, {}, (279_000, 1000), True),
            (300_000, {}, (279_000, 999), False),
            (10_000, {}, (7_000, 1000), True),
            (10_000, {}, (7_000, 999), False),
            (200_000, {}, (150_000, 10_000), True),
            (0, {}, (9_000_000, 1), False),
            (10_000, {"disable_auto_summarize": True}, (9_000, 1000), False),
        ):
            with self.subTest(window=window, usage=usage):
                client = await self.workspace_with(window, **options)
                self.assertEqual(await self.summarizes(client, "hello", usage), expected)

    @scenario(266)
    async def test_a_server_that_reports_no_usage_is_summarized_by_estimate(self) -> None:
        """Else the context of a local model, whose window is known, would overflow."""
        client = await self.workspace_with(10_000)
        self.assertTrue(await self.summarizes(client, "x" * 40_000, None))
        self.assertFalse(await self.summarizes(client, "x" * 400, None))

    @scenario(266)
    async def test_the_turn_goes_on_from_its_own_summary(self) -> None:
        """The same run goes on: its request holds the prompt, and its history is valid."""
        client = await self.workspace_with(10_000)
        self.plan += [
            [*use("bash", "c1", command="echo hi", description="")[:-1], End(usage=(9000, 500))],
            [Say(SUMMARY), End(usage=(100, 7))],
            [Say("Done."), End(usage=(50, 2))],
        ]
        session = await client.session()
        ended = await self.turn(client, session, "say hi")
        self.assertEqual((ended["text"], ended["error"]), ("Done.", None))
        [(role, text)] = chat(self.model.requests[-1])
        self.assertEqual(role, "user")
        self.assertTrue(text.startswith(AS_USER[1]) and text.endswith("say hi"), text)
        messages = await client.messages(session)
        self.assert_valid_history(messages)
        self.assertEqual(
            [(m["role"], m.finish, bool(m["is_summary_message"])) for m in messages],
            [
                ("user", "stop", False),
                ("assistant", "tool_use", False),
                ("tool", "stop", False),
                ("assistant", "end_turn", True),
                ("assistant", "end_turn", False),
            ],
        )
        self.assertEqual(len(client.events.all("run_complete")), 1)
        self.assertEqual((await self.session_of(client, session))["prompt_tokens"], 50)


class AutoSummaryCanceled(ConfiguredTestCase):
    scripted = False
    described = {"context_window": 10_000}

    async def test_a_cancel_during_an_automatic_summary_cancels_the_turn(self) -> None:
        """No summary is left, and the turn does not go on."""
        client = await self.join()
        session = await client.session()
        run_id = await self.prompt(client, session, "say hi")
        call = await self.model.call(1)
        await call.tool_call("c1", "bash", '{"command": "echo hi", "description": ""}')
        await call.finish(usage=(9000, 500))
        summary = await self.model.call(2)
        await summary.text("We")
        await client.events.wait_for("message", is_summary_message=True, text="We")
        await client.cancel(session, wait=10)
        self.assertTrue((await self.ended(client, run_id))["cancelled"])
        await summary.gone()
        messages = await client.messages(session)
        self.assert_valid_history(messages)
        self.assertEqual([m.finish for m in messages], ["stop", "canceled", "stop"])
        self.assertEqual((await self.session_of(client, session))["summary_message_id"], "")
        self.assertEqual(len(self.model.calls), 2)


# O. Shell commands -------------------------------------------------------------------------------


class ShellCase(SummaryCase):
    async def shell(self, command: str, session: str | None = None) -> Answer:
        session = self.session if session is None else session
        body = {"session_id": "", "command": command, "term_width": 80}
        return await self.anna.call("POST", f"/agent/sessions/{session}/shell", body)

    async def begin(self, command: str = "") -> tuple[asyncio.Task[Answer], str]:
        """Start a command. Return its request, once it runs, and the mark of its processes."""
        mark = new_mark()
        asking = asyncio.create_task(self.shell(f"{command} touch started; sleep {mark} & wait"))
        self.addCleanup(asking.cancel)
        started = self.project / "started"
        await until(started.exists, "the command began")
        await until(lambda: len(marked(mark)) == 2, "the shell and its sleep are there")
        return asking, mark

    async def parts(self) -> list[dict[str, Any]]:
        """The recorded shell commands."""
        messages = await self.anna.messages(self.session)
        parts = [part for message in messages for part in message["parts"]]
        return [part["data"] for part in parts if part["type"] == "shell_command"]


class ShellScenarios(ShellCase):
    @scenario(269)
    async def test_a_shell_command_is_recorded_as_the_users_however_it_ends(self) -> None:
        """A user's command runs in the workspace and is recorded as the user's, however it ends."""
        command = "pwd; echo $HOME; echo complaint >&2; exit 3"
        answer = await self.shell(command)
        self.assertEqual(answer.status, 200)
        output = f"{self.project.resolve()}\n{self.home}\ncomplaint\n"
        self.assertEqual(answer.json, {"output": output, "exit_code": 3})
        event = await self.anna.events.wait_for("message", action="created")
        [message] = await self.anna.messages(self.session)
        self.assertEqual(message.payload, event.payload)
        self.assertEqual(message["role"], "user")
        self.assertEqual(
            message["parts"],
            [
                {
                    "type": "shell_command",
                    "data": {"command": command, "output": output, "exit_code": 3},
                },
                {"type": "finish", "data": {"reason": "stop", "time": 0}},
            ],
        )
        self.assertEqual((await self.known())["message_count"], 1)
        await self.settle(self.anna)
        self.assertEqual(self.anna.events.all("run_complete"), [])
        self.assertEqual(self.model.requests, [])
        for wrong in ("", "  ", "echo \0"):
            self.assertEqual((await self.shell(wrong)).status, 400)

    @scenario(270)
    async def test_a_shell_command_for_an_unknown_session_runs_without_a_record(self) -> None:
        """A command for a session that does not exist is run, and not recorded."""
        answer = await self.shell("echo there > effect; echo said", "unknown")
        self.assertEqual((answer.status, answer.json), (200, {"output": "said\n", "exit_code": 0}))
        self.assertEqual((self.project / "effect").read_text(), "there\n")
        await self.settle(self.anna)
        self.assertEqual(self.anna.events.all("message"), [])
        self.assertEqual((await self.anna.call("GET", "/sessions/unknown/messages")).json, [])

    @scenario(271)
    async def test_a_shell_command_is_in_the_history_and_not_in_the_title(self) -> None:
        """The model gets the command and its output; the title comes from the prompt."""
        await self.shell("echo forty-two; exit 3")
        await self.settle(self.anna)
        self.assertEqual(self.titles.requests, [])
        await self.turn(self.anna, self.session, "what did I do?")
        (role, text), last = chat(self.model.requests[0])
        self.assertEqual((role, last), ("user", ("user", "what did I do?")))
        for word in ("echo forty-two; exit 3", "exit code 3", "forty-two\n"):
            self.assertIn(word, text)
        asked = (await self.titles.call(1)).request
        self.assertEqual([text for _, text in chat(asked)], ["what did I do?"])

    @scenario(272)
    async def test_a_cancel_kills_a_shell_command_and_it_is_on_record(self) -> None:
        """It does not make the session busy, is not in the receipt, and all its processes are
        killed."""
        asking, mark = await self.begin("echo so far;")
        self.assertFalse(await self.anna.busy(self.session))
        self.assertEqual(await self.anna.cancel(await self.anna.session()), [])
        self.assertFalse(asking.done(), "another session's cancel is not for it")
        self.assertEqual(await self.anna.cancel(self.session), [])
        async with asyncio.timeout(30):
            answer = await asking
        self.assertEqual((answer.status, answer.json["output"]), (200, "so far\n"))
        self.assertNotEqual(answer.json["exit_code"], 0)
        self.assertEqual(marked(mark), [])
        self.assertEqual([part["output"] for part in await self.parts()], ["so far\n"])

    @scenario(272)
    async def test_a_cancel_reaches_a_command_that_is_still_being_started(self) -> None:
        """A cancel that comes before the process exists is not lost."""
        gate, inside, start = asyncio.Event(), asyncio.Event(), process.start

        async def slow(*args: Any, **fields: Any) -> Command:
            inside.set()
            await gate.wait()
            return await start(*args, **fields)

        mark = new_mark()
        with mock.patch.object(process, "start", slow):
            asking = asyncio.create_task(self.shell(f"sleep {mark}"))
            await inside.wait()
            await self.anna.cancel(self.session)
            gate.set()
            async with asyncio.timeout(30):
                answer = await asking
        self.assertEqual(answer.status, 200)
        self.assertNotEqual(answer.json["exit_code"], 0)
        self.assertEqual(marked(mark), [])

    @scenario(272)
    async def test_a_teardown_ends_a_shell_command_and_keeps_its_record(self) -> None:
        """A workspace that closes kills its commands and records them."""
        asking, mark = await self.begin("echo so far;")
        await self.anna.retire()
        self.anna = await self.join()
        self.assertEqual(marked(mark), [])
        [part] = await self.parts()
        self.assertEqual(part["output"], "so far\n")
        async with asyncio.timeout(30):
            await asyncio.wait([asking])

    @scenario(272)
    async def test_a_deleted_session_ends_its_shell_command(self) -> None:
        """The delete waits until it is dead, and no event of it follows `session deleted`."""
        asking, mark = await self.begin()
        killed: list[Command] = []
        with mock.patch.object(process.Command, "kill", lambda command: killed.append(command)):
            deleting = asyncio.create_task(self.anna.call("DELETE", f"/sessions/{self.session}"))
            await until(lambda: bool(killed), "the command is to be killed")
            await self.anna.events.never("session", action="deleted", id=self.session)
        self.assertFalse(deleting.done(), "deleted although its command is alive")
        killed[0].kill()
        answer = await deleting
        self.assertEqual((answer.status, marked(mark)), (200, []))
        self.assertEqual((await asking).status, 200)
        await self.settle(self.anna)
        gone = self.anna.events.all("session", action="deleted", id=self.session)[0]
        after = self.anna.events.seen[self.anna.events.seen.index(gone) :]
        self.assertEqual([e for e in after if e["session_id"] == self.session], [])
        self.assertEqual(await self.anna.messages(self.session), [])

    @scenario(272)
    async def test_a_shell_command_survives_its_client(self) -> None:
        """It runs to its end and is recorded although its connection is closed."""
        os.mkfifo(self.project / "word")
        http = self.daemon.connect()
        target = f"{self.anna.base}{self.base}/shell"
        body = {"command": "touch started; read word < word; echo heard $word"}
        asking = asyncio.create_task(self.daemon.call("POST", target, body, http=http))
        await until((self.project / "started").exists, "the command began")
        asking.cancel()
        await asyncio.wait([asking])
        await http.aclose()
        await asyncio.to_thread((self.project / "word").write_text, "you\n")
        event = await self.anna.events.wait_for("message", action="created")
        self.assertEqual(event["parts"][0]["data"]["output"], "heard you\n")


class ShellDuringTurn(ShellCase):
    scripted = False

    @scenario(272)
    async def test_a_shell_command_during_a_turn_neither_waits_nor_disturbs_it(self) -> None:
        """It neither waits for the turn nor disturbs it; the next request of the turn holds it."""
        run_id = await self.prompt(self.anna, self.session, "say hi")
        call = await self.model.call(1)
        await call.text("One moment. ")
        answer = await self.shell("echo meanwhile")
        self.assertEqual(answer.json, {"output": "meanwhile\n", "exit_code": 0})
        self.assertEqual((await self.run_info(self.anna, run_id))["state"], "active")
        self.assertTrue(call.open)
        await call.tool_call("c1", "bash", '{"command": "echo hi", "description": ""}')
        await call.finish()
        call = await self.model.call(2)
        roles = [role for role, _ in chat(call.request)]
        self.assertEqual(roles, ["user", "assistant", "tool", "user"])
        self.assertIn("meanwhile", chat(call.request)[-1][1])
        await call.text("Done.")
        await call.finish()
        self.assertEqual((await self.ended(self.anna, run_id))["text"], "Done.")
        messages = await self.anna.messages(self.session)
        self.assert_valid_history(messages)
        self.assertEqual(len(results(messages)), 1)


# Agents of one's own -----------------------------------------------------------------------------


class OwnAgent:
    """An agent whose answers, summaries and titles the test decides."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.inside = asyncio.Event()
        self.deaf_to_cancel = False
        self.turn: Turn | None = None

    async def ready(self) -> None:
        self.calls.append("ready")

    async def run(self, turn: Turn) -> None:
        self.calls.append("run")
        await turn.say("Hi.")

    async def summarize(self, turn: Turn) -> None:
        self.calls.append("summarize")
        self.turn = turn
        await turn.say("We said")
        await self.stay()
        await turn.say(" hello.")

    async def title(self, text: str) -> str:
        if self.deaf_to_cancel:
            await self.stay()
        return ""

    async def stay(self) -> None:
        """Wait until it is cancelled, or for ever."""
        self.inside.set()
        while self.deaf_to_cancel:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


class OwnAgentTests(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.agent = OwnAgent()
        settings = Settings(cancel_grace=0.1)
        self.daemon = await self.enterAsyncContext(LocalDaemon(self.agent, settings=settings))
        self.anna = await self.daemon.join()
        self.session = await self.anna.session()
        self.addCleanup(setattr, self.agent, "deaf_to_cancel", False)

    async def summarize(self) -> Answer:
        return await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")

    async def test_a_summary_that_ignores_its_cancel_is_gone_and_cannot_come_back(self) -> None:
        await self.anna.prompt(self.session)
        await self.anna.events.wait_for("run_complete")
        self.agent.deaf_to_cancel = True
        asking = asyncio.create_task(self.summarize())
        await self.agent.inside.wait()
        await self.anna.cancel(self.session, wait=10)
        self.assertEqual((await asking).status, 200)
        messages = await self.anna.messages(self.session)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertFalse(await self.anna.busy(self.session))
        assert self.agent.turn is not None
        with self.assertRaises(TurnOver):
            await self.agent.turn.say("and yet")

    async def test_a_title_that_ignores_its_cancel_does_not_hold_a_teardown(self) -> None:
        self.agent.deaf_to_cancel = True
        await self.anna.prompt(self.session)
        await self.anna.events.wait_for("run_complete")
        await self.agent.inside.wait()
        with mock.patch.object(titles_part, "END_SECONDS", 0.1):
            await self.anna.retire()
            async with asyncio.timeout(30):
                self.anna = await self.daemon.join()
        self.assertEqual(len(await self.anna.messages(self.session)), 2)

    async def test_an_agent_is_ready_before_it_summarizes(self) -> None:
        """Also if a summary is the first request of a workspace."""
        await self.anna.prompt(self.session)
        await self.anna.events.wait_for("run_complete")
        await self.anna.retire()
        self.anna = await self.daemon.join()
        self.agent.calls.clear()
        self.assertEqual((await self.summarize()).status, 200)
        self.assertEqual(self.agent.calls, ["ready", "summarize"])
