"""What an external agent reports is in the transcript, and its quirks break no promise."""

from __future__ import annotations

import asyncio
import base64
import json

from crushlite.acp_agents.command import AgentCommand
from crushlite.acp_agents.failures import login_needed
from crushlite.testing.fake_clock import FakeClock
from tests.support.hosted import SECRET, HostedTestCase, is_alive, pass_time
from tests.support.prompts import until


class ReportTests(HostedTestCase):
    async def test_tool_calls_have_their_results_whatever_order_they_come_in(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "tools")
        self.assertEqual(done["text"], "one\n\ntwo")
        _, first, a, b, second, again, last = await client.messages(session)
        kinds = [part["type"] for part in first.payload["parts"]]
        self.assertEqual(kinds, ["reasoning", "tool_call", "tool_call", "text", "finish"])
        calls = [part["data"] for part in first.payload["parts"] if part["type"] == "tool_call"]
        self.assertEqual([call["name"] for call in calls], ["Bash", "read"])
        self.assertEqual(
            [json.loads(call["input"]) for call in calls], [{"command": "ls"}, {"title": "read"}]
        )
        self.assertEqual(first.text, "meanwhile")
        results = [each.payload["parts"][0]["data"] for each in (a, b, again)]
        self.assertEqual([each["content"] for each in results], ["A", "B", "changed /ws/f"])
        self.assertEqual([each["is_error"] for each in results], [False, True, False])
        self.assertEqual([each["tool_call_id"] for each in results[:2]], [c["id"] for c in calls])
        changed = json.loads(results[2]["metadata"])
        self.assertEqual((changed["file_path"], changed["new_content"]), ("/ws/f", "new"))
        self.assertEqual(second.finish, "tool_use")
        self.assertEqual(
            (last.text, last["model"], last["provider"]), ("one\n\ntwo", "quirky_agent.py", "acp")
        )

    async def test_a_plan_a_title_and_usage_are_those_of_the_session(self) -> None:
        client, session = await self.join(await self.host())
        await self.ask(client, session, "plan")
        for amount in ("0.5", "0.25"):  # it reports what everything has cost so far
            await self.ask(client, session, f"cost {amount}")
        found = (await client.call("GET", f"/sessions/{session}")).json
        self.assertEqual(found["title"], r"A title\x1b[2J of its own")
        states = [(todo["content"], todo["status"]) for todo in found["todos"]]
        self.assertEqual(
            states, [("first", "completed"), ("second", "in_progress"), ("third", "pending")]
        )
        self.assertEqual((found["prompt_tokens"], found["completion_tokens"]), (1000, 100))
        self.assertAlmostEqual(found["cost"], 0.75)

    async def test_a_title_that_the_user_has_chosen_stays(self) -> None:
        client, session = await self.join(await self.host())
        named = {"id": session, "title": "mine"}
        self.assertEqual((await client.call("PUT", f"/sessions/{session}", named)).status, 200)
        await self.ask(client, session, "plan")
        self.assertEqual((await client.call("GET", f"/sessions/{session}")).json["title"], "mine")

    async def test_attachments_are_sent_as_the_agent_takes_them(self) -> None:
        client, session = await self.join(await self.host())
        content = base64.b64encode("ä".encode()).decode()
        files = [
            {
                "content": content,
                "file_path": "/ws/a.txt",
                "file_name": "a.txt",
                "mime_type": "text/plain",
            },
            {"content": content, "file_name": "b.png", "mime_type": "image/png"},
        ]
        done = await self.ask(client, session, "blocks", attachments=files)
        _, text, image = json.loads(done["text"])
        self.assertEqual(
            (text["resource"]["uri"], text["resource"]["text"]), ("file:///ws/a.txt", "ä")
        )
        self.assertEqual((image["type"], image["data"]), ("image", content))

    async def test_how_the_agent_stopped_is_the_finish_of_the_answer(self) -> None:
        client, session = await self.join(await self.host())
        wanted = {
            "max_tokens": "max_tokens",
            "refusal": "content_filter",
            "max_turn_requests": "unknown",
        }
        for reason, finish in {**wanted, "end_turn": "end_turn", "cancelled": "end_turn"}.items():
            done = await self.ask(client, session, f"stop {reason}")
            self.assertFalse(done["error"])
            self.assertEqual((await client.messages(session))[-1].finish, finish, reason)

    async def test_a_limit_of_the_run_ends_the_turn_of_the_agent(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "cost 2", max_cost=1.0)
        self.assertIn("max_cost", done["error"])
        self.assertEqual((await self.ask(client, session, "say on"))["text"], "on")


class QuirkTests(HostedTestCase):
    async def test_noise_between_frames_and_unknown_messages_do_no_harm(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "noise")
        self.assertEqual((done["text"], done["error"]), ("after the noise\u2028\x85 -32601", None))

    async def test_what_is_said_between_two_turns_is_shown_with_the_next(self) -> None:
        client, session = await self.join(await self.host())
        await self.ask(client, session, "unsolicited")
        done = await self.ask(client, session, "say next")
        self.assertEqual(done["text"], "next")
        said = [message.text for message in await client.messages(session)]
        self.assertEqual("".join(said).count("by the way"), 1)

    async def test_sixteen_mebibytes_of_a_diff_are_hosted_and_kept_small(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "diff")
        self.assertIsNone(done["error"])
        messages = await client.messages(session)
        self.assertLess(len(json.dumps([each.payload for each in messages])), 300_000)

    async def test_an_error_is_told_in_visible_words_and_the_next_prompt_is_answered(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "fail")
        self.assertEqual(done["error"], r"quirky_agent.py failed: it broke (badly\x1b[1m)")
        self.assertEqual((await self.ask(client, session, "say on"))["text"], "on")

    async def test_an_error_is_told_without_the_secrets_of_the_environment(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "leak")
        self.assertEqual(done["error"], 'quirky_agent.py failed: no [secret] here (["[secret]"])')

    async def test_a_flood_is_cut_and_ends_as_it_should(self) -> None:
        client, session = await self.join(await self.host())
        done = await self.ask(client, session, "flood 11")
        self.assertIsNone(done["error"])
        self.assertIn("the rest of this turn is left out", done["text"][-200:])


class CancelTests(HostedTestCase):
    async def cancel(self, how: str, *switches: str) -> None:
        """A turn that is canceled ends so, and the next one is answered by the same process."""
        client, session = await self.join(await self.host(*switches))
        run_id = (await client.prompt(session, f"hang {how}".strip())).json["run_id"]
        await client.events.wait_for("message", text="begun")
        (hit,) = await client.cancel(session, wait=10)
        self.assertEqual(hit["run_id"], run_id)
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertTrue(ended["cancelled"])
        self.assertFalse(ended["error"])
        self.assertEqual((await client.messages(session))[-1].finish, "canceled")
        self.assertEqual((await self.ask(client, session, "say on"))["text"], "on")
        self.assertEqual(len(self.received("initialize")), 1)
        self.assertEqual(len(self.received("session/cancel")), 1)

    async def test_a_canceled_turn_ends_canceled(self) -> None:
        await self.cancel("")

    async def test_an_error_in_answer_to_a_cancel_is_a_cancel(self) -> None:
        await self.cancel("error")

    async def test_a_cancel_that_comes_too_late_does_not_hit_the_next_turn(self) -> None:
        await self.cancel("late")
        self.assertEqual(len(self.received("session/prompt")), 3)

    async def test_an_idle_agent_is_told_of_no_cancel(self) -> None:
        client, session = await self.join(await self.host())
        await self.ask(client, session, "say a")
        self.assertEqual(await client.cancel(session), [])
        self.assertEqual((await self.ask(client, session, "say b"))["text"], "b")
        self.assertEqual(self.received("session/cancel"), [])

    async def test_an_agent_that_ignores_a_cancel_is_killed_and_started_again(self) -> None:
        clock = FakeClock()
        client, session = await self.join(await self.host(clock=clock))
        pids = (await self.ask(client, session, "grandchild"))["text"].split()
        run_id = (await client.prompt(session, "hang silently")).json["run_id"]
        await client.events.wait_for("message", text="begun")
        canceling = asyncio.create_task(client.cancel(session, wait=20))
        await pass_time(clock, canceling)
        ended = await client.events.wait_for("run_complete", run_id=run_id)
        self.assertTrue(ended["cancelled"])
        await until(lambda: not any(map(is_alive, map(int, pids))), "it is dead")
        self.assertEqual((await self.ask(client, session, "say on"))["text"], "on")
        self.assertEqual(len(self.received("session/resume")), 1)

    async def test_an_agent_that_does_not_read_its_prompt_is_killed_as_soon(self) -> None:
        clock = FakeClock()
        client, session = await self.join(await self.host("--deaf", clock=clock))
        await client.prompt(session, "say " + "x" * 1_000_000)
        pid = await self.deaf()
        begun = clock.time()
        canceling = asyncio.create_task(client.cancel(session, wait=20))
        await pass_time(clock, canceling)
        self.assertEqual(len(await canceling), 1)
        self.assertLess(clock.time() - begun, 15)
        await until(lambda: not is_alive(pid), "it is dead")

    async def test_a_silent_turn_of_one_session_does_not_end_the_turn_of_another(self) -> None:
        clock = FakeClock()
        client, session = await self.join(await self.host(clock=clock))
        other = await client.session()
        pid, _ = map(int, (await self.ask(client, other, "grandchild"))["text"].split())
        await client.prompt(other, "hang")
        await client.events.wait_for("message", text="begun")
        await client.prompt(session, "hang silently")
        await client.events.wait_for("message", text="begun", session_id=session)
        await pass_time(clock, asyncio.create_task(client.cancel(session, wait=20)))
        self.assertTrue(await client.busy(other))
        self.assertEqual(
            (await self.ask(client, session, "say on"))["text"], "on"
        )  # in a new process
        self.assertTrue(is_alive(pid))
        await pass_time(clock, asyncio.create_task(client.cancel(other, wait=20)))
        await until(lambda: not is_alive(pid), "the first process has ended")


class EndTests(HostedTestCase):
    async def test_an_agent_that_does_not_read_its_prompt_fails_the_run_and_is_killed(self) -> None:
        clock = FakeClock()
        client, session = await self.join(await self.host("--deaf", clock=clock))
        asked = asyncio.create_task(self.ask(client, session, "say " + "x" * 1_000_000))
        pid = await self.deaf()
        await pass_time(clock, asked, 10)
        self.assertIn("the next prompt starts it again", (await asked)["error"])
        await until(lambda: not is_alive(pid), "it is dead")

    async def test_a_death_fails_the_run_with_the_last_words_and_the_next_prompt_goes_on(
        self,
    ) -> None:
        client, session = await self.join(await self.host())
        await self.ask(client, session, "say a")
        done = await self.ask(client, session, "die")
        self.assertEqual(done["text"], "my last")
        self.assertIn("has ended with code 3", done["error"])
        self.assertTrue(
            done["error"].endswith("first line\nfatal: key=[secret]\\x07"), done["error"]
        )
        self.assertNotIn(SECRET, done["error"])
        self.assertEqual((await self.ask(client, session, "say b"))["text"], "b")
        (resumed,) = self.received("session/resume")
        self.assertEqual(resumed["sessionId"], self.received("session/prompt")[0]["sessionId"])
        self.assertEqual(len(self.received("session/new")), 1)

    async def test_silence_at_the_start_fails_the_run_in_a_bounded_time(self) -> None:
        clock = FakeClock()
        client, session = await self.join(await self.host("--mute", clock=clock))
        asked = asyncio.create_task(self.ask(client, session, "say a"))
        await until(lambda: bool(self.received("initialize")), "it is asked")
        await pass_time(clock, asked, 10)
        self.assertIn("did not answer initialize within 60 seconds", (await asked)["error"])

    async def test_another_version_of_the_protocol_is_refused(self) -> None:
        client, session = await self.join(await self.host("--version", "2"))
        done = await self.ask(client, session, "say a")
        self.assertIn("speaks version 2 of ACP, not 1", done["error"])

    async def test_a_program_that_is_not_there_is_named(self) -> None:
        from crushlite.acp_agents.wing import AgentsWing
        from crushlite.clock import SystemClock
        from crushlite.testing import LocalDaemon

        make = AgentsWing().agent("acp:no-such-agent --acp", SystemClock())
        async with LocalDaemon(make) as daemon:
            client, session = await self.join(daemon)
            done = await self.ask(client, session, "hello")
        self.assertIn("no-such-agent could not be started: cannot run no-such-agent", done["error"])

    async def test_a_login_that_is_needed_is_said_with_the_command_to_type(self) -> None:
        client, session = await self.join(await self.host("--login"))
        done = await self.ask(client, session, "say a")
        self.assertIn("quirky_agent.py needs a login (Authentication required)", done["error"])
        self.assertRegex(done["error"], r"type `A=b \S*python.* login` in a terminal")
        self.assertNotIn("A variable", done["error"])

    def test_ways_to_log_in_that_are_not_as_they_should_be_are_passed_over(self) -> None:
        method = {"type": "terminal", "name": "here"}
        for args in (None, 5, True, "login", {"login": 1}, ["login", 5]):
            methods = [{**method, "args": args, "env": args}]
            said = login_needed(AgentCommand("a", ("a",)), methods, "").message
            wanted = "a login" if isinstance(args, list) else "a"
            self.assertIn(f"type `{wanted}` in a terminal", said.replace("login=1 ", ""))

    async def test_nothing_is_left_when_the_workspace_closes(self) -> None:
        daemon = await self.host()
        client, session = await self.join(daemon)
        pids = [int(pid) for pid in (await self.ask(client, session, "grandchild"))["text"].split()]
        self.assertEqual([is_alive(pid) for pid in pids], [True, True])
        await client.prompt(session, "hang")
        await client.events.wait_for("message", text="begun")
        await client.events.close()
        await client.release()
        await until(lambda: not any(map(is_alive, pids)), "nothing is left")
