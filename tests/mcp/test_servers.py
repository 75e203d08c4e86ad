"""Tool servers as programs, with everything that real ones do wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.tools.results import RESULT_CHARS
from crushlite.errors import CrushliteError
from crushlite.fake_model import End, Say
from crushlite.mcp import links, server as server_module, session as session_module
from crushlite.mcp.items import ToolInfo, read_tools
from crushlite.mcp.session import McpSession
from crushlite.mcp.wing import STARTING
from crushlite.testing.fake_clock import FakeClock
from tests.support.configured import marked, new_mark, results, use
from tests.support.mcp import McpTestCase, scripted

if TYPE_CHECKING:
    from crushlite.fake_model import Step

DONE: list[Step] = [Say("done"), End()]


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


class ConnectingTests(McpTestCase):
    servers = {
        "legacy": scripted(),
        "modern": scripted("modern"),
        "noisy": scripted("noisy"),
        "mute": scripted("never", timeout=1),
        "broken": scripted("exit=4"),
        "absent": {"command": "/no/such/program"},
        "off": {"command": "/no/such/program", "disabled": True},
        "wrong": {"type": "carrier-pigeon"},
        "many": scripted("tools=5000"),
        "odd": scripted("odd"),
        "late": scripted("late"),
        "chosen": scripted(enabled_tools=["echo", "fail", "x"], disabled_tools=["fail"]),
    }

    async def test_each_ends_in_the_state_it_deserves(self) -> None:
        anna = await self.join()
        await self.ready(anna)
        states = await self.states(anna)
        found = {name: state["state"] for name, state in states.items()}
        good = ("legacy", "modern", "noisy", "many", "odd", "late", "chosen")
        bad = ("mute", "broken", "absent", "wrong")
        wanted = dict.fromkeys(good, "connected") | dict.fromkeys(bad, "error")
        self.assertEqual(found, wanted | {"off": "disabled"})
        for name, words in (
            ("mute", "timed out after 1s"),
            ("broken", "exited with code 4"),
            ("absent", "cannot run /no/such/program"),
            ("wrong", "type must be one of"),
        ):
            self.assertIn(words, states[name]["error"])
            self.assertEqual(states[name]["connected_at"], "0001-01-01T00:00:00Z")
        self.assertEqual(states["broken"]["last_lines"], "a last line")
        self.assertEqual(states["legacy"]["prompt_count"], 1)
        self.assertEqual(states["many"]["tool_count"], 5010)
        self.assertEqual(states["chosen"]["tools"], ["echo"])
        odd = states["odd"]
        self.assertEqual(odd["tool_count"], states["legacy"]["tool_count"] + 4)
        self.assertEqual(len(odd["left_out"]), 5)
        # Its change was told before it was connected.
        await anna.events.wait_for("mcp_event", type="tools_list_changed", name="late")
        await self.check_modern(anna)

    async def check_modern(self, anna: Any) -> None:
        """It hears of changes, and is the same process for each call."""
        modern = await self.connected(anna, "modern")
        first = await modern.call("pid", {})
        await modern.call("learn", {})
        await anna.events.wait_for("mcp_event", type="tools_list_changed", name="modern")
        self.assertTrue(any(tool.name.startswith("learnt") for tool in modern.tools))
        self.assertEqual(await modern.call("pid", {}), first)
        answer = await modern.call("ask", {})
        self.assertTrue(answer.is_error)
        self.assertIn("asks for input", answer.text)


class CallingTests(McpTestCase):
    servers = {"s": scripted()}
    described = {"supports_attachments": True}

    async def test_calls_reach_the_server_and_results_the_model(self) -> None:
        anna = await self.join(yolo=True)
        server = await self.connected(anna, "s")
        session = await anna.session()
        self.plan = [
            use("mcp_s_echo", text="hello"),
            use("mcp_s_fail"),
            use("mcp_s_giant"),
            use("mcp_s_image"),
            use("mcp_s_structured"),
            use("mcp_s_nothing"),
            DONE,
        ]
        await self.turn(anna, session, "go")
        found = results(await anna.messages(session))
        self.assertEqual(found[0]["content"], "hello")
        self.assertEqual((found[1]["content"], found[1]["is_error"]), ("it did not work", True))
        self.assertLess(len(found[2]["content"]), RESULT_CHARS + 400)
        kept = found[2]["content"].split("All of it is in ")[1].split(":")[0]
        self.assertEqual(Path(kept).stat().st_size, 3_000_000)
        self.assertEqual(found[3]["mime_type"], "image/png")
        self.assertIn('"answer": 42', found[4]["content"])
        self.assertIn("there is no tool", found[5]["content"])
        self.assertEqual(self.offered(), [f"mcp_s_{tool.name}" for tool in server.tools])
        tools = self.model.requests[-1]["tools"]
        self.assertTrue(all(tools == each["tools"] for each in self.model.requests))

    async def test_a_call_asks_with_its_arguments_as_an_object(self) -> None:
        anna = await self.join()
        await self.connected(anna, "s")
        session = await anna.session()
        self.plan = [use("mcp_s_echo", text="hello"), DONE]
        run = await self.prompt(anna, session, "go")
        asked = await anna.events.wait_for("permission_request", tool_name="mcp_s_echo")
        self.assertEqual((asked["action"], asked["params"]), ("execute", {"text": "hello"}))
        await anna.grant(asked.payload, "allow")
        await self.ended(anna, run)
        self.assertEqual(results(await anna.messages(session))[0]["content"], "hello")

    async def test_death_in_mid_call_is_an_error_and_the_next_call_starts_it_again(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        with self.assertRaisesRegex(CrushliteError, "exited with code 3\nabout to die"):
            await server.call("die", {})
        self.assertEqual((server.state, server.tools), ("error", ()))
        self.assertEqual(self.part(anna).instructions(), [])
        await anna.events.wait_for("mcp_event", name="s", state="error")
        self.assertEqual((await server.call("echo", {"text": "back"})).text, "back")
        self.assertEqual(server.state, "connected")

    async def test_a_hanging_call_hinders_no_other_and_its_cancel_is_told(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        hanging = asyncio.create_task(server.call("hang", {}))
        self.assertEqual((await server.call("echo", {"text": "a"})).text, "a")
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        self.assertEqual((await server.call("echo", {"text": "b"})).text, "b")

    async def test_a_changed_list_is_offered_at_the_next_step(self) -> None:
        anna = await self.join(yolo=True)
        await self.connected(anna, "s")
        session = await anna.session()
        self.plan = [use("mcp_s_learn"), DONE, DONE]
        run = await self.prompt(anna, session, "go")
        await anna.events.wait_for("mcp_event", type="tools_list_changed")
        await anna.call("GET", f"/runs/{run}?wait=60")
        await self.turn(anna, session, "again")
        self.assertTrue(any("learnt" in name for name in self.offered()))

    async def test_a_change_in_the_pause_after_a_reading_is_not_lost(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        count = len(server.tools)
        with mock.patch.object(server_module, "RELIST_SECONDS", 0.3):
            for more in (1, 2):
                await server.call("learn", {})
                wanted = {"type": "tools_list_changed", "tool_count": count + more}
                await anna.events.wait_for("mcp_event", **wanted)

    async def test_a_list_that_comes_after_the_end_of_its_server_is_dropped(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        pid = int((await server.call("pid", {})).text)
        reading, dead = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def read_late(*given: Any) -> Any:
            loop.call_soon_threadsafe(reading.set)
            dead.wait(60)
            return read_tools(*given)

        with mock.patch.object(server_module, "read_tools", read_late):
            refreshing = asyncio.create_task(server.refresh("tools"))
            await reading.wait()
            os.kill(pid, 9)
            await anna.events.wait_for("mcp_event", name="s", state="error")
            dead.set()
            with self.assertRaisesRegex(CrushliteError, "ended"):
                await refreshing
        self.assertEqual((server.state, server.tools), ("error", ()))

    async def test_a_call_says_that_its_server_still_waits_for_its_turn_to_start(self) -> None:
        self.configure(mcp={"s": scripted(timeout=1)})
        anna = await self.join(self.folder("other"))
        server = await self.connected(anna, "s")
        with self.assertRaises(CrushliteError):
            await server.call("die", {})
        for _ in range(STARTING):
            await self.enterAsyncContext(server._settings.starting.place(FakeClock()))
        with (
            mock.patch.object(server_module, "CLOSE_SECONDS", -0.9),
            self.assertRaisesRegex(CrushliteError, "it is still starting"),
        ):
            await server.call("echo", {"text": "a"})

    async def test_the_pages_of_a_list_have_one_limit_of_time(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        server.config = dataclasses.replace(server.config, timeout=0.2)
        pages = itertools.count()

        async def next_page(*asked: Any, **more: Any) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"tools": [], "nextCursor": str(next(pages))}

        with (
            mock.patch.object(McpSession, "request", next_page),
            mock.patch.object(session_module, "MOST_PAGES", 10**9),
            self.assertRaisesRegex(CrushliteError, "tools/list was not done within 0.2 seconds"),
        ):
            await server.refresh("tools")
        self.assertTrue(server.tools, "the list before still counts")

    async def test_the_pages_of_a_list_have_one_limit_of_size(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "s")
        names = (f"t{number}" for number in itertools.count())

        async def next_page(*asked: Any, **more: Any) -> dict[str, Any]:
            tool = {"name": next(names), "inputSchema": {}, "x": "y" * 1000}
            return {"tools": [tool], "nextCursor": tool["name"]}

        with (
            mock.patch.object(McpSession, "request", next_page),
            mock.patch.object(session_module, "LIST_CHARS", 10_500),
        ):
            await server.refresh("tools")
        self.assertEqual(len(server.tools), 10)

    async def test_prompts_and_resources(self) -> None:
        anna = await self.join(yolo=True)
        await self.connected(anna, "s")
        (prompt,) = (await anna.call("GET", "/mcp/prompts")).json
        self.assertEqual((prompt["id"], prompt["client_id"]), ("s:review", "s"))
        self.assertEqual(prompt["arguments"][0]["id"], "what")
        wanted = {"client_id": "s", "prompt_id": "review", "args": {"what": "the diff"}}
        answer = await anna.call("POST", "/mcp/get-prompt", wanted)
        self.assertEqual(answer.json, {"prompt": "Review the diff."})
        answer = await anna.call("POST", "/mcp/read-resource", {"name": "s", "uri": "mem://a"})
        content = {"uri": "mem://a", "mime_type": "text/plain", "text": "hello"}
        self.assertEqual(answer.json, [content])
        session = await anna.session()
        self.plan = [
            use("list_mcp_resources"),
            use("read_mcp_resource", server="s", uri="mem://a"),
            DONE,
        ]
        await self.turn(anna, session, "go")
        found = [part["content"] for part in results(await anna.messages(session))]
        self.assertEqual(found, ["s: mem://a a text/plain", "hello"])
        self.assertIn("Call echo to be repeated.", str(self.model.requests[0]["messages"][0]))


class ResourceTests(McpTestCase):
    servers = {"s": scripted(), "t": scripted()}

    async def test_a_grant_for_the_session_covers_the_resources_of_one_server(self) -> None:
        anna = await self.join()
        await self.ready(anna)
        session = await anna.session()
        reads = [use("read_mcp_resource", server=name, uri="mem://a") for name in "sst"]
        self.plan = [*reads, DONE]
        run = await self.prompt(anna, session, "go")
        for name, action in (("s", "allow_session"), ("t", "deny")):
            asked = await anna.events.wait_for("permission_request", tool_name="read_mcp_resource")
            self.assertEqual(asked["params"], {"server": name, "uri": "mem://a"})
            await anna.grant(asked.payload, action)
        await self.ended(anna, run)
        found = [part["content"] for part in results(await anna.messages(session))]
        self.assertEqual(found[:2], ["hello", "hello"])
        self.assertNotIn("hello", found[2])


class NamesTests(McpTestCase):
    servers = {"a": scripted(), "a_b": {"command": "x", "disabled": True}}

    async def test_the_names_of_a_server_that_does_not_run_stay_its_own(self) -> None:
        anna = await self.join()
        server = await self.connected(anna, "a")
        server.tools = tuple(ToolInfo(name, "", {}, True) for name in ("b_echo", "echo"))
        offered = [tool.name for tool in self.part(anna)._offers()]
        self.assertIn("mcp_a_echo", offered)
        self.assertNotIn("mcp_a_b_echo", offered)


class WaitingTests(McpTestCase):
    servers = {"slow": scripted("slow=1"), "mute": scripted("never", timeout=2)}

    async def test_only_a_prompt_that_nobody_attends_waits(self) -> None:
        anna = await self.join(yolo=True)
        session = await anna.session()
        self.plan = [DONE, DONE]
        await self.turn(anna, session, "go")
        self.assertEqual(self.offered(), [])
        await anna.call("POST", "/agent/init", {"interactive": False})
        await self.turn(anna, session, "go on")
        self.assertIn("mcp_slow_echo", self.offered())
        states = await self.states(anna)
        self.assertEqual({s["state"] for s in states.values()}, {"connected", "error"})


class EndTests(McpTestCase):
    async def test_nothing_survives_a_change_or_the_end_of_the_workspace(self) -> None:
        mark, child = new_mark(), self.daemon.root / "child"
        servers = {
            "stubborn": scripted("stubborn", f"child={child}", mark),
            "plain": scripted(mark),
        }
        self.configure(mcp=servers)
        with mock.patch.object(links, "EXIT_SECONDS", 0.2):
            anna = await self.join()
            stubborn, plain = await self.ready(anna, "stubborn", "plain")
            self.assertEqual(len(marked(mark)), 3)
            self.assertTrue(alive(int(child.read_text())))
            value = {"scope": 0, "key": "mcp.stubborn.disabled", "value": True}
            await anna.call("POST", "/config/set", value)
            part = self.part(anna)
            self.assertIs(part.server("plain"), plain, "it was not changed")
            await asyncio.gather(*part._closing)
            self.assertEqual(part.server("stubborn").state, "disabled")
            self.assertFalse(alive(int(child.read_text())))
            self.assertEqual(len(marked(mark)), 1)
            with self.assertRaisesRegex(CrushliteError, "cannot be used"):
                await stubborn.call("echo", {"text": "a"})
            await anna.call("POST", "/config/set", {**value, "value": False})
            await self.connected(anna, "stubborn")
            await self.workspace(anna).close()
        self.assertEqual(marked(mark), [])

    async def test_a_program_whose_closing_is_cancelled_is_killed_at_once(self) -> None:
        mark = new_mark()
        program = ["sleep", mark]  # ignores the end of its input
        env = {"PATH": os.defpath}
        link = await links.ProgramLink.open(
            program, self.daemon.root, env, SystemClock(), lambda method, params: None
        )
        self.assertEqual(len(marked(mark)), 1)
        with mock.patch.object(links, "EXIT_SECONDS", 60):
            closing = asyncio.create_task(link.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        self.assertEqual(marked(mark), [])

    async def test_a_server_that_dies_after_a_while_is_started_again(self) -> None:
        self.configure(mcp={"s": scripted()})
        anna = await self.join()
        server = await self.connected(anna, "s")
        first = (await server.call("pid", {})).text
        with mock.patch.object(server_module, "LIVED_SECONDS", 0.0):
            os.kill(int(first), 9)
            await anna.events.wait_for("mcp_event", name="s", state="error")
            await anna.events.wait_for("mcp_event", name="s", state="connected")
        self.assertNotEqual((await server.call("pid", {})).text, first)
