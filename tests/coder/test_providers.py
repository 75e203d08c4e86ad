"""Providers: which requests they send, which answers they understand, and that everything else is a
ProviderError.

Answers come through memory transports, so that they are split and end where the test decides. Tests
of connections use the real sockets of the fake model.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import email.utils
import html
import json
import random
import ssl
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import quote

from crushlite.coder.providers import reply
from crushlite.coder.providers.anthropic import AnthropicProvider
from crushlite.coder.providers.base import (
    CallPiece,
    ChatMessage,
    ModelRequest,
    ModelStop,
    Piece,
    ProviderError,
    Text,
    Thought,
    Tokens,
    ToolCall,
)
from crushlite.coder.providers.decoding import SurrogateJoiner
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.providers.transport import Timeouts
from crushlite.fake_model import FakeModel
from crushlite.http.client import TCPConnector
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

if TYPE_CHECKING:
    from crushlite.coder.providers.client import ProviderClient as AnyProvider


def chunk(delta: Any = None, reason: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def says(text: Any) -> dict[str, Any]:
    return chunk({"content": text})


def calls(*items: Any, reason: str | None = None) -> dict[str, Any]:
    return chunk({"tool_calls": list(items)}, reason)


def part(arguments: Any = None, *, name: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**more, "function": {k: v for k, v in function.items() if v is not None}}


STOP = chunk({}, "stop")
DONE = "[DONE]"


def came_in(field: str) -> Thought:
    """The record of an answer: in which field its reasoning came."""
    return Thought("", json.dumps({"chat": [{"field": field}]}))


# Answers of chat completions that are understood -------------------------------------------------

LS = '{"command": "ls"}'
CALL = CallPiece(0, "c1", "bash", LS)
USED: list[Piece] = [CALL, ModelStop("tool_use")]
BEGIN = part(LS[:5], index=0, id="c1", name="bash")
TWO: list[Piece] = [
    CallPiece(0, "a", "ls", '{"x"'),
    CallPiece(1, "b", "ls", '{"y"'),
    CallPiece(0, arguments=": 1}"),
    CallPiece(1, arguments=": 2}"),
    ModelStop("tool_use"),
]
IN_TURN: list[Piece] = [CallPiece(0, "a", "ls", "{}"), CallPiece(1, "b", "ls", "{}")]

GOOD: dict[str, tuple[bytes, list[Piece]]] = {
    "plain": (sse(says("h"), says("i"), STOP, DONE), [Text("h"), Text("i"), ModelStop("end_turn")]),
    "no [DONE]": (sse(says("hi"), STOP), HI),
    "no finish_reason": (sse(says("hi"), DONE), [Text("hi"), ModelStop("unknown")]),
    "no empty line at the end": (sse(says("hi"), STOP).rstrip(b"\n"), HI),
    "finish beside the text": (sse(chunk({"content": "hi"}, "stop"), DONE), HI),
    "cut after the finish": (sse(says("hi"), STOP) + b"data: {", HI),
    "CRLF": (sse(says("hi"), STOP, DONE).replace(b"\n", b"\r\n"), HI),
    "CR": (sse(says("hi"), STOP, DONE).replace(b"\n", b"\r"), HI),
    "byte order mark": (b"\xef\xbb\xbf" + sse(says("hi"), STOP, DONE), HI),
    "comments": (b": wait\n\n" + sse(says("hi")) + b": wait\n\n" + sse(STOP, DONE), HI),
    "no space after the colon": (sse(says("hi"), STOP, DONE).replace(b": {", b":{", 1), HI),
    "event names and ids": (b"event: message\nid: 7\n" + sse(says("hi"), STOP, DONE), HI),
    "empty data": (b"data:\n\ndata: \n\n" + sse(says("hi"), STOP, DONE), HI),
    "after [DONE]": (sse(says("hi"), STOP, DONE, says("no")), HI),
    "chunks without choices": (sse({"choices": []}, {"x": 1}, says("hi"), STOP, DONE), HI),
    "choices null": (sse({"choices": None, "usage": None}, says("hi"), STOP), HI),
    "delta null": (sse(chunk(None), says("hi"), chunk(None, "stop")), HI),
    "only a role": (sse(chunk({"role": "assistant", "content": None}), says("hi"), STOP), HI),
    "nothing said": (sse(chunk({"role": "assistant"}), STOP), [ModelStop("end_turn")]),
    "message for delta": (
        sse({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}),
        HI,
    ),
    "content in parts": (
        sse(says([{"type": "text", "text": "h"}, "i", {"type": "reference"}]), STOP),
        HI,
    ),
    "error null": (sse({**says("hi"), "error": None}, STOP), HI),
    "pair in one piece": (
        sse(says("\ud83d\ude00"), STOP),
        [Text("\U0001f600"), ModelStop("end_turn")],
    ),
    "pair in two pieces": (
        sse(says("a\ud83d"), says("\ude00b"), STOP),
        [Text("a"), Text("\U0001f600b"), ModelStop("end_turn")],
    ),
    "lone half": (sse(says("a\ude00b"), STOP), [Text("a\ufffdb"), ModelStop("end_turn")]),
    "length": (sse(says("hi"), chunk({}, "length")), [Text("hi"), ModelStop("max_tokens")]),
    "filter": (sse(chunk({}, "content_filter")), [ModelStop("content_filter")]),
    "strange reason": (sse(says("hi"), chunk({}, "tired")), [Text("hi"), ModelStop("unknown")]),
    "refusal": (sse(chunk({"refusal": "no"}), STOP), [Text("no"), ModelStop("content_filter")]),
    "reasoning_content": (
        sse(chunk({"reasoning_content": "hm", "content": ""}), says("hi"), STOP),
        [Thought("hm"), HI[0], came_in("reasoning_content"), HI[1]],
    ),
    "reasoning": (
        sse(chunk({"reasoning": "hm"}), says("hi"), STOP),
        [Thought("hm"), HI[0], came_in("reasoning"), HI[1]],
    ),
    "thinking": (
        sse(chunk({"thinking": "hm"}), says("hi"), STOP),
        [Thought("hm"), HI[0], came_in("thinking"), HI[1]],
    ),
    "reasoning twice": (
        sse(chunk({"reasoning": "hm", "reasoning_details": [{"text": "hm"}]}), says("hi"), STOP),
        [Thought("hm"), HI[0], came_in("reasoning"), HI[1]],
    ),
    "reasoning_details": (
        sse(chunk({"reasoning_details": [{"text": "h"}, {"summary": "m"}, 5]}), says("hi"), STOP),
        [Thought("hm"), *HI],
    ),
    "thinking part": (
        sse(says([{"type": "thinking", "thinking": [{"text": "hm"}]}]), says("hi"), STOP),
        [Thought("hm"), *HI],
    ),
    "reasoning of a strange shape": (sse(chunk({"reasoning": {"a": 1}}), says("hi"), STOP), HI),
    "whole": (
        json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode(),
        [HI[0], ModelStop("unknown")],
    ),
    "whole with reason": (
        b" \n"
        + json.dumps(
            {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
        ).encode(),
        HI,
    ),
    "call in one piece": (sse(calls(part(LS, index=0, id="c1", name="bash")), DONE), USED),
    "call that says stop": (
        sse(calls(part(LS, index=0, id="c1", name="bash"), reason="stop")),
        USED,
    ),
    "call without index": (sse(calls(part(LS, id="c1", name="bash"), reason="tool_calls")), USED),
    "arguments as an object": (
        sse(calls(part({"command": "ls"}, index=0, id="c1", name="bash")), DONE),
        USED,
    ),
    "call in parts": (
        sse(calls(BEGIN), calls(part(LS[5:], index=0)), DONE),
        [CallPiece(0, "c1", "bash", LS[:5]), CallPiece(0, arguments=LS[5:]), ModelStop("tool_use")],
    ),
    "id and name repeated": (
        sse(calls(BEGIN), calls(part(LS[5:], index=0, id="c1", name="bash")), DONE),
        [CallPiece(0, "c1", "bash", LS[:5]), CallPiece(0, arguments=LS[5:]), ModelStop("tool_use")],
    ),
    "id and name empty": (
        sse(calls(BEGIN), calls(part(LS[5:], index=0, id="", name="")), DONE),
        [CallPiece(0, "c1", "bash", LS[:5]), CallPiece(0, arguments=LS[5:]), ModelStop("tool_use")],
    ),
    "name repeated without id": (
        sse(calls(BEGIN), calls(part(LS[5:], name="bash")), DONE),
        [CallPiece(0, "c1", "bash", LS[:5]), CallPiece(0, arguments=LS[5:]), ModelStop("tool_use")],
    ),
    "index only at first": (
        sse(calls(BEGIN), calls(part(LS[5:])), DONE),
        [CallPiece(0, "c1", "bash", LS[:5]), CallPiece(0, arguments=LS[5:]), ModelStop("tool_use")],
    ),
    "name after id": (
        sse(calls({"index": 0, "id": "c1"}), calls(part(LS, index=0, name="bash")), DONE),
        USED,
    ),
    "arguments before the name": (
        sse(calls(part(LS[:5], index=0, id="c1")), calls(part(LS[5:], index=0, name="bash")), DONE),
        USED,
    ),
    "no arguments": (
        sse(calls(part(index=0, id="c1", name="ls")), DONE),
        [CallPiece(0, "c1", "ls"), CallPiece(0, arguments="{}"), ModelStop("tool_use")],
    ),
    "interleaved by index": (
        sse(
            calls(
                part('{"x"', index=0, id="a", name="ls"), part('{"y"', index=1, id="b", name="ls")
            ),
            calls(part(": 1}", index=0)),
            calls(part(": 2}", index=1)),
            DONE,
        ),
        TWO,
    ),
    "interleaved by id": (
        sse(
            calls(part('{"x"', id="a", name="ls")),
            calls(part('{"y"', id="b", name="ls")),
            calls(part(": 1}", id="a")),
            calls(part(": 2}", id="b")),
            DONE,
        ),
        TWO,
    ),
    "indices from five": (
        sse(
            calls(part("{}", index=5, id="a", name="ls")),
            calls(part("{}", index=9, id="b", name="ls")),
            DONE,
        ),
        [*IN_TURN, ModelStop("tool_use")],
    ),
    "every call has index 0": (
        sse(
            calls(part("{}", index=0, id="a", name="ls"), part("{}", index=0, id="b", name="ls")),
            DONE,
        ),
        [*IN_TURN, ModelStop("tool_use")],
    ),
    "call cut by the limit": (
        sse(calls(part('{"x', index=0, id="a", name="ls"), reason="length")),
        [CallPiece(0, "a", "ls", '{"x'), ModelStop("max_tokens")],
    ),
    "tool_calls without one": (
        sse(says("hi"), chunk({}, "tool_calls")),
        [HI[0], ModelStop("unknown")],
    ),
    "pair split in arguments": (
        sse(
            calls(part('"\ud83d', index=0, id="a", name="ls")),
            calls(part('\ude00"', index=0)),
            DONE,
        ),
        [
            CallPiece(0, "a", "ls", '"'),
            CallPiece(0, arguments='\U0001f600"'),
            ModelStop("tool_use"),
        ],
    ),
    "usage": (
        sse(
            says("hi"), STOP, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
        ),
        [HI[0], Tokens(9, 2), HI[1]],
    ),
    "usage in each chunk": (
        sse(
            {**says("hi"), "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            {**STOP, "usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            {"usage": {"prompt_tokens": 9.0, "completion_tokens": 2}},
        ),
        [HI[0], Tokens(9, 1), Tokens(9, 2), HI[1]],
    ),
    "usage of zeros": (
        sse({**says("hi"), "usage": {"prompt_tokens": 0, "completion_tokens": 0}}, STOP),
        HI,
    ),
    "usage of nonsense": (
        sse({**says("hi"), "usage": {"prompt_tokens": "9", "completion_tokens": -1}}, STOP),
        HI,
    ),
    "usage of a strange shape": (sse({**says("hi"), "usage": 5}, STOP), HI),
    "usage with cache": (
        sse(
            {
                **says("hi"),
                "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
            },
            STOP,
        ),
        [HI[0], Tokens(5, None, 4), HI[1]],
    ),
    "usage all cached": (
        sse({**says("hi"), "usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 9}}, STOP),
        [HI[0], Tokens(0, None, 9), HI[1]],
    ),
    "usage only of the answer": (
        sse({**says("hi"), "usage": {"completion_tokens": 3}}, STOP),
        [HI[0], Tokens(None, 3), HI[1]],
    ),
    "usage in x_groq": (
        sse(
            says("hi"), {**STOP, "x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}}
        ),
        [HI[0], Tokens(9, 2), HI[1]],
    ),
}

# Answers that are errors -------------------------------------------------------------------------

TEXT = sse(says("partial"))
ODD_VALUES: list[Any] = [5, 1.5, True, "x", {"a": 1}, [5]]


def odd_chunks() -> dict[str, Any]:
    """Chunks with one value of a wrong type."""
    found: dict[str, Any] = {}
    for odd in ODD_VALUES:
        found |= {f"choices {odd}": {"choices": odd}, f"choice {odd}": {"choices": [odd]}}
        found |= {f"delta {odd}": chunk(odd), f"finish_reason {odd}": chunk({}, odd)}
        found |= {f"content {odd}": says(odd), f"part {odd}": says([odd])}
        found |= {f"tool_calls {odd}": chunk({"tool_calls": odd}), f"call {odd}": calls(odd)}
        found |= {f"function {odd}": calls({"index": 0, "function": odd})}
        found |= {f"index {odd}": calls(part("{}", index=odd, id="a", name="ls"))}
        found |= {f"id {odd}": calls(part("{}", index=0, id=odd, name="ls"))}
        found |= {f"name {odd}": calls(part("{}", index=0, id="a", name=odd))}
        found |= {f"arguments {odd}": calls(part(odd, index=0, id="a", name="ls"))}
    fine = ["choice {'a': 1}", "delta {'a': 1}", "finish_reason x", "content x", "part x"]
    fine += ("part {'a': 1}", "index 5", "id x", "name x", "arguments x", "arguments {'a': 1}")
    # An object where a call is expected is a call without a name: found at the end.
    fine += ("function {'a': 1}", "call {'a': 1}", "arguments [5]")
    return {name: value for name, value in found.items() if name not in fine}


def bodies() -> dict[str, tuple[bytes, str]]:
    """Bodies that are no answer, each with a word that the error must hold."""
    found = {f"odd {name}": (TEXT + sse(odd, DONE), "sent") for name, odd in odd_chunks().items()}
    texts = ["{", "}", "nope", '{"choices": [}', "{'a': 1}", '{"a": 1,}', '{"choices":[{"del']
    texts += ["\x00", '{"a": "\x01"}', "{}{}", "[" * 100_000, "1" * 5000, "[DONE", "\ufffd"]
    found |= {f"text {text[:20]!r}": (TEXT + sse(text), "not JSON") for text in texts}
    texts = ["5", '"x"', "null", "true", "[]", "NaN", "[1]"]
    found |= {f"value {text!r}": (TEXT + sse(text), "no object") for text in texts}
    broken = "before the answer was complete"
    found |= {
        "bytes that are no text": (TEXT + b"data: \xff\xfe\n\n", "not JSON"),
        "text and no end": (TEXT, broken),
        "a call and no end": (sse(calls(BEGIN)), broken),
        "cut inside an event": (TEXT + b'data: {"choices": [{"de', "not JSON"),
        "nothing": (b"", "no answer"),
        "white space": (b" \n \n", "no answer"),
        "comments": (b": a\n\n: b\n\n", "no answer"),
        "plain words": (b"upstream is down\n\ntry later", "upstream is down try later"),
        "half a field": (b"dat", "no answer but this: dat"),
        "only [DONE]": (sse(DONE), "no answer"),
        "only usage": (sse({"choices": [], "usage": {"prompt_tokens": 1}}, DONE), "no answer"),
        "empty objects": (sse({}, {}, DONE), "no answer"),
        "words that are no answer": (sse({"detail": "model is asleep"}, DONE), "model is asleep"),
        "a call without a name": (sse(calls(part("{}", index=0, id="a")), DONE), "without a name"),
        "a call that is an object only": (sse(calls({"a": 1}), DONE), "never began"),
        "a part of no call": (sse(calls(part("{}"))), "never began"),
        "a document that is no answer": (b'{"status": "ok"}', "ok"),
        "a list": (b'[{"error": {"message": "bad thing"}}]', "bad thing"),
        "an empty list": (b"[]", "no reason given"),
        "a broken document": (b'{"choices": [', "not JSON"),
        "two documents": (b'{"choices": []}\n{"choices": []}\n', "not JSON"),
        "a page": (b"<html><title>Sorry</title><script>x()</script></html>", "web page"),
        "a doctype": (b"\n<!DOCTYPE html><p>Sorry, no</p>", "Sorry, no"),
        "the model failed": (sse(chunk({}, "error")), "stopped with error"),
        "the model had no room": (sse(chunk({}, "insufficient_system_resource")), "resource"),
    }
    return found


# An error inside a stream, a word of its message, and whether a retry can help.
TOLD: list[tuple[Any, str, bool]] = [
    ({"error": {"message": "out of memory"}}, "out of memory", True),
    ({"error": {"message": "slow down", "code": 429}}, "slow down", True),
    ({"error": {"message": "slow down", "code": "429"}}, "slow down", True),
    ({"error": {"message": "no", "type": "invalid_request_error"}}, "invalid_request_error", False),
    ({"error": {"message": "no", "code": "insufficient_quota"}}, "insufficient_quota", False),
    ({"error": {"message": "no", "code": 400, "type": "server_error"}}, "no", False),
    ({"error": {"message": "no", "type": "server_error"}}, "server_error", True),
    ({"error": "it broke"}, "it broke", True),
    (
        {"error": {"code": 502, "metadata": {"raw": "x"}, "message": "upstream"}},
        "upstream: x",
        True,
    ),
    ({"error": {"code": 9}}, '{"code": 9}', True),
    ({"error": 5}, "5", True),
    ({"error": True, "message": "odd"}, "odd", True),
    ({"error": {"message": {"msg": "deep"}}}, "deep", True),
    ({"error": {"detail": [{"loc": ["a", 0], "msg": "bad"}, "b"]}}, "a.0: bad; b", True),
    ({"object": "error", "message": "vanished", "code": 404}, "vanished", False),
    ({"type": "error", "message": "gone"}, "gone", True),
    ({**says("x"), "error": {"message": f"your key is {KEY}"}}, "[secret]", True),
    ({"error": {"message": "x" * 9000}}, "xxx...", True),
    ({"error": {"message": "\x1b[31mred\x00\n\nline"}}, "[31mred line", True),
]


class ChatAnswers(Case):
    async def test_every_kind_of_answer_is_understood(self) -> None:
        provider = self.openai()
        for name, (data, pieces) in GOOD.items():
            with self.subTest(name):
                self.assertEqual(await self.answered(provider, HEAD + data), pieces)

    async def test_an_answer_may_be_cut_anywhere(self) -> None:
        for name in ("interleaved by index", "pair in two pieces", "whole with reason"):
            await self.cut_anywhere(self.openai(), *GOOD[name])

    async def test_an_answer_may_come_byte_by_byte(self) -> None:
        for name, (data, pieces) in GOOD.items():
            with self.subTest(name):
                found = await self.answered(self.openai(), HEAD + data, step=1)
                self.assertEqual(found, pieces)

    async def test_everything_else_is_an_error_that_says_what_was_wrong(self) -> None:
        table = bodies()
        self.assertGreaterEqual(len(table), 60)
        for name, (data, word) in table.items():
            with self.subTest(name):
                error = await self.failure(self.openai(), HEAD + data)
                self.assertIn(word, str(error))
                # A stream that broke off may be complete the next time.
                self.assertTrue(error.retryable or b"<" in data)

    async def test_an_error_inside_the_stream_is_quoted(self) -> None:
        for value, word, retryable in TOLD:
            for data in (TEXT + sse(value, DONE), json.dumps(value).encode()):
                with self.subTest(value=value, data=data[:20]):
                    error = await self.failure(self.openai(), HEAD + data)
                    self.assertIn(word, str(error))
                    self.assertEqual(error.retryable, retryable)

    async def test_an_event_named_error_is_an_error(self) -> None:
        data = b"event: error\n" + sse({"message": "worker died"})
        self.assertIn("worker died", str(await self.failure(self.openai(), HEAD + data)))

    async def test_what_came_before_an_error_was_streamed(self) -> None:
        provider = self.openai()
        memory = self.in_memory(provider)
        stream = provider.stream(ask())
        first = asyncio.create_task(anext(stream))
        await self.settle()
        memory.transports[-1].feed(HEAD + sse(says("partial")) + sse("nope"))
        self.assertEqual(await self.within(first), Text("partial"))
        await self.refused(anext(stream))

    async def test_calls_without_an_id_get_one_each(self) -> None:
        one, two = part("{}", name="ls"), part("{}", name="ls")
        for data in (
            sse(calls(one, two), DONE),
            sse(calls(one), calls(two), DONE),
            sse(calls(part("{}", index=0, name="ls"), part("{}", index=1, name="ls")), DONE),
            sse(calls(part("{}", index=0, id="", name="ls")), calls(part("{}", index=1, name="ls")))
            + sse(STOP),
        ):
            pieces = await self.answered(self.openai(), HEAD + data)
            found = [piece for piece in pieces if isinstance(piece, CallPiece)]
            with self.subTest(data):
                self.assertEqual(
                    [(p.index, p.name, p.arguments) for p in found],
                    [(0, "ls", "{}"), (1, "ls", "{}")],
                )
                self.assertEqual(len({p.id for p in found} - {""}), 2)

    async def test_an_id_given_twice_is_given_once(self) -> None:
        data = sse(
            calls(part("{}", index=0, id="a", name="ls"), part("{}", index=1, id="a", name="ls")),
            DONE,
        )
        pieces = await self.answered(self.openai(), HEAD + data)
        ids = [piece.id for piece in pieces if isinstance(piece, CallPiece)]
        self.assertEqual((ids[0], len(set(ids))), ("a", 2))

    async def test_the_old_function_call_field_is_a_call(self) -> None:
        data = sse(chunk({"function_call": {"name": "ls", "arguments": "{"}}))
        data += sse(chunk({"function_call": {"arguments": "}"}}), chunk({}, "function_call"))
        first, second, stop = await self.answered(self.openai(), HEAD + data)
        assert isinstance(first, CallPiece)
        self.assertEqual((first.name, first.arguments), ("ls", "{"))
        self.assertEqual([second, stop], [CallPiece(0, arguments="}"), ModelStop("tool_use")])


# Failures of the connection and of HTTP ----------------------------------------------------------


def http(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


REFUSALS: list[tuple[bytes, str, bool]] = [
    (http(400, b'{"error": {"message": "bad model"}}'), "400: bad model", False),
    (http(401, b'{"error": {"message": "who are you"}}'), "401: who are you", False),
    (http(402, b'{"error": "pay"}'), "402: pay", False),
    (http(403, b'{"message": "forbidden"}'), "403: forbidden", False),
    (http(404, b'{"detail": "no model"}'), "404: no model", False),
    (http(408), "408: Request Timeout", True),
    (http(409, b"{}"), "409: Conflict", True),
    (http(413, b"too big"), "413: too big", False),
    (
        http(422, b'{"detail": [{"loc": ["body", "x"], "msg": "missing"}]}'),
        "body.x: missing",
        False,
    ),
    (http(425), "425", True),
    (
        http(429, b'{"error": {"message": "slow", "code": "rate_limited"}}'),
        "slow (rate_limited)",
        True,
    ),
    (http(429, b'{"error": {"message": "x", "code": "insufficient_quota"}}'), "429: x", False),
    (http(500, b"<html><h1>Oops</h1><style>a{}</style></html>"), "500: Oops", True),
    (http(502, b"\x00\xff\xfe"), "502", True),
    (http(503, b"[" * 9000), "503", True),
    (http(504, b"null"), "504: Gateway Timeout", True),
    (http(529, b'{"type": "error", "error": {"message": "busy"}}'), "529: busy", True),
    (http(599, b"[]"), "599: no reason given", True),
    (http(418, b'{"error": {}}'), "418", False),
    (http(400, b'[{"error": {"message": "in a list"}}]'), "in a list", False),
    (http(500, b"a" * 70_000), "aaa...", True),
    (http(401, f'{{"error": {{"message": "bad key {KEY}"}}}}'.encode()), "bad key [secret]", False),
    (http(401, b"<p>" * 30 + KEY.encode()), "[secret]", False),
    (http(301, b"", "Location: https://elsewhere/"), "redirect to https://elsewhere/", False),
    (http(307), "redirect to nowhere", False),
    (http(204), "no answer", True),
    (http(200, b"x", "Content-Encoding: gzip"), "compressed", False),
    (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP", True),
    (b"\x15\x03\x01\x00\x02\x02\x28" * 9 + b"\r\n\r\n", "not HTTP", True),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + TEXT, "broke off", True),
    (b"HTTP/1.1 200 OK\r\nContent-Le", "ended before", True),
    (b"", "ended before", True),
    (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "", True),
    (b"HTTP/1.1 503 X\r\nContent-Length: 99\r\n\r\nhalf a rea", "503: half a rea", True),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "not HTTP", True),
]


class Failures(Case):
    async def test_every_refusal_says_what_the_server_said(self) -> None:
        for provider in (self.openai, self.anthropic):
            for data, word, retryable in REFUSALS:
                with self.subTest(data=data[:60], word=word):
                    error = await self.failure(provider(), data)
                    self.assertIn(word, str(error))
                    self.assertEqual(error.retryable, retryable)

    async def test_the_status_is_kept(self) -> None:
        error = await self.failure(self.openai(), http(429, b"slow"))
        self.assertEqual(error.upstream_status, 429)

    async def test_the_wait_before_a_retry_is_read_from_the_headers(self) -> None:
        now = self.clock.now()
        for header, seconds in (
            ("Retry-After: 7", 7.0),
            ("Retry-After: 0.5", 0.5),
            ("retry-after-ms: 250", 0.25),
            ("x-ms-retry-after-ms: 1500", 1.5),
            (f"Retry-After: {email.utils.formatdate(now + 30, usegmt=True)}", 30.0),
            (f"Retry-After: {email.utils.formatdate(now - 30, usegmt=True)}", 0.0),
            ("Retry-After: soon", 0.0),
            ("Retry-After: -5", 0.0),
            ("Retry-After: inf", 0.0),
            ("Retry-After: nan", 0.0),
            ("Retry-After: Mon, 99 Foo 9999999 00:00:00 GMT", 0.0),
            ("X-Other: 1", 0.0),
        ):
            with self.subTest(header):
                error = await self.failure(self.openai(), http(429, b"slow", header))
                self.assertAlmostEqual(
                    error.retry_after, seconds, delta=1.0 if "GMT" in header else 0
                )

    async def test_a_reset_in_mid_answer_can_be_retried(self) -> None:
        for provider in (self.openai(), self.anthropic()):
            memory = self.in_memory(provider)
            task = asyncio.create_task(pieces_of(provider))
            await self.settle()
            memory.transports[-1].feed(HEAD + b": x\n\n")
            await self.settle()
            memory.transports[-1].lose(ConnectionResetError("reset by peer"))
            error = await self.refused(task)
            self.assertTrue(error.retryable)
            self.assertIn("reset by peer", str(error))

    async def test_half_a_secret_at_the_end_is_not_shown(self) -> None:
        # Only a part of an error body is read, and it may end in the middle of the key.
        for length in range(4, len(KEY)):
            page = b"<p>" * 2724 + b"the key was " + KEY.encode()[:length]
            error = await self.failure(self.openai(), http(401, page))
            self.assertTrue(error.said.endswith("the key was"), str(error))

    async def test_configured_secrets_are_not_shown_either(self) -> None:
        headers = {"X-Api-Token": "tok-abcdef", "Cookie": "session=zzzz"}
        provider = self.openai(extra_headers=headers)
        data = http(401, b"tok-abcdef session=zzzz and " + KEY.encode())
        error = await self.failure(provider, data)
        self.assertIn("[secret] [secret] and [secret]", str(error))

    async def test_what_a_server_quotes_of_headers_address_and_body_is_not_shown(self) -> None:
        canaries = {
            "header": "plain-canary-value",
            "user": "kim:canary-password",
            "query": "canary/query+1&x",
            "path": "canary0123456789abcdef",
            "field": "\"'<&>canary-in-the-body",
            "own": KEY,
        }
        basic = base64.b64encode(canaries["user"].encode()).decode()
        headers = {"X-Plain": canaries["header"], "X-Basic": f"Basic {basic}"}
        query = quote(canaries["query"], safe="")
        provider = self.openai(
            f"http://model/{canaries['path']}/v1?api-version=2024-10-01&key={query}",
            extra_headers=headers,
            extra_body={"deep": [{"auth_token": canaries["field"]}], "user": "kim"},
        )
        known = [*canaries.values(), basic, "canary-password"]
        quoted = [json.dumps(json.dumps(known)), html.escape(" ".join(known)), query]
        quoted += ["begins " + " and ".join(one[:12] + "..." for one in known if len(one) >= 16)]
        quoted += [" ".join(known).upper(), "?token=other-canary", "://u:canary-other@h/"]
        for text in quoted:
            error = await self.failure(provider, http(401, text.encode()))
            with self.subTest(text):
                self.assertNotIn("canary", str(error).lower())
                self.assertNotIn(basic[:8], str(error))
                self.assertNotIn(KEY[:8], str(error))
        error = await self.failure(provider, http(400, b"no 2024-10-01 for kim, Bearer abcdefgh12"))
        self.assertIn("no 2024-10-01 for kim", str(error))
        self.assertNotIn("abcdefgh12", str(error))

    async def test_a_server_that_does_not_listen_can_be_retried(self) -> None:
        async with FakeModel() as model:
            url = model.base_url
        for provider in (self.openai(url), self.anthropic(url)):
            error = await self.refused(pieces_of(provider))
            self.assertTrue(error.retryable)
            address = url.removeprefix("http://").removesuffix("/v1")
            reason = f"cannot connect to {address}: Connection refused. Does it run"
            self.assertTrue(str(error).startswith(reason), str(error))

    async def test_a_name_that_cannot_be_looked_up_is_an_error(self) -> None:
        with mock.patch.object(
            asyncio.get_running_loop(), "getaddrinfo", side_effect=OSError("no such name")
        ):
            error = await self.refused(pieces_of(self.openai("http://nowhere.invalid/v1")))
        self.assertIn("no such name", str(error))

    async def test_a_base_url_that_cannot_work_is_refused_at_once(self) -> None:
        for url in (
            *("", "model", "ftp://model/v1", "http://", "http:///v1", "http://a b/", "//model"),
            *("http://model:99999/", "http://model:x/", "http://[::1/", "http://a..b/"),
            *("http://user:secret@model/v1", "http://" + "a" * 70 + "/"),
        ):
            with self.subTest(url), self.assertRaises(ProviderError) as caught:
                self.openai(url)
            self.assertFalse(caught.exception.retryable)
            self.assertNotIn("secret", str(caught.exception))

    async def test_a_header_that_cannot_be_sent_is_refused_without_its_value(self) -> None:
        for name, value in (
            *(
                ("X-A", "a\r\nX-B: secret"),
                ("X A", "secret"),
                ("X-A", "secret\u20ac"),
                ("", "secret"),
            ),
            *(("Host", "secret"), ("content-length", "5"), ("Transfer-Encoding", "chunked")),
        ):
            with self.subTest(name), self.assertRaises(ProviderError) as caught:
                self.openai(extra_headers={name: value})
            self.assertNotIn("secret", str(caught.exception))
        with self.assertRaises(ProviderError):
            OpenAIProvider("http://model", "kéy\n\u20ac", clock=self.clock)

    async def test_a_request_that_is_no_json_is_an_error(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        for odd in ({1, 2}, loop, float("nan"), object()):
            provider = self.openai(extra_body={"odd": odd})
            self.in_memory(provider)
            error = await self.refused(pieces_of(provider))
            self.assertIn("cannot be written", str(error))
            self.assertFalse(error.retryable)

    async def test_https_checks_certificates(self) -> None:
        endpoint = self.openai("https://api.example.com/v1")._transport.endpoint
        context = await self.within(endpoint.server.tls.context())
        self.assertEqual((endpoint.server.port, context.check_hostname), (443, True))
        self.assertEqual(context.verify_mode, ssl.CERT_REQUIRED)
        self.assertIs(await self.within(endpoint.server.tls.context()), context)
        connector: Any = await self.within(endpoint.server.connector())
        self.assertIs(connector.ssl, context)
        plain = self.openai("http://api.example.com/v1")._transport.endpoint
        connector = await self.within(plain.server.connector())
        self.assertIsNone(connector.ssl)

    async def test_tls_with_a_server_that_has_none_fails(self) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(http(400, b"speak plainly"))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for provider in (
            self.openai(f"https://127.0.0.1:{port}"),
            self.anthropic(f"https://127.0.0.1:{port}"),
        ):
            error = await self.refused(pieces_of(provider))
            self.assertIn("SSL", str(error))
        server.close()

    async def test_a_certificate_that_is_not_trusted_is_not_tried_again(self) -> None:
        cause = ssl.SSLCertVerificationError("certificate has expired")
        provider = self.openai("https://model/v1")
        with mock.patch.object(TCPConnector, "connect", side_effect=cause):
            error = await self.refused(pieces_of(provider))
        self.assertIn("expired", str(error))
        self.assertFalse(error.retryable)


class Bounds(Case):
    async def test_a_line_over_the_limit_ends_the_answer(self) -> None:
        for provider in (self.openai(), self.anthropic()):
            error = await self.failure(provider, HEAD + b"data: " + b"x" * ((4 << 20) + 1))
            self.assertIn("over 4 MiB", str(error))

    async def test_an_answer_over_the_limit_is_ended(self) -> None:
        with mock.patch.object(reply, "TOTAL_LIMIT", 3 << 20):
            for start in (b": ", b"{", b"<p>"):
                data = HEAD + start + (b"x" * 1000 + b"\n: ") * 4000
                error = await self.failure(self.openai(), data)
                self.assertTrue("over 3 MiB" in str(error) or "web page" in str(error))

    async def test_a_long_page_is_not_read_to_its_end(self) -> None:
        data = HEAD + b"<h1>Sorry</h1>" + b"<p>" * 30_000
        error = await self.failure(self.openai(), data, eof=False)
        self.assertIn("web page, not an answer: Sorry", str(error))

    async def test_what_follows_the_end_is_not_read_for_ever(self) -> None:
        data = HEAD + sse(says("hi"), STOP, DONE)
        memory = self.in_memory(provider := self.openai())
        task = asyncio.create_task(pieces_of(provider))
        await self.settle()
        memory.transports[-1].feed(data)
        await self.settle()
        memory.transports[-1].feed(b": more\n" * 20_000)
        self.assertEqual(await self.within(task), HI)
        self.assertTrue(memory.transports[-1].aborted)

    async def test_halves_of_surrogate_pairs_are_joined_or_replaced(self) -> None:
        join = SurrogateJoiner()
        texts = ["a", "\ud83d", "", "\ude00", "\ud83d", "x", "\ude00\ud83d"]
        self.assertEqual("".join(map(join, texts)), "a\U0001f600\ufffdx\ufffd")


# Time --------------------------------------------------------------------------------------------


class Time(Case):
    async def waiting(self, provider: AnyProvider, data: bytes) -> asyncio.Task[list[Piece]]:
        """Send a request, of whose answer only these bytes come."""
        memory = self.in_memory(provider)
        task = asyncio.create_task(pieces_of(provider))
        await self.settle()
        if data:
            memory.transports[-1].feed(data)
        await self.settle()
        return task

    async def test_silence_before_and_in_the_answer_ends_it(self) -> None:
        for make in (self.openai, self.anthropic):
            for data, word in ((b"", "120 s"), (HEAD, "silent"), (HEAD + b": wait\n\n", "silent")):
                task = await self.waiting(make(), data)
                await self.clock.advance(119.0)
                self.assertFalse(task.done())
                await self.clock.advance(1.5)
                error = await self.refused(task)
                self.assertTrue(error.retryable)
                self.assertIn(word, str(error))

    async def test_each_piece_of_the_body_restarts_the_time_limit(self) -> None:
        provider = self.openai()
        memory = self.in_memory(provider)
        task = asyncio.create_task(pieces_of(provider))
        await self.settle()
        memory.transports[-1].feed(HEAD)
        for _ in range(5):
            await self.clock.advance(100.0)
            memory.transports[-1].feed(b": wait\n\n")
            await self.settle()
        memory.transports[-1].feed(sse(says("hi"), STOP, DONE))
        memory.transports[-1].feed_eof()
        self.assertEqual(await self.within(task), HI)

    async def test_a_server_that_never_closes_delays_the_end_only_a_little(self) -> None:
        for make, text, seconds in (
            (self.openai, sse(says("hi"), STOP), 5.5),
            (self.openai, sse(says("hi"), STOP, DONE), 1.5),
            (self.anthropic, sse(START, *SAID, END), 5.5),
            (self.anthropic, sse(START, *SAID, END, OVER), 1.5),
        ):
            task = await self.waiting(make(), HEAD + text)
            self.assertFalse(task.done())
            await self.clock.advance(seconds)
            if seconds > 5:
                await self.clock.advance(1.5)
            pieces = await self.within(task)
            self.assertIn(Text("hi"), pieces)
            self.assertEqual(pieces[-1], ModelStop("end_turn"))

    async def test_a_failure_after_the_finish_counts_as_the_end(self) -> None:
        provider = self.openai()
        memory = self.in_memory(provider)
        task = asyncio.create_task(pieces_of(provider))
        await self.settle()
        memory.transports[-1].feed(HEAD + sse(says("hi"), STOP))
        await self.settle()
        memory.transports[-1].lose(ConnectionResetError("reset"))
        self.assertEqual(await self.within(task), HI)

    async def test_a_connection_that_does_not_come_about_is_given_up(self) -> None:
        async def never(*_: Any) -> asyncio.Transport:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        with mock.patch.object(TCPConnector, "connect", never):
            task = asyncio.create_task(pieces_of(self.openai()))
            await self.clock.advance(29.0)
            self.assertFalse(task.done())
            await self.clock.advance(1.5)
            error = await self.refused(task)
        self.assertTrue(error.retryable)
        self.assertIn("no connection within 30 s", str(error))

    async def test_a_handshake_that_hangs_is_given_up(self) -> None:
        async with FakeModel() as model:
            provider = self.openai(f"https://127.0.0.1:{model.port}")
            task = asyncio.create_task(pieces_of(provider))
            await self.until(lambda: model.connections == 1)
            await self.clock.advance(31.0)
            self.assertIn("no connection within 30 s", str(await self.refused(task)))

    async def test_an_error_body_that_hangs_is_cut(self) -> None:
        task = await self.waiting(self.openai(), b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\nhalf")
        await self.clock.advance(10.5)
        self.assertIn("500: half", str(await self.refused(task)))

    async def test_the_limits_can_be_set(self) -> None:
        timeouts = Timeouts(first_byte=500.0, idle=300.0)
        task = await self.waiting(self.openai(timeouts=timeouts), HEAD)
        await self.clock.advance(299.0)
        self.assertFalse(task.done())
        await self.clock.advance(1.5)
        await self.refused(task)

    async def test_models_are_asked_for_two_seconds(self) -> None:
        provider = self.openai()
        self.in_memory(provider)
        task = asyncio.create_task(provider.list_models())
        await self.clock.advance(1.5)
        self.assertFalse(task.done())
        await self.clock.advance(1.0)
        error = await self.refused(task)
        self.assertIn("no answer within 2 s", str(error))


# Connections -------------------------------------------------------------------------------------


class Connections(Case):
    async def test_leaving_closes_the_connection_at_once(self) -> None:
        async with FakeModel() as model:
            for provider in (self.openai(model.base_url), self.anthropic(model.base_url)):
                for begun in (False, True):
                    task = asyncio.create_task(pieces_of(provider))
                    call = await model.call(len(model.calls) + 1)
                    if begun:
                        await call.text("hel")
                    task.cancel()
                    await call.gone()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
            self.assertEqual(model.concurrent, 0)

    async def test_closing_the_iterator_closes_the_connection_at_once(self) -> None:
        async with FakeModel() as model:
            for provider in (self.openai(model.base_url), self.anthropic(model.base_url)):
                stream = provider.stream(ask())
                first = asyncio.create_task(anext(stream))
                call = await model.call(len(model.calls) + 1)
                await call.text("hel")
                self.assertIn(await self.within(first), (Text("hel"), Tokens(1, 1)))
                await self.within(stream.aclose())
                await call.gone()

    async def test_a_connection_is_used_again(self) -> None:
        async with FakeModel() as model:
            providers: list[AnyProvider] = [self.openai(model.base_url)]
            providers.append(self.anthropic(model.base_url))
            for number, provider in enumerate(providers, 1):
                for _ in range(3):
                    async with self.asking(model, provider) as (call, task):
                        await call.text("hi")
                        await call.finish("stop", usage=None)
                    self.assertEqual((await task)[-1], ModelStop("end_turn"))
                self.assertEqual(model.connections, number)

    async def test_a_consumer_that_ends_at_the_stop_leaves_the_connection_usable(self) -> None:
        async with FakeModel() as model:
            provider = self.openai(model.base_url)

            async def until_stop() -> None:
                async for piece in provider.stream(ask()):
                    if isinstance(piece, ModelStop):
                        return

            for number in (1, 2):
                task = asyncio.create_task(until_stop())
                call = await model.call(number)
                await call.finish()
                await self.within(task)
            self.assertEqual(model.connections, 1)

    async def test_requests_at_once_have_a_connection_each(self) -> None:
        async with FakeModel() as model:
            provider = self.openai(model.base_url)
            tasks = [asyncio.create_task(pieces_of(provider)) for _ in range(5)]
            await model.call(5)
            self.assertEqual((model.connections, model.most_concurrent), (5, 5))
            for call in model.calls:
                await call.finish("stop", usage=None)
            for task in tasks:
                self.assertEqual(await self.within(task), [ModelStop("end_turn")])

    async def test_a_dropped_stream_can_be_retried(self) -> None:
        async with FakeModel() as model:
            for provider in (self.openai(model.base_url), self.anthropic(model.base_url)):
                async with self.asking(model, provider) as (call, task):
                    await call.text("hel")
                    call.drop()
                error = await self.refused(task)
                self.assertTrue(error.retryable)

    async def test_closing_the_provider_ends_what_is_open(self) -> None:
        async with FakeModel() as model:
            provider = self.openai(model.base_url)
            task = asyncio.create_task(pieces_of(provider))
            call = await model.call(1)
            await self.within(provider.aclose())
            await call.gone()
            await self.refused(task)


# What is sent ------------------------------------------------------------------------------------


class ChatSent(SentCase):
    async def messages(
        self, *history: ChatMessage, return_thinking: bool = False
    ) -> list[dict[str, Any]]:
        """The messages of a request with this history, as the server gets them."""
        request = ModelRequest("m", "", list(history))
        provider = self.openai(self.model.base_url)
        provider._return_thinking = return_thinking
        found = (await self.sent(provider, request))["messages"]
        assert isinstance(found, list)
        return found

    async def test_a_plain_request(self) -> None:
        body = await self.sent(self.openai(self.model.base_url), ask("hi \ud800 \u20ac"))
        self.assertEqual(
            body,
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "You help."},
                    {"role": "user", "content": "hi ? \u20ac"},
                ],
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
        self.assertEqual(self.call.path, "/v1/chat/completions")
        self.assertEqual(self.call.headers["authorization"], f"Bearer {KEY}")
        self.assertTrue(self.call.headers["user-agent"].startswith("crushlite/"))

    async def test_every_setting_is_sent(self) -> None:
        request = ask(
            tools=[TOOL], max_tokens=9, temperature=0.0, top_p=0.5, reasoning_effort="low"
        )
        body = await self.sent(self.openai(self.model.base_url), request)
        self.assertEqual((body["max_tokens"], body["temperature"], body["top_p"]), (9, 0.0, 0.5))
        self.assertEqual(body["reasoning_effort"], "low")
        function = {"name": "ls", "description": "Lists.", "parameters": TOOL.parameters}
        self.assertEqual(body["tools"], [{"type": "function", "function": function}])

    async def test_each_request_has_its_own_tools_whatever_was_sent_before(self) -> None:
        provider = self.openai(self.model.base_url)
        other = dataclasses.replace(TOOL, description="Lists \ud800 \u20ac.")
        for tools in ([TOOL], [TOOL], [TOOL, other], [other], [], [TOOL]):
            body = await self.sent(provider, ask(tools=tools))
            said = [tool["function"]["description"] for tool in body.get("tools", [])]
            wanted = [tool.description.replace("\ud800", "?") for tool in tools]
            self.assertEqual((said, body["model"]), (wanted, "m"))

    async def test_the_token_limit_has_two_names(self) -> None:
        for host, name in (
            ("https://api.openai.com/v1", "max_completion_tokens"),
            ("https://me.openai.azure.com/openai", "max_completion_tokens"),
            ("https://openrouter.ai/api/v1", "max_tokens"),
        ):
            self.assertIn(name, self.openai(host)._body(ask(max_tokens=5)))
        for flag, name in ((True, "max_completion_tokens"), (False, "max_tokens")):
            provider = self.openai(self.model.base_url)
            provider._completion_tokens = flag
            self.assertEqual((await self.sent(provider, ask(max_tokens=5)))[name], 5)

    async def test_configured_fields_and_headers_win(self) -> None:
        provider = self.openai(
            self.model.base_url,
            extra_headers={"authorization": "Basic abcd", "X-Title": "demo"},
            extra_body={"model": "other", "seed": 1},
        )
        body = await self.sent(provider, ask())
        self.assertEqual((body["model"], body["seed"]), ("other", 1))
        self.assertEqual(self.call.headers["authorization"], "Basic abcd")
        self.assertEqual(self.call.headers["x-title"], "demo")

    async def test_a_server_may_be_asked_not_to_stream(self) -> None:
        provider = self.openai(self.model.base_url, extra_body={"stream": False})
        self.assertNotIn("stream_options", await self.sent(provider, ask()))

    async def test_without_a_key_there_is_no_authorization_header(self) -> None:
        provider = OpenAIProvider(self.model.base_url, " ", clock=self.clock)
        self.providers.append(provider)
        await self.sent(provider, ask())
        self.assertNotIn("authorization", self.call.headers)

    async def test_a_prefix_and_a_query_are_kept(self) -> None:
        base = f"http://127.0.0.1:{self.model.port}/a b/v1/?api-version=1"
        provider = self.openai(base)
        self.assertEqual(provider._transport.endpoint.target("/x"), "/a%20b/v1/x?api-version=1")
        await self.sent(provider, ask())
        self.assertEqual(self.call.path, "/a%20b/v1/chat/completions")

    async def test_an_ipv6_host_is_written_with_brackets(self) -> None:
        endpoint = self.openai("http://[::1]:81/v1")._transport.endpoint
        self.assertEqual((endpoint.host, endpoint.host_header), ("::1", "[::1]:81"))

    async def test_a_history_with_tools(self) -> None:
        found = await self.messages(
            ChatMessage("user", "look"),
            ChatMessage("assistant", thinking="hm", tool_calls=[ToolCall("c1", "ls", "{}")]),
            ChatMessage("tool", "a.txt", tool_call_id="c1"),
            ChatMessage("assistant", "there"),
            ChatMessage("assistant"),
        )
        function = {"name": "ls", "arguments": "{}"}
        call = {"id": "c1", "type": "function", "function": function}
        self.assertEqual(
            found,
            [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
                {"role": "assistant", "content": "there"},
                {"role": "assistant", "content": ""},
            ],
        )

    async def test_images_are_data_urls(self) -> None:
        shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
        found = await self.messages(
            ChatMessage("user", "see", images=[PICTURE]),
            ChatMessage("tool", "1", tool_call_id="a", images=[PICTURE]),
            ChatMessage("tool", "2", tool_call_id="b"),
            ChatMessage("assistant", "ok"),
            ChatMessage("tool", "3", tool_call_id="c", images=[PICTURE]),
        )
        self.assertEqual(found[0]["content"], [{"type": "text", "text": "see"}, shown])
        roles = [message["role"] for message in found]
        self.assertEqual(roles, ["user", "tool", "tool", "user", "assistant", "tool", "user"])
        self.assertEqual((found[3]["content"][1], found[6]["content"][1]), (shown, shown))

    async def test_thinking_goes_back_only_if_wanted(self) -> None:
        message = ChatMessage("assistant", "x", thinking="hm")
        self.assertNotIn("reasoning_content", (await self.messages(message))[0])
        found = await self.messages(message, return_thinking=True)
        self.assertEqual(found[0]["reasoning_content"], "hm")


class Adapting(Case):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.model = await FakeModel().__aenter__()
        self.addAsyncCleanup(self.model.aclose)

    async def test_a_field_that_is_refused_is_left_out_from_then_on(self) -> None:
        for flag, complaint, gone, here in (
            (False, "Unknown field: stream_options", "stream_options", "messages"),
            (False, "Use 'max_completion_tokens'.", "max_tokens", "max_completion_tokens"),
            (True, "What is max_completion_tokens?", "max_completion_tokens", "max_tokens"),
        ):
            provider = self.openai(self.model.base_url)
            provider._completion_tokens = flag
            first = len(self.model.calls)
            task = asyncio.create_task(pieces_of(provider, ask(max_tokens=5)))
            (await self.model.call(first + 1)).error(400, complaint)
            await (await self.model.call(first + 2)).finish("stop", usage=None)
            self.assertEqual(await self.within(task), [ModelStop("end_turn")])
            async with self.asking(self.model, provider, ask(max_tokens=5)) as (call, task):
                await call.finish("stop", usage=None)
            requests = self.model.requests[first:]
            self.assertEqual([gone in r for r in requests], [True, False, False])
            self.assertTrue(all(here in r for r in requests[1:]))

    async def test_a_server_that_wants_its_reasoning_back_gets_it(self) -> None:
        provider = self.openai(self.model.base_url)
        request = ModelRequest("m", "", [ChatMessage("assistant", "x", thinking="hm")])
        task = asyncio.create_task(pieces_of(provider, request))
        (await self.model.call(1)).error(400, "Missing reasoning_content at index 0")
        await (await self.model.call(2)).finish("stop", usage=None)
        await self.within(task)
        self.assertEqual(self.model.requests[1]["messages"][0]["reasoning_content"], "hm")

    async def test_other_refusals_are_not_tried_again(self) -> None:
        for status, text in ((400, "bad model"), (401, "stream_options"), (500, "stream_options")):
            first = len(self.model.calls)
            async with self.asking(self.model, self.openai(self.model.base_url)) as (call, task):
                call.error(status, text)
            await self.refused(task)
            self.assertEqual(len(self.model.calls), first + 1)

    async def test_a_server_that_refuses_every_try_is_given_up(self) -> None:
        provider = self.openai(self.model.base_url, extra_body={"stream_options": {}})
        task = asyncio.create_task(pieces_of(provider))
        for number in (1, 2, 3, 4):
            (await self.model.call(number)).error(400, "no stream_options, please")
        self.assertEqual((await self.refused(task)).upstream_status, 400)
        self.assertEqual(len(self.model.calls), 4)

    async def test_nothing_is_asked_again_once_something_was_streamed(self) -> None:
        async with self.asking(self.model, self.openai(self.model.base_url)) as (call, task):
            await call.text("hel")
            call.raw(sse({"error": {"message": "stream_options", "code": 400}}))
            call.end()
        self.assertEqual((await self.refused(task)).upstream_status, 400)
        self.assertEqual(len(self.model.calls), 1)


class Models(Case):
    async def listed(self, body: bytes, status: int = 200) -> list[str]:
        provider = self.openai()
        memory = self.in_memory(provider)
        task = asyncio.create_task(provider.list_models())
        await self.settle()
        memory.transports[-1].feed(http(status, body))
        return [model.id for model in await self.within(task)]

    async def test_the_models_of_a_server(self) -> None:
        async with FakeModel(models=["a", "b"]) as model:
            self.assertEqual(
                [m.id for m in await self.within(self.openai(model.base_url).list_models())],
                ["a", "b"],
            )

    async def test_lists_of_other_shapes(self) -> None:
        for body, ids in (
            (
                b'{"data": [{"id": "a"}, {"name": "b"}, {"x": 1}, null, 5, "c", {"id": 5}]}',
                ["a", "b", "c"],
            ),
            (b'{"models": [{"name": "a"}]}', ["a"]),
            (b'[{"id": "a"}]', ["a"]),
            (b'{"data": []}', []),
        ):
            self.assertEqual(await self.listed(body), ids)

    async def test_what_is_no_list_is_an_error(self) -> None:
        for body, status in (
            *((b"", 200), (b"{}", 200), (b'{"data": {"a": 1}}', 200), (b"<html>", 200)),
            *((b"5", 200), (b"null", 200), (b'{"error": "no"}', 404), (b"[" * 99_999, 200)),
        ):
            with self.subTest(body[:20]), self.assertRaises(ProviderError):
                await self.listed(body, status)


# Anthropic ---------------------------------------------------------------------------------------

START = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}
BEGUN = Tokens(7, 1)
OVER = {"type": "message_stop"}


def block(kind: str, index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


def grow(index: Any = 0, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def close(index: Any = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ends(reason: Any = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


SAID = [block("text", text=""), grow(type="text_delta", text="hi"), close()]
END = ends(output_tokens=5)
SPOKEN: list[Piece] = [BEGUN, Text("hi"), Tokens(None, 5), ModelStop("end_turn")]
THOUGHT = [
    block("thinking", thinking="", signature=""),
    grow(type="thinking_delta", thinking="h"),
    grow(type="thinking_delta", thinking="m"),
    grow(type="signature_delta", signature="si"),
    grow(type="signature_delta", signature="gn"),
    close(),
]
USE = block("tool_use", id="t1", name="ls", input={})
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "sign"},
    {"type": "redacted_thinking", "data": "xyz"},
]

GOOD_MESSAGES: dict[str, tuple[bytes, list[Piece]]] = {
    "plain": (sse(START, *SAID, END, OVER), SPOKEN),
    "named events": (b"event: ping\ndata: {}\n\n" + sse(START, *SAID, END, OVER), SPOKEN),
    "ping and unknown": (sse(START, {"type": "ping"}, {"type": "news"}, *SAID, END, OVER), SPOKEN),
    "no message_stop": (sse(START, *SAID, END), SPOKEN),
    "no stop_reason": (sse(START, *SAID, OVER), [BEGUN, Text("hi"), ModelStop("unknown")]),
    "cut after the end": (sse(START, *SAID, END) + b"data: {", SPOKEN),
    "CRLF": (sse(START, *SAID, END, OVER).replace(b"\n", b"\r\n"), SPOKEN),
    "block not closed": (sse(START, *SAID[:2], END, OVER), SPOKEN),
    "type only as the event's name": (
        b"event: message_start\n" + sse({"message": {}}) + sse(*SAID, END, OVER),
        SPOKEN[1:],
    ),
    "text with the start": (sse(START, block("text", text="hi"), close(), END, OVER), SPOKEN),
    "nothing said": (sse(START, END, OVER), [BEGUN, Tokens(None, 5), ModelStop("end_turn")]),
    "thinking": (
        sse(START, *THOUGHT, ends(), OVER),
        [BEGUN, Thought("h"), Thought("m"), Thought("", "sign"), ModelStop("end_turn")],
    ),
    "thinking without signature": (
        sse(START, block("thinking"), grow(thinking="hm"), close(), ends(), OVER),
        [BEGUN, Thought("hm"), ModelStop("end_turn")],
    ),
    "redacted": (
        sse(START, block("redacted_thinking", data="xyz"), close(), ends(), OVER),
        [BEGUN, Thought("", json.dumps(BLOCKS[1:])), ModelStop("end_turn")],
    ),
    "thinking twice": (
        sse(START, *THOUGHT, block("redacted_thinking", 1, data="xyz"), close(1), ends(), OVER),
        [
            *(BEGUN, Thought("h"), Thought("m"), Thought("", "sign")),
            *(Thought("", json.dumps(BLOCKS)), ModelStop("end_turn")),
        ],
    ),
    "tool": (
        sse(
            START,
            USE,
            grow(partial_json='{"a"'),
            grow(partial_json=": 1}"),
            close(),
            ends("tool_use"),
            OVER,
        ),
        [
            *(BEGUN, CallPiece(0, "t1", "ls"), CallPiece(0, arguments='{"a"')),
            *(CallPiece(0, arguments=": 1}"), ModelStop("tool_use")),
        ],
    ),
    "tool without input": (
        sse(START, USE, grow(partial_json=""), close(), ends("tool_use"), OVER),
        [BEGUN, CallPiece(0, "t1", "ls"), CallPiece(0, arguments="{}"), ModelStop("tool_use")],
    ),
    "tool with its input at the start": (
        sse(
            START, block("tool_use", id="t1", name="ls", input={"a": 1}), close(), ends("end_turn")
        ),
        [
            BEGUN,
            CallPiece(0, "t1", "ls"),
            CallPiece(0, arguments='{"a": 1}'),
            ModelStop("tool_use"),
        ],
    ),
    "two tools at once": (
        sse(
            *(
                START,
                block("tool_use", 1, id="a", name="ls"),
                block("tool_use", 2, id="b", name="ls"),
            ),
            *(grow(2, partial_json="{}"), grow(1, partial_json="[]"), close(2), close(1)),
            *(ends("tool_use"), OVER),
        ),
        [
            *(BEGUN, CallPiece(0, "a", "ls"), CallPiece(1, "b", "ls")),
            *(CallPiece(1, arguments="{}"), CallPiece(0, arguments="[]"), ModelStop("tool_use")),
        ],
    ),
    "blocks of other kinds": (
        sse(
            START,
            block("server_tool_use", id="x"),
            grow(partial_json="{}"),
            close(),
            *SAID,
            END,
            OVER,
        ),
        SPOKEN,
    ),
    "deltas of other kinds": (
        sse(START, SAID[0], grow(type="citations_delta", citation={}), *SAID[1:], END, OVER),
        SPOKEN,
    ),
    "max_tokens": (sse(START, ends("max_tokens")), [BEGUN, ModelStop("max_tokens")]),
    "refusal": (sse(START, ends("refusal")), [BEGUN, ModelStop("content_filter")]),
    "stop_sequence": (sse(START, ends("stop_sequence")), [BEGUN, ModelStop("end_turn")]),
    "strange reason": (sse(START, ends("pause_turn")), [BEGUN, ModelStop("unknown")]),
    "tool_use without one": (sse(START, ends("tool_use")), [BEGUN, ModelStop("unknown")]),
    "cache": (
        sse(
            {
                "type": "message_start",
                "message": {
                    "usage": {
                        "input_tokens": 0,
                        "cache_read_input_tokens": 6,
                        "cache_creation_input_tokens": 2,
                    }
                },
            },
            ends(input_tokens=0, output_tokens=3, cache_read_input_tokens=0),
        ),
        [Tokens(0, None, 6, 2), Tokens(None, 3), ModelStop("end_turn")],
    ),
    "no usage": (
        sse({"type": "message_start", "message": {}}, ends(), OVER),
        [ModelStop("end_turn")],
    ),
    "usage of nonsense": (
        sse({"type": "message_start", "message": {"usage": 5}}, ends(output_tokens="5")),
        [ModelStop("end_turn")],
    ),
    "halves of a pair": (
        sse(START, SAID[0], grow(text="\ud83d"), grow(text="\ude00"), close(), ends()),
        [BEGUN, Text("\U0001f600"), ModelStop("end_turn")],
    ),
    "whole": (
        json.dumps(
            {
                "type": "message",
                "content": [
                    BLOCKS[0],
                    {"type": "text", "text": "hi"},
                    {"type": "tool_use", "id": "t1", "name": "ls", "input": {"a": 1}},
                ],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 7, "output_tokens": 1},
            }
        ).encode(),
        [
            *(Thought("hm"), Thought("", "sign"), Text("hi"), CallPiece(0, "t1", "ls")),
            *(CallPiece(0, arguments='{"a": 1}'), BEGUN, ModelStop("tool_use")),
        ],
    ),
}


def odd_events() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for odd in ODD_VALUES:
        found |= {f"message {odd}": {"type": "message_start", "message": odd}}
        found |= {f"block {odd}": {"type": "content_block_start", "index": 1, "content_block": odd}}
        found |= {f"index {odd}": block("text", odd), f"delta index {odd}": grow(odd, text="x")}
        found |= {f"delta {odd}": {"type": "content_block_delta", "index": 0, "delta": odd}}
        found |= {f"text {odd}": grow(text=odd), f"signature {odd}": grow(signature=odd)}
        found |= {f"close {odd}": close(odd), f"stop_reason {odd}": ends(odd)}
        found |= {f"message_delta {odd}": {"type": "message_delta", "delta": odd}}
        found |= {f"id {odd}": block("tool_use", 1, id=odd, name="ls")}
        found |= {f"name {odd}": block("tool_use", 1, id="a", name=odd)}
        found |= {f"thinking {odd}": block("thinking", 1, thinking=odd)}
        found |= {
            f"data {odd}": block("redacted_thinking", 1, data=odd),
            f"type {odd}": {"type": odd},
        }
    fine = ["message {'a': 1}", "block {'a': 1}", "index 5", "delta {'a': 1}", "text x"]
    fine += ("signature x", "stop_reason x", "message_delta {'a': 1}", "id x", "name x")
    fine += ("thinking x", "data x", "type x")
    return {name: value for name, value in found.items() if name not in fine}


def message_bodies() -> dict[str, tuple[bytes, str]]:
    start = sse(START, *SAID[:2])
    found = {f"odd {name}": (start + sse(odd, OVER), "sent") for name, odd in odd_events().items()}
    texts = ["{", "nope", '{"type": }', "{'a': 1}", "[" * 100_000, "1" * 5000, "[DONE]", "\x00"]
    found |= {f"text {text[:20]!r}": (start + sse(text), "not JSON") for text in texts}
    texts = ["5", '"x"', "null", "true", "[]", "NaN"]
    found |= {f"value {text!r}": (start + sse(text), "no object") for text in texts}
    broken = "before the answer was complete"
    found |= {
        "only a start": (sse(START), broken),
        "text and no end": (start, broken),
        "a call and no end": (sse(START, USE, grow(partial_json="{")), broken),
        "cut inside an event": (start + b'data: {"type": "mess', "not JSON"),
        "nothing": (b"", "no answer"),
        "only pings": (sse({"type": "ping"}, {"type": "ping"}), "no answer"),
        "only a stop": (sse(OVER), "no answer"),
        "another dialect": (sse(says("hi"), STOP), "no answer"),
        "a block twice": (start + sse(SAID[0]), "strange shape"),
        "a delta of no block": (sse(START, grow(3, text="x")), "never began"),
        "a stop of no block": (sse(START, close(3)), "never began"),
        "a delta after the stop": (sse(START, *SAID, grow(text="x")), "never began"),
        "a call without a name": (sse(START, block("tool_use", id="a")), "without id or name"),
        "a call without an id": (sse(START, block("tool_use", name="a", id="")), "without id"),
        "a start without a message": (sse({"type": "message_start"}), "without a message"),
        "a document that is no answer": (b'{"status": "ok"}', "ok"),
        "a list": (b'[{"error": {"message": "bad thing"}}]', "bad thing"),
        "a document of odd blocks": (b'{"content": [5]}', "strange shape"),
        "a page": (b"<html>Sorry</html>", "Sorry"),
        "an error event": (b"event: error\n" + sse({"error": {"message": "dead"}}), "dead"),
    }
    return found


class MessagesAnswers(Case):
    async def test_every_kind_of_answer_is_understood(self) -> None:
        for step in (0, 1):
            for name, (data, pieces) in GOOD_MESSAGES.items():
                with self.subTest(name):
                    found = await self.answered(self.anthropic(), HEAD + data, step=step)
                    self.assertEqual(found, pieces)

    async def test_an_answer_may_be_cut_anywhere(self) -> None:
        await self.cut_anywhere(self.anthropic(), *GOOD_MESSAGES["two tools at once"])

    async def test_everything_else_is_an_error_that_says_what_was_wrong(self) -> None:
        table = message_bodies()
        self.assertGreaterEqual(len(table), 60)
        for name, (data, word) in table.items():
            with self.subTest(name):
                error = await self.failure(self.anthropic(), HEAD + data)
                self.assertIn(word, str(error))
                self.assertTrue(error.retryable or b"<" in data)

    async def test_an_error_event_says_whether_trying_again_can_help(self) -> None:
        for kind, retryable, status in (
            *(("overloaded_error", True, 529), ("api_error", True, 500)),
            *(("rate_limit_error", True, 429), ("timeout_error", True, 504)),
            *(("invalid_request_error", False, 400), ("authentication_error", False, 401)),
            *(("permission_error", False, 403), ("not_found_error", False, 404)),
            *(("request_too_large", False, 413), ("new_error", True, 0)),
        ):
            value = {"type": "error", "error": {"type": kind, "message": f"sorry {KEY}"}}
            error = await self.failure(self.anthropic(), HEAD + sse(START, value))
            self.assertEqual((error.retryable, error.upstream_status), (retryable, status))
            self.assertIn(f"sorry [secret] ({kind})", str(error))


class MessagesSent(SentCase):
    async def body(self, request: ModelRequest, **options: Any) -> dict[str, Any]:
        root = self.model.base_url.removesuffix("/v1")
        return await self.sent(self.anthropic(root, **options), request)

    async def written(self, *history: ChatMessage) -> list[dict[str, Any]]:
        found = (await self.body(ModelRequest("m", "", list(history))))["messages"]
        assert isinstance(found, list)
        return found

    async def test_a_plain_request_to_anthropic(self) -> None:
        request = ask(tools=[TOOL], temperature=0.5, top_p=0.9)
        body = await self.body(request, extra_body={"metadata": {"user_id": "u"}})
        marked = {"cache_control": {"type": "ephemeral"}}
        content = [{"type": "text", "text": "hi", **marked}]
        tool = {"name": "ls", "description": "Lists.", "input_schema": TOOL.parameters, **marked}
        self.assertEqual(
            body,
            {
                "model": "m",
                "max_tokens": 8192,
                "system": [{"type": "text", "text": "You help.", **marked}],
                "messages": [{"role": "user", "content": content}],
                "tools": [tool],
                "stream": True,
                "temperature": 0.5,
                "top_p": 0.9,
                "metadata": {"user_id": "u"},
            },
        )
        self.assertEqual(self.call.path, "/v1/messages")
        self.assertEqual(self.call.headers["x-api-key"], KEY)
        self.assertEqual(self.call.headers["anthropic-version"], "2023-06-01")

    async def test_a_base_url_may_end_in_v1(self) -> None:
        await self.sent(self.anthropic(self.model.base_url), ask())
        self.assertEqual(self.call.path, "/v1/messages")

    async def test_a_bearer_key_goes_into_authorization(self) -> None:
        provider = AnthropicProvider(self.model.base_url, "Bearer abcd", clock=self.clock)
        self.providers.append(provider)
        await self.sent(provider, ask())
        self.assertEqual(self.call.headers["authorization"], "Bearer abcd")
        self.assertNotIn("x-api-key", self.call.headers)

    async def test_neighbours_of_one_role_become_one_and_results_come_first(self) -> None:
        found = await self.written(
            ChatMessage("user", "a"),
            ChatMessage("user", "  "),
            ChatMessage("user", "b", images=[PICTURE]),
            ChatMessage(
                "assistant",
                "c",
                tool_calls=[ToolCall("x.1", "ls", '{"a": 1}'), ToolCall("y", "ls", "nope")],
            ),
            ChatMessage("assistant"),
            ChatMessage("tool", "r1", tool_call_id="x.1"),
            ChatMessage("user", "d"),
            ChatMessage("tool", "", tool_call_id="y", is_error=True, images=[PICTURE]),
        )
        source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
        image = {"type": "image", "source": source}
        self.assertEqual([entry["role"] for entry in found], ["user", "assistant", "user"])
        marked = {"cache_control": {"type": "ephemeral"}}
        texts = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b", **marked}]
        self.assertEqual(found[0]["content"], texts)
        self.assertEqual(
            found[1]["content"],
            [
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "x_1", "name": "ls", "input": {"a": 1}},
                {"type": "tool_use", "id": "y", "name": "ls", "input": {}},
            ],
        )
        one, two, last = found[2]["content"]
        self.assertEqual(one, {"type": "tool_result", "tool_use_id": "x_1", "content": "r1"})
        self.assertEqual((two["content"], two["is_error"]), ([image], True))
        self.assertEqual((last["text"], last["cache_control"]), ("d", {"type": "ephemeral"}))

    async def test_thinking_goes_back_only_if_it_was_signed(self) -> None:
        for thinking, signature, blocks in (
            ("hm", "", []),
            ("hm", "sign", BLOCKS[:1]),
            ("", json.dumps(BLOCKS), BLOCKS),
            ("hm", "[broken", []),
        ):
            message = ChatMessage("assistant", "x", thinking=thinking, signature=signature)
            (found,) = await self.written(message)
            with self.subTest(signature):
                self.assertEqual(found["content"], [*blocks, {"type": "text", "text": "x"}])

    async def test_thinking_is_sent_back_as_it_came(self) -> None:
        for name in ("thinking", "redacted", "thinking twice"):
            pieces = await self.answered(self.anthropic(), HEAD + GOOD_MESSAGES[name][0])
            thoughts = [piece for piece in pieces if isinstance(piece, Thought)]
            text = "".join(thought.text for thought in thoughts)
            message = ChatMessage("assistant", thinking=text, signature=thoughts[-1].signature)
            (found,) = await self.written(message)
            expected = {"thinking": BLOCKS[:1], "redacted": BLOCKS[1:]}.get(name, BLOCKS)
            self.assertEqual(found["content"], expected)

    async def test_thinking_has_a_budget_and_no_temperature(self) -> None:
        step = ChatMessage("assistant", tool_calls=[ToolCall("a", "ls", "{}")])
        signed = ChatMessage("assistant", tool_calls=step.tool_calls, signature="s", thinking="t")
        result = ChatMessage("tool", "x", tool_call_id="a")
        user = ChatMessage("user", "hi")
        for history, settings, budget in (
            ([user], {"think": True}, 4096),
            ([user], {"think": True, "max_tokens": 64_000}, 8192),
            ([user], {"reasoning_effort": "low", "max_tokens": 64_000}, 2048),
            ([user], {"reasoning_effort": "high", "max_tokens": 64_000}, 24_000),
            ([user], {"reasoning_effort": "none", "think": True}, 0),
            ([user], {"think": True, "max_tokens": 2000}, 0),
            ([user], {}, 0),
            ([user, step, result], {"think": True}, 0),
            ([user, signed, result], {"think": True}, 4096),
            ([user, step, result, user], {"think": True}, 4096),
            ([], {"think": True}, 4096),
        ):
            request = ModelRequest("m", "", history, temperature=0.5, **settings)
            body = await self.body(request)
            with self.subTest(settings=settings, history=len(history)):
                self.assertEqual(body.get("thinking", {}).get("budget_tokens", 0), budget)
                self.assertEqual("temperature" in body, not budget)


# Random damage -----------------------------------------------------------------------------------


class Anything(Case):
    async def survives(self, provider: AnyProvider, events: list[Any], rng: random.Random) -> None:
        at = rng.randrange(len(events))
        spoilt = [*events[:at], spoiled(events[at], rng), *events[at + 1 :]]
        try:
            pieces = await self.answered(provider, HEAD + sse(*spoilt))
        except ProviderError:
            return
        self.assertIsInstance(pieces[-1], ModelStop, spoilt)
        begun = [piece.index for piece in pieces if isinstance(piece, CallPiece) and piece.id]
        self.assertEqual(begun, list(range(len(begun))), spoilt)

    async def test_a_spoiled_stream_ends_with_a_stop_or_an_error(self) -> None:
        rng = random.Random(20)
        chat = [
            *(says("hi"), calls(BEGIN), calls(part(LS[5:], index=0, id="", name=""))),
            *(calls(part("{}", index=1, id="b", name="ls")), chunk({"reasoning": "hm"})),
            {**STOP, "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}},
        ]
        messages = [START, *THOUGHT, block("text", 1), grow(1, text="x"), close(1)]
        messages += [block("tool_use", 2, id="a", name="ls"), grow(2, partial_json="{}"), close(2)]
        messages += [ends("tool_use", output_tokens=3), OVER]
        openai, anthropic = self.openai(), self.anthropic()
        for _ in range(200):
            await self.survives(openai, chat, rng)
            await self.survives(anthropic, messages, rng)
