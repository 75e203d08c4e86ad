"""Streams: each path of `opened`, `resumed`, `closed`, and what the connection does meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from crushlite.http.connection import State
from crushlite.http.router import Route
from tests.support.http import HTTPTestCase, Recorder, RecordingStream, get, replies

if TYPE_CHECKING:
    from crushlite.http.messages import ByteSink, Request, Stream
    from crushlite.http.server import HTTPServer
    from tests.support.memory import MemoryTransport


class Streams(HTTPTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.stream = RecordingStream()
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, request: Request) -> Stream:
        await self.gate.wait()
        return self.stream

    def streaming(self) -> HTTPServer:
        return self.serve(Route("GET", "/events", self.handle), Route("GET", "/ok", Recorder()))

    async def open(self, rest: bytes = b"") -> MemoryTransport:
        transport = await self.exchange(self.streaming(), get("/events") + rest)
        self.assertEqual(self.stream.calls, ["opened"])
        return transport

    @property
    def sink(self) -> ByteSink:
        assert self.stream.sink is not None
        return self.stream.sink

    async def test_the_head_goes_out_at_once_and_is_close_delimited(self) -> None:
        transport = await self.open()
        head = bytes(transport.written)
        self.assertTrue(head.startswith(b"HTTP/1.1 200 OK\r\n"))
        self.assertTrue(head.endswith(b"\r\n\r\n"))
        self.assertIn(b"Content-Type: text/event-stream\r\n", head)
        self.assertIn(b"Connection: close\r\n", head)
        self.assertNotIn(b"Transfer-Encoding", head)
        self.assertNotIn(b"Content-Length", head)
        self.sink.write(b"data: 1\n\n")
        self.sink.write(b"data: 2\n\n")
        self.sink.close()
        await self.settle()
        [reply] = replies(transport.written, eof=True)
        self.assertEqual(reply.body, b"data: 1\n\ndata: 2\n\n")
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertTrue(transport.eof_written)
        self.assertFalse(transport.aborted)

    async def test_closed_is_never_called_from_inside_the_sink(self) -> None:
        for end in ("close", "abort"):
            self.stream = RecordingStream()
            transport = await self.open()
            getattr(self.sink, end)()
            self.assertEqual(self.stream.calls, ["opened"])
            self.assertFalse(self.sink.writable)
            self.sink.write(b"too late")
            await self.settle()
            self.assertEqual(self.stream.calls, ["opened", "closed"])
            self.assertNotIn(b"too late", transport.written)
            self.sink.write(b"too late")
            self.sink.close()
            self.sink.abort()
            await self.settle()
            self.assertEqual(self.stream.calls, ["opened", "closed"])

    async def test_a_reset_closes_once(self) -> None:
        transport = await self.open()
        transport.lose(ConnectionResetError())
        await self.settle()
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertFalse(self.sink.writable)

    async def test_a_half_close_ends_the_stream_with_fin(self) -> None:
        transport = await self.open()
        self.sink.write(b"last")
        transport.feed_eof()
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        await self.settle()
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertTrue(transport.lost)
        self.assertFalse(transport.aborted)

    async def test_a_peer_gone_before_the_answer_gets_closed_alone(self) -> None:
        for leave in ("lose", "close"):
            self.stream = RecordingStream()
            self.gate.clear()
            transport = await self.exchange(self.streaming(), get("/events"))
            getattr(transport, leave)()
            if leave == "lose":
                await self.settle()
            self.gate.set()
            await self.settle()
            self.assertEqual(self.stream.calls, ["closed"])

    async def test_a_half_close_before_the_answer_gives_the_head_and_closed_alone(self) -> None:
        self.gate.clear()
        transport = await self.exchange(self.streaming(), get("/events"))
        transport.feed_eof()
        self.gate.set()
        await self.settle()
        self.assertEqual(self.stream.calls, ["closed"])
        self.assertTrue(transport.written.startswith(b"HTTP/1.1 200"))
        self.assertTrue(transport.lost)

    async def test_head_of_a_stream_opens_nothing(self) -> None:
        transport = await self.exchange(self.streaming(), get("/events").replace(b"GET", b"HEAD"))
        self.assertEqual(self.stream.calls, ["closed"])
        self.assertTrue(transport.lost)

    async def test_a_lagging_peer_pauses_and_resumes_the_sink(self) -> None:
        transport = await self.open()
        transport.stalled = True
        self.assertTrue(self.sink.writable)
        self.sink.write(b"x" * 65536)
        self.assertTrue(self.sink.writable)
        self.sink.write(b"x")
        self.assertFalse(self.sink.writable)
        self.assertEqual(self.sink.buffered, 65537)
        transport.drain(40_000)
        self.assertFalse(self.sink.writable)
        transport.drain(20_000)
        self.assertTrue(self.sink.writable)
        self.assertEqual(self.stream.calls, ["opened", "resumed"])
        await self.clock.advance(1000)
        self.assertFalse(transport.aborted)
        transport.lose()
        await self.settle()

    async def test_no_resumed_after_close(self) -> None:
        transport = await self.open()
        transport.stalled = True
        self.sink.write(b"x" * 70_000)
        self.sink.close()
        transport.drain()
        await self.settle()
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertTrue(transport.written.endswith(b"x" * 70_000))
        self.assertEqual(self.clock.pending, 0)

    async def test_a_closed_stream_whose_peer_takes_nothing_is_cut_off(self) -> None:
        transport = await self.open()
        transport.stalled = True
        self.sink.write(b"x" * 70_000)
        await self.clock.advance(100)
        self.sink.close()
        await self.clock.advance(9.9)
        self.assertFalse(transport.aborted)
        transport.drain(10)
        await self.clock.advance(9.9)
        self.assertFalse(transport.aborted)
        await self.clock.advance(10)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertEqual(self.clock.pending, 0)

    async def test_input_behind_a_stream_is_discarded_up_to_a_bound(self) -> None:
        for total, aborted in ((65535, False), (65536, False), (65537, True)):
            for split in (0, 10_000, total):
                self.stream = RecordingStream()
                raw = get("/events") + b"x" * split
                transport = await self.exchange(self.streaming(), raw)
                transport.feed(b"x" * (total - split), step=1000)
                await self.settle()
                self.assertEqual(transport.aborted, aborted)
                self.assertEqual(self.stream.calls == ["opened", "closed"], aborted)
                transport.lose()
                await self.settle()

    async def test_requests_behind_a_stream_never_run(self) -> None:
        seen = Recorder()
        server = self.serve(Route("GET", "/events", self.handle), Route("GET", "/ok", seen))
        transport = await self.exchange(server, get("/events") + get())
        transport.feed(get())
        self.sink.close()
        await self.settle()
        self.assertEqual(seen.requests, [])
        self.assertTrue(transport.lost)

    async def test_a_stream_outlives_every_time_limit_of_requests(self) -> None:
        transport = await self.open()
        await self.clock.advance(100_000)
        self.assertFalse(transport.is_closing())
        transport.lose()
        await self.settle()

    async def test_a_stream_may_close_inside_opened(self) -> None:
        class Brief(RecordingStream):
            def opened(self, sink: ByteSink) -> None:
                super().opened(sink)
                sink.write(b"all")
                sink.close()

        self.stream = Brief()
        transport = await self.exchange(self.streaming(), get("/events"))
        self.assertEqual(replies(transport.written, eof=True)[0].body, b"all")
        self.assertEqual(self.stream.calls, ["opened", "closed"])

    async def test_a_bug_in_a_stream_ends_that_stream_only(self) -> None:
        for name in ("opened", "resumed", "closed"):
            stream = self.stream = RecordingStream()

            def broken(*_: object, name: str = name, stream: RecordingStream = stream) -> None:
                stream.calls.append(name)
                raise ZeroDivisionError

            server = self.streaming()
            with self.assertLogs("crushlite.http", logging.ERROR):
                setattr(stream, name, broken)
                transport = await self.exchange(server, get("/events"))
                if stream.sink is not None:
                    transport.stalled = True
                    stream.sink.write(b"x" * 70_000)
                    transport.drain()
                if name == "closed":
                    transport.lose()
                await self.settle()
            self.assertTrue(transport.lost)
            self.assertEqual(stream.calls.count("closed"), 1)
            again = await self.exchange(server, get())
            self.assertEqual(replies(again.written)[0].status, 200)

    async def test_a_stream_whose_head_cannot_be_framed_is_a_500_and_closed(self) -> None:
        self.stream.headers = (("Bad\r\n", "x"),)
        with self.assertLogs("crushlite.http", logging.ERROR):
            transport = await self.exchange(self.streaming(), get("/events"))
        self.assertEqual(replies(transport.written)[0].status, 500)
        self.assertEqual(self.stream.calls, ["closed"])

    async def test_drain_ends_streams_with_fin(self) -> None:
        server = self.streaming()
        transport = await self.exchange(server, get("/events"))
        self.assertEqual([each.state for each in server.connections], [State.STREAM])
        self.sink.write(b"bye")
        await self.within(server.drain(5.0))
        self.assertTrue(transport.lost)
        self.assertFalse(transport.aborted)
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertEqual(server.connections, set())
