"""The scenarios of prompts, cancels, queues and endings with the coder: real sockets on both sides,
a real store, real commands, and a model server that the test plays. Those that hold for every agent
are inherited from tests/scenarios."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.coder.tools.base import ToolOutcome
from crushlite.coder.tools.registry import all_tools
from crushlite.fake_model import End, Fail, Say, Use
from crushlite.http.client import ClientError
from tests.scenarios.test_cancel import CancelScenarios
from tests.scenarios.test_endings import EndingScenarios
from tests.scenarios.test_prompts import PromptScenarios
from tests.scenarios.test_queue import QueueScenarios
from tests.support.agents import assistant
from tests.support.model import QUICK, CoderTestCase, EchoTool, GateTool, results
from tests.support.prompts import until
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from crushlite.fake_model import Step
    from crushlite.store import Connection


def bash(command: str) -> str:
    return json.dumps({"command": command, "description": "a test"})


class CoderPromptTests(PromptScenarios, CoderTestCase):
    @scenario(6)
    async def test_a_text_file_alone_is_a_prompt(self) -> None:
        """A text file without a text is a prompt, and the model gets its content."""
        await self.start(script=lambda request: [Say("read"), End()])
        content = base64.b64encode("naïve notes\n".encode()).decode()
        file = {"content": content, "file_path": "notes.txt", "mime_type": "text/plain"}
        done = await self.complete(await self.post("", attachments=[file]))
        self.assertEqual((done["text"], done["error"]), ("read", None))
        ((role, text),) = self.asked(1)
        self.assertEqual(role, "user")
        self.assertIn("naïve notes\n", text)
        self.assertIn("notes.txt", text)

    @scenario(12)
    async def test_a_client_that_gives_up_its_request_does_not_end_its_run(self) -> None:
        """A client that gives up its request after 50 ms does not end its run."""
        await self.start()
        http = self.daemon.connect()
        # On an open connection the request is sent in one piece, however busy the machine is.
        await http.request("GET", "/v1/health", timeout=60)
        body = json.dumps({"session_id": self.session, "prompt": "hello", "run_id": "r"})
        with contextlib.suppress(ClientError):
            answer = await http.request(
                "POST", f"{self.anna.base}/agent", body=body.encode(), timeout=0.05
            )
            self.assertEqual(answer.status, 202)
        await http.aclose()
        call = await self.model.call(1)
        await call.text("still here")
        await call.finish()
        done = await self.complete("r")
        self.assertEqual((done["text"], done["cancelled"]), ("still here", None))
        self.assertEqual((await self.shape())[-1], ("assistant", "end_turn", "still here"))

    @scenario(15)
    async def test_prompts_sent_at_once_run_one_at_a_time_and_are_all_stored(self) -> None:
        """Of eight prompts sent at once to an idle session, never two are with the model at a time,
        and all eight are stored and reach it."""
        await self.start()
        texts = [f"prompt {number}" for number in range(8)]
        runs = await asyncio.gather(
            *(
                self.post(text, **({"run_id": text} if number % 2 else {}))
                for number, text in enumerate(texts)
            )
        )
        number = 0
        while not all(self.anna.events.all("run_complete", run_id=run_id) for run_id in runs):
            number += 1
            call = await self.model.call(number)
            self.assertEqual(self.model.concurrent, 1)
            await call.finish()
            await self.anna.events.wait_for("run_complete")
            await until(
                lambda number=number: (
                    len(self.model.calls) > number  # type: ignore[misc]
                    or len(self.anna.events.all("run_complete")) == len(texts)
                ),
                "the next turn, or the last ending",
            )
        self.assertEqual(self.model.most_concurrent, 1)
        users = [text for role, _, text in await self.shape() if role == "user"]
        self.assertEqual(sorted(users), texts)
        last = [text for role, text in self.asked(number) if role == "user"]
        self.assertEqual(sorted(last), texts)


class CoderCancelTests(CancelScenarios, CoderTestCase):
    @scenario(30)
    async def test_a_second_cancel_changes_nothing_and_the_next_prompt_runs(self) -> None:
        """Two cancels of one prompt leave one canceled pair, and the next prompt runs."""
        await self.start()
        run_id = await self.post("first")
        await self.model.call(1)
        await asyncio.gather(self.anna.cancel(self.session), self.anna.cancel(self.session))
        self.assertTrue((await self.complete(run_id))["cancelled"])
        done = await self.exchange("second", "hi")
        self.assertEqual((done["text"], done["cancelled"]), ("hi", None))
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "first"),
                ("assistant", "canceled", ""),
                ("user", "stop", "second"),
                ("assistant", "end_turn", "hi"),
            ],
        )
        # The canceled answer is empty, which providers refuse: only the prompts are sent.
        self.assertEqual(self.asked(2), [("user", "first"), ("user", "second")])

    @scenario(40)
    async def test_a_cancel_stops_the_running_tool_and_closes_its_call(self) -> None:
        """A cancel kills the running command and closes its call; the session is idle then."""
        await self.start(tools=all_tools())
        run_id = await self.post("wait")
        call = await self.model.call(1)
        await call.tool_call("c1", "bash", bash("echo $$ > pid; exec sleep 600"))
        await call.finish()
        pid = self.project / "pid"
        await until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the command")
        process = Path("/proc", pid.read_text().strip())
        self.assertTrue(process.exists())
        await self.anna.cancel(self.session)
        done = await self.complete(run_id)
        self.assertFalse(process.exists())
        self.assertTrue(done["cancelled"])
        self.assertFalse(await self.anna.busy(self.session))
        (result,) = await self.results()
        self.assertEqual((result["tool_call_id"], result["is_error"]), ("c1", True))
        self.assertIn("cancelled", result["content"])
        self.assertEqual(
            [(role, finish) for role, finish, _ in await self.shape()],
            [("user", "stop"), ("assistant", "canceled"), ("tool", "stop")],
        )
        self.assertEqual(len(self.model.calls), 1)

    @scenario(42)
    async def test_a_cancel_closes_the_open_permission_and_later_grants_do_nothing(self) -> None:
        """A cancel closes the open dialog; a grant that comes later does nothing."""
        await self.start(tools=all_tools(), yolo=False)
        run_id = await self.post("touch it")
        call = await self.model.call(1)
        await call.tool_call("c1", "bash", bash("touch touched"))
        await call.finish()
        asked = await self.anna.events.wait_for("permission_request")
        await self.anna.cancel(self.session)
        self.assertTrue((await self.complete(run_id))["cancelled"])
        self.assertFalse(await self.anna.grant(asked.payload))
        self.assertEqual((await self.anna.call("GET", "/permissions")).json, [])
        (result,) = await self.results()
        self.assertTrue(result["is_error"])
        await self.exchange("and now?", "nothing")
        self.assertFalse((self.project / "touched").exists())


class CoderQueueTests(QueueScenarios, CoderTestCase):
    pass


class CoderEndingTests(EndingScenarios, CoderTestCase):
    @scenario(85)
    async def test_the_error_event_of_a_failed_run_names_its_session_and_run(self) -> None:
        await super().test_the_error_event_of_a_failed_run_names_its_session_and_run()
        self.assertEqual(self.naps.slept, [])

    @scenario(81)
    async def test_reasoning_that_a_cancel_interrupts_is_kept_and_ended(self) -> None:
        """The run_complete says that the run was canceled, and names the message."""
        await self.start()
        run_id = await self.post("hello")
        await (await self.model.call(1)).think("hmm")
        await self.anna.events.wait_for(assistant)
        await self.anna.cancel(self.session)
        done = await self.complete(run_id)
        *_, last = await self.anna.messages(self.session)
        self.assertEqual((done["cancelled"], done["message_id"]), (True, last["id"]))
        reasoning, finish = last["parts"]
        self.assertEqual(finish["data"]["reason"], "canceled")
        self.assertEqual(reasoning["data"]["thinking"], "hmm")
        self.assertGreater(reasoning["data"]["finished_at"], 0)

    @scenario(86)
    async def test_a_failed_run_keeps_its_partial_text_and_stores_the_error(self) -> None:
        """When every attempt has failed, the provider's error is stored with what the last attempt
        had streamed; nothing is left of the attempts before it."""
        await self.start()
        await self.post("hello", run_id="r")
        for number in range(1, 4):
            call = await self.model.call(number)
            await call.text(f"attempt {number} ")
            call.drop()
        call = await self.model.call(4)
        await call.text("partial")
        call.raw(b'data: {"error": {"message": "the GPU is on fire", "code": 500}}\n\n')
        last = await self.failed("r")
        self.assertEqual(last.text, "partial")
        self.assertIn("the GPU is on fire", last["parts"][-1]["data"]["details"])
        self.assertEqual((len(self.model.calls), self.naps.slept), (4, [1.0, 2.0, 4.0]))
        # The session can be used again.
        self.assertEqual((await self.exchange("again", "fine now"))["text"], "fine now")

    @scenario(88)
    async def test_an_attempt_that_is_repeated_ends_the_run_only_once(self) -> None:
        """Several attempts are one run with one ending. A refused key is not tried again, since
        keys do not change by themselves: the user gets the error at once."""
        answers: list[list[Step]] = [
            [Fail(429, "slow down", QUICK)],
            [Fail(503, "one moment", QUICK)],
            [Say("made it"), End()],
            [Fail(401, "this key is no good")],
        ]
        await self.start(script=lambda request: answers.pop(0))
        done = await self.complete(await self.post("hello"))
        self.assertEqual((done["text"], done["error"]), ("made it", None))
        self.assertEqual(self.naps.slept, [0.001, 0.001])
        refused = await self.complete(await self.post("hello again"))
        self.assertIn("this key is no good", refused["error"])
        self.assertEqual(len(self.model.calls), 4)
        self.assertEqual(len(self.anna.events.all("run_complete")), 2)

    @scenario(89)
    async def test_arguments_that_are_no_json_are_an_error_result_for_the_model(self) -> None:
        """Arguments that are no JSON are stored as {}, the model gets an error, and the turn goes
        on."""
        echo = EchoTool()
        await self.start(tools=[echo])
        run_id = await self.post("go")
        call = await self.model.call(1)
        await call.tool_call("c1", "echo", '{"text": ', pieces=2)
        await call.finish()
        call = await self.model.call(2)
        await call.text("sorry")
        await call.finish()
        self.assertEqual((await self.complete(run_id))["text"], "sorry")
        assistant_call, result = self.asked(2)[1:]
        self.assertEqual(assistant_call, ("assistant", "echo({})"))
        self.assertEqual(result[0], "tool")
        self.assertIn("not valid JSON", result[1])
        self.assertEqual(echo.ran, [])
        (stored,) = await self.results()
        self.assertTrue(stored["is_error"])

    @scenario(90)
    async def test_a_turn_that_repeats_a_call_with_the_same_result_is_stopped(self) -> None:
        """Four steps that bring nothing new are followed by a warning, four more end the turn;
        equal calls with different results do not."""

        def script(request: dict[str, Any]) -> list[Step]:
            steps = sum(message["role"] == "tool" for message in request["messages"])
            return [Say("enough"), End()] if steps >= 12 else [Use("echo", "{}"), End()]

        number = iter(range(100))
        same = EchoTool()
        await self.start(script=script, tools=[same])
        done = await self.complete(await self.post("go"))
        self.assertEqual((len(same.ran), len(self.model.calls)), (9, 9))
        self.assertEqual((done["error"], done["cancelled"]), (None, None))
        self.assertIn("same", done["text"])
        same.answer = lambda _: ToolOutcome(f"result {next(number)}")
        self.session = await self.anna.session()
        done = await self.complete(await self.post("go"))
        self.assertEqual((done["text"], len(same.ran)), ("enough", 9 + 12))

    @scenario(91)
    async def test_a_call_without_a_result_gets_an_error_result_right_behind_it(self) -> None:
        """A call without a stored result gets one in the request, right after it; the call next to
        it keeps its own."""
        await self.start(tools=[EchoTool(read_only=True)])
        run_id = await self.post("go")
        call = await self.model.call(1)
        await call.tool_call("c1", "echo", '{"text": "one"}')
        await call.tool_call("c2", "echo", '{"text": "two"}')
        await call.finish()
        await (await self.model.call(2)).finish()
        await self.complete(run_id)
        messages = await self.anna.messages(self.session)
        lost = next(m for m in messages if [r["tool_call_id"] for r in results([m])] == ["c1"])

        def delete(conn: Connection) -> None:
            conn.execute("DELETE FROM messages WHERE id = ?", (lost["id"],))

        store = self.daemon.backend.get(self.anna.workspace["id"]).store.store
        await store.submit(delete)
        await self.exchange("and?", "well")
        sent = self.model.requests[2]["messages"][1:]
        self.assertEqual(
            [message["role"] for message in sent], ["user", "assistant", "tool", "tool", "user"]
        )
        self.assertEqual([message["tool_call_id"] for message in sent[2:4]], ["c1", "c2"])
        self.assertIn("interrupted", sent[2]["content"])
        self.assertEqual(sent[3]["content"], "echo two")

    @scenario(98)
    async def test_a_teardown_waits_for_what_a_canceled_run_still_writes(self) -> None:
        """A tool that takes its time to stop delays the teardown: the store is closed after the
        ending of its run was written, and nothing is written too late."""
        gate = GateTool(cleanup=asyncio.Event())
        await self.start(tools=[gate])
        path = str(self.anna.workspace["path"])
        run_id = await self.post("go")
        call = await self.model.call(1)
        await call.tool_call("c1", "gate", "{}")
        await call.finish()
        await gate.inside.acquire()
        store = self.daemon.backend.get(self.anna.workspace["id"]).store.store
        with self.assertNoLogs("crushlite", "WARNING"):
            await self.anna.retire()
            await gate.inside.acquire()  # it has been cancelled and has not ended
            self.assertEqual((await self.anna.call("GET", "")).status, 404)
            self.assertEqual(
                await store.read(lambda conn: conn.execute("SELECT 1").fetchone()), (1,)
            )
            assert gate.cleanup is not None
            gate.cleanup.set()
            done = await self.complete(run_id)
            self.assertEqual((done["cancelled"], gate.left), (True, 1))
            await self.anna.events.end()
            self.anna = await self.join(path=path)
        self.assertEqual(
            [(role, finish) for role, finish, _ in await self.shape()],
            [("user", "stop"), ("assistant", "canceled"), ("tool", "stop")],
        )
