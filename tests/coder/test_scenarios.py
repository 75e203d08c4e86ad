"""The scenarios of prompts, cancels, queues and endings with the coder: real sockets on both sides,
a real store, real commands, and a model server that the test plays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.coder.tools.base import ToolOutcome
from crushlite.coder.tools.registry import all_tools
from crushlite.http.client import ClientError
from crushlite.testing.model import End, Fail, Say, Use
from tests.support.model import QUICK, CoderTestCase, EchoTool, GateTool, results
from tests.support.prompts import until

if TYPE_CHECKING:
    from crushlite.store import Connection
    from crushlite.testing import Seen
    from crushlite.testing.model import Step


def assistant(event: Seen) -> bool:
    return event.kind == "message" and event["role"] == "assistant"


def bash(command: str) -> str:
    return json.dumps({"command": command, "description": "a test"})


class AcceptanceTests(CoderTestCase):
    async def test_001_accept_returns_202_at_once(self) -> None:
        """The 202 comes before the model has answered anything, and the turn goes on after it."""
        await self.start()
        run_id = await self.post("hello")
        call = await self.model.call(1)
        self.assertTrue(call.open)
        self.assertEqual(self.anna.events.all("run_complete"), [])
        await call.text("hi")
        await call.finish()
        self.assertEqual((await self.complete(run_id))["text"], "hi")

    async def assert_refused(self, session: str, text: str) -> None:
        answer = await self.anna.try_prompt(session, text)
        self.assertEqual(answer.status, 400, answer.json)
        await self.anna.events.never("run_complete")
        self.assertEqual(await self.shape(), [])
        self.assertEqual(self.model.calls, [])

    async def test_004_reject_empty_prompt(self) -> None:
        """An empty prompt is refused, stored nowhere and sent to no model."""
        await self.start()
        await self.assert_refused(self.session, "")

    async def test_005_reject_missing_session_id(self) -> None:
        """A prompt without a session is refused, stored nowhere and sent to no model."""
        await self.start()
        await self.assert_refused("", "hello")

    async def test_006_text_attachment_replaces_prompt(self) -> None:
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

    async def test_012_request_timeout_does_not_own_run(self) -> None:
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

    async def test_013_connection_reset_after_202(self) -> None:
        """The client's connection is reset in the middle of the answer, and the run ends
        normally."""
        await self.start(tcp=True)
        port = self.daemon.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"session_id": self.session, "prompt": "hello", "run_id": "r"})
        head = f"POST {self.anna.base}/agent HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.assertIn(b" 202 ", await reader.readline())
        call = await self.model.call(1)
        await call.text("still ")
        # With a linger of zero, the kernel sends a reset instead of a FIN.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await call.text("here")
        await call.finish()
        done = await self.complete("r")
        self.assertEqual((done["text"], done["cancelled"]), ("still here", None))

    async def test_015_concurrent_dispatch_single_stream(self) -> None:
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

    async def test_016_sessions_run_in_parallel(self) -> None:
        """Two sessions stream at the same time, and the end of one does not affect the other."""
        await self.start()
        other = await self.anna.session()
        first = await self.post("one")
        call_one = await self.model.call(1)
        second = await self.post("two", other)
        call_two = await self.model.call(2)
        self.assertEqual(self.model.concurrent, 2)
        await call_two.text("second ")
        await call_one.text("first")
        await call_one.finish()
        self.assertEqual((await self.complete(first))["text"], "first")
        self.assertTrue(call_two.open)
        self.assertTrue(await self.anna.busy(other))
        await call_two.text("answer")
        await call_two.finish()
        self.assertEqual((await self.complete(second))["text"], "second answer")

    async def test_017_agent_init_survives_request_end(self) -> None:
        """An init whose connection is aborted does not affect a later prompt."""
        await self.start()
        _, writer = await asyncio.open_unix_connection(str(self.daemon.socket))
        head = f"POST {self.anna.base}/agent/init HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
        writer.transport.abort()
        done = await self.exchange("hello", "hi")
        self.assertEqual((done["text"], done["error"], done["cancelled"]), ("hi", None, None))


class CancelTests(CoderTestCase):
    async def test_019_cancel_by_other_client(self) -> None:
        """Another client's cancel ends the request to the model; both see a canceled message, and
        neither an error."""
        await self.start()
        bert = await self.join()
        run_id = await self.post("hello")
        call = await self.model.call(1)
        await call.text("wor")
        self.assertEqual(await bert.cancel(self.session), [{"run_id": run_id, "was": "active"}])
        await call.gone()
        for client in (self.anna, bert):
            seen = await client.events.wait_for(assistant, finish="canceled")
            self.assertEqual(seen["session_id"], self.session)
            await client.events.wait_for("run_complete", cancelled=True)
        await self.anna.events.never("agent_event")
        await bert.events.never("agent_event", quiet=0)

    async def test_021_idle_cancel_is_noop(self) -> None:
        """A cancel of an idle session does not affect the next prompt."""
        await self.start()
        self.assertEqual(await self.anna.cancel(self.session), [])
        done = await self.exchange("hello", "hi")
        self.assertEqual((done["text"], done["cancelled"]), ("hi", None))
        self.assertEqual((await self.shape())[-1], ("assistant", "end_turn", "hi"))

    async def test_023_cancel_active_and_accepted_followup(self) -> None:
        """One cancel ends the running turn and the prompt behind it, which is never sent to a
        model."""
        await self.start()
        await self.post("first", run_id="r1")
        call = await self.model.call(1)
        await self.post("second", run_id="r2")
        receipt = await self.anna.cancel(self.session, wait=20)
        self.assertEqual([entry["run_id"] for entry in receipt], ["r1", "r2"])
        await call.text("too late")
        await call.finish()
        for run_id in ("r1", "r2"):
            self.assertTrue((await self.complete(run_id))["cancelled"])
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "first"),
                ("assistant", "canceled", ""),
                ("user", "stop", "second"),
                ("assistant", "canceled", ""),
            ],
        )
        self.assertEqual(len(self.model.calls), 1)

    async def test_030_second_cancel_while_pending_idempotent(self) -> None:
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

    async def test_036_no_duplicate_user_message(self) -> None:
        """A cancel after the user message was written does not write it again."""
        await self.start()
        run_id = await self.post("hello")
        await self.model.call(1)
        self.assertEqual(await self.shape(), [("user", "stop", "hello")])
        await self.anna.cancel(self.session)
        await self.complete(run_id)
        self.assertEqual(
            await self.shape(), [("user", "stop", "hello"), ("assistant", "canceled", "")]
        )

    async def test_037_cancel_mid_text(self) -> None:
        """What was streamed before the cancel stays, in the message and in the run_complete."""
        await self.start()
        run_id = await self.post("hello")
        call = await self.model.call(1)
        await call.text("hel")
        await self.anna.events.wait_for(assistant, text="hel")
        await self.anna.cancel(self.session)
        done = await self.complete(run_id)
        self.assertEqual((done["cancelled"], done["text"]), (True, "hel"))
        self.assertEqual((await self.shape())[-1], ("assistant", "canceled", "hel"))

    async def test_040_cancel_during_tool(self) -> None:
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

    async def test_042_cancel_while_permission_open(self) -> None:
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

    async def test_047_cancel_isolated_per_session(self) -> None:
        """A cancel in one session does not affect the answer that streams in another."""
        await self.start()
        other = await self.anna.session()
        first = await self.post("one")
        call_one = await self.model.call(1)
        second = await self.post("two", other)
        call_two = await self.model.call(2)
        await self.anna.cancel(self.session)
        await call_one.gone()
        self.assertTrue((await self.complete(first))["cancelled"])
        await call_two.text("unharmed")
        await call_two.finish()
        done = await self.complete(second)
        self.assertEqual((done["text"], done["cancelled"]), ("unharmed", None))
        self.assertEqual((await self.shape(other))[-1], ("assistant", "end_turn", "unharmed"))

    async def test_050_cancel_after_completion(self) -> None:
        """A cancel after the end of a run changes nothing, and the next prompt runs."""
        await self.start()
        await self.exchange("one", "first")
        self.assertEqual(await self.anna.cancel(self.session), [])
        self.assertEqual((await self.exchange("two", "second"))["text"], "second")
        self.assertEqual(self.asked(2), [("user", "one"), ("assistant", "first"), ("user", "two")])


class QueueTests(CoderTestCase):
    async def at_the_gate(self) -> GateTool:
        """Start a turn with the prompt `main`, whose model has called a tool that is still
        running."""
        gate = GateTool()
        await self.start(tools=[gate])
        await self.post("main", run_id="main")
        call = await self.model.call(1)
        await call.text("wait ")
        await call.tool_call("c1", "gate", "{}")
        await call.finish()
        await gate.inside.acquire()
        return gate

    async def answer(self, number: int, text: str) -> None:
        call = await self.model.call(number)
        await call.text(text)
        await call.finish()

    async def test_055_queue_count_and_list(self) -> None:
        """Prompts that wait behind a turn are counted, and listed in the order of arrival."""
        await self.start()
        await self.post("main", run_id="r1")
        await self.model.call(1)
        await self.post("second", run_id="r2")
        await self.post("third", run_id="r3")
        self.assertEqual(await self.queue("queued"), 2)
        self.assertEqual(await self.queue("list"), ["second", "third"])
        await self.answer(1, "one")
        await self.model.call(2)
        self.assertEqual(await self.queue("list"), ["third"])
        await self.answer(2, "two")
        await self.answer(3, "three")
        texts = [(await self.complete(run_id))["text"] for run_id in ("r1", "r2", "r3")]
        self.assertEqual(texts, ["one", "two", "three"])
        self.assertEqual(await self.queue("queued"), 0)

    async def test_056_followup_folds_at_next_step(self) -> None:
        """A prompt that is sent while a tool runs is in the next request, after the tool's
        result."""
        gate = await self.at_the_gate()
        rider = await self.post("also this")
        gate.gate.set()
        await self.answer(2, "both done")
        first, second = await self.complete("main"), await self.complete(rider)
        call = "wait gate({})"
        self.assertEqual(
            self.asked(2),
            [
                ("user", "main"),
                ("assistant", call),
                ("tool", "the gate is open"),
                ("user", "also this"),
            ],
        )
        self.assertEqual(
            await self.shape(),
            [
                ("user", "stop", "main"),
                ("assistant", "tool_use", "wait "),
                ("tool", "stop", ""),
                ("user", "stop", "also this"),
                ("assistant", "end_turn", "both done"),
            ],
        )
        self.assertEqual((second["folded_into"], second["text"]), ("main", first["text"]))
        self.assertEqual(len(self.model.calls), 2)

    async def test_058_followup_without_more_steps_becomes_own_turn(self) -> None:
        """A prompt that is sent during the last step of a turn gets a turn of its own."""
        await self.start()
        main = await self.post("main")
        call = await self.model.call(1)
        later = await self.post("and then?")
        await call.text("plain")
        await call.finish()
        await self.answer(2, "more")
        self.assertEqual((await self.complete(main))["text"], "plain")
        done = await self.complete(later)
        self.assertEqual((done["text"], done["folded_into"]), ("more", None))
        self.assertEqual(
            self.asked(2), [("user", "main"), ("assistant", "plain"), ("user", "and then?")]
        )

    async def test_059_several_followups_fold_in_order(self) -> None:
        """Three prompts sent during one tool call reach the model and the store in their order."""
        gate = await self.at_the_gate()
        riders = [await self.post(text) for text in ("f1", "f2", "f3")]
        gate.gate.set()
        await self.answer(2, "all done")
        for run_id in ("main", *riders):
            self.assertEqual((await self.complete(run_id))["text"], "all done")
        self.assertEqual(self.asked(2)[-3:], [("user", "f1"), ("user", "f2"), ("user", "f3")])
        users = [text for role, _, text in await self.shape() if role == "user"]
        self.assertEqual(users, ["main", "f1", "f2", "f3"])

    async def test_060_runid_prompt_never_folds(self) -> None:
        """A prompt with a run_id is not folded into the running turn and gets its own answer."""
        gate = await self.at_the_gate()
        await self.post("mine", run_id="mine")
        gate.gate.set()
        await self.answer(2, "main is done")
        await self.answer(3, "and so is mine")
        self.assertNotIn(("user", "mine"), self.asked(2))
        self.assertEqual(self.asked(3)[-1], ("user", "mine"))
        self.assertEqual((await self.complete("main"))["text"], "main is done")
        self.assertEqual((await self.complete("mine"))["text"], "and so is mine")

    async def test_065_cancel_clears_queue_with_rc(self) -> None:
        """A cancel ends each waiting prompt once, with or without a run_id, and empties the
        queue."""
        await self.start()
        await self.post("main", run_id="main")
        await self.model.call(1)
        unnamed = await self.post("no id")
        await self.post("with id", run_id="r")
        self.assertEqual(await self.queue("queued"), 2)
        await self.anna.cancel(self.session, wait=20)
        for run_id in ("main", unnamed, "r"):
            self.assertTrue((await self.complete(run_id))["cancelled"])
        await self.anna.events.never(lambda event: assistant(event) and event.finish == "end_turn")
        self.assertEqual(len(self.anna.events.all("run_complete")), 3)
        self.assertEqual(await self.queue("queued"), 0)
        self.assertEqual(len(self.model.calls), 1)

    async def test_068_both_turns_publish_rc(self) -> None:
        """A turn and the one queued behind it both complete, with a message each."""
        await self.start()
        await self.post("first", run_id="r1")
        await self.model.call(1)
        await self.post("second", run_id="r2")
        await self.answer(1, "one")
        await self.answer(2, "two")
        endings = [await self.complete("r1"), await self.complete("r2")]
        self.assertEqual([(e["text"], e["error"]) for e in endings], [("one", None), ("two", None)])
        messages = [m for m in await self.anna.messages(self.session) if m["role"] == "assistant"]
        self.assertEqual([m["id"] for m in messages], [e["message_id"] for e in endings])

    async def test_077_same_runid_twice(self) -> None:
        """A repeated prompt is the same run, during it and after its end; another text with its
        run_id is refused."""
        await self.start()
        await self.post("hello", run_id="r")
        await self.model.call(1)
        await self.post("hello", run_id="r")
        other = await self.anna.try_prompt(self.session, "something else", run_id="r")
        self.assertEqual(other.status, 409)
        await self.answer(1, "hi")
        await self.complete("r")
        again = await self.anna.prompt(self.session, "hello", run_id="r")
        self.assertEqual(again.json["state"], "ended")
        await self.anna.events.never("agent_event", type="error")
        await self.complete("r")
        self.assertEqual(len(self.model.calls), 1)
        self.assertEqual(
            await self.shape(), [("user", "stop", "hello"), ("assistant", "end_turn", "hi")]
        )


class EndingTests(CoderTestCase):
    async def test_079_rc_success_shape(self) -> None:
        """The run_complete of a success names session, run and last message, holds the text of
        that, and neither an error nor a cancel."""
        await self.start()
        done = await self.exchange("hello", "hi")
        run_id = (await self.anna.call("GET", "/runs")).json[0]["run_id"]
        *_, last = await self.anna.messages(self.session)
        self.assertEqual(
            done.payload,
            {
                "session_id": self.session,
                "run_id": run_id,
                "message_id": last["id"],
                "text": "hi",
            },
        )
        (event,) = self.anna.events.all("agent_event")
        self.assertEqual((event["type"], event["session_id"]), ("agent_finished", self.session))

    async def test_080_rc_text_is_last_assistant(self) -> None:
        """After several steps the run_complete holds the text of the last message only."""
        await self.start(tools=[EchoTool()])
        run_id = await self.post("go")
        call = await self.model.call(1)
        await call.text("let me see")
        await call.tool_call("c1", "echo", "{}")
        await call.finish()
        call = await self.model.call(2)
        await call.text("seen")
        await call.finish()
        done = await self.complete(run_id)
        *_, last = await self.anna.messages(self.session)
        self.assertEqual((done["text"], done["message_id"]), ("seen", last["id"]))

    async def test_081_rc_cancel_shape(self) -> None:
        """The run_complete of a cancel says so, and names the message that it left."""
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

    async def failed(self, run_id: str) -> Seen:
        """The last message of a failed run, after checking that its run_complete, its record and
        its message agree."""
        done = await self.complete(run_id)
        (event,) = self.anna.events.all("agent_event", type="error")
        self.assertEqual((event["session_id"], event["run_id"]), (self.session, run_id))
        self.assertEqual(event["error"], done["error"])
        info = (await self.anna.call("GET", f"/runs/{run_id}")).json
        self.assertEqual((info["outcome"], info["error"]), ("failed", done["error"]))
        *_, last = await self.anna.messages(self.session)
        self.assertEqual((last.finish, last["id"]), ("error", done["message_id"]))
        details = last["parts"][-1]["data"]
        self.assertEqual(details["details"], done["error"])
        self.assertTrue(details["message"])
        return last

    async def test_085_error_event_has_run_id(self) -> None:
        """The error event of a refused request names session and run and quotes the provider."""
        await self.start()
        await self.post("hello", run_id="r")
        (await self.model.call(1)).error(400, "context_length_exceeded: too many words")
        last = await self.failed("r")
        self.assertIn("too many words", last["parts"][-1]["data"]["details"])
        self.assertEqual((len(self.model.calls), self.naps.slept), (1, []))

    async def test_086_provider_error_persisted(self) -> None:
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

    async def test_088_reauth_retry_single_rc(self) -> None:
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

    async def test_089_malformed_tool_json(self) -> None:
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

    async def test_090_loop_guard(self) -> None:
        """The sixth equal call with an equal result ends the turn; equal calls with different
        results do not."""

        def script(request: dict[str, Any]) -> list[Step]:
            steps = sum(message["role"] == "tool" for message in request["messages"])
            return [Say("enough"), End()] if steps >= 8 else [Use("echo", "{}"), End()]

        number = iter(range(100))
        same = EchoTool()
        await self.start(script=script, tools=[same])
        done = await self.complete(await self.post("go"))
        self.assertEqual((len(same.ran), len(self.model.calls)), (6, 6))
        self.assertEqual((done["error"], done["cancelled"]), (None, None))
        self.assertIn("same", done["text"])
        same.answer = lambda _: ToolOutcome(f"result {next(number)}")
        self.session = await self.anna.session()
        done = await self.complete(await self.post("go"))
        self.assertEqual((done["text"], len(same.ran)), ("enough", 6 + 8))

    async def test_091_orphan_tool_call_repaired(self) -> None:
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

    async def test_096_content_filter_and_max_tokens(self) -> None:
        """An answer that the provider's filter or limit cut has that finish reason, and is no
        error."""
        await self.start()
        for reason, finish in (("length", "max_tokens"), ("content_filter", "content_filter")):
            with self.subTest(reason):
                run_id = await self.post("hello")
                call = await self.model.call(len(self.model.calls) + 1)
                await call.text("cut")
                await call.finish(reason)
                done = await self.complete(run_id)
                self.assertEqual((done["text"], done["error"]), ("cut", None))
                self.assertEqual((await self.shape())[-1], ("assistant", finish, "cut"))

    async def test_098_teardown_waits_for_runs(self) -> None:
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
