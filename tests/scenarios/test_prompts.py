"""Scenarios of prompts: how they are accepted, what a cancel covers, how a teardown ends them.

The numbers are those of the catalogue in test_scenarios.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from typing import TYPE_CHECKING, Any

from crushlite.errors import WorkspaceClosing
from crushlite.http.client import ResponseTimeout
from crushlite.protocol.messages import Prompt
from crushlite.testing import LocalDaemon, ScriptedAgent, Seen
from tests.support.prompts import PATIENCE, PromptTestCase, gated, reach, shape, stubborn, until
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crushlite.agent.base import Turn
    from crushlite.testing import Participant

PAIR = [("user", "stop", "hello"), ("assistant", "canceled", "")]


class ReadyAgent(ScriptedAgent):
    """Its runs are parked before they enter, until it is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.getting_ready = asyncio.Event()
        self.is_ready = asyncio.Event()

    async def ready(self) -> None:
        self.getting_ready.set()
        await self.is_ready.wait()


def is_assistant(finish: str) -> Any:
    def matches(event: Seen) -> bool:
        return event.kind == "message" and event["role"] == "assistant" and event.finish == finish

    return matches


def is_error(event: Seen) -> bool:
    return event.kind == "agent_event" and event["type"] == "error"


async def complete(daemon: LocalDaemon, client: Participant, session: str, number: int) -> Seen:
    """Post a prompt, let the run with this number end, and return its run_complete."""
    posted = await client.prompt(session, "the next one")
    (await daemon.entered(number)).release()
    return await client.events.wait_for("run_complete", run_id=posted.json["run_id"])


class AcceptanceTests(PromptTestCase):
    @scenario(1)
    async def test_a_prompt_is_accepted_at_once_while_its_run_goes_on(self) -> None:
        """202 comes while the run is still blocked, and names the run."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            answer = await anna.prompt(session, "hello")
            run_id = answer.json["run_id"]
            self.assertEqual(answer.json["session_id"], session)
            self.assertEqual(answer.headers.get("Location"), f"{anna.base}/runs/{run_id}")
            run = await daemon.entered(1)
            self.assertTrue(await anna.busy(session))
            self.assertEqual(anna.events.all("run_complete"), [])
            run.release()
            await anna.events.wait_for("run_complete", run_id=run_id)
            self.assertFalse(await anna.busy(session))

    @scenario(2)
    async def test_a_prompt_for_an_unknown_workspace_is_404_and_publishes_nothing(self) -> None:
        """A prompt for a workspace that does not exist is 404 and nobody hears of it."""
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
            done = await complete(daemon, anna, await anna.session(), 1)
            self.assertEqual(done["error"], None)

    @scenario(4)
    async def test_an_empty_prompt_is_refused_and_leaves_nothing(self) -> None:
        """An empty prompt without a text attachment is 400 and leaves nothing behind."""
        image = {"file_name": "a.png", "mime_type": "image/png", "content": ""}
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            for fields in ({}, {"attachments": [image]}):
                answer = await anna.try_prompt(session, "", **fields)
                self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))
            self.assertFalse(await anna.busy(session))
            await anna.events.never("run_complete")
            self.assertEqual(await anna.messages(session), [])

    @scenario(5)
    async def test_a_prompt_without_a_known_session_is_refused_and_leaves_nothing(self) -> None:
        """A prompt that names no session is 400; one that names an unknown session is 404."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            answer = await anna.try_prompt("", "hello")
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_request"))
            answer = await anna.try_prompt("unknown", "hello", run_id="r")
            self.assertEqual((answer.status, answer.json["code"]), (404, "session_not_found"))
            self.assertEqual((await anna.call("GET", "/runs/r")).status, 404)
            await anna.events.never("run_complete")

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

    @scenario(8)
    async def test_a_workspace_that_closes_refuses_prompts_and_loses_no_session(self) -> None:
        """A workspace that is being torn down refuses prompts, and its session is not poisoned."""
        unwound = asyncio.Event()
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            workspace = daemon.backend.get(anna.workspace["id"])
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(stubborn(unwound))
            await anna.release()
            self.assertEqual((await anna.try_prompt(session, "late")).status, 404)
            with self.assertRaises(WorkspaceClosing) as refused:
                await workspace.runs.prompt(Prompt(session, "late"))
            self.assertEqual(refused.exception.status, 409)
            unwound.set()
            again = await daemon.join()
            self.assertEqual(shape(await again.messages(session)), PAIR)
            done = await complete(daemon, again, session, 2)
            self.assertEqual(done["cancelled"], None)

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

    @scenario(11)
    async def test_a_teardown_lasts_until_its_last_run_has_ended(self) -> None:
        """A teardown is not over while a run of it still unwinds, and is over right after."""
        unwound = asyncio.Event()
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            posted = await anna.prompt(session, "hello")
            run = await daemon.entered(1)
            run.begin(stubborn(unwound))
            await anna.release()
            returning = asyncio.create_task(daemon.join())
            await until(lambda: run.canceled or bool(daemon.backend._joining), "a create waits")
            for _ in range(50):
                await asyncio.sleep(0)
            self.assertFalse(returning.done())
            self.assertFalse(run.canceled)
            unwound.set()
            again = await returning
            self.assertTrue(run.canceled)
            self.assertEqual(await self.outcome(again, posted.json["run_id"]), "canceled")

    @scenario(12)
    async def test_a_client_that_gives_up_its_request_does_not_end_its_run(self) -> None:
        """A poster whose deadline passes, before or after the 202, does not take its run along."""
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

    @scenario(13)
    async def test_a_connection_reset_after_the_202_does_not_end_the_run(self) -> None:
        """The poster's connection is reset right after the 202: the run ends normally."""
        async with LocalDaemon(tcp=True, auth="none") as daemon:
            anna = await daemon.join()
            session = await anna.session()
            reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
            body = json.dumps({"session_id": session, "prompt": "hello", "run_id": "r"})
            head = f"POST {anna.base}/agent HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            async with asyncio.timeout(PATIENCE):
                self.assertIn(b" 202 ", await reader.readline())
            # Linger of zero: the kernel sends a reset instead of a farewell.
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            run = await daemon.entered(1)
            await run.say("still here")
            run.release()
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["text"], done["cancelled"]), ("still here", None))

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

    @scenario(16)
    async def test_two_sessions_run_at_the_same_time_and_end_independently(self) -> None:
        """Two sessions are inside the agent at once; the end of one leaves the other alone."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            first, second = await anna.session(), await anna.session()
            await anna.prompt(first, "hello", run_id="one")
            one = await daemon.entered(1)
            await anna.prompt(second, "hello", run_id="two")
            two = await daemon.entered(2)
            one.release()
            await anna.events.wait_for("run_complete", run_id="one")
            self.assertEqual((await anna.busy(first), await anna.busy(second)), (False, True))
            await two.say("on and on")
            two.release()
            done = await anna.events.wait_for("run_complete", run_id="two")
            self.assertEqual((done["text"], done["cancelled"]), ("on and on", None))

    @scenario(17)
    async def test_an_init_that_is_aborted_does_not_affect_a_later_prompt(self) -> None:
        """An init that is aborted right after it was sent does not spoil a later prompt."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            _, writer = await asyncio.open_unix_connection(str(daemon.socket))
            head = f"POST {anna.base}/agent/init HTTP/1.1\r\nHost: localhost\r\n"
            writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
            writer.transport.abort()
            done = await complete(daemon, anna, session, 1)
            self.assertEqual((done["error"], done["cancelled"]), (None, None))


class CancelTests(PromptTestCase):
    @scenario(19)
    async def test_a_cancel_by_another_client_is_no_error_for_either(self) -> None:
        """Another client's cancel shows as a canceled message to both, and as an error to none."""
        async with LocalDaemon() as daemon:
            anna, bert = await daemon.join(), await daemon.join()
            session = await anna.session()
            posted = await anna.prompt(session, "hello")
            await daemon.entered(1)
            receipt = await bert.cancel(session)
            self.assertEqual(receipt, [{"run_id": posted.json["run_id"], "was": "active"}])
            for client in (anna, bert):
                seen = await client.events.wait_for(is_assistant("canceled"))
                self.assertEqual(seen["session_id"], session)
                await client.events.wait_for("run_complete", cancelled=True)
            await anna.events.never("agent_event")
            await bert.events.never("agent_event", quiet=0)

    @scenario(20)
    async def test_a_cancel_before_the_agent_is_ready_ends_the_run_as_canceled(self) -> None:
        """A cancel that finds the run parked before its agent is not lost when it is let in."""
        agent = ReadyAgent()
        async with LocalDaemon(agent) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            await reach(agent.getting_ready)
            self.assertEqual(await anna.cancel(session), [{"run_id": "r", "was": "active"}])
            agent.is_ready.set()
            done = await anna.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["cancelled"], done["text"]), (True, None))
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            self.assertEqual(agent.runs, [])

    @scenario(21)
    async def test_a_cancel_of_an_idle_session_does_not_affect_the_next_prompt(self) -> None:
        """A cancel with nothing to cancel is answered 200 and does not reach the next prompt."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            self.assertEqual(await anna.cancel(session), [])
            done = await complete(daemon, anna, session, 1)
            self.assertEqual((done["cancelled"], done["error"]), (None, None))
            await anna.events.never(is_assistant("canceled"))

    @scenario(22)
    async def test_a_cancel_before_the_first_word_leaves_one_pair_and_no_error(self) -> None:
        """A cancel inside the turn, before it said anything, leaves one canceled pair, no error."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            await daemon.entered(1)
            self.assertEqual(len(await anna.messages(session)), 1)
            await anna.cancel(session, wait=PATIENCE)
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            await anna.events.never(is_error)

    @scenario(23)
    async def test_one_cancel_ends_the_active_run_and_the_one_queued_behind_it(self) -> None:
        """One cancel ends the running prompt and the one behind it, whatever is released then."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            run = await daemon.entered(1)
            await anna.prompt(session, "hello", run_id="two")
            receipt = await anna.cancel(session)
            self.assertEqual([hit["run_id"] for hit in receipt], ["one", "two"])
            run.release()
            for run_id in ("one", "two"):
                done = await anna.events.wait_for("run_complete", run_id=run_id)
                self.assertEqual(done["cancelled"], True)
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)
            self.assertEqual(len(daemon.agent.runs), 1)
            await anna.events.never(is_assistant("end_turn"))

    @scenario(24)
    async def test_a_cancel_during_the_commit_of_a_prompt_ends_it_before_it_starts(self) -> None:
        """A cancel while the prompt's own row is being committed: one pair, and nothing waits."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            self.assertEqual(await anna.cancel(session), [{"run_id": "r", "was": "accepted"}])
            gate.open()
            await posting
            self.assertEqual(await self.outcome(anna, "r"), "canceled")
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            self.assertFalse(await anna.busy(session))
            self.assertEqual(daemon.agent.runs, [])

    @scenario(25)
    async def test_a_prompt_canceled_before_its_turn_is_stored_and_the_next_one_runs(self) -> None:
        """A prompt canceled before its turn keeps its words, and nothing of the cancel is left."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            await anna.cancel(session)
            gate.open()
            await posting
            await anna.events.wait_for("run_complete", run_id="r", cancelled=True)
            self.assertEqual(await anna.cancel(session), [])
            done = await complete(daemon, anna, session, 1)
            self.assertEqual(done["cancelled"], None)
            self.assertEqual(shape(await anna.messages(session))[:2], PAIR)
            listed = (await anna.call("GET", "/runs")).json
            self.assertEqual([run["outcome"] for run in listed], ["canceled", "completed"])

    @scenario(26)
    async def test_a_prompt_canceled_before_its_turn_has_exactly_one_run_complete(self) -> None:
        """Such a prompt ends with exactly one run_complete, which names the message it left."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            await anna.cancel(session)
            gate.open()
            await posting
            done = await anna.events.wait_for("run_complete")
            messages = await anna.messages(session)
            self.assertEqual(done["message_id"], messages[1]["id"])
            self.assertEqual((done["cancelled"], done["error"]), (True, None))
            await anna.events.never("agent_event")
            self.assert_ended_once(anna.events, "r")

    @scenario(28)
    async def test_one_cancel_ends_two_prompts_that_are_not_committed_yet(self) -> None:
        """Two prompts accepted and not yet promised, one cancel: two pairs, in order, no queue."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            first = asyncio.create_task(anna.prompt(session, "hello", run_id="one"))
            await gate.reached()
            second = asyncio.create_task(anna.prompt(session, "hello", run_id="two"))
            runs = daemon.backend.get(anna.workspace["id"]).runs
            await until(lambda: len(runs.queue(session)) == 1, "both are in line")
            receipt = await anna.cancel(session)
            self.assertEqual([(hit["run_id"], hit["was"]) for hit in receipt],
                             [("one", "accepted"), ("two", "queued")])  # fmt: skip
            gate.open()
            await asyncio.gather(first, second)
            for run_id in ("one", "two"):
                await anna.events.wait_for("run_complete", run_id=run_id, cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)
            queued = await anna.call("GET", f"/agent/sessions/{session}/prompts/queued")
            self.assertEqual(queued.json, 0)
            self.assertEqual(daemon.agent.runs, [])

    @scenario(30)
    async def test_a_second_cancel_changes_nothing_and_the_next_prompt_runs(self) -> None:
        """A second cancel of the same prompt lists it again and changes nothing."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="r"))
            await gate.reached()
            self.assertEqual(await anna.cancel(session), await anna.cancel(session))
            gate.open()
            await posting
            await anna.events.wait_for("run_complete", run_id="r", cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            done = await complete(daemon, anna, session, 1)
            self.assertEqual(done["cancelled"], None)
            self.assert_ended_once(anna.events, "r", done["run_id"])

    @scenario(32)
    async def test_a_cancel_does_not_reach_prompts_that_are_accepted_after_it(self) -> None:
        """A cancel leaves no mark: prompts after it, and after a normal end, are not touched."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            await daemon.entered(1)
            await anna.cancel(session)
            # Posted while the canceled turn may still unwind: accepted after, so not covered.
            for number in (2, 3):
                done = await complete(daemon, anna, session, number)
                self.assertEqual(done["cancelled"], None)
            self.assertEqual(await self.outcome(anna, "r"), "canceled")

    @scenario(33)
    async def test_the_count_of_waiting_prompts_is_exact(self) -> None:
        """Counts follow what is really there, one by one, and repeated endings take nothing off."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            prompts = f"/agent/sessions/{session}/prompts"
            for number in range(3):
                await anna.prompt(session, "hello", run_id=f"r{number}")
            for waiting in (2, 1, 0):
                run = await daemon.entered(3 - waiting)
                self.assertEqual((await anna.call("GET", f"{prompts}/queued")).json, waiting)
                self.assertTrue(await anna.busy(session))
                run.release()
                run.release()
                await anna.events.wait_for("run_complete")
            for _ in range(3):
                self.assertEqual((await anna.call("POST", f"{prompts}/clear")).status, 200)
                self.assertEqual(await anna.cancel(session), [])
            self.assertEqual((await anna.call("GET", f"{prompts}/queued")).json, 0)
            self.assertFalse(await anna.busy(session))
            self.assert_ended_once(anna.events, "r0", "r1", "r2")

    @scenario(34)
    async def test_one_cancel_ends_the_active_run_and_one_that_is_not_committed_yet(self) -> None:
        """One cancel reaches the active run and one whose row is not committed yet."""
        async with gated() as (daemon, gate):
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            run = await daemon.entered(1)
            gate.shut()
            posting = asyncio.create_task(anna.prompt(session, "hello", run_id="two"))
            await gate.reached()
            receipt = await anna.cancel(session)
            self.assertEqual([(hit["run_id"], hit["was"]) for hit in receipt],
                             [("one", "active"), ("two", "queued")])  # fmt: skip
            await until(lambda: run.canceled, "the agent is told at once, whatever the store does")
            gate.open()
            await posting
            for run_id in ("one", "two"):
                self.assertEqual(await self.outcome(anna, run_id), "canceled")
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)
            self.assertEqual(len(daemon.agent.runs), 1)

    @scenario(35)
    async def test_a_teardown_stores_the_canceled_pair_of_a_prompt_that_never_started(self) -> None:
        """A teardown ends a prompt that never started, and its pair is written all the same."""
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="one")
            await daemon.entered(1)
            await anna.prompt(session, "hello", run_id="two")
            await anna.release()
            again = await daemon.join()
            self.assertEqual(shape(await again.messages(session)), PAIR * 2)
            for run_id in ("one", "two"):
                self.assertEqual(await self.outcome(again, run_id), "canceled")

    @scenario(36)
    async def test_a_cancel_does_not_write_the_user_message_again(self) -> None:
        """A cancel after the user message was written adds the assistant's, not a second user's."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            await anna.events.wait_for("message", role="user")
            await anna.cancel(session, wait=PATIENCE)
            self.assertEqual(shape(await anna.messages(session)), PAIR)
            await anna.events.wait_for("run_complete")
            created = anna.events.all("message", action="created")
            self.assertEqual([event["role"] for event in created], ["user", "assistant"])

    @scenario(37)
    async def test_what_was_streamed_before_a_cancel_is_kept(self) -> None:
        """What was streamed before the cancel stays, in the message and in run_complete."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            await (await daemon.entered(1)).say("hel")
            await anna.cancel(session)
            done = await anna.events.wait_for("run_complete")
            self.assertEqual((done["text"], done["cancelled"]), ("hel", True))
            expected = [PAIR[0], ("assistant", "canceled", "hel")]
            self.assertEqual(shape(await anna.messages(session)), expected)

    @scenario(40)
    async def test_a_cancel_stops_the_running_tool_and_closes_its_call(self) -> None:
        """A running tool is stopped by the cancel and its call gets an error result."""
        stopped = asyncio.Event()

        async def tool(turn: Turn) -> None:
            await turn.tool_call("bash", '{"command":"sleep"}', id="call")
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(tool)
            await anna.events.wait_for("message", role="assistant", action="updated")
            await anna.cancel(session, wait=PATIENCE)
            self.assertTrue(stopped.is_set())
            messages = await anna.messages(session)
            self.assert_valid_history(messages)
            result = messages[-1]["parts"][0]["data"]
            self.assertEqual((result["tool_call_id"], result["is_error"]), ("call", True))
            self.assertIn("user cancelled", result["content"])
            self.assertFalse(await anna.busy(session))

    @scenario(42)
    async def test_a_cancel_closes_the_open_permission_and_later_grants_do_nothing(self) -> None:
        """A cancel closes the open dialog everywhere; a grant that comes later decides nothing."""
        allowed: list[bool] = []

        async def ask(turn: Turn) -> None:
            allowed.append(bool(await turn.permission("bash", "execute", tool_call_id="call")))

        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(ask)
            request = await anna.events.wait_for("permission_request")
            await anna.cancel(session, wait=PATIENCE)
            closed = await anna.events.wait_for("permission_notification", denied=True)
            self.assertEqual(closed["tool_call_id"], "call")
            self.assertFalse(await anna.grant(request.payload))
            self.assertEqual((await anna.call("GET", "/permissions")).json, [])
            self.assertEqual(allowed, [])
            self.assertEqual(shape(await anna.messages(session)), PAIR)

    @scenario(46)
    async def test_a_cancel_of_an_unknown_session_is_200_of_a_workspace_404(self) -> None:
        """Canceling what does not exist is 200 for a session and 404 for a workspace."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            self.assertEqual(await anna.cancel("unknown"), [])
            answer = await daemon.call("POST", "/v1/workspaces/nowhere/agent/sessions/s/cancel")
            self.assertEqual((answer.status, answer.json["code"]), (404, "workspace_not_found"))
            await anna.events.never(lambda event: True)

    @scenario(47)
    async def test_a_cancel_in_one_session_does_not_affect_another(self) -> None:
        """A cancel of one session leaves the turn of another alone."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            first, second = await anna.session(), await anna.session()
            await anna.prompt(first, "hello", run_id="one")
            await daemon.entered(1)
            await anna.prompt(second, "hello", run_id="two")
            other = await daemon.entered(2)
            receipt = await anna.cancel(first, wait=PATIENCE)
            self.assertEqual([hit["run_id"] for hit in receipt], ["one"])
            await other.say("untouched")
            other.release()
            done = await anna.events.wait_for("run_complete", run_id="two")
            self.assertEqual((done["text"], done["cancelled"]), ("untouched", None))

    @scenario(50)
    async def test_a_cancel_after_the_end_of_a_run_changes_nothing(self) -> None:
        """A cancel after the end changes neither that end nor the next prompt."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            first = await complete(daemon, anna, session, 1)
            self.assertEqual(await anna.cancel(session), [])
            self.assertEqual(await self.outcome(anna, first["run_id"]), "completed")
            second = await complete(daemon, anna, session, 2)
            self.assertEqual((first["cancelled"], second["cancelled"]), (None, None))
            self.assert_ended_once(anna.events, first["run_id"], second["run_id"])

    @scenario(53)
    async def test_a_run_that_finishes_while_it_is_canceled_has_been_canceled(self) -> None:
        """A run that is both released and canceled has been canceled, in either order."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            session = await anna.session()
            runs = daemon.backend.get(anna.workspace["id"]).runs
            for number, order in enumerate(("release", "cancel"), 1):
                await anna.prompt(session, "hello", run_id=order)
                run = await daemon.entered(number)
                if order == "release":
                    run.release()
                receipt, _ = runs.cancel(session)
                run.release()
                self.assertEqual([hit.run_id for hit in receipt.canceled], [order])
                await anna.events.wait_for("run_complete", run_id=order, cancelled=True)
            self.assertEqual(shape(await anna.messages(session)), PAIR * 2)


class TeardownTests(PromptTestCase):
    @scenario(98)
    async def test_a_teardown_waits_for_what_a_canceled_run_still_writes(self) -> None:
        """What a run writes while it is being stopped by a teardown still reaches the database."""
        stopping = asyncio.Event()

        async def slow_to_stop(turn: Turn) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await stopping.wait()
                await turn.say("cleaned up")
                raise

        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            await anna.prompt(session, "hello")
            (await daemon.entered(1)).begin(slow_to_stop)
            with self.assertNoLogs("crushlite", "WARNING"):
                await anna.release()
                self.assertEqual((await anna.call("GET", "")).status, 404)
                returning = asyncio.create_task(daemon.join())
                stopping.set()
                again = await returning
            expected = [PAIR[0], ("assistant", "canceled", "cleaned up")]
            self.assertEqual(shape(await again.messages(session)), expected)

    @scenario(103)
    async def test_a_prompt_sent_during_a_teardown_is_refused_or_ends_as_canceled(self) -> None:
        """Around a teardown a prompt is promised and ends, or is refused: nothing in between."""
        async with LocalDaemon() as daemon:
            anna = await daemon.create()
            session = await anna.session()
            posts = [
                asyncio.create_task(anna.try_prompt(session, "hello", run_id=f"r{number}"))
                for number in range(5)
            ]
            await posts[0]
            leaving = asyncio.create_task(anna.release())
            posts += [
                asyncio.create_task(anna.try_prompt(session, "hello", run_id=f"r{number}"))
                for number in range(5, 10)
            ]
            await leaving
            posts.append(asyncio.create_task(anna.try_prompt(session, "hello", run_id="r10")))
            statuses = [(await post).status for post in posts]
            self.assertLessEqual(set(statuses), {202, 404, 409})
            self.assertEqual((statuses[0], statuses[-1]), (202, 404))
            again = await daemon.join()
            for number, status in enumerate(statuses):
                if status == 202:
                    self.assertEqual(await self.outcome(again, f"r{number}"), "canceled")
                else:
                    self.assertEqual((await again.call("GET", f"/runs/r{number}")).status, 404)
            promised = statuses.count(202)
            self.assertEqual(shape(await again.messages(session)), PAIR * promised)

    @scenario(132)
    async def test_a_run_outlives_its_poster_while_another_client_is_attached(self) -> None:
        """The poster retires while another client watches: the run goes on to its normal end."""
        async with LocalDaemon() as daemon:
            anna, bert = await daemon.join(), await daemon.join()
            session = await anna.session()
            await anna.prompt(session, "hello", run_id="r")
            run = await daemon.entered(1)
            await anna.events.close()
            self.assertEqual(await anna.retire(), 200)
            await run.say("for those who stayed")
            run.release()
            await bert.events.wait_for(is_assistant("end_turn"))
            done = await bert.events.wait_for("run_complete", run_id="r")
            self.assertEqual((done["text"], done["cancelled"]), ("for those who stayed", None))


# Scenarios of these sections that left nothing to observe here: (number, name, reason).
NOT_APPLICABLE: tuple[tuple[int, str, str], ...] = ()
