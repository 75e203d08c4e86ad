"""Prompt caching: each request begins with the one before it, and cached tokens are counted."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.coder.loop import CoderAgent, CoderOptions
from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import ChatMessage, ModelRequest, ToolCall
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.tools.base import ToolContext
from crushlite.coder.tools.registry import all_tools
from crushlite.protocol.config import Model
from crushlite.testing import LocalDaemon
from crushlite.testing.model import End, FakeModel, Say, Use
from tests.support.basics import BoundedTestCase
from tests.support.model import served

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crushlite.testing import Participant

MARK = {"type": "ephemeral"}
MODEL = Model(
    id="m",
    cost_per_1m_in=1000.0,
    cost_per_1m_out=10.0,
    cost_per_1m_in_cached=2000.0,
    cost_per_1m_out_cached=100.0,
)


def unmarked(value: Any) -> Any:
    """The request without cache marks, which differ from step to step and are not cached
    themselves."""
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def marks(value: Any, path: str = "") -> list[str]:
    """The places of the cache marks in a request."""
    if isinstance(value, dict):
        own = [path] if value.get("cache_control") == MARK else []
        return own + [m for key, item in value.items() for m in marks(item, f"{path}/{key}")]
    if isinstance(value, list):
        return [m for n, item in enumerate(value) for m in marks(item, f"{path}/{n}")]
    return []


class CachingTestCase(BoundedTestCase):
    async def start(self, kind: type[AnthropicProvider | OpenAIProvider], script: Any) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=script))

        def make(path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
            large, small = (
                served(kind(self.model.base_url, "key", clock=SystemClock()), MODEL)
                for _ in range(2)
            )
            return CoderAgent(
                context=ToolContext(path, {}),
                large=large,
                small=small,
                tools=all_tools(),
                options=CoderOptions(context_paths=("AGENTS.md",)),
                clock=SystemClock(),
            )

        self.daemon = await self.enterAsyncContext(LocalDaemon(make))
        (self.daemon.root / "project/AGENTS.md").write_text("Be kind.\n")
        (self.daemon.root / "project/a.txt").write_text("one\n")
        self.anna: Participant = await self.daemon.join(yolo=True)
        self.session = await self.anna.session()

    async def ask(self, text: str) -> None:
        run = (await self.anna.prompt(self.session, text)).json["run_id"]
        await self.anna.events.wait_for("run_complete", run_id=run)

    def turns(self) -> list[dict[str, Any]]:
        """The requests for turns; those for titles have no tools."""
        return [call.request for call in self.model.calls if call.request.get("tools")]


def working(request: dict[str, Any]) -> list[Any]:
    """A model that views a file, writes one, looks again with two tools at once, then answers."""
    if not request.get("tools"):
        return [Say("A title"), End()]
    step = sum(message["role"] == "assistant" for message in request["messages"]) % 4
    view = Use("view", json.dumps({"file_path": "a.txt"}))
    write = Use("write", json.dumps({"file_path": "b.txt", "content": f"step {step}\n"}))
    return [
        [Say("Let me see. "), view, End()],
        [write, End()],
        [view, Use("ls", "{}"), End()],
        [Say("Done."), End()],
    ][step]


class PrefixTests(CachingTestCase):
    async def test_each_request_begins_with_the_bytes_of_the_one_before(self) -> None:
        for kind in (OpenAIProvider, AnthropicProvider):
            await self.start(kind, working)
            await self.ask("look around")
            await self.ask("and again")
            turns = self.turns()
            self.assertEqual(len(turns), 8)
            with self.subTest(kind.__name__):
                for before, after in itertools.pairwise(turns):
                    for part in ("tools", "system"):
                        same = json.dumps(before.get(part)), json.dumps(after.get(part))
                        self.assertEqual(*same)
                    old, new = (unmarked(turn["messages"]) for turn in (before, after))
                    self.assertGreater(len(new), len(old))
                    self.assertEqual(json.dumps(new[: len(old)]), json.dumps(old))


class MarkTests(CachingTestCase):
    def body(self, request: ModelRequest) -> dict[str, Any]:
        provider = AnthropicProvider("http://model", "key", clock=SystemClock())
        return provider._body(request)

    async def test_tools_system_and_the_two_newest_user_messages_are_marked(self) -> None:
        await self.start(AnthropicProvider, working)
        await self.ask("look around")
        first, *_, last = self.turns()
        tools = len(first["tools"]) - 1
        self.assertEqual(marks(first), ["/messages/0/content/0", "/system/0", f"/tools/{tools}"])
        self.assertEqual(
            marks(last),
            [
                f"/messages/{len(last['messages']) - 3}/content/0",
                f"/messages/{len(last['messages']) - 1}/content/1",
                "/system/0",
                f"/tools/{tools}",
            ],
        )

    async def test_where_the_last_request_ended_is_marked_in_the_next(self) -> None:
        await self.start(AnthropicProvider, working)
        await self.ask("look around")
        turns = self.turns()
        for before, after in itertools.pairwise(turns):
            end = [mark for mark in marks(before) if "/messages/" in mark][-1]
            self.assertIn(end, marks(after))

    def test_there_are_never_more_than_four_cache_marks(self) -> None:
        messages = [
            ChatMessage("user", "a"),
            *(
                message
                for n in range(9)
                for message in (
                    ChatMessage("assistant", "", tool_calls=[ToolCall(f"c{n}", "ls", "{}")]),
                    ChatMessage("tool", "x", tool_call_id=f"c{n}"),
                )
            ),
        ]
        self.assertEqual(len(marks(self.body(ModelRequest("m", "sys", messages)))), 3)
        self.assertEqual(
            marks(self.body(ModelRequest("m", "", messages[:1]))), ["/messages/0/content/0"]
        )


class UsageTests(CachingTestCase):
    async def counted(self) -> tuple[int, int, float]:
        found = (await self.anna.call("GET", f"/sessions/{self.session}")).json
        return found["prompt_tokens"], found["completion_tokens"], round(found["cost"], 6)

    async def test_anthropic_s_cached_tokens_are_counted_at_their_own_price(self) -> None:
        await self.start(AnthropicProvider, None)
        asked = await self.prompted()
        usage = {
            "input_tokens": 100,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 10,
            "output_tokens": 1,
        }
        start = {"type": "message_start", "message": {"role": "assistant", "usage": usage}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
        delta = {"type": "text_delta", "text": "hi"}
        events: list[dict[str, Any]] = [
            start,
            block,
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 50},
            },
            {"type": "message_stop"},
        ]
        asked.begin()
        for event in events:
            asked.raw(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        asked.end()
        await self.anna.events.wait_for("run_complete")
        cost = (100 * 1000 + 1000 * 100 + 10 * 2000 + 50 * 10) / 1_000_000
        self.assertEqual(await self.counted(), (1110, 50, cost))

    async def test_cached_tokens_of_chat_completions_are_counted_at_their_own_price(self) -> None:
        await self.start(OpenAIProvider, None)
        asked = await self.prompted()
        usage = {
            "prompt_tokens": 1100,
            "completion_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 1000},
        }
        asked.begin()
        for chunk in (
            {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ):
            asked.raw(f"data: {json.dumps(chunk)}\n\n".encode())
        asked.raw(b"data: [DONE]\n\n")
        asked.end()
        await self.anna.events.wait_for("run_complete")
        cost = (100 * 1000 + 1000 * 100 + 50 * 10) / 1_000_000
        self.assertEqual(await self.counted(), (1100, 50, cost))

    async def prompted(self) -> Any:
        """Post a prompt and return the call for it. The one for a title is refused, so that it
        costs nothing."""
        await self.anna.prompt(self.session, "hello")
        found = None
        for number in (1, 2, 3):
            call = await self.model.call(number)
            if call.request.get("tools"):
                found = call
            else:
                call.error(400, "no titles today")
        return found
