"""Prompt caching: each request begins with the one before it, and cached tokens are counted."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.coder.loop import CoderAgent, CoderOptions
from crushlite.coder.prompts import SUMMARY
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

    from crushlite.testing import Participant

MARK = {"type": "ephemeral"}
MODEL = Model(
    id="m",
    cost_per_1m_in=1000.0,
    cost_per_1m_out=10.0,
    cost_per_1m_in_cached=2000.0,
    cost_per_1m_out_cached=100.0,
    supports_attachments=True,
)
PICTURE = {"content": "iVBORw0KGgo=", "file_path": "a.png", "mime_type": "image/png"}


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
        self.project = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.project / "AGENTS.md").write_text("Be kind.\n")
        (self.project / "a.txt").write_text("one\n")
        await self.start_daemon(kind)
        self.session = await self.anna.session()

    async def start_daemon(self, kind: type[AnthropicProvider | OpenAIProvider]) -> None:

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

        self.daemon = LocalDaemon(make)
        self.running = contextlib.AsyncExitStack()
        await self.running.enter_async_context(self.daemon)
        self.addAsyncCleanup(self.running.aclose)
        self.anna: Participant = await self.daemon.join(
            self.project, yolo=True, data_dir=str(self.project / "data")
        )

    async def ask(self, text: str, **fields: Any) -> None:
        run = (await self.anna.prompt(self.session, text, **fields)).json["run_id"]
        ended = await self.anna.events.wait_for("run_complete", run_id=run)
        self.assertEqual(ended["error"], None)

    def turns(self) -> list[dict[str, Any]]:
        """The requests for turns; those for titles have no tools."""
        return [call.request for call in self.model.calls if call.request.get("tools")]


def working(request: dict[str, Any]) -> list[Any]:
    """A model that views a file, writes one, looks again with two tools at once, then answers."""
    if not request.get("tools"):
        return [Say("A title"), End()]
    if SUMMARY in json.dumps(request["messages"][-1], ensure_ascii=False).replace("\\n", "\n"):
        return [Say("The gist."), End()]
    step = sum(message["role"] == "assistant" for message in request["messages"]) % 4
    view = Use("view", json.dumps({"file_path": "deep/b.txt" if step else "a.txt"}))
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
                self.check_prefixes(turns)

    async def test_ten_turns_with_tools_images_news_a_restart_and_a_summary_share_their_beginnings(
        self,
    ) -> None:
        for kind in (OpenAIProvider, AnthropicProvider):
            await self.start(kind, working)
            with self.subTest(kind.__name__):
                before, after = await self.ten_turns(kind)
                self.assertEqual((len(before), len(after)), (29, 12))
                self.check_prefixes(before)  # the request for the summary is the last of them
                self.check_prefixes(after)
                for part in ("tools", "system"):
                    parts = {json.dumps(request.get(part)) for request in (*before, *after)}
                    self.assertEqual(len(parts), 1)
                texts = [json.dumps(request) for request in (before[-1], after[-1])]
                for told in ("iVBORw0KGgo=", "Be brief.", "Deep down."):
                    self.assertIn(told, texts[0])
                for told in ("Be brief.", "The gist."):
                    self.assertIn(told, texts[1])

    async def ten_turns(
        self, kind: type[AnthropicProvider | OpenAIProvider]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The requests of seven turns and a summary, and those of three turns behind it."""
        (self.project / "deep").mkdir()
        (self.project / "deep/AGENTS.md").write_text("Deep down.\n")
        (self.project / "deep/b.txt").write_text("two\n")
        await self.ask("look around")
        await self.ask("at this, too", attachments=[PICTURE])
        (self.project / "AGENTS.md").write_text("Be brief.\n")
        await self.ask("and now")
        await self.ask("once more")
        await self.running.aclose()
        await self.start_daemon(kind)
        await self.ask("after a restart")
        await self.ask("and the next")
        await self.ask("and the last")
        answer = await self.anna.call("POST", f"/agent/sessions/{self.session}/summarize")
        self.assertEqual(answer.status, 200)
        before = self.turns()
        for text in ("eight", "nine", "ten"):
            await self.ask(text)
        return before, self.turns()[len(before) :]

    def check_prefixes(self, requests: list[dict[str, Any]]) -> None:
        """Check that each request begins with the bytes of the one before it."""
        for earlier, later in itertools.pairwise(requests):
            for part in ("tools", "system"):
                self.assertEqual(json.dumps(earlier.get(part)), json.dumps(later.get(part)))
            old, new = (unmarked(request["messages"]) for request in (earlier, later))
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
