"""How prompts are accepted or refused, and that a run does not depend on the connection that posted
it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from typing import TYPE_CHECKING, Any

from crushlite.http.client import ResponseTimeout
from crushlite.testing import LocalDaemon, ScriptedAgent
from tests.support.agents import ForEveryAgent, ScriptedTestCase
from tests.support.prompts import PATIENCE, PromptTestCase, gated, is_assistant
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class PromptScenarios(ForEveryAgent):
    @scenario(1)
    async def test_a_prompt_is_accepted_at_once_while_its_run_goes_on(self) -> None:
        """202 comes before the agent has answered anything, and names the run."""
        await self.start()
        answer = await self.anna.prompt(self.session, "hello")
        run_id = answer.json["run_id"]
        self.assertEqual(answer.json["session_id"], self.session)
        self.assertEqual(answer.headers.get("Location"), f"{self.anna.base}/runs/{run_id}")
        turn = await self.turn(1)
        self.assertTrue(turn.open)
        self.assertTrue(await self.anna.busy(self.session))
        self.assertEqual(self.anna.events.all("run_complete"), [])
        await turn.say("hi")
        await turn.end()
        self.assertEqual((await self.complete(run_id))["text"], "hi")
        self.assertFalse(await self.anna.busy(self.session))

    async def assert_left_nothing(self) -> None:
        await self.anna.events.never("run_complete")
        self.assertEqual(await self.shape(), [])
        self.assertFalse(await self.anna.busy(self.session))
        self.assert_asked(turns=0)

    @scenario(4)
    async def test_an_empty_prompt_is_refused_and_leaves_nothing(self) -> None:
        """A prompt needs a text or a text file; an image alone is none."""
        await self.start()
        image = {"file_name": "a.png", "mime_type": "image/png", "content": ""}
        for fields in ({}, {"attachments": [image]}):
            answer = await self.anna.try_prompt(self.session, "", **fields)
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))
        await self.assert_left_nothing()

    @scenario(5)
    async def test_a_prompt_without_a_known_session_is_refused_and_leaves_nothing(self) -> None:
        """A prompt that names no session is 400; one that names an unknown session is 404."""
        await self.start()
        answer = await self.anna.try_prompt("", "hello")
        self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))
        answer = await self.anna.try_prompt("unknown", "hello", run_id="r")
        self.assertEqual((answer.status, answer.json["code"]), (404, "session_not_found"))
        self.assertEqual((await self.anna.call("GET", "/runs/r")).status, 404)
        await self.assert_left_nothing()

    @scenario(13)
    async def test_a_connection_reset_after_the_202_does_not_end_the_run(self) -> None:
        """The client's connection is reset in the middle of the answer, and the run ends
        normally."""
        await self.start(tcp=True)
        port = self.daemon.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"session_id": self.session, "prompt": "hello", "run_id": "r"})
        head = f"POST {self.anna.base}/agent HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(PATIENCE):
            self.assertIn(b" 202 ", await reader.readline())
        turn = await self.turn(1)
        await turn.say("still ")
        # With a linger of zero, the kernel sends a reset instead of a FIN.
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await turn.say("here")
        await turn.end()
        done = await self.complete("r")
        self.assertEqual((done["text"], done["cancelled"]), ("still here", None))

    @scenario(16)
    async def test_two_sessions_run_at_the_same_time_and_end_independently(self) -> None:
        await self.start()
        other = await self.anna.session()
        first = await self.post("one")
        one = await self.turn(1)
        second = await self.post("two", other)
        two = await self.turn(2)
        self.assertTrue(one.open and two.open)
        await two.say("second ")
        await one.say("first")
        await one.end()
        done = await self.complete(first)
        self.assertEqual((done["text"], done["cancelled"]), ("first", None))
        self.assertTrue(two.open)
        busy = [await self.anna.busy(session) for session in (self.session, other)]
        self.assertEqual(busy, [False, True])
        await two.say("answer")
        await two.end()
        done = await self.complete(second)
        self.assertEqual((done["text"], done["cancelled"]), ("second answer", None))

    @scenario(17)
    async def test_an_init_that_is_aborted_does_not_affect_a_later_prompt(self) -> None:
        await self.start()
        _, writer = await asyncio.open_unix_connection(str(self.daemon.socket))
        head = f"POST {self.anna.base}/agent/init HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
        writer.transport.abort()
        run_id = await self.post("hello")
        await self.answer(1, "hi")
        done = await self.complete(run_id)
        self.assertEqual((done["text"], done["error"], done["cancelled"]), ("hi", None, None))


class ScriptedPromptTests(PromptScenarios, ScriptedTestCase):
    pass


class AcceptanceTests(PromptTestCase):
    @scenario(2)
    async def test_a_prompt_for_an_unknown_workspace_is_404_and_publishes_nothing(self) -> None:
        """No event, and no message in a session that another workspace has."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            body = {"session_id": session, "prompt": "hello"}
            answer = await daemon.call("POST", "/v1/workspaces/nowhere/agent", body)
            self.assertEqual((answer.status, answer.json["code"]), (404, "workspace_not_found"))
            await anna.events.never(lambda event: event.kind != "session")
            self.assertEqual(await anna.messages(session), [])

    @scenario(3)
    async def test_a_prompt_without_an_agent_is_refused_and_with_one_needs_no_init(self) -> None:
        """Without an agent a prompt is 400; with one it runs right after create, without init."""
        agent, ready = ScriptedAgent(), False

        def agents(path: Path, env: Mapping[str, str], config: Any) -> ScriptedAgent | None:
            return agent if ready else None

        async with LocalDaemon(agents) as daemon:
            daemon.agent = agent
            bare = await daemon.join(daemon.root)
            answer = await bare.try_prompt(await bare.session(), "hello")
            self.assertEqual((answer.status, answer.json["code"]), (400, "no_agent"))
            self.assertEqual((await bare.call("GET", "/agent")).json["is_ready"], False)
            ready = True
            anna = await daemon.join()
            self.assertEqual((await anna.call("GET", "/agent")).json["is_ready"], True)
            done = await self.complete(daemon, anna, await anna.session(), 1)
            self.assertEqual(done["error"], None)

    @scenario(6)
    async def test_a_text_file_alone_is_a_prompt(self) -> None:
        """A text file may stand for the prompt, and its text reaches the agent and the record."""
        content = base64.b64encode(b"what the file says").decode()
        notes = {"file_name": "n.txt", "mime_type": "text/plain", "content": content}
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "", attachments=[notes])
            run = await daemon.entered(1)
            self.assertEqual(run.turn.attachments[0].decoded(), b"what the file says")
            run.release()
            await anna.events.wait_for("run_complete")
            stored = [
                p for p in (await anna.messages(session))[0]["parts"] if p["type"] == "binary"
            ]
            self.assertEqual(stored[0]["data"]["Data"], content)

    @scenario(9)
    async def test_a_body_that_is_no_valid_prompt_is_refused_and_accepts_nothing(self) -> None:
        """A body that is no JSON object is 400 with a message, and nothing was accepted."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            for body in (b"{", b"", b"[]", b'{"prompt": 5}', b'{"prompt":"a","prompt":"b"}'):
                with self.subTest(body=body):
                    answer = await anna.call("POST", "/agent", body)
                    self.assertEqual(answer.status, 400)
                    self.assertTrue(answer.json["message"])
            self.assertEqual((await anna.call("GET", "/runs")).json, [])
            self.assertFalse(await anna.busy(session))

    @scenario(12)
    async def test_a_client_that_gives_up_its_request_does_not_end_its_run(self) -> None:
        """Whether its deadline passes before or after the 202."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(None) as deadline:
                    await anna.prompt(session, "hello", run_id="answered")
                    deadline.reschedule(0)
                    await asyncio.Event().wait()
            gate.shut()
            body = json.dumps({"session_id": session, "prompt": "hello", "run_id": "unanswered"})
            posting = asyncio.create_task(
                daemon.http.request("POST", f"{anna.base}/agent", body=body.encode(), timeout=0.5)
            )
            await gate.reached()
            with self.assertRaises(ResponseTimeout):
                await posting
            gate.open()
            for number, run_id in enumerate(("answered", "unanswered"), 1):
                (await daemon.entered(number)).release()
                await anna.events.wait_for(is_assistant("end_turn"))
                done = await anna.events.wait_for("run_complete", run_id=run_id)
                self.assertEqual(done["cancelled"], None)

    @scenario(15)
    async def test_prompts_sent_at_once_run_one_at_a_time_and_are_all_stored(self) -> None:
        """Eight prompts at once on an idle session run one at a time, and all are stored."""
        agent = ScriptedAgent(auto=True)
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            texts = [f"prompt {number}" for number in range(8)]
            answers = await asyncio.gather(*(anna.prompt(session, text) for text in texts))
            for answer in answers:
                await self.outcome(anna, answer.json["run_id"])
            self.assertEqual(agent.most_concurrent, 1)
            users = [m.text for m in await anna.messages(session) if m["role"] == "user"]
            self.assertEqual(sorted(users), texts)
