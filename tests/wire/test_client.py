"""The Crush client of these tests is as strict as the real one: it writes what Go writes, and
refuses what Go would refuse."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

from tests.support.basics import BoundedTestCase
from tests.support.crush import WireCase
from tests.support.go import EventStream, GoClient, GoError, Transport
from tests.support.gojson import (
    AGENT_INFO,
    CONFIG,
    INT,
    MESSAGE,
    PERMISSION_REQUEST,
    SESSION,
    STRING,
    TIME,
    WORKSPACE,
    DecodeError,
    List,
    Map,
    Panic,
    check_config,
    marshal,
    read,
    unmarshal,
)

PART = {"type": "text", "data": {"text": "hi"}}


class WriterTests(WireCase):
    """The client of these tests writes what Go writes."""

    async def test_requests_are_those_of_go_to_the_byte(self) -> None:
        wire = Transport(self.tcp)
        host = self.tcp.removeprefix("tcp://").encode()
        agent = b"\r\nUser-Agent: Go-http-client/1.1\r\n"
        gzip = b"Accept-Encoding: gzip\r\n\r\n"
        for got, wanted in (
            (
                wire.request("GET", "/v1/x", {}),
                b"GET /v1/x HTTP/1.1\r\nHost: " + host + agent + gzip,
            ),
            (
                wire.request("POST", "/v1/x", {}),
                b"POST /v1/x HTTP/1.1\r\nHost: " + host + agent + b"Content-Length: 0\r\n" + gzip,
            ),
            (
                Transport(self.unix).request("PUT", "/x", {"Content-Type": "text/plain"}, b"{}"),
                b"PUT /x HTTP/1.1\r\nHost: api.crush.localhost"
                + agent
                + b"Content-Length: 2\r\nContent-Type: text/plain\r\n\r\n{}",
            ),
        ):
            self.assertEqual(got, wanted)

    async def test_connections_are_used_again_and_two_are_kept(self) -> None:
        client = GoClient(self.tcp)
        self.addAsyncCleanup(client.transport.close)
        for _ in range(5):
            await client.call("GET", "/v1/health")
        self.assertEqual(client.transport.dialed, 1)
        await asyncio.gather(*(client.call("GET", "/v1/health") for _ in range(4)))
        self.assertEqual(client.transport.dialed, 4)
        await asyncio.gather(*(client.call("GET", "/v1/health") for _ in range(2)))
        self.assertEqual(client.transport.dialed, 4)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENT = (
    b'data: {"type":"run_complete","payload":'
    b'{"type":"updated","payload":{"session_id":"s","message_id":"m"}}}\n\n'
)


class ReaderTests(BoundedTestCase):
    """Streams from a server that sends given bytes and closes."""

    async def stream(self, answer: bytes) -> EventStream:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.addAsyncCleanup(server.wait_closed)
        self.addCleanup(server.close)
        client = GoClient(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        self.addAsyncCleanup(client.transport.close)
        return await client.stream("/events")

    async def test_a_stream_until_the_end_of_the_connection_ends_cleanly(self) -> None:
        stream = await self.stream(HEAD + b"\r\n" + EVENT + EVENT + b"data: {cut off")
        await stream.wait_for("run_complete")
        await stream.end()
        self.assertTrue(stream.closed)
        self.assertEqual(len(stream.seen), 2)

    async def test_a_whole_chunked_stream_ends_cleanly(self) -> None:
        chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
        stream = await self.stream(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
        )
        await stream.end()
        self.assertEqual(len(stream.seen), 1)

    async def test_a_cut_chunked_stream_leaves_the_client_deaf(self) -> None:
        chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
        for cut in (chunk, chunk[:-4], b"ff"):
            stream = await self.stream(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + cut)
            with self.assertRaisesRegex(AssertionError, "deaf: UnexpectedEOF"):
                await stream.end()

    async def test_what_the_client_would_complain_about_is_noticed(self) -> None:
        for line in (
            b": ping",
            b"id: 7",
            b"data: {",
            b'data: {"type":"news","payload":{"type":"created","payload":{}}}',
            EVENT.strip().replace(b"updated", b"created"),
            EVENT.strip().replace(b'"m"', b"1"),
            EVENT.strip().replace(b',"message_id":"m"', b""),
        ):
            stream = await self.stream(HEAD + b"\r\n" + line + b"\n\n")
            with self.assertRaisesRegex(AssertionError, "its log: \\[.+"):
                await stream.end()

    async def test_an_answer_that_is_cut_short_is_an_error(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.addAsyncCleanup(server.wait_closed)
        self.addCleanup(server.close)
        client = GoClient(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with self.assertRaises(GoError):
            await client.call("GET", "/v1/version")


class DecoderTests(unittest.TestCase):
    def test_keys_match_without_case_but_with_underscores(self) -> None:
        given = {**SESSION.zero(), "TITLE": "one", "MessageCount": 7, "later": [1]}
        del given["title"]
        absent: list[str] = []
        decoded = SESSION.decode(given, "s", absent)
        self.assertEqual((decoded["title"], decoded["message_count"]), ("one", 0))
        self.assertEqual(absent, ["s.title"])

    def test_null_keeps_the_zero_value(self) -> None:
        self.assertEqual(read(List(STRING), None), [])
        self.assertEqual(read(Map(STRING), None), {})
        self.assertEqual(read(SESSION, {**SESSION.zero(), "title": None})["title"], "")

    def test_a_wrong_type_fails(self) -> None:
        message = {**MESSAGE.zero(), "parts": [PART]}
        request = {**PERMISSION_REQUEST.zero(), "tool_name": "mcp_x"}
        wrong: list[tuple[Any, Any]] = [
            (INT, unmarshal(b"1.0")),
            (INT, unmarshal(b"1e3")),
            (INT, True),
            (INT, 2**63),
            (STRING, 1),
            (List(STRING), {}),
            (Map(STRING), []),
            (SESSION, {**SESSION.zero(), "created_at": 1.5}),
            (AGENT_INFO, {**AGENT_INFO.zero(), "is_busy": "no"}),
            (MESSAGE, {key: value for key, value in message.items() if key != "parts"}),
            (MESSAGE, {**message, "parts": [PART, {"type": "video", "data": {}}]}),
            (MESSAGE, {**message, "parts": [{"type": "finish", "data": {"time": 1.5}}]}),
            (MESSAGE, {**message, "parts": [{"type": "binary", "data": {"Data": "%"}}]}),
            (PERMISSION_REQUEST, {**request, "params": "text"}),
            (PERMISSION_REQUEST, {**request, "tool_name": "bash"}),
            (TIME, "2026-11-15 06:00:00"),
            (TIME, 1789000000),
        ]
        for shape, value in wrong:
            with self.subTest(f"{value!r:.80}"), self.assertRaises(DecodeError):
                read(shape, value)
        self.assertEqual(read(MESSAGE, message)["parts"], [("text", {"text": "hi"})])

    def test_what_is_no_json_fails(self) -> None:
        for data in (b"", b"{", b"NaN", b"{'a':1}"):
            with self.subTest(data), self.assertRaises(DecodeError):
                unmarshal(data)

    def test_a_key_that_is_always_sent_is_missed(self) -> None:
        for shape in (SESSION, AGENT_INFO, WORKSPACE):
            with self.assertRaisesRegex(AssertionError, "missing"):
                read(shape, {})

    def test_nil_pointers_are_followed(self) -> None:
        def check(config: Any, *, tui: bool = True) -> None:
            check_config(CONFIG.decode(config, "config", []), tui=tui)

        good: dict[str, Any] = {"options": {"tui": {}}, "providers": {}}
        check(good)
        check({**good, "options": {}}, tui=False)
        bad: list[Any] = [{**good, "options": None}, {**good, "providers": None}, {"options": {}}]
        for config in (*bad, {**good, "options": {}}):
            with self.assertRaises(Panic):
                check(config)
        with self.assertRaises(Panic):
            check_config(None, tui=False)

    def test_text_is_written_as_go_writes_it(self) -> None:
        self.assertEqual(
            marshal({"a": "<\u00fc&\u2028>", "b": [1, True]}),
            b'{"a":"\\u003c\xc3\xbc\\u0026\\u2028\\u003e","b":[1,true]}\n',
        )
