"""Names, schemas and answers of servers, made such that providers and the agent can use them."""

from __future__ import annotations

import asyncio
import json
import unittest
from typing import Any

from crushlite.mcp.content import TYPE_CHARS, prompt_text, tool_answer
from crushlite.mcp.items import read_prompts, read_tools
from crushlite.mcp.naming import MOST_CHARS, reserved_for_others, safe_name
from crushlite.mcp.places import PLACE_SECONDS, StartingPlaces
from crushlite.mcp.schemas import BadSchema, acceptable
from crushlite.testing.fake_clock import FakeClock


class PlacesTests(unittest.IsolatedAsyncioTestCase):
    async def test_a_silent_server_delays_another_one_for_a_bounded_time_only(self) -> None:
        clock, places = FakeClock(), StartingPlaces(1)
        done = asyncio.Event()
        started: list[str] = []

        async def start(name: str) -> None:
            async with places.place(clock):
                started.append(name)
                await done.wait()

        tasks = [asyncio.create_task(start(name)) for name in ("silent", "second", "third")]
        await clock.advance(PLACE_SECONDS - 0.1)
        self.assertEqual(started, ["silent"])
        await clock.advance(0.2)
        self.assertEqual(started, ["silent", "second"])
        done.set()
        await asyncio.gather(*tasks)
        self.assertEqual(len(started), 3)
        # No place was given back twice.
        async with places.place(clock):
            waiting = asyncio.create_task(start("fourth"))
            await asyncio.sleep(0)
            self.assertEqual(len(started), 3)
        await waiting


class NamingTests(unittest.TestCase):
    def test_names_are_plain_short_and_stay_the_same(self) -> None:
        self.assertEqual(safe_name("everything", "get-sum"), "mcp_everything_get-sum")
        for server, tool in (("a b", "x" * 90), ("größe", "a.b/c"), ("s" * 80, "t"), ("", "")):
            name = safe_name(server, tool)
            self.assertRegex(name, r"\A[A-Za-z0-9_-]{1,64}\Z")
            self.assertEqual(name, safe_name(server, tool))

    def test_two_tools_never_get_one_name(self) -> None:
        taken: set[str] = set()
        for tool in ("a.b", "a b", "a/b", "x" * 80 + "1", "x" * 80 + "2"):
            name = safe_name("s", tool, taken)
            self.assertNotIn(name, taken)
            self.assertLessEqual(len(name), MOST_CHARS)
            taken.add(name)

    def test_a_server_cannot_take_the_name_of_another_one_s_tool(self) -> None:
        servers = ["git", "git_hub", "git.hub", "x"]

        def name(server: str, tool: str) -> str:
            return safe_name(server, tool, (), reserved_for_others(server, servers))

        self.assertEqual(name("git_hub", "find"), "mcp_git_hub_find")
        self.assertEqual(name("git", "find"), "mcp_git_find")
        for server, tool in (("git", "hub_find"), ("git.hub", "find")):
            self.assertRegex(name(server, tool), r"\Amcp_git_hub_find_[0-9a-f]{8}\Z")


class SchemaTests(unittest.TestCase):
    def test_what_providers_demand(self) -> None:
        given: dict[str, Any] = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {
                "any": True,
                "list": {"type": "array"},
                "pair": {"type": "array", "items": [{"type": "string"}, False]},
                "ref": {"$ref": "#/$defs/point"},
                "lost": {"$ref": "#/$defs/nowhere", "description": "kept"},
                "far": {"$ref": "http://example/schema"},
                "with blank": {"type": "string"},
                "nothing": None,
            },
            "required": ["list", "unknown"],
            "$defs": {"point": {"type": "object", "properties": {"x": True}}},
            "oneOf": [{"properties": {"other": {"type": "string"}}, "required": ["other"]}],
            "allOf": [{"properties": {"more": {"type": "string"}}, "required": ["more"]}],
        }
        made = acceptable(given)
        self.assertEqual(made["type"], "object")
        self.assertEqual(made["required"], ["list", "more"])
        self.assertEqual(set(made) & {"$schema", "oneOf", "allOf"}, set())
        properties = made["properties"]
        self.assertEqual(properties["any"], {})
        self.assertEqual(properties["list"]["items"], {})
        self.assertEqual(properties["pair"]["items"], {"anyOf": [{"type": "string"}, {}]})
        self.assertEqual(properties["ref"], {"$ref": "#/$defs/point"})
        self.assertEqual(properties["lost"], {"description": "kept"})
        self.assertEqual((properties["far"], properties["nothing"]), ({}, {}))
        self.assertNotIn("with blank", properties)
        self.assertIn("other", properties)
        self.assertEqual(made["$defs"]["point"]["properties"], {"x": {}})

    def test_a_schema_that_no_call_fits_is_refused(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        blank = {"properties": {"a b": {}}, "required": ["a b"]}
        several: list[Any] = [[], "x", {"type": "string"}, deep, blank, {"title": "x" * 70_000}]
        for bad in several:
            with self.assertRaises(BadSchema):
                acceptable(bad)
        self.assertEqual(acceptable(None), {"type": "object", "properties": {}})


class ContentTests(unittest.TestCase):
    def test_everything_in_an_answer_is_told(self) -> None:
        parts: list[Any] = [
            {"type": "text", "text": "one"},
            {"type": "resource", "resource": {"uri": "u", "text": "two"}},
            {"type": "resource", "resource": {"uri": "u", "blob": "AA==", "mimeType": "a/b"}},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "image", "mimeType": "image/png", "data": "AA=="},
            {"type": "audio", "mimeType": "audio/wav", "data": "AA=="},
            {"type": "text"},
            None,
        ]
        answer = tool_answer({"content": parts})
        self.assertEqual(answer.text, "one\ntwo\n(u: a/b, not shown)\nfile:///x x")
        self.assertEqual([each.mime_type for each in answer.media], ["image/png", "audio/wav"])
        self.assertFalse(answer.is_error)
        data = tool_answer({"structuredContent": {"a": 1}, "isError": True})
        self.assertEqual((json.loads(data.text), data.is_error), ({"a": 1}, True))
        self.assertIn("no output", tool_answer({}).text)
        long = [{"type": "image", "mimeType": "image/" + "x" * 10_000, "data": "AA=="}]
        (media,) = tool_answer({"content": long}).media
        self.assertLessEqual(len(media.mime_type), TYPE_CHARS)

    def test_odd_lists_cost_only_what_is_odd(self) -> None:
        tools, left_out = read_tools([{"name": "a"}, 1, {"name": "b", "inputSchema": 1}], bool)
        self.assertEqual(([tool.name for tool in tools], len(left_out)), (["a"], 2))
        (prompt,) = read_prompts([{"name": "p", "arguments": [1, {"name": "x"}]}, 7, {"name": ""}])
        self.assertEqual([each.name for each in prompt.arguments], ["x"])
        said = {"role": "user", "content": [{"type": "text", "text": "a"}]}
        self.assertEqual(prompt_text({"messages": [said, 1, {"content": None}]}), "a")
        self.assertEqual(prompt_text({"messages": 7}), "")

    def test_a_tool_whose_name_could_garble_a_question_is_left_out(self) -> None:
        names = ["a\nb", "a\x1b[2K", "a\u202eb", "größe 1"]
        tools, left_out = read_tools([{"name": name} for name in names], bool)
        self.assertEqual(([tool.name for tool in tools], len(left_out)), (["größe 1"], 3))
