"""What a model sends is read in bounded steps and kept within bounds, whatever it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from typing import Any
from unittest import mock

import h11

from crushlite.coder import answers, calls as running, jsontext, loop
from crushlite.coder.answers import ANSWER_BYTES, MOST_CALLS, RUN_CALLS
from crushlite.coder.providers import openai_answer, reply
from crushlite.coder.providers.anthropic_answer import MessagesDecoder
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
)
from crushlite.coder.providers.decoding import HELD_CHARS, MOST_ITEMS, whole_number
from crushlite.coder.providers.openai import OpenAIProvider
from crushlite.coder.providers.openai_answer import ChatDecoder
from crushlite.coder.tools.base import ToolOutcome
from crushlite.events import Bounds
from crushlite.http import client
from crushlite.http.sse import SSEEvent, SSEParser
from crushlite.protocol.codec import dumps, encode
from crushlite.protocol.config import Model
from crushlite.protocol.messages import Message, TextPart
from crushlite.testing.fake_clock import FakeClock
from tests.support.basics import BoundedTestCase
from tests.support.memory import MemoryTransport
from tests.support.model import CoderBench, EchoTool, GateTool, PlannedProvider, said
from tests.support.turns import Bench

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def use(count: int, tool: str = "echo") -> list[Piece | BaseException]:
    calls = [CallPiece(n, f"c{n}", tool, json.dumps({"text": n})) for n in range(count)]
    return [*calls, ModelStop("tool_use")]


def event(value: Any) -> SSEEvent:
    return SSEEvent(value if isinstance(value, str) else json.dumps(value))


def delta(**fields: Any) -> SSEEvent:
    return event({"choices": [{"index": 0, "delta": fields}]})


def calls(*items: Any) -> SSEEvent:
    return delta(tool_calls=list(items))


class CallTests(CoderBench):
    async def test_at_most_so_many_tools_of_a_run_work_at_the_same_time(self) -> None:
        gate = GateTool(read_only=True)
        provider = PlannedProvider(use(20, "gate"), said("done"))
        task = asyncio.create_task(self.converse(self.coder(provider, tools=[gate])))
        for _ in range(running.PARALLEL):
            await gate.inside.acquire()
        await self.clock.settle(50)
        self.assertTrue(gate.inside.locked(), "one more has begun")
        gate.gate.set()
        await task
        self.assertEqual(gate.left, 20)

    async def test_calls_past_the_limit_are_answered_and_not_run(self) -> None:
        tool = EchoTool(read_only=True)
        provider = PlannedProvider(use(RUN_CALLS + 12), said("done"))
        await self.converse(self.coder(provider, tools=[tool]))
        self.assertEqual(len(tool.ran), RUN_CALLS)
        results = [m for m in provider.requests[1].messages if m.role == "tool"]
        self.assertEqual(len(results), RUN_CALLS + 12)
        self.assertTrue(all("was not run" in m.text and m.is_error for m in results[RUN_CALLS:]))
        self.assertFalse(any(m.is_error for m in results[:RUN_CALLS]))

    async def test_an_answer_with_far_too_many_calls_is_an_error(self) -> None:
        tool = EchoTool()
        provider = PlannedProvider(use(MOST_CALLS + 1))
        with self.assertRaisesRegex(ProviderError, f"more than {MOST_CALLS} tool calls"):
            await self.converse(self.coder(provider, tools=[tool]))
        self.assertEqual((tool.ran, len(provider.requests)), ([], 1))

    async def test_results_are_bounded_together_but_changes_are_always_reported(self) -> None:
        big = ToolOutcome("x" * (running.RESULT_CHARS // 2 - 10))
        reads = EchoTool("reads", read_only=True, answer=lambda value: big)
        writes = EchoTool("writes", answer=lambda value: ToolOutcome("changed"))
        pieces: list[Piece] = [CallPiece(n, f"c{n}", "reads", "{}") for n in range(3)]
        pieces += [CallPiece(3, "c3", "writes", "{}"), ModelStop("tool_use")]
        provider = PlannedProvider(pieces, said("done"))
        model = Model(id="m")  # of an unknown window: they would fill a small one
        await self.converse(self.coder(provider, tools=[reads, writes], model=model))
        results = [m.text for m in provider.requests[1].messages if m.role == "tool"]
        self.assertEqual(results[:2], [big.content] * 2)
        self.assertIn("ask for less", results[2])
        self.assertEqual(results[3], "changed")


class AnswerTests(CoderBench):
    async def test_an_answer_that_is_too_long_ends_with_an_error_and_what_it_said(self) -> None:
        piece = "x" * (1 << 20)
        for kind in (Text, Thought):
            with self.subTest(kind):
                provider = PlannedProvider([kind(piece)] * 10)
                with self.assertRaisesRegex(ProviderError, "longer than 3.75 MiB") as caught:
                    await self.converse(self.coder(provider))
                self.assertFalse(caught.exception.retryable)
                message = self.live.last.joined()
                size = len(dumps(encode(message)))
                self.assertGreater(size, ANSWER_BYTES - len(piece))
                self.assertLessEqual(size, Bounds().ring_bytes)

    async def test_what_counts_is_what_clients_get(self) -> None:
        for text in ("\x01", "\u4e00", "\U0001f600", '"', "\n"):
            answer = answers.ModelAnswer()
            most = ANSWER_BYTES // (len(json.dumps(text)) - 2)
            with self.assertRaises(ProviderError):
                answer.grow(text * most)
                answer.grow(text * 10)

    async def test_arguments_and_signatures_count_as_well(self) -> None:
        half = "x" * (ANSWER_BYTES // 2)
        answered: tuple[list[Piece], ...] = (
            [Text(half), CallPiece(0, "c", "echo", half), Text("more")],
            [Text(half), Thought("", half), Text("more")],
            [CallPiece(n, "c" * 100_000, "n" * 100_000) for n in range(30)],
        )
        for pieces in answered:
            with self.assertRaisesRegex(ProviderError, "longer than"):
                await self.converse(self.coder(PlannedProvider(pieces)))

    async def test_a_title_is_read_as_far_as_it_can_be_used(self) -> None:
        long = [Text("word " * 1000)] * 100
        title = await self.coder(PlannedProvider([*long, ModelStop("end_turn")])).title("hello")
        self.assertLessEqual(len(title.text), loop.TITLE_CHARS)

    async def test_deep_and_strange_arguments_are_explained_to_the_model(self) -> None:
        tool = EchoTool()
        deep = '{"a":' * 5000 + "1" + "}" * 5000
        nested = '{"a":' * 100 + "1" + "}" * 100
        broken = [
            deep,
            nested,
            "[" * 100_000,
            "NaN",
            '{"a":NaN}',
            "[]",
            '{"a":' + "9" * 5000 + "}",
            "\x00",
        ]
        pieces = [CallPiece(n, f"c{n}", "echo", text) for n, text in enumerate(broken)]
        provider = PlannedProvider([*pieces, ModelStop("tool_use")], said("done"))
        await self.converse(self.coder(provider, tools=[tool]))
        sent = provider.requests[1].messages
        self.assertEqual([c.input for m in sent for c in m.tool_calls], ["{}"] * len(broken))
        results = [m for m in sent if m.role == "tool"]
        self.assertTrue(all(m.is_error for m in results))
        self.assertEqual(tool.ran, [])


class EventBoundsTests(Bench):
    async def test_a_long_message_is_published_less_often(self) -> None:
        live = self.transcript.create(Message("m", "assistant", "session-1"))
        self.transcript.say(live, "x" * 1_000_000)
        before = len(self.hub.log)
        self.transcript.say(live, "y")
        await self.clock.advance(0.09)
        self.assertEqual(len(self.hub.log), before)
        await self.clock.advance(0.02)
        self.assertEqual(len(self.hub.log), before + 1)

    async def test_many_calls_are_published_together_and_before_their_results(self) -> None:
        turn = self.turn()
        for number in range(100):
            await turn.tool_call("echo", "{}", f"c{number}")
        events = [e for e in self.hub.log if e.payload.role == "assistant"]
        self.assertLess(len(events), 25)
        self.assertLess(len(events[-1].payload.tool_calls), 100)
        await turn.tool_result("c0", "done")
        events = [e for e in self.hub.log if isinstance(e.payload, Message)]
        self.assertEqual([e.payload.role for e in events[-2:]], ["assistant", "tool"])
        self.assertEqual(len(events[-2].payload.tool_calls), 100)

    async def test_the_longest_answer_fits_into_the_replay_and_into_a_stream(self) -> None:
        message = Message("m" * 36, "assistant", "s" * 36, [TextPart("x" * ANSWER_BYTES)])
        self.hub.publish("updated", message)
        self.assertEqual(len(self.hub.ring.entries), 1)
        self.assertLessEqual(2 * self.hub.ring.bytes, self.hub.bounds.bytes)


class DecoderTests(BoundedTestCase):
    def test_many_calls_in_one_event_are_refused_at_once(self) -> None:
        item = {"index": 0, "id": "x", "function": {"name": "ls", "arguments": "{}"}}
        for count in (MOST_ITEMS + 1, 40_000):
            items = [{**item, "index": n, "id": str(n)} for n in range(count)]
            with self.assertRaisesRegex(ProviderError, "at once"):
                ChatDecoder().feed(calls(*items))
        content = [{"type": "text", "text": "x"}] * (MOST_ITEMS + 1)
        with self.assertRaisesRegex(ProviderError, "at once"):
            ChatDecoder().feed(delta(content=content))
        with self.assertRaisesRegex(ProviderError, "at once"):
            MessagesDecoder().feed(SSEEvent(json.dumps({"content": content}), reply.WHOLE))

    def test_many_calls_in_many_events_are_refused(self) -> None:
        decoder = ChatDecoder()
        with self.assertRaisesRegex(ProviderError, f"more than {MOST_ITEMS} tool calls"):
            for n in range(40_000):
                decoder.feed(calls({"index": n, "id": str(n), "function": {"name": "ls"}}))
        messages = MessagesDecoder()
        with self.assertRaisesRegex(ProviderError, f"more than {MOST_ITEMS} content blocks"):
            for n in range(40_000):
                start = {"type": "content_block_start", "index": n}
                messages.feed(event({**start, "content_block": {"type": "text"}}))
                messages.feed(event({"type": "content_block_stop", "index": n}))

    def test_a_name_that_is_repeated_with_every_part_costs_a_bounded_number_of_checks(self) -> None:
        decoder = ChatDecoder()
        with (
            mock.patch.object(openai_answer, "CHECKED_CHARS", 1000),
            mock.patch.object(openai_answer, "loads", side_effect=ValueError) as checks,
        ):
            for _ in range(2000):
                decoder.feed(calls({"function": {"name": "ls", "arguments": "{}"}}))
        self.assertLess(checks.call_count, 100)

    def test_what_is_held_back_is_bounded(self) -> None:
        decoder, piece = ChatDecoder(), "x" * (HELD_CHARS // 4)
        with self.assertRaisesRegex(ProviderError, "without a name"):
            for _ in range(10):
                decoder.feed(calls({"index": 0, "function": {"arguments": piece}}))
        messages = MessagesDecoder()
        start = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}
        messages.feed(event(start))
        grow = {"type": "content_block_delta", "index": 0, "delta": {"signature": piece}}
        with self.assertRaisesRegex(ProviderError, "signature"):
            for _ in range(10):
                messages.feed(event(grow))

    def test_many_blocks_of_thinking_are_signed_once(self) -> None:
        decoder, pieces = MessagesDecoder(), list[Piece]()
        for n in range(100):
            block = {"type": "redacted_thinking", "data": "x"}
            pieces += decoder.feed(
                event({"type": "content_block_start", "index": n, "content_block": block})
            )
            pieces += decoder.feed(event({"type": "content_block_stop", "index": n}))
        decoder.feed(event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
        pieces += decoder.end()
        signatures = [piece.signature for piece in pieces if isinstance(piece, Thought)]
        self.assertLess(len(signatures), 20)
        self.assertEqual(len(json.loads(signatures[-1])), 100)

    def test_absurd_numbers_are_not_reported(self) -> None:
        odd: list[Any] = [-1, float("nan"), float("inf"), True, "5", [], 10**4000]
        for absurd in (10**18, 1e300, *odd):
            self.assertIsNone(whole_number(absurd))
        usage = {"prompt_tokens": 10**30, "completion_tokens": 7}
        [piece] = ChatDecoder().feed(event({"choices": [], "usage": usage}))
        self.assertEqual(piece, Tokens(None, 7))
        with self.assertRaisesRegex(ProviderError, "strange shape"):
            ChatDecoder().feed(calls({"index": 10**18, "function": {"name": "ls"}}))

    def test_errors_quote_only_the_beginning_of_huge_values(self) -> None:
        many: list[Any] = [[]] * 100_000
        values: list[Any] = [many, {"error": many}, {"error": {"message": ["x"] * 9999}}]
        for value in values:
            with self.assertRaises(ProviderError) as caught:
                ChatDecoder().feed(delta(content={"a": value}))
            self.assertLess(len(str(caught.exception)), 20_000)
            with self.assertRaises(ProviderError) as caught:
                ChatDecoder().feed(event(value))
            self.assertLess(len(str(caught.exception)), 20_000)


class JSONTests(BoundedTestCase):
    def test_heavy_texts_are_read_like_light_ones(self) -> None:
        draw = random.Random(7)

        def value(depth: int) -> Any:
            kind = draw.randrange(7 if depth else 5)
            if kind == 5:
                return [value(depth - 1) for _ in range(draw.randrange(5))]
            if kind == 6:
                return {str(draw.random()): value(depth - 1) for _ in range(draw.randrange(5))}
            return [None, True, draw.random(), draw.randrange(10**20), "\u2028\ud83d\ude00\n"][kind]

        for _ in range(50):
            text = json.dumps(value(6))
            with (
                mock.patch.object(jsontext, "LIGHT_CHARS", 0),
                mock.patch.object(jsontext, "MANY_VALUES", -1),
            ):
                self.assertTrue(jsontext.is_heavy(text))
                self.assertEqual(jsontext.loads(text), json.loads(text))
        self.assertTrue(jsontext.is_heavy("[]," * 100_000))
        self.assertFalse(jsontext.is_heavy("x" * 10_000_000))
        for text in ("[" * 200_000, "[" * 60_000 + "," * 100_000, "{" * 150_000):
            with self.assertRaises(ValueError):
                jsontext.loads(text)

    def test_what_is_nested_deeply_is_not_written(self) -> None:
        deep: Any = "x"
        for _ in range(900):
            deep = [deep]
        self.assertTrue(jsontext.is_deep(deep))
        self.assertLess(len(jsontext.beginning(deep, 8000)), 100)
        shallow: Any = [[1, {"a": [{}]}], "b"]
        self.assertFalse(jsontext.is_deep(shallow))
        self.assertEqual(json.loads(jsontext.beginning(shallow, 8000)), shallow)
        arguments = {"function": {"name": "ls", "arguments": deep}}
        with self.assertRaisesRegex(ProviderError, "too deeply"):
            ChatDecoder().feed(calls(arguments))


class StepTests(BoundedTestCase):
    """Others run while an answer is read: the steps between two turns of the loop are counted."""

    async def asyncSetUp(self) -> None:
        self.clock = FakeClock()
        self.ticks = 0
        ticker = asyncio.create_task(self.tick())
        self.addCleanup(ticker.cancel)

    async def tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0)

    async def read(self, answer: bytes, messages: list[ChatMessage] | None = None) -> list[Piece]:
        """The pieces of an answer that arrives as one block of bytes."""
        provider = OpenAIProvider("http://model/v1", clock=self.clock)
        opened: list[MemoryTransport] = []
        ready = asyncio.Event()

        async def connect(factory: Any) -> asyncio.Transport:
            opened.append(MemoryTransport(factory()))
            opened[0].connect()
            asyncio.get_running_loop().call_soon(ready.set)
            return opened[0]

        with mock.patch.object(provider._transport.endpoint, "connect", connect):
            request = ModelRequest("m", "", messages or [ChatMessage("user", "hi")])
            stream = provider.stream(request)
            task = asyncio.ensure_future(self.all(stream))
            await ready.wait()
            self.ticks = 0
            opened[0].feed(answer)
            opened[0].feed_eof()
            try:
                return await task
            finally:
                await provider.aclose()

    async def all(self, stream: Any) -> list[Piece]:
        async with contextlib.aclosing(stream):
            return [piece async for piece in stream]

    async def test_events_without_content_are_read_in_steps(self) -> None:
        body = b'data: {"choices":[{"delta":{}}]}\n\n' * 20_000 + b"data: [DONE]\n\n"
        await self.read(HEAD + b"\r\n" + body)
        self.assertGreaterEqual(self.ticks, len(body) // 40_000)

    async def test_empty_lines_and_comments_are_read_in_steps(self) -> None:
        body = b"\n" * 300_000 + b": ping\n" * 50_000
        for first in (b":\n", b"", b"\n" * 300_000 + b" \xef\xbb\xbf"):
            with self.assertRaises(ProviderError):
                await self.read(HEAD + b"\r\n" + first + body)
            self.assertGreaterEqual(self.ticks, len(body) // 40_000)

    async def test_white_space_before_an_answer_is_not_parsed_again(self) -> None:
        body = (
            b"\n" * 200_000 + b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
        )
        feed, longest = SSEParser.feed, 0

        def spied(parser: Any, data: bytes) -> Any:
            nonlocal longest
            longest = max(longest, len(data))
            return feed(parser, data)

        with mock.patch.object(SSEParser, "feed", spied):
            self.assertEqual((await self.read(HEAD + b"\r\n" + body))[0], Text("x"))
        self.assertLessEqual(longest, reply.SLICE)

    async def test_tiny_chunks_are_read_in_steps(self) -> None:
        body = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 200 + b"data: [DONE]\n\n"
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        pieces = await self.read(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        self.assertEqual(len(pieces), 201)
        self.assertGreaterEqual(self.ticks, len(body) // 1000)

    async def test_endless_informational_responses_are_an_error(self) -> None:
        with self.assertRaisesRegex(ProviderError, "informational"):
            await self.read(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    async def test_an_event_of_many_values_is_read_in_a_thread(self) -> None:
        threads: list[threading.Thread] = []
        feed = ChatDecoder.feed

        def spied(decoder: ChatDecoder, event: SSEEvent) -> list[Piece]:
            threads.append(threading.current_thread())
            return feed(decoder, event)

        value = {"choices": [{"delta": {"content": "hi"}}], "rubbish": [[]] * 100_000}
        body = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(value).encode()
        with mock.patch.object(ChatDecoder, "feed", spied):
            self.assertEqual((await self.read(HEAD + b"\r\n" + body))[0], Text("hi"))
        self.assertIsNot(threads[0], threading.main_thread())
        self.assertIs(threads[1], threading.main_thread())

    async def test_a_long_conversation_is_written_in_a_thread(self) -> None:
        body = HEAD + b"\r\n" + b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
        with mock.patch("asyncio.to_thread", wraps=asyncio.to_thread) as hop:
            await self.read(body, [ChatMessage("user", "x" * 1000)])
            self.assertEqual(hop.call_count, 0)
            await self.read(body, [ChatMessage("user", "x" * jsontext.LIGHT_CHARS)] * 2)
            self.assertEqual(hop.call_count, 1)

    async def test_an_answer_is_given_up_after_its_time_whatever_keeps_it_alive(self) -> None:
        with (
            mock.patch.object(reply, "ANSWER_SECONDS", -1.0),
            self.assertRaisesRegex(ProviderError, "takes over"),
        ):
            await self.read(HEAD + b"\r\n" + b": ping\n\n")

    async def test_a_connection_is_used_again_after_many_tiny_chunks(self) -> None:
        content = b"".join(b"1\r\nx\r\n" for _ in range(client._EVENTS * 3)) + b"0\r\n\r\n"
        transport_ = MemoryTransport(asyncio.Protocol())
        transport_.connect()
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        parser.send(h11.EndOfMessage())
        answer = client.StreamResponse(parser, transport_, self.clock)
        answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + content)
        self.assertFalse(answer.complete)
        self.assertFalse(transport_.is_reading())
        self.assertEqual(await answer.read(), b"x" * client._EVENTS * 3)
        self.assertTrue(transport_.is_reading())
        self.assertTrue(answer.reusable)
