"""The mistakes of a server that hurt the Crush client most, one test each, the worst first."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

from crushlite.agent.factory import agent_factory
from crushlite.fake_model import End, Say, Think, Use, Wait
from crushlite.settings import Settings
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import LIMIT
from tests.support.configured import until, use
from tests.support.crush import Run, Tui, WireCase, parts_of, text_of
from tests.support.go import GoClient, Refused
from tests.support.gojson import (
    AGENT_INFO,
    CONFIG,
    FILE,
    MESSAGE,
    PARAMS,
    PARTS,
    SESSION,
    WORKSPACE,
    List,
    check_config,
)
from tests.support.http import streams_of

if TYPE_CHECKING:
    from crushlite.agent.base import AgentFactory, Turn
    from crushlite.clock import Clock


class Case(WireCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna = await self.tui()

    async def turn(self, text: str) -> Any:
        await self.anna.send(text)
        return await self.anna.events.wait_for("run_complete")

    async def messages(self) -> list[Any]:
        path = f"/sessions/{self.anna.session}/messages"
        return list(await self.anna.get(path, List(MESSAGE)))

    async def refused(self, method: str, path: str, body: Any = None) -> int:
        try:
            await self.anna.call(method, path, body)
        except Refused as error:
            return error.status
        return 200


class ConfiguredTests(Case):
    async def test_01_no_answer_makes_the_client_panic(self) -> None:
        (self.project / "crush.json").write_text('{"options": null, "providers": null}')
        other = self.root / "other"
        other.mkdir()
        (other / "crush.json").write_text('{"options": {"tui": null}, "models": null}')
        self.anna._wanted["path"] = str(other)
        await self.anna.create()
        await self.anna.refresh()
        check_config(await self.anna.get("/config", CONFIG), tui=True)
        listed = await self.anna.call("GET", "/v1/workspaces", None, List(WORKSPACE))
        self.assertEqual(len(listed), 2)
        for workspace in listed:
            check_config(workspace["config"], tui=True)

    async def test_02_a_prompt_is_202_and_all_else_exactly_200(self) -> None:
        session = (await self.anna.new_session("one"))["id"]
        body = {"session_id": session, "prompt": "hi"}
        await self.anna.call("POST", f"{self.anna.base}/agent", body, statuses=(202,))
        await self.anna.events.wait_for("run_complete")
        queue = f"/agent/sessions/{session}"
        for method, path, content in (
            ("GET", "/v1/health", None),
            ("POST", "/agent/init", {"interactive": True}),
            ("POST", "/agent/update", None),
            ("POST", f"/current-session?client_id={self.anna.id}", {"session_id": ""}),
            ("POST", f"{queue}/cancel", None),
            ("POST", f"{queue}/prompts/clear", None),
            ("POST", f"{queue}/summarize", None),
            ("POST", "/permissions/skip", {"skip": False}),
            ("POST", "/filetracker/read", {"session_id": session, "path": "/a"}),
            ("POST", "/lsps/start", {"path": "/a"}),
            ("POST", "/lsps/stop", None),
            ("POST", "/project/init", None),
            ("POST", "/config/set", {"scope": 0, "key": "options.notifications", "value": "off"}),
            ("POST", "/config/remove", {"scope": 0, "key": "options.notifications"}),
            ("POST", "/config/compact", {"scope": 0, "enabled": True}),
            ("POST", "/mcp/refresh-tools", {"name": "srv"}),
            ("POST", "/mcp/refresh-prompts", {"name": "srv"}),
            ("POST", "/mcp/refresh-resources", {"name": "srv"}),
            ("DELETE", f"/sessions/{session}", None),
            ("DELETE", f"/v1/clients/{self.anna.id}", None),
        ):
            with self.subTest(path):
                target = path if path.startswith("/v1") else self.anna.base + path
                self.assertEqual(await self.refused(method, target, content), 200)

    async def test_03_run_complete_carries_what_run_prints(self) -> None:
        run = self.run_program()
        ended = await run.main("hi")
        [complete] = run.events.all("run_complete", action="updated", run_id=run.run_id)
        self.assertTrue(complete["message_id"])
        self.assertEqual(ended.out, complete["text"] + "\n")
        listed = await self.anna.get(f"/sessions/{run.session['id']}/messages", List(MESSAGE))
        self.assertEqual(
            (listed[-1]["id"], text_of(listed[-1])), (complete["message_id"], complete["text"])
        )

    async def test_04_what_happens_after_the_headers_is_on_the_stream(self) -> None:
        for _ in range(10):
            client = Run(self.tcp, self.project, self.env)
            await client.create()
            await client.subscribe()
            made = await self.anna.new_session("just now")
            await client.events.wait_for("session", action="created", id=made["id"])
            await client.goodbye()
            await client.transport.close()

    async def test_05_a_stream_ends_without_a_cut_framing(self) -> None:
        ben = await self.tui(self.unix)
        await self.turn("hi")
        for tui in (self.anna, ben):
            self.assertEqual(tui.events.reply.framing, "close")
        await self.daemon.stop()
        for tui in (self.anna, ben):
            await tui.events.end()

    async def test_06_404_means_gone_and_nothing_else(self) -> None:
        unknown = f"/v1/workspaces/{uuid.uuid4()}"
        for path in ("", "/agent", f"/events?client_id={self.anna.id}"):
            self.assertEqual(await self.refused("GET", unknown + path), 404)
        self.assertEqual(await self.refused("DELETE", f"/v1/clients/{uuid.uuid4()}"), 200)
        self.assertEqual(await self.refused("DELETE", f"{unknown}?client_id={self.anna.id}"), 200)
        path = f"{self.anna.base}/current-session?client_id={uuid.uuid4()}"
        self.assertEqual(await self.refused("POST", path, {"session_id": ""}), 409)

    async def test_07_every_kind_of_part_is_one_the_client_knows(self) -> None:
        self.plan = [
            [
                Think("hm"),
                Say("I look."),
                Use("bash", '{"command": "ls", "description": "d"}'),
                End(),
            ]
        ]
        picture = {"content": base64.b64encode(b"\x89PNG").decode(), "mime_type": "image/png"}
        await self.anna.send("hi", [picture | {"file_path": "a.png", "file_name": "a.png"}])
        await self.anna.events.wait_for("run_complete")
        body = {"session_id": "", "command": "true", "term_width": 80}
        await self.anna.post(f"/agent/sessions/{self.anna.session}/shell", body)
        messages = await self.messages()
        kinds = {tag for message in messages for tag, _ in message["parts"]}
        self.assertEqual(kinds, set(PARTS) - {"image_url"})
        for message in messages:
            for call in parts_of(message, "tool_call"):
                self.assertEqual(json.loads(call["input"])["command"], "ls")
            for result in parts_of(message, "tool_result"):
                self.assertIn("output", json.loads(result["metadata"]))

    async def test_08_agent_events_hold_no_message(self) -> None:
        await self.turn("hi")
        await self.turn("@fail 400 no")
        finished, failed = self.anna.events.all("agent_event")
        self.assertEqual((finished["type"], failed["type"]), ("agent_finished", "error"))
        self.assertIn("no", failed["error"])
        for event in (finished, failed):
            self.assertNotIn("message", event.raw)
            self.assertEqual(event["session_id"], self.anna.session)

    async def test_09_params_have_the_shape_of_their_tool(self) -> None:
        (self.project / "a.txt").write_text("one\n")
        change = {"old_string": "one", "new_string": "two"}
        calls: dict[str, dict[str, Any]] = {
            "bash": {"command": "make", "description": "d"},
            "write": {"file_path": "b.txt", "content": "x"},
            "edit": {"file_path": "a.txt", **change},
            "multiedit": {"file_path": "a.txt", "edits": [change]},
            "view": {"file_path": str(self.root / "outside.txt")},
            "ls": {"path": str(self.root)},
            "fetch": {"url": "http://127.0.0.1:1/", "format": "text"},
        }
        self.assertEqual(set(calls), set(PARAMS))
        (self.root / "outside.txt").write_text("x\n")
        for tool, arguments in calls.items():
            with self.subTest(tool):
                look = use("view", file_path="a.txt")
                self.plan = [look, use(tool, **arguments)]
                await self.anna.send("go")
                request = await self.anna.events.wait_for("permission_request")
                self.assertEqual(request["tool_name"], tool)
                self.assertIsInstance(request.raw["params"], dict)
                await self.anna.answer(request, "deny")
                await self.anna.events.wait_for("run_complete")

    async def test_10_a_scope_is_a_number(self) -> None:
        for scope, status in ((0, 200), (1, 200), (2, 400), ("global", 400), (0.5, 400)):
            body = {"scope": scope, "key": "options.notifications", "value": "disabled"}
            path = f"{self.anna.base}/config/set"
            self.assertEqual(await self.refused("POST", path, body), status, scope)

    async def test_11_on_a_unix_socket_the_server_stays(self) -> None:
        client = GoClient(self.unix)
        self.addAsyncCleanup(client.transport.close)
        with self.assertRaises(Refused) as caught:
            await client.call(
                "POST", "/v1/control", {"command": "shutdown_if_idle"}, kind="text/plain"
            )
        self.assertEqual(caught.exception.status, 409)

    async def test_13_each_step_has_a_message_with_an_end_of_its_own(self) -> None:
        self.plan = [use("ls", "c1"), use("ls", "c2"), [Say("done"), End()]]
        complete = await self.turn("go")
        steps = [m for m in await self.messages() if m["role"] == "assistant"]
        ends = [[finish["reason"] for finish in parts_of(m, "finish")] for m in steps]
        self.assertEqual(ends, [["tool_use"], ["tool_use"], ["end_turn"]])
        self.assertEqual(complete["message_id"], steps[-1]["id"])
        self.assertEqual(len(self.anna.events.all("run_complete")), 1)

    async def test_14_busy_is_over_when_the_end_is_published(self) -> None:
        for text, word in (("hi", "agent_finished"), ("@fail 400 no", "error")):
            await self.anna.send(text)
            await self.anna.events.wait_for("agent_event", type=word)
            self.assertFalse((await self.anna.get("/agent", AGENT_INFO))["is_busy"])
            session = await self.anna.get(f"/sessions/{self.anna.session}", SESSION)
            self.assertFalse(session["is_busy"])

    async def test_15_init_by_a_newcomer_disturbs_no_turn(self) -> None:
        self.plan = [[Say("one "), Wait(60), Say("two"), End()]]
        await self.anna.send("hi")
        await self.anna.events.wait_for("message", action="updated", role="assistant")
        ben = await self.tui()
        for _ in range(3):
            await ben.post("/agent/init", {"interactive": True})
            await ben.post("/agent/update")
        await self.model_time.advance(60)
        for tui in (self.anna, ben):
            complete = await tui.events.wait_for("run_complete")
            self.assertEqual((complete["text"], complete["error"]), ("one two", ""))

    async def test_16_a_cancel_closes_the_dialogs(self) -> None:
        ben = await self.tui()
        await self.anna.send("@bash touch made")
        request = await ben.events.wait_for("permission_request")
        await self.anna.escape()
        note = await ben.events.wait_for("permission_notification", denied=True)
        self.assertEqual(note["tool_call_id"], request["tool_call_id"])
        self.assertFalse(await ben.answer(request, "allow"))
        await ben.events.wait_for("run_complete", cancelled=True)
        self.assertFalse((self.project / "made").exists())

    async def test_17_lists_are_in_the_order_the_client_takes_for_granted(self) -> None:
        for text in ("one", "two", "three"):
            await self.turn(text)
        users = [text_of(m) for m in await self.messages() if m["role"] == "user"]
        self.assertEqual(users, ["one", "two", "three"])
        self.assertEqual([text_of(m) for m in await self.anna.up_arrow()], users[::-1])
        first = self.anna.session
        await self.anna.leave_session()
        await self.turn("four")
        self.assertEqual(
            [text_of(m) for m in await self.anna.get("/messages/user", List(MESSAGE))],
            ["four", *users[::-1]],
        )
        second = self.anna.session
        await self.anna.switch(first)
        await self.turn("five")
        listed = await self.anna.get("/sessions", List(SESSION))
        self.assertEqual([session["id"] for session in listed], [first, second])
        times = [session["updated_at"] for session in listed]
        self.assertEqual(times, sorted(times, reverse=True))

    async def test_18_times_are_seconds_but_those_of_bash(self) -> None:
        await self.anna.toggle_skip()
        await self.turn("@write a.txt x")
        await self.turn("@bash true; touch b")
        now = time.time()
        messages = await self.messages()
        files = await self.anna.get(f"/sessions/{self.anna.session}/history", List(FILE))
        session = await self.anna.get(f"/sessions/{self.anna.session}", SESSION)
        self.assertTrue(files)
        for record in (session, *messages, *files):
            for key in ("created_at", "updated_at"):
                self.assertLess(abs(record[key] - now), 60, record)
        for message in messages:
            for finish in parts_of(message, "finish"):
                wanted = now if message["role"] == "assistant" else 0
                self.assertLess(abs(finish["time"] - wanted), 60, message)
        [*_, result] = [r for m in messages for r in parts_of(m, "tool_result")]
        metadata = json.loads(result["metadata"])
        for key in ("start_time", "end_time"):
            self.assertIsInstance(metadata[key], int)
            self.assertLess(abs(metadata[key] / 1000 - now), 60)

    async def test_19_a_rename_takes_the_title_and_nothing_else(self) -> None:
        await self.turn("hi")
        stale = SESSION.zero() | {"id": self.anna.session}
        before = await self.anna.get(f"/sessions/{self.anna.session}", SESSION)
        after = await self.anna.rename(stale, "Renamed")
        for key in ("message_count", "prompt_tokens", "completion_tokens", "cost", "created_at"):
            self.assertEqual(after[key], before[key], key)
        self.assertGreater(after["message_count"], 0)
        self.assertEqual(after["title"], "Renamed")

    async def test_20_a_child_session_that_is_not_there_is_empty(self) -> None:
        await self.turn("hi")
        message = (await self.messages())[-1]["id"]
        for call in ("call_0", "toolu_%20%2Fx", "a:b@c"):
            path = f"/sessions/{message}$${call}/messages"
            self.assertEqual(await self.anna.get(path, List(MESSAGE)), [])
        listed = await self.anna.get("/sessions", List(SESSION))
        self.assertEqual([session["id"] for session in listed], [self.anna.session])

    async def test_21_the_client_must_not_call_other_servers(self) -> None:
        options = self.anna.workspace["config"]["options"]
        self.assertTrue(options["disable_metrics"])
        self.assertTrue(options["disable_default_providers"])

    async def test_what_is_beyond_the_base_protocol_is_for_those_who_ask(self) -> None:
        """The output of a running command goes only to streams that can resume."""
        await self.anna.toggle_skip()
        client = self.run_program()
        await client.create()
        more = await client.stream(f"{client.base}/events?client_id={client.id}&resume=1")
        await self.anna.send("@bash echo one; until [ -e go ]; do sleep 0.02; done")
        while not any("tool_output" in line for line in more.warnings):
            await more.more()
        (self.project / "go").touch()
        await self.anna.events.wait_for("run_complete")
        self.assertEqual(self.anna.events.warnings, [])
        with self.assertRaisesRegex(AssertionError, "Invalid event format"):
            await more.hang_up()
        await client.transport.close()


class OfflineTests(Case):
    agent = "offline"
    configured = False

    async def test_01_the_offline_agent_is_a_provider_like_any_other(self) -> None:
        self.assertTrue(self.anna.configured)
        check_config(await self.anna.get("/config", CONFIG), tui=True)
        self.assertTrue(self.anna.agent["is_ready"])

    async def test_21_the_client_must_not_call_other_servers(self) -> None:
        options = self.anna.workspace["config"]["options"]
        self.assertTrue(options["disable_metrics"])
        self.assertTrue(options["disable_default_providers"])


class UnconfiguredTests(Case):
    """The coder without a model: the TUI opens its onboarding, `run` says what is missing."""

    agent = "coder"
    configured = False

    async def test_01_nothing_configured_is_an_empty_map_of_providers(self) -> None:
        self.assertEqual(self.anna.workspace["config"]["providers"], {})
        self.assertFalse(self.anna.configured)
        ended = await self.run_program().main("hi")
        self.assertEqual(ended.error, "no providers configured")

    async def test_06_an_agent_that_is_not_ready_is_no_404(self) -> None:
        self.assertFalse((await self.anna.get("/agent", AGENT_INFO))["is_ready"])
        session = (await self.anna.new_session("one"))["id"]
        with self.assertRaises(Refused) as caught:
            await self.anna.prompt(session, "hi")
        self.assertEqual(caught.exception.status, 400)
        self.assertTrue(caught.exception.message.startswith("agent coordinator not initialized"))


class StubbornTests(Case):
    """An agent that does not stop when it is cancelled."""

    settings = Settings(cancel_grace=LIMIT)

    def make_agents(self) -> AgentFactory:
        self.over = asyncio.Event()
        self.cancelled = asyncio.Event()

        async def agent(turn: Turn) -> None:
            await turn.say("I stay")
            while not self.over.is_set():
                try:
                    await self.over.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()

        return agent_factory(agent)

    async def test_12_what_blocks_the_ui_is_answered_while_a_turn_will_not_end(self) -> None:
        self.addCleanup(self.over.set)  # the agent must end before the daemon waits for it
        await self.anna.send("hi")
        await self.anna.events.wait_for("message", action="updated", role="assistant")
        await self.anna.escape()
        await self.cancelled.wait()
        await self.anna.escape()
        self.assertTrue((await self.anna.get("/agent", AGENT_INFO))["is_busy"])
        await self.anna.new_session("another")
        request = {"id": str(uuid.uuid4()), "tool_name": "bash", "params": {}}
        await self.anna.post("/permissions/grant", {"permission": request, "action": "allow"})
        self.assertEqual(self.anna.events.all("run_complete"), [])
        self.over.set()
        await self.anna.events.wait_for("run_complete", cancelled=True)


class PatienceTests(WireCase):
    def make_clock(self) -> Clock:
        self.time = FakeClock()
        return self.time

    async def test_22_a_connection_may_rest_longer_than_the_client_lets_it(self) -> None:
        client = GoClient(self.tcp)
        self.addAsyncCleanup(client.transport.close)
        for _ in range(3):
            await client.call(
                "POST", "/v1/control", {"command": "dance"}, statuses=(400,), kind="text/plain"
            )
            await self.time.advance(91)
        self.assertEqual(client.transport.dialed, 1)
        await self.time.advance(3600)
        await client.call("GET", "/v1/health")
        self.assertEqual(client.transport.dialed, 2)

    async def test_a_client_that_vanished_is_waited_for(self) -> None:
        """A workspace stays open for thirty seconds after a create, ten after its last stream."""
        anna = Tui(self.tcp, self.project, self.env)
        await anna.create()
        await self.time.advance(29)
        await anna.start()
        await anna.close()
        await until(lambda: not streams_of(self.daemon.server), "the stream is gone")
        ben = GoClient(self.tcp)
        self.addAsyncCleanup(ben.transport.close)
        await self.time.advance(9)
        await ben.call("GET", f"{anna.base}/agent", None, AGENT_INFO)
        await self.time.advance(2)
        with self.assertRaises(Refused) as caught:
            await ben.call("GET", f"{anna.base}/agent", None, AGENT_INFO)
        self.assertEqual(caught.exception.status, 404)

    async def test_a_stream_with_nothing_to_say_says_nothing(self) -> None:
        """The client logs a warning for each comment."""
        anna = Tui(self.tcp, self.project, self.env)
        self.addAsyncCleanup(anna.close)
        await anna.start()
        for _ in range(10):
            await self.time.advance(31)
        made = await anna.new_session("one")
        await anna.events.wait_for("session", id=made["id"])
        self.assertEqual(anna.events.warnings, [])

    async def test_22_bodies_of_tens_of_megabytes_are_taken(self) -> None:
        anna = Tui(self.tcp, self.project, self.env)
        self.addAsyncCleanup(anna.close)
        await anna.create()
        session = (await anna.new_session("big"))["id"]
        content = base64.b64encode(bytes(5 << 20)).decode()
        file = {"content": content, "file_path": "a", "file_name": "a", "mime_type": "image/png"}
        await anna.prompt(session, "look", attachments=[file] * 4)
        [user] = await anna.get(f"/sessions/{session}/messages/user", List(MESSAGE))
        self.assertEqual([len(part["Data"]) for part in parts_of(user, "binary")], [5 << 20] * 4)
