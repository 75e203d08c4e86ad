"""Google's API for Gemini: which requests are sent, which answers are understood, and that
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
from crushlite.coder.providers.gemini import UNSIGNED, GeminiProvider
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


def chunk(*parts: Any, reason: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if reason is not None:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], **more}


def call(name: Any = "ls", args: Any = None, signature: str = "", **more: Any) -> dict[str, Any]:
    part = {"functionCall": {"name": name, "args": args, **more}}
    return part | ({"thoughtSignature": signature} if signature else {})


def record(*entries: dict[str, Any]) -> Thought:
    return Thought("", json.dumps({"gemini": list(entries)}))


PDF = Image("application/pdf", "QUJD", "d.pdf")
SAY = {"text": "hi"}
USAGE = {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 3}

GOOD: dict[str, tuple[bytes, list[Piece]]] = {
    "plain": (
        sse(chunk({"text": "h"}), chunk({"text": "i"}), chunk(reason="STOP")),
        [
            Text("h"),
            Text("i"),
            ModelStop("end_turn"),
        ],
    ),
    "finish beside the text": (sse(chunk(SAY, reason="STOP")), HI),
    "no content": (
        sse(chunk(SAY), {"candidates": [{"finishReason": "STOP"}]}),
        HI,
    ),
    "too long": (sse(chunk(SAY, reason="MAX_TOKENS")), [HI[0], ModelStop("max_tokens")]),
    "unsafe": (sse(chunk(SAY, reason="SAFETY")), [HI[0], ModelStop("content_filter")]),
    "strange reason": (sse(chunk(SAY, reason="TIRED")), [HI[0], ModelStop("unknown")]),
    "blocked prompt": (
        sse({"promptFeedback": {"blockReason": "OTHER"}}),
        [ModelStop("content_filter")],
    ),
    "usage": (
        sse(
            chunk(SAY, usageMetadata={"promptTokenCount": 10}),
            chunk(reason="STOP", usageMetadata={**USAGE, "thoughtsTokenCount": 2}),
        ),
        [HI[0], Tokens(10), Tokens(6, 5, 4), HI[1]],
    ),
    "the same usage twice": (
        sse(chunk(SAY, usageMetadata=USAGE), chunk(reason="STOP", usageMetadata=USAGE)),
        [HI[0], Tokens(6, 3, 4), HI[1]],
    ),
    "thoughts": (
        sse(chunk({"text": "hm", "thought": True}), chunk(SAY, reason="STOP")),
        [Thought("hm"), *HI],
    ),
    "call": (
        sse(chunk(call(id="c1", args={"a": 1}), reason="STOP")),
        [CallPiece(0, "c1", "ls", '{"a": 1}'), ModelStop("tool_use")],
    ),
    "signed calls": (
        sse(chunk(call(id="c1", signature="s1"), call("rm", id="c2")), chunk(reason="STOP")),
        [
            CallPiece(0, "c1", "ls", "{}"),
            CallPiece(1, "c2", "rm", "{}"),
            record({"place": "call", "signature": "s1", "id": "c1"}, {"place": "call", "id": "c2"}),
            ModelStop("tool_use"),
        ],
    ),
    "signed text": (
        sse(
            chunk({"text": "h"}),
            chunk({"text": "i"}),
            chunk({"text": "", "thoughtSignature": "s1"}, reason="STOP"),
        ),
        [
            Text("h"),
            Text("i"),
            record({"place": "text", "chars": 2}, {"place": "text", "chars": 0, "signature": "s1"}),
            ModelStop("end_turn"),
        ],
    ),
    "text after signed text": (
        sse(chunk({"text": "h", "thoughtSignature": "s1"}), chunk({"text": "i"}, reason="STOP")),
        [
            Text("h"),
            Text("i"),
            record({"place": "text", "chars": 1, "signature": "s1"}, {"place": "text", "chars": 1}),
            ModelStop("end_turn"),
        ],
    ),
    "a list, as without alt=sse": (
        json.dumps([chunk({"text": "h"}), chunk({"text": "i"}, reason="STOP")]).encode(),
        [Text("h"), Text("i"), ModelStop("end_turn")],
    ),
    "a document, as without streaming": (json.dumps(chunk(SAY, reason="STOP")).encode(), HI),
    "halves of a pair": (
        sse(chunk({"text": "\ud83d"}), chunk({"text": "\ude00"}, reason="STOP")),
        [Text("\U0001f600"), ModelStop("end_turn")],
    ),
    "parts that are not for us": (sse(chunk({"executableCode": {}}, SAY, reason="STOP")), HI),
}

BAD: dict[str, tuple[bytes, str, bool]] = {
    "nothing": (b"", "no answer at all", True),
    "only usage": (sse({"usageMetadata": USAGE}), "no answer at all", True),
    "cut": (sse(chunk(SAY)), "ended before the answer was complete", True),
    "a candidate that is none": (sse({"candidates": [5]}), "a candidate that is no object", True),
    "candidates that are none": (sse({"candidates": {"a": 1}}), "no list", True),
    "a part that is none": (sse(chunk(5)), "a part that is no object", True),
    "a call without a name": (sse(chunk(call(""))), "without a name", True),
    "arguments that are none": (sse(chunk(call(args=[1]))), "arguments that are no object", True),
    "text that is none": (sse(chunk({"text": 5})), "is no text", True),
    "a broken call": (
        sse(chunk(SAY), {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}),
        "MALFORMED_FUNCTION_CALL",
        True,
    ),
    "an error": (
        sse(chunk(SAY), {"error": {"code": 503, "message": "Busy.", "status": "UNAVAILABLE"}}),
        "Busy. (UNAVAILABLE)",
        True,
    ),
    "an error in a list": (
        json.dumps([{"error": {"code": 400, "message": "No.", "status": "INVALID"}}]).encode(),
        "No. (INVALID)",
        False,
    ),
    "too much that is signed": (
        sse(chunk({"text": "", "thoughtSignature": "x" * ((1 << 20) + 1)})),
        "too long",
        True,
    ),
}


class Answers(Case):
    async def test_every_kind_of_answer_is_understood(self) -> None:
        provider = self.client(GeminiProvider)
        for name, (data, pieces) in GOOD.items():
            with self.subTest(name):
                self.assertEqual(await self.answered(provider, HEAD + data), pieces)

    async def test_an_answer_may_be_cut_anywhere(self) -> None:
        await self.cut_anywhere(self.client(GeminiProvider), *GOOD["signed calls"])

    async def test_a_call_without_an_id_gets_one_that_is_not_sent_back(self) -> None:
        data = sse(chunk(call(signature="s"), reason="STOP"))
        made, kept, _ = await self.answered(self.client(GeminiProvider), HEAD + data)
        assert isinstance(made, CallPiece)
        self.assertTrue(made.id.startswith("call_"))
        self.assertEqual(kept, record({"place": "call", "signature": "s"}))

    async def test_everything_else_is_an_error_that_says_what_was_wrong(self) -> None:
        for name, (data, words, retryable) in BAD.items():
            with self.subTest(name):
                error = await self.failure(self.client(GeminiProvider), HEAD + data)
                self.assertIn(words, str(error))
                self.assertEqual(error.retryable, retryable)

    async def test_a_spoiled_stream_ends_with_a_stop_or_an_error(self) -> None:
        rng = random.Random(22)
        events = [
            chunk({"text": "hm", "thought": True}, usageMetadata=USAGE),
            chunk(SAY, call(id="c1", args={"a": [1]}, signature="s1"), call("rm", id="c2")),
            chunk({"text": "", "thoughtSignature": "s2"}, reason="STOP", usageMetadata=USAGE),
        ]
        provider = self.client(GeminiProvider)
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
        provider = self.client(GeminiProvider, self.model.base_url, **options)
        return await self.sent(provider, request)

    async def contents(self, *history: ChatMessage) -> list[dict[str, Any]]:
        found = (await self.body(ModelRequest("m", "", list(history))))["contents"]
        assert isinstance(found, list)
        return found

    async def test_a_plain_request(self) -> None:
        body = await self.body(ask(tools=[TOOL]))
        declared: dict[str, Any] = {"name": "ls", "description": "Lists."}
        declared |= {"parametersJsonSchema": TOOL.parameters}
        self.assertEqual(
            body,
            {
                "systemInstruction": {"parts": [{"text": "You help."}]},
                "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                "tools": [{"functionDeclarations": [declared]}],
            },
        )
        self.assertEqual(self.call.path, "/v1/models/m:streamGenerateContent")
        self.assertEqual(self.call.headers["x-goog-api-key"], KEY)

    async def test_the_address_and_the_name_of_a_model(self) -> None:
        for base, query in (("/v1beta/openai/", ""), ("/v1beta?x=1", "&x=1")):
            provider = self.client(GeminiProvider, f"http://model{base}")
            path = provider._path(ModelRequest("models/a/b?c", "", []))
            self.assertEqual(
                provider._transport.endpoint.target(path),
                f"/v1beta/models/a%2Fb%3Fc:streamGenerateContent?alt=sse{query}",
            )

    async def test_every_setting_is_sent(self) -> None:
        settings: dict[str, Any] = {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "max_tokens": 9}
        settings |= {"frequency_penalty": 0.1, "presence_penalty": 0.2}
        config = (await self.body(ask(**settings)))["generationConfig"]
        expected = {"temperature": 0.0, "topP": 0.5, "topK": 3, "maxOutputTokens": 9}
        self.assertEqual(config, expected | {"frequencyPenalty": 0.1, "presencePenalty": 0.2})

    async def test_the_effort_is_a_level_or_for_older_models_a_budget(self) -> None:
        for model, settings, expected in (
            ("gemini-3-pro", {"think": True}, {"includeThoughts": True}),
            ("gemini-3-pro", {"reasoning_effort": "low"}, {"thinkingLevel": "low"}),
            ("gemini-3-pro", {"reasoning_effort": "max"}, {"thinkingLevel": "high"}),
            ("gemini-4-flash", {"reasoning_effort": "none"}, {"thinkingLevel": "minimal"}),
            ("gemini-2.5-pro", {"reasoning_effort": "low"}, {"thinkingBudget": 2048}),
            ("gemini-2.5-pro", {"reasoning_effort": "max"}, {"thinkingBudget": 24_576}),
            ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingBudget": 0}),
        ):
            body = await self.body(ModelRequest(model, "", [ChatMessage("user", "hi")], **settings))
            shown = {"includeThoughts": settings.get("reasoning_effort") != "none"}
            with self.subTest(model, **settings):
                self.assertEqual(body["generationConfig"], {"thinkingConfig": shown | expected})

    async def test_a_budget_leaves_half_of_the_limit_for_the_answer(self) -> None:
        asked = ModelRequest("gemini-2.5-flash", "", [ChatMessage("user", "hi")])
        asked.reasoning_effort, asked.max_tokens = "low", 500
        body = await self.body(asked)
        self.assertEqual(body["generationConfig"]["thinkingConfig"]["thinkingBudget"], 250)

    async def test_options_are_merged_into_the_fields_of_the_api(self) -> None:
        options = {"generationConfig": {"seed": 5}, "safetySettings": []}
        body = await self.body(ask(temperature=1.0), options=options)
        self.assertEqual(body["generationConfig"], {"temperature": 1.0, "seed": 5})
        self.assertEqual(body["safetySettings"], [])

    async def test_signatures_go_back_with_their_parts_and_the_ids_of_calls(self) -> None:
        entries: list[dict[str, Any]] = [
            {"place": "text", "chars": 3},
            {"place": "text", "chars": 0, "signature": "s0"},
            {"place": "call", "signature": "s1", "id": "c1"},
            {"place": "call"},
        ]
        calls = [ToolCall("c1", "ls", '{"a": 1}'), ToolCall("call_2", "rm", "nope")]
        signature = record(*entries).signature
        found = await self.contents(
            ChatMessage(
                "user", "look", images=[PICTURE, Image("application/pdf", "QUJD", "d.pdf")]
            ),
            ChatMessage("assistant", "see", signature=signature, tool_calls=calls),
            ChatMessage("tool", "r1", tool_call_id="c1", images=[PICTURE]),
            ChatMessage("tool", "r2", tool_call_id="call_2", is_error=True),
            ChatMessage("user", "more"),
        )
        picture = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
        pdf = {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}}
        first = {"name": "ls", "response": {"output": "r1"}, "id": "c1"}
        second = {"name": "rm", "response": {"error": "r2"}}
        self.assertEqual(
            found,
            [
                {"role": "user", "parts": [picture, pdf, {"text": "look"}]},
                {
                    "role": "model",
                    "parts": [
                        {"text": "see"},
                        {"text": "", "thoughtSignature": "s0"},
                        {
                            "functionCall": {"name": "ls", "args": {"a": 1}, "id": "c1"},
                            "thoughtSignature": "s1",
                        },
                        {"functionCall": {"name": "rm", "args": {}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": first},
                        {"functionResponse": second},
                        picture,
                        {"text": "more"},
                    ],
                },
            ],
        )

    async def test_the_first_call_of_another_model_says_that_it_has_no_signature(self) -> None:
        calls = [ToolCall("a", "ls", "{}"), ToolCall("b", "ls", "{}")]
        for signature in ("", "sign", '{"responses": []}'):
            message = ChatMessage("assistant", "", signature=signature, tool_calls=calls)
            (found,) = await self.contents(message)
            signed = [part.get("thoughtSignature") for part in found["parts"]]
            self.assertEqual(signed, [UNSIGNED, None])

    async def test_a_signature_that_is_refused_is_left_out(self) -> None:
        kept = record({"place": "call", "signature": "old", "id": "a"}).signature
        step = ChatMessage("assistant", signature=kept, tool_calls=[ToolCall("a", "ls", "{}")])
        request = ModelRequest("m", "", [step, ChatMessage("tool", "r", tool_call_id="a")])
        provider = self.client(GeminiProvider, self.model.base_url)
        task = asyncio.create_task(pieces_of(provider, request))
        (await self.model.call(1)).error(400, "Corrupted thought signature.")
        await (await self.model.call(2)).finish("stop", usage=None)
        await self.within(task)
        signed = [r["contents"][0]["parts"][0]["thoughtSignature"] for r in self.model.requests]
        self.assertEqual(signed, ["old", UNSIGNED])
