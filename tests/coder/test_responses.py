"""OpenAI's Responses API: which requests are sent, which answers are understood, and that
everything else is a ProviderError."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from crushlite.coder.providers.base import (
    CallPiece,
    ChatMessage,
    Image,
    ModelRequest,
    ModelStop,
    Piece,
    ProviderError,
    Text,
    Thought,
    Tokens,
    ToolCall,
)
from crushlite.coder.providers.responses import ResponsesProvider
from crushlite.fake_model import FakeModel
from tests.support.providers import (
    HEAD,
    HI,
    KEY,
    PICTURE,
    TOOL,
    Case,
    SentCase,
    ask,
    pieces_of,
    spoiled,
    sse,
)

SEALED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "gAAAA",
}


def added(index: Any, type_: str, **more: Any) -> dict[str, Any]:
    item = {"type": type_, **more}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: Any, item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, index: Any, text: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text}


def ended(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"status": status, **more}}


def record(*entries: dict[str, Any]) -> Thought:
    return Thought("", json.dumps({"responses": list(entries)}))


SPEAK = [
    added(0, "message", id="m1"),
    delta("output_text", 0, "h"),
    delta("output_text", 0, "i"),
]
SPOKEN: list[Piece] = [Text("h"), Text("i"), ModelStop("end_turn")]
THINK = [
    added(0, "reasoning", id="rs_1"),
    {"type": "response.reasoning_summary_part.added", "output_index": 0},
    delta("reasoning_summary_text", 0, "hm"),
    done(0, SEALED),
]
CALL = [
    added(1, "function_call", id="fc_1", call_id="c1", name="ls"),
    delta("function_call_arguments", 1, "{}"),
]
THOUGHT = {"item": {"summary": SEALED["summary"], **SEALED}}
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
    "output_tokens": 3,
}

GOOD: dict[str, tuple[bytes, list[Piece]]] = {
    "plain": (sse(*SPEAK, ended()), SPOKEN),
    "no status": (sse(*SPEAK, {"type": "response.completed", "response": {}}), SPOKEN),
    "a marker of the end, as chat completions have it": (sse(*SPEAK, ended(), "[DONE]"), SPOKEN),
    "unknown events": (sse({"type": "response.queued"}, *SPEAK, {"x": 1}, ended()), SPOKEN),
    "text that comes only with its item": (
        sse(
            added(0, "message"),
            done(0, {"content": [{"type": "output_text", "text": "hi"}]}),
            ended(),
        ),
        HI,
    ),
    "refusal": (
        sse(added(0, "message"), delta("refusal", 0, "no"), ended()),
        [Text("no"), ModelStop("content_filter")],
    ),
    "refusal that comes only with its item": (
        sse(added(0, "message"), done(0, {"content": [{"refusal": "no"}]}), ended()),
        [Text("no"), ModelStop("content_filter")],
    ),
    "too long": (
        sse(*SPEAK, ended("incomplete", incomplete_details={"reason": "max_output_tokens"})),
        [*SPOKEN[:2], ModelStop("max_tokens")],
    ),
    "filtered": (
        sse(*SPEAK, ended("incomplete", incomplete_details={"reason": "content_filter"})),
        [*SPOKEN[:2], ModelStop("content_filter")],
    ),
    "strange reason": (
        sse(*SPEAK, ended("incomplete", incomplete_details={"reason": "tired"})),
        [*SPOKEN[:2], ModelStop("unknown")],
    ),
    "usage": (
        sse(*SPEAK, ended(usage=USAGE)),
        [*SPOKEN[:2], Tokens(5, 3, 4, 1), ModelStop("end_turn")],
    ),
    "call": (
        sse(*CALL, ended()),
        [
            CallPiece(0, "c1", "ls"),
            CallPiece(0, arguments="{}"),
            ModelStop("tool_use"),
        ],
    ),
    "call whose arguments come only with its item": (
        sse(CALL[0], done(1, {"arguments": '{"a": 1}'}), ended()),
        [
            CallPiece(0, "c1", "ls"),
            CallPiece(0, arguments='{"a": 1}'),
            ModelStop("tool_use"),
        ],
    ),
    "call without arguments": (
        sse(CALL[0], done(1, {"arguments": ""}), ended()),
        [CallPiece(0, "c1", "ls"), CallPiece(0, arguments="{}"), ModelStop("tool_use")],
    ),
    "reasoning": (
        sse(*THINK, *CALL, ended()),
        [
            Thought("hm"),
            CallPiece(0, "c1", "ls"),
            CallPiece(0, arguments="{}"),
            record(THOUGHT, {"place": "call", "id": "fc_1"}),
            ModelStop("tool_use"),
        ],
    ),
    "reasoning whose summary comes only with its item": (
        sse(THINK[0], THINK[3], ended()),
        [Thought("hm"), record(THOUGHT), ModelStop("end_turn")],
    ),
    "reasoning that is not encrypted": (
        sse(*THINK[:3], done(0, {"type": "reasoning", "id": "rs_1", "summary": []}), ended()),
        [Thought("hm"), ModelStop("end_turn")],
    ),
    "summary in parts": (
        sse(*THINK[:3], *THINK[1:3], done(0, {}), ended()),
        [Thought("hm"), Thought("\n\nhm"), ModelStop("end_turn")],
    ),
    "reasoning in plain text": (
        sse(THINK[0], delta("reasoning_text", 0, "hm"), done(0, {}), ended()),
        [Thought("hm"), ModelStop("end_turn")],
    ),
    "phase": (
        sse(
            *THINK,
            added(1, "message", id="m1", phase="commentary"),
            delta("output_text", 1, "hi"),
            ended(),
        ),
        [
            Thought("hm"),
            Text("hi"),
            record(THOUGHT, {"place": "text", "chars": 2, "id": "m1", "phase": "commentary"}),
            ModelStop("end_turn"),
        ],
    ),
    "whole": (
        json.dumps(
            {"output": [{"type": "message", "content": [{"text": "hi"}]}], "usage": USAGE}
        ).encode(),
        [Text("hi"), Tokens(5, 3, 4, 1), ModelStop("end_turn")],
    ),
    "halves of a pair": (
        sse(
            SPEAK[0], delta("output_text", 0, "\ud83d"), delta("output_text", 0, "\ude00"), ended()
        ),
        [Text("\U0001f600"), ModelStop("end_turn")],
    ),
}

BAD: dict[str, tuple[bytes, str, bool]] = {
    "nothing": (b"", "no answer at all", True),
    "only the beginning": (
        sse({"type": "response.created", "response": {}}),
        "no answer at all",
        True,
    ),
    "cut": (sse(*SPEAK), "ended before the answer was complete", True),
    "an item twice": (sse(SPEAK[0], SPEAK[0]), "an item of a strange shape", True),
    "no item": (sse(added(None, "message")), "an item of a strange shape", True),
    "a delta of nothing": (sse(delta("output_text", 3, "x")), "that never began", True),
    "a delta that is no text": (sse(SPEAK[0], delta("output_text", 0, 5)), "is no text", True),
    "a call without a name": (sse(added(0, "function_call")), "without a name", True),
    "an end without a response": (sse(*SPEAK, {"type": "response.completed"}), "an end", True),
    "failed": (
        sse(*SPEAK, ended("failed", error={"code": "server_error", "message": "Oops."})),
        "Oops. (server_error)",
        True,
    ),
    "failed for good": (
        sse(*SPEAK, ended("failed", error={"code": "invalid_prompt", "message": "No."})),
        "No. (invalid_prompt)",
        False,
    ),
    "an error event": (
        sse({"type": "error", "code": "rate_limit_exceeded", "message": "Slower.", "param": None}),
        "Slower. (rate_limit_exceeded)",
        True,
    ),
    "no document": (b'{"detail": "Not here"}', "Not here", True),
    "too many items": (
        sse(*(added(n, "message") for n in range(2001))),
        "more than 2000 items",
        False,
    ),
    "a summary that is too long": (
        sse(*THINK[:3], done(0, {**SEALED, "summary": [{"text": "x" * ((1 << 20) + 1)}]})),
        "too long",
        True,
    ),
    "too much that is sealed": (
        sse(THINK[0], done(0, {**SEALED, "encrypted_content": "x" * ((1 << 20) + 1)})),
        "too long",
        True,
    ),
}


class Answers(Case):
    async def test_every_kind_of_answer_is_understood(self) -> None:
        provider = self.client(ResponsesProvider)
        for name, (data, pieces) in GOOD.items():
            with self.subTest(name):
                self.assertEqual(await self.answered(provider, HEAD + data), pieces)

    async def test_an_answer_may_be_cut_anywhere(self) -> None:
        await self.cut_anywhere(self.client(ResponsesProvider), *GOOD["reasoning"])

    async def test_everything_else_is_an_error_that_says_what_was_wrong(self) -> None:
        for name, (data, words, retryable) in BAD.items():
            with self.subTest(name):
                error = await self.failure(self.client(ResponsesProvider), HEAD + data)
                self.assertIn(words, str(error))
                self.assertEqual(error.retryable, retryable)

    async def test_a_spoiled_stream_ends_with_a_stop_or_an_error(self) -> None:
        rng = random.Random(21)
        events = [*THINK, *CALL, added(2, "message"), delta("output_text", 2, "x")]
        events += [done(2, {"content": []}), ended(usage=USAGE)]
        provider = self.client(ResponsesProvider)
        for _ in range(200):
            at = rng.randrange(len(events))
            spoilt = [*events[:at], spoiled(events[at], rng), *events[at + 1 :]]
            try:
                pieces = await self.answered(provider, HEAD + sse(*spoilt))
            except ProviderError:
                continue
            self.assertIsInstance(pieces[-1], ModelStop, spoilt)


class Sent(SentCase):
    async def body(self, request: ModelRequest, **options: Any) -> dict[str, Any]:
        provider = self.client(ResponsesProvider, self.model.base_url, **options)
        return await self.sent(provider, request)

    async def items(self, *history: ChatMessage) -> list[dict[str, Any]]:
        found = (await self.body(ModelRequest("m", "", list(history))))["input"]
        assert isinstance(found, list)
        return found

    async def test_a_plain_request(self) -> None:
        body = await self.body(ask(tools=[TOOL]))
        tool = {"type": "function", "name": "ls", "description": "Lists.", "strict": False}
        self.assertEqual(
            body,
            {
                "model": "m",
                "instructions": "You help.",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                "tools": [{**tool, "parameters": TOOL.parameters}],
                "stream": True,
                "store": False,
                "include": ["reasoning.encrypted_content"],
            },
        )
        self.assertEqual(self.call.path, "/v1/responses")
        self.assertEqual(self.call.headers["authorization"], f"Bearer {KEY}")

    async def test_every_setting_is_sent(self) -> None:
        settings: dict[str, Any] = {
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 3,
            "frequency_penalty": 0.1,
        }
        settings |= {"presence_penalty": 0.2}
        body = await self.body(ask(max_tokens=9, reasoning_effort="high", **settings))
        self.assertEqual({name: body[name] for name in settings}, settings)
        self.assertEqual(body["max_output_tokens"], 9)
        self.assertEqual(body["reasoning"], {"effort": "high", "summary": "auto"})
        self.assertEqual((await self.body(ask(think=True)))["reasoning"], {"summary": "auto"})

    async def test_options_are_merged_and_extra_fields_win(self) -> None:
        body = await self.body(
            ask(reasoning_effort="high"),
            options={"reasoning": {"summary": "detailed"}, "user": "a", "seed": 1},
            extra_body={"user": "b"},
        )
        self.assertEqual(body["reasoning"], {"effort": "high", "summary": "detailed"})
        self.assertEqual((body["user"], body["seed"]), ("b", 1))

    async def test_reasoning_goes_back_in_its_place_with_the_ids_of_its_items(self) -> None:
        entries: list[dict[str, Any]] = [
            {"place": "text", "chars": 3, "id": "m1", "phase": "commentary"},
            THOUGHT,
            {"place": "call", "id": "fc_1"},
            {"place": "call"},
            {"place": "text", "chars": 3},
        ]
        message = ChatMessage(
            "assistant",
            "onetwo",
            signature=record(*entries).signature,
            tool_calls=[ToolCall("c1", "ls", "{}"), ToolCall("c2", "rm", "")],
        )

        def text(words: str, **more: Any) -> dict[str, Any]:
            content = [{"type": "output_text", "text": words, "annotations": []}]
            item = {"type": "message", "role": "assistant", "status": "completed"}
            return {**item, "content": content, **more}

        def call(id_: str, name: str, **more: Any) -> dict[str, Any]:
            item = {"type": "function_call", "call_id": id_, "name": name, "arguments": "{}"}
            return {**item, **more}

        self.assertEqual(
            await self.items(message),
            [
                text("one", id="m1", phase="commentary"),
                SEALED,
                call("c1", "ls", id="fc_1"),
                call("c2", "rm"),
                text("two"),
            ],
        )
        # The answers of other APIs have no place for reasoning here.
        for signature in ("sign", json.dumps({"gemini": entries}), '{"responses": 5}', '{"resp'):
            other = ChatMessage("assistant", "x", signature=signature, tool_calls=[])
            self.assertEqual(await self.items(other), [text("x")])
        # Nor has reasoning that nothing followed.
        cut = ChatMessage("assistant", "x", signature=record(entries[0], THOUGHT).signature)
        self.assertEqual(await self.items(cut), [text("x", id="m1", phase="commentary")])

    async def test_images_documents_and_results(self) -> None:
        pdf = Image("application/pdf", "QUJD", "a.pdf")
        user, result, seen = await self.items(
            ChatMessage("user", "see", images=[PICTURE, pdf]),
            ChatMessage("tool", "text", tool_call_id="x" * 70),
            ChatMessage("tool", "text", tool_call_id="c", images=[PICTURE]),
        )
        shown = {
            "type": "input_image",
            "image_url": "data:image/png;base64,QUJD",
            "detail": "auto",
        }
        said = {"type": "input_text", "text": "see"}
        data = "data:application/pdf;base64,QUJD"
        file = {"type": "input_file", "filename": "a.pdf", "file_data": data}
        self.assertEqual(user["content"], [said, shown, file])
        item = {"type": "function_call_output", "call_id": "x" * 64, "output": "text"}
        self.assertEqual(result, item)
        self.assertEqual(seen["output"], [{"type": "input_text", "text": "text"}, shown])


class Adapting(Case):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.model = await FakeModel().__aenter__()
        self.addAsyncCleanup(self.model.aclose)
        self.provider = self.client(ResponsesProvider, self.model.base_url)

    async def refuse(self, words: str, request: ModelRequest, status: int = 400) -> dict[str, Any]:
        """The body that is sent after a refusal of the first one."""
        first = len(self.model.calls)
        task = asyncio.create_task(pieces_of(self.provider, request))
        (await self.model.call(first + 1)).error(status, words)
        call = await self.model.call(first + 2)
        await call.finish("stop", usage=None)
        await self.within(task)
        return call.request

    async def test_what_a_model_does_not_have_is_left_out_from_then_on(self) -> None:
        request = ask(reasoning_effort="low")
        words = "Encrypted content is not supported with this model."
        self.assertNotIn("include", await self.refuse(words, request))
        words = "Your organization must be verified to generate reasoning summaries."
        body = await self.refuse(words, request)
        self.assertEqual(body["reasoning"], {"effort": "low"})
        self.assertNotIn("include", body)

    async def test_reasoning_that_another_model_has_sealed_is_left_out(self) -> None:
        thought = ChatMessage("assistant", "x", signature=record(THOUGHT).signature)
        request = ModelRequest("m", "", [thought, ChatMessage("user", "hi")])
        words = "The encrypted content gAAA... could not be verified."
        body = await self.refuse(words, request)
        self.assertEqual([item.get("type") for item in body["input"]], ["message", None])
        self.assertIn("include", body)

    async def test_a_server_without_the_api_is_asked_by_chat_completions(self) -> None:
        body = await self.refuse("404 page not found", ask(), status=404)
        self.assertIn("messages", body)
        async with self.asking(self.model, self.provider, ask()) as (call, _):
            await call.finish("stop")
        self.assertEqual(call.path, "/v1/chat/completions")

    async def test_a_model_that_does_not_exist_is_an_error(self) -> None:
        async with self.asking(self.model, self.provider, ask()) as (call, task):
            call.error(404, "The model `m` does not exist.")
        self.assertEqual((await self.refused(task)).upstream_status, 404)
        self.assertEqual(len(self.model.calls), 1)
