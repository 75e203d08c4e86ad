"""Prompt caching: each request begins with the one before it, and cached tokens are counted."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.coder.loop import CoderAgent, CoderOptions, ServedModel
from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import ChatMessage, ModelRequest, ToolCall
from crushlite.coder.providers.gemini import GeminiProvider
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.providers.responses import ResponsesProvider
from crushlite.coder.tools.base import ToolContext
from crushlite.coder.tools.registry import all_tools
from crushlite.fake_model import Counts, End, Fail, FakeModel, Say, Think, Use
from crushlite.protocol.config import Model, SelectedModel
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase
from tests.support.images import png

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crushlite.coder.providers.client import ProviderClient
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


def marks(value: Any, path: str = "") -> list[str]:
    """The places of the cache marks in a request."""
    if isinstance(value, dict):
        own = [path] if value.get("cache_control") == MARK else []
        return own + [m for key, item in value.items() for m in marks(item, f"{path}/{key}")]
    if isinstance(value, list):
        return [m for n, item in enumerate(value) for m in marks(item, f"{path}/{n}")]
    return []


class CachingTestCase(BoundedTestCase):
    async def start(
        self, provider: type[ProviderClient], script: Any, model: str = "m", **more: Any
    ) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=script))
        used = dataclasses.replace(MODEL, id=model)
        chosen = SelectedModel(model=model, provider="fake", reasoning_effort="low")

        def make(path: Path, env: Mapping[str, str], config: Any) -> CoderAgent:
            large, small = (
                ServedModel(
                    provider(self.model.base_url, "key", clock=SystemClock(), **more), used, chosen
                )
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

    async def restart(self) -> None:
        """Stop the daemon and start another one on the same files."""
        await self.daemon.daemon.stop()
        await self.daemon.__aenter__()
        self.anna = await self.daemon.join(yolo=True)

    async def ask(self, text: str, **fields: Any) -> None:
        run = (await self.anna.prompt(self.session, text, **fields)).json["run_id"]
        await self.anna.events.wait_for("run_complete", run_id=run)

    def turns(self) -> list[dict[str, Any]]:
        """The requests for turns; those for titles have no tools."""
        return [call.request for call in self.model.calls if call.request.get("tools")]


# Ten turns ---------------------------------------------------------------------------------------

MARKED = b',"cache_control":{"type":"ephemeral"}'
SUMMARY = "All that was said"
PIXEL = "iVBORw0KGgo="
LOOKED_AT = png()  # by a tool
FILES = {
    2: {"file_path": "p.png", "mime_type": "image/png", "content": PIXEL},
    3: {"file_path": "d.pdf", "mime_type": "application/pdf", "content": "JVBERi0xLjQK"},
    8: {"file_path": "q.png", "mime_type": "image/png", "content": PIXEL},
}


@dataclass(frozen=True)
class API:
    """An API, and the fields of its requests in the order in which a model reads them. `kept` is
    what each answer with reasoning wants back."""

    provider: type[ProviderClient]
    history: str
    before: tuple[str, ...]
    kept: bytes = b""
    model: str = "m"
    more: dict[str, Any] = field(default_factory=dict)


APIS = {
    "chat completions": API(
        OpenAIProvider, "messages", ("tools",), b'"reasoning_content":"I wonder"'
    ),
    "OpenRouter": API(
        OpenAIProvider,
        "messages",
        ("tools",),
        b'"reasoning_content":"I wonder"',
        "anthropic/claude-sonnet-4.5",
        {"kind": "openrouter"},
    ),
    "Anthropic with a budget": API(
        AnthropicProvider, "messages", ("tools", "system"), b'"signature":"signed'
    ),
    "Anthropic, adaptive": API(
        AnthropicProvider,
        "messages",
        ("tools", "system"),
        b'"signature":"signed',
        "claude-opus-5",
    ),
    "Responses": API(
        ResponsesProvider, "input", ("tools", "instructions"), b'"encrypted_content":"sealed'
    ),
    "Gemini": API(
        GeminiProvider, "contents", ("tools", "systemInstruction"), b'"thoughtSignature":"c2ln'
    ),
}


def field_of(body: bytes, name: str) -> bytes:
    """The bytes of a field of a request, as they were sent, without cache marks."""
    text = body.decode()
    key = json.dumps(name) + ":"
    start = text.find(key) + len(key)
    if key not in text:
        return b""
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start:end].encode().replace(MARKED, b"")


class Worker:
    """A model that views a file, writes one, looks with three calls at once, then answers."""

    RESULTS = ('"tool_result"', '"role": "tool"', "function_call_output", "functionResponse")

    def __init__(self) -> None:
        self._turn = self._step = 0

    def __call__(self, request: dict[str, Any]) -> list[Any]:
        histories = (request[name] for name in ("messages", "input", "contents") if name in request)
        *_, before, last = ["", *map(json.dumps, next(histories))]
        # In chat completions the images of results are in a message of their own.
        last = before if "The images of the tool results" in last else last
        if any(mark in last for mark in self.RESULTS):
            self._step += 1
        elif '"turn ' in last and request.get("tools"):
            self._turn, self._step = self._turn + 1, 0
        else:
            return [Say(SUMMARY), End()]  # or a title
        view = Use("view", json.dumps({"file_path": "deep/b.txt" if self._step else "a.txt"}))
        look = Use("view", json.dumps({"file_path": "look.png"}))
        # `ls` starts a process: once is enough.
        third = Use("ls", "{}") if self._turn == 1 else view
        write = Use("write", json.dumps({"file_path": "c.txt", "content": last[:9]}))
        return [
            [Think("I wonder"), Say("Let me see. "), view, End()],
            [Think("I wonder"), write, End()],
            [view, look, third, End()],
            [Think("I wonder"), Say("Done."), End()],
        ][self._step]


class PrefixTests(CachingTestCase):
    async def converse(self, api: API) -> list[bytes]:
        """Ten turns with files, images that a tool looks at, and instructions that change after the
        third; a summary after the fifth and a restart after the seventh. Returns the bodies of the
        turns' requests and of that for the summary."""
        await self.start(api.provider, Worker(), api.model, **api.more)
        project = self.daemon.root / "project"
        (project / "deep").mkdir()
        (project / "deep/AGENTS.md").write_text("Deep down.\n")
        (project / "deep/b.txt").write_text("two\n")
        (project / "look.png").write_bytes(LOOKED_AT)
        for number in range(1, 11):
            await self.ask(f"turn {number}", attachments=[FILES[number]] if number in FILES else [])
            if number == 3:
                (project / "AGENTS.md").write_text("Be brief.\n")
            if number == 5:
                path = f"/agent/sessions/{self.session}/summarize"
                self.assertEqual((await self.anna.call("POST", path)).status, 200)
            if number == 7:
                await self.restart()
        return [call.body for call in self.model.calls if call.request.get("tools")]

    async def test_each_request_begins_with_the_bytes_of_the_one_before(self) -> None:
        """And all reasoning and every image goes back to the model, also after the restart."""
        image = base64.b64encode(LOOKED_AT)
        for name, api in APIS.items():
            bodies = await self.converse(api)
            with self.subTest(name):
                again = next(n for n, body in enumerate(bodies) if SUMMARY.encode() in body)
                self.assertEqual((len(bodies), again), (41, 21))
                for number, (before, after) in enumerate(itertools.pairwise(bodies), 1):
                    for part in api.before:
                        self.assertEqual(field_of(after, part), field_of(before, part))
                    old, new = field_of(before, api.history), field_of(after, api.history)
                    if number != again:
                        self.assertTrue(new.startswith(old.removesuffix(b"]") + b","), number)
                # Four whole turns since the summary, and the first three steps of the last one.
                # Gemini signs every answer, the others their reasoning.
                signed = 4 * 4 + 3 if api.provider is GeminiProvider else 4 * 3 + 2
                self.assertEqual(bodies[-1].count(api.kept), signed)
                for body in (bodies[again - 1], bodies[-1]):
                    self.assertEqual(body.count(image), 5)
                    for told in (b"Be brief.", b"Deep down."):
                        self.assertIn(told, body)
            if api.provider is AnthropicProvider:
                with self.subTest(name, what="thinking is not switched inside a turn"):
                    first, *others = (json.loads(body)["thinking"] for body in bodies)
                    self.assertEqual([other for other in others if other != first], [])


class EffortTests(CachingTestCase):
    async def test_a_prompt_says_how_much_its_turn_reasons_and_no_other(self) -> None:
        await self.start(OpenAIProvider, Worker())
        wishes: list[dict[str, Any]] = [{}, {"reasoning_effort": "high"}, {"think": False}]
        wishes += [{"think": True}, {}]
        for number, wish in enumerate(wishes, 1):
            await self.ask(f"turn {number}", **wish)
        asked = [request["reasoning_effort"] for request in self.turns()]
        wanted = [effort for effort in ("low", "high", "none", "low", "low") for _ in range(4)]
        self.assertEqual(asked, wanted)

    async def test_an_effort_that_is_no_word_is_refused(self) -> None:
        await self.start(OpenAIProvider, Worker())
        answer = await self.anna.try_prompt(self.session, "turn 1", reasoning_effort="a lot")
        self.assertEqual(answer.status, 400)
        self.assertIn("reasoning_effort", answer.json["message"])


class ModelChoiceTests(CachingTestCase):
    async def test_a_choice_of_models_that_is_not_whole_or_has_no_turn_is_refused(self) -> None:
        await self.start(OpenAIProvider, Worker())
        chosen = {"model": "m", "provider": "p"}
        for fields, reason in (
            ({"models": {"huge": chosen}}, "for large, small or both"),
            ({"models": {"large": {"model": "m"}}}, "for large, small or both"),
            ({"models": {"large": chosen}, "when_busy": "steer"}, "a turn of its own"),
            ({"models": {"large": chosen}}, "does not let prompts choose models"),
        ):
            with self.subTest(reason):
                answer = await self.anna.try_prompt(self.session, "turn 1", **fields)
                self.assertEqual(answer.status, 400)
                self.assertIn(reason, answer.json["message"])
        self.assertEqual(self.turns(), [])


class MarkTests(CachingTestCase):
    def body(self, request: ModelRequest) -> dict[str, Any]:
        provider = AnthropicProvider("http://model", "key", clock=SystemClock())
        return provider._body(request)

    async def test_tools_system_and_the_two_newest_user_messages_are_marked(self) -> None:
        await self.start(AnthropicProvider, Worker())
        await self.ask("turn 1")
        first, *_, last = self.turns()
        tools = len(first["tools"]) - 1
        self.assertEqual(marks(first), ["/messages/0/content/0", "/system/0", f"/tools/{tools}"])
        self.assertEqual(
            marks(last),
            [
                f"/messages/{len(last['messages']) - 3}/content/0",
                f"/messages/{len(last['messages']) - 1}/content/2",
                "/system/0",
                f"/tools/{tools}",
            ],
        )

    async def test_where_the_last_request_ended_is_marked_in_the_next(self) -> None:
        await self.start(AnthropicProvider, Worker())
        await self.ask("turn 1")
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
    async def test_tokens_and_cost_are_those_that_the_server_reports(self) -> None:
        """Tokens that are read from a cache, or written to it, have prices of their own; reasoning
        is paid for as output."""
        for name, api in APIS.items():
            usage = Counts(1110, 50, cache_read=1000, cache_write=10, reasoning=30)
            if api.provider is GeminiProvider:  # it reports no writes
                usage = dataclasses.replace(usage, cache_write=0)

            def script(request: dict[str, Any], usage: Counts = usage) -> list[Any]:
                if not request.get("tools"):
                    return [Fail(400, "no titles today")]
                return [Think("hm"), Say("hi"), End(usage=usage)]

            await self.start(api.provider, script, api.model, **api.more)
            await self.ask("hello")
            found = (await self.anna.call("GET", f"/sessions/{self.session}")).json
            counted = found["prompt_tokens"], found["completion_tokens"], round(found["cost"], 6)
            fresh = usage.prompt - usage.cache_read - usage.cache_write
            cost = fresh * 1000 + usage.cache_read * 100 + usage.cache_write * 2000 + 50 * 10
            with self.subTest(name):
                self.assertEqual(counted, (1110, 50, round(cost / 1_000_000, 6)))

    async def test_writing_to_a_cache_at_an_unknown_price_costs_as_much_as_input(self) -> None:
        def script(request: dict[str, Any]) -> list[Any]:
            if not request.get("tools"):
                return [Fail(400, "no titles today")]
            return [Say("hi"), End(usage=Counts(2000, 1, cache_write=1000))]

        model = dataclasses.replace(MODEL, cost_per_1m_in_cached=0)
        with mock.patch(f"{__name__}.MODEL", model):
            await self.start(OpenAIProvider, script)
            await self.ask("hello")
        found = (await self.anna.call("GET", f"/sessions/{self.session}")).json
        self.assertEqual(round(found["cost"], 6), 2.00001)
