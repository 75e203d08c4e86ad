"""The client: reuse, retry, truncation, time limits, backpressure; and both ends together."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crushlite.http.client import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    HTTPClient,
    PeerMismatch,
    ProtocolError,
    ResponseTimeout,
    TCPConnector,
    UnixConnector,
    why_unreachable,
)
from crushlite.http.connection import Connection
from crushlite.http.messages import ByteSink, Peer, Request, Response, Stream
from crushlite.http.router import Route
from tests.support.http import HTTPTestCase, Recorder, RecordingStream, get, replies
from tests.support.memory import MemoryTransport, connect_pair
from tests.support.ports import reserved_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from crushlite.http.server import HTTPServer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ScriptedConnector:
    """Makes memory transports; the test plays the server."""

    def __init__(self) -> None:
        self.transports: list[MemoryTransport] = []
        self.failure: Exception | None = None

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        if self.failure is not None:
            raise self.failure
        transport = MemoryTransport(factory())
        transport.connect()
        self.transports.append(transport)
        return transport

    @property
    def last(self) -> MemoryTransport:
        return self.transports[-1]


class Scripted(HTTPTestCase):
    async def asyncSetUp(self) -> None:
        self.connector = ScriptedConnector()
        self.client = HTTPClient(
            self.connector, host_header="daemon", headers=(("X-Me", "1"),), clock=self.clock
        )

    async def asyncTearDown(self) -> None:
        await self.within(self.client.aclose())
        self.assertEqual(self.clock.pending, 0)

    async def begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine)
        await self.settle()
        return task

    async def answered(self, answer: bytes = OK, method: str = "GET", step: int = 0) -> Any:
        task = await self.begin(self.client.request(method, "/x"))
        self.connector.last.feed(answer, step=step)
        return await self.within(task)

    async def test_a_request_is_framed_and_its_answer_read(self) -> None:
        for step in (0, 1, 10):
            response = await self.answered(OK, "POST", step)
            self.assertEqual((response.status, response.body), (200, b"ok"))
            self.assertEqual(response.headers.get("content-length"), "2")
        head, _, _ = bytes(self.connector.last.written).partition(b"\r\n\r\n")
        self.assertEqual(head, b"POST /x HTTP/1.1\r\nHost: daemon\r\nX-Me: 1\r\nContent-Length: 0")
        self.assertEqual(len(self.connector.transports), 1)

    async def test_a_body_and_headers_are_sent(self) -> None:
        task = await self.begin(
            self.client.request("PUT", "/x?y", body=b"abc", headers=(("A", "b"),))
        )
        self.assertTrue(
            self.connector.last.written.endswith(b"A: b\r\nContent-Length: 3\r\n\r\nabc")
        )
        self.connector.last.feed(OK)
        await self.within(task)

    async def test_a_request_that_is_none_is_the_callers_mistake(self) -> None:
        bad: list[tuple[str, tuple[tuple[str, str], ...]]] = [
            ("/a b", ()),
            ("/\r\nA: b", ()),
            ("/ä", ()),
            ("", ()),
        ]
        bad += [("/", (pair,)) for pair in (("A", "b\r\nC: d"), ("A b", "c"), ("Host", "other"))]
        bad += [("/", (("content-length", "3"),)), ("/", (("Transfer-Encoding", "chunked"),))]
        for target, headers in bad:
            with self.subTest(target=target, headers=headers), self.assertRaises(ValueError):
                await self.client.request("GET", target, headers=headers)
        self.assertTrue(all(not t.written for t in self.connector.transports))

    async def test_connections_are_reused_only_after_a_clean_end(self) -> None:
        cases = (
            (OK, True),
            (b"HTTP/1.1 204 No Content\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", True),
            (b"HTTP/1.1 103 Hints\r\n\r\n" + OK, True),
            (OK + b"surplus", False),
            (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        )
        for answer, reused in cases:
            with self.subTest(answer=answer):
                await self.answered(answer)
                before = len(self.connector.transports)
                await self.answered()
                self.assertEqual(len(self.connector.transports) == before, reused)

    async def test_the_pool_keeps_four_idle_connections_for_a_minute(self) -> None:
        tasks = [await self.begin(self.client.request("GET", "/x")) for _ in range(6)]
        for transport in self.connector.transports:
            transport.feed(OK)
        await self.within(asyncio.gather(*tasks))
        await self.settle()
        self.assertEqual(sum(t.lost for t in self.connector.transports), 2)
        await self.clock.advance(59.9)
        self.assertEqual(sum(t.lost for t in self.connector.transports), 2)
        await self.clock.advance(0.2)
        self.assertEqual(sum(t.lost for t in self.connector.transports), 6)

    async def test_bytes_on_an_idle_connection_end_it(self) -> None:
        await self.answered()
        self.connector.last.feed(OK)
        await self.settle()
        self.assertTrue(self.connector.last.lost)
        await self.answered()
        self.assertEqual(len(self.connector.transports), 2)

    async def test_an_idle_connection_closed_by_the_server_is_not_used(self) -> None:
        await self.answered()
        self.connector.last.feed_eof()
        await self.answered(method="POST")
        self.assertEqual(len(self.connector.transports), 2)

    async def test_harmless_methods_are_retried_once_on_a_fresh_connection(self) -> None:
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            await self.answered()
            task = await self.begin(self.client.request(method, "/x"))
            stale = self.connector.last
            stale.lose(ConnectionResetError())
            await self.settle()
            self.assertIsNot(self.connector.last, stale)
            self.connector.last.feed(OK)
            self.assertEqual((await self.within(task)).status, 200)
            await self.settle()
            task = await self.begin(self.client.request(method, "/x"))
            self.connector.last.lose()
            await self.settle()
            self.connector.last.lose()
            with self.assertRaises(ConnectionLost):
                await self.within(task)

    async def test_a_post_is_never_sent_twice(self) -> None:
        await self.answered()
        count = len(self.connector.transports)
        task = await self.begin(self.client.request("POST", "/x"))
        self.connector.last.lose()
        with self.assertRaises(ConnectionLost):
            await self.within(task)
        self.assertEqual(len(self.connector.transports), count)

    async def test_no_retry_on_a_fresh_connection_or_after_a_byte_of_the_answer(self) -> None:
        task = await self.begin(self.client.request("GET", "/x"))
        self.connector.last.lose()
        with self.assertRaises(ConnectionLost):
            await self.within(task)
        await self.answered()
        task = await self.begin(self.client.request("GET", "/x"))
        self.connector.last.feed(b"H")
        self.connector.last.lose()
        with self.assertRaises(ConnectionLost):
            await self.within(task)
        self.assertEqual(len(self.connector.transports), 2)

    async def test_a_truncated_answer_is_a_lost_connection(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        for answer in (OK, chunked):
            for cut in range(len(answer)):
                for end in ("feed_eof", "lose"):
                    task = await self.begin(self.client.request("GET", "/x"))
                    self.connector.last.feed(answer[:cut])
                    getattr(self.connector.last, end)()
                    with self.assertRaises(ConnectionLost):
                        await self.within(task)

    async def test_a_close_delimited_body_ends_with_the_connection_but_not_by_a_reset(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\n\r\nall of it"
        task = await self.begin(self.client.request("GET", "/x"))
        self.connector.last.feed(answer, step=1)
        self.connector.last.feed_eof()
        self.assertEqual((await self.within(task)).body, b"all of it")
        task = await self.begin(self.client.request("GET", "/x"))
        self.connector.last.feed(answer)
        self.connector.last.lose(ConnectionResetError())
        with self.assertRaises(ConnectionLost):
            await self.within(task)

    async def test_what_is_not_http_is_a_protocol_error(self) -> None:
        for answer in (
            b"220 smtp.example ESMTP\r\n\r\n",
            b"HTTP/1.1 two hundred\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nPad: " + b"p" * 70_000,
        ):
            with self.subTest(answer=answer[:60]), self.assertRaises(ProtocolError):
                await self.answered(answer)

    async def test_a_switch_of_protocols_is_a_protocol_error_even_if_asked_for(self) -> None:
        upgrade = (("Upgrade", "x"), ("Connection", "upgrade"))
        task = await self.begin(self.client.request("GET", "/x", headers=upgrade))
        self.connector.last.feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
        with self.assertRaises(ProtocolError):
            await self.within(task)

    async def test_a_body_is_bounded(self) -> None:
        for size, fits in ((9, True), (10, True), (11, False)):
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, b"x" * size)
            task = await self.begin(self.client.request("GET", "/x", limit=10))
            self.connector.last.feed(answer)
            if fits:
                self.assertEqual(len((await self.within(task)).body), size)
            else:
                with self.assertRaises(ProtocolError):
                    await self.within(task)

    async def test_a_request_has_one_time_limit_for_everything(self) -> None:
        task = await self.begin(self.client.request("GET", "/x", timeout=5.0))
        self.connector.last.feed(OK[:-1])
        await self.clock.advance(4.9)
        self.assertFalse(task.done())
        await self.clock.advance(0.2)
        with self.assertRaises(ResponseTimeout):
            await self.within(task)
        await self.settle()
        self.assertTrue(self.connector.last.lost)

    async def test_a_stream_has_a_limit_to_its_head_and_one_for_silence(self) -> None:
        async def read(idle: float | None) -> bytes:
            async with self.client.stream("GET", "/x", timeout=5.0, idle_timeout=idle) as response:
                return await response.read()

        task = await self.begin(read(None))
        await self.clock.advance(5.1)
        with self.assertRaises(ResponseTimeout):
            await self.within(task)
        task = await self.begin(read(None))
        self.connector.last.feed(OK[:-1])
        await self.clock.advance(10_000)
        self.connector.last.feed(OK[-1:])
        self.assertEqual(await self.within(task), b"ok")
        task = await self.begin(read(3.0))
        self.connector.last.feed(OK[:-1])
        await self.clock.advance(2.9)
        self.assertFalse(task.done())
        await self.clock.advance(0.2)
        with self.assertRaises(ResponseTimeout):
            await self.within(task)

    async def test_leaving_a_stream_early_closes_the_connection_at_once(self) -> None:
        async def peek() -> bytes:
            async with self.client.stream("GET", "/x") as response:
                async for chunk in response:
                    return chunk
            return b""

        task = await self.begin(peek())
        self.connector.last.feed(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        self.assertEqual(await self.within(task), b"first")
        self.assertTrue(self.connector.last.is_closing())

    async def test_cancelling_a_request_closes_its_connection(self) -> None:
        task = await self.begin(self.client.request("GET", "/x"))
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await self.within(task)
        self.assertTrue(self.connector.last.is_closing())

    async def test_a_slow_reader_pauses_the_server(self) -> None:
        piece = b"x" * 65536
        async with self.opened() as response:
            transport = self.connector.last
            for _ in range(16):
                transport.feed(piece)
            self.assertFalse(transport.reading_paused)
            transport.feed(piece)
            self.assertTrue(transport.reading_paused)
            self.assertEqual(await self.within(response.__anext__()), 17 * piece)
            self.assertFalse(transport.reading_paused)

    def opened(self) -> Any:
        loop = asyncio.get_running_loop()

        def answer() -> None:
            if self.connector.transports and self.connector.last.written:
                self.connector.last.feed(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                loop.call_soon(answer)

        loop.call_soon(answer)
        return self.client.stream("GET", "/x")

    async def test_what_arrived_before_a_failure_is_read_first(self) -> None:
        async with self.opened() as response:
            self.connector.last.feed(b"one")
            self.connector.last.lose(ConnectionResetError())
            await self.settle()
            self.assertEqual(await response.__anext__(), b"one")
            for _ in range(2):
                with self.assertRaises(ConnectionLost):
                    await self.within(response.__anext__())

    async def test_a_failed_connect_raises_and_leaves_nothing(self) -> None:
        self.connector.failure = ConnectFailed("nobody")
        with self.assertRaises(ConnectFailed):
            await self.client.request("GET", "/x")

    async def test_a_closed_client_refuses_and_ends_what_runs(self) -> None:
        task = await self.begin(self.client.request("GET", "/x"))
        await self.within(self.client.aclose())
        with self.assertRaises(ConnectionLost):
            await self.within(task)
        with self.assertRaises(ClientError):
            await self.client.request("GET", "/x")


class PairConnector:
    """Connects to a server in the same process, without sockets."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        near, _ = connect_pair(factory(), Connection(self._server, "memory", 80))
        return near


class Ticker(RecordingStream):
    """A stream of three events."""

    def opened(self, sink: ByteSink) -> None:
        super().opened(sink)
        for n in range(3):
            sink.write(b"data: %d\n\n" % n)
        sink.close()


async def echo(request: Request) -> Response:
    return Response(200, request.body, "application/octet-stream")


class BothEnds(HTTPTestCase):
    """The real client against the real server, in memory and over sockets."""

    def setUp(self) -> None:
        super().setUp()
        self.stream = Ticker()

        async def events(request: Request) -> Stream:
            return self.stream

        self.seen = Recorder()
        self.server = self.serve(
            Route("POST", "/echo", echo, body_limit=8 << 20),
            Route("GET", "/seen", self.seen),
            Route("GET", "/events", events),
        )

    async def converse(self, client: HTTPClient) -> None:
        async with client:
            for size in (0, 1, 100_000, 5 << 20):
                body = os.urandom(size)
                answer = await self.within(client.request("POST", "/echo", body=body))
                self.assertEqual((answer.status, answer.body), (200, body))
            for _ in range(3):
                self.assertEqual((await self.within(client.request("HEAD", "/seen"))).body, b"")
                self.assertEqual((await self.within(client.request("GET", "/no"))).status, 404)
            self.assertEqual(self.server.open_connections, 1)
            async with client.stream("GET", "/events") as response:
                data = await self.within(response.read())
            self.assertEqual(data, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
            refused = await self.within(client.request("POST", "/echo", body=b"x" * (9 << 20)))
            self.assertEqual(refused.status, 413)
        await self.within(self.server.drain(1.0))
        self.assertEqual(self.stream.calls, ["opened", "closed"])
        self.assertEqual(self.server.open_connections, 0)

    async def test_in_memory(self) -> None:
        connector = PairConnector(self.server)
        await self.converse(HTTPClient(connector, host_header="x", clock=self.clock))

    async def test_over_tcp(self) -> None:
        port = self.enterContext(reserved_port())
        await self.server.listen(socket.create_server(("127.0.0.1", port)))
        connector = TCPConnector("127.0.0.1", port)
        await self.converse(HTTPClient(connector, host_header="x", clock=self.clock))
        self.assertEqual(self.seen.requests[0].peer.kind, "tcp")
        self.assertEqual(self.seen.requests[0].peer.port, port)
        with self.assertRaises(ConnectFailed):
            await self.within(connector.connect(asyncio.Protocol))

    async def unix_path(self) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = str(Path(directory.name) / "s")
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        await self.server.listen(sock)
        return path

    async def test_over_a_unix_socket_with_both_ends_checked(self) -> None:
        path = await self.unix_path()
        connector = UnixConnector(path, expect_uid=os.geteuid())
        await self.converse(HTTPClient(connector, host_header="x", clock=self.clock))
        self.assertEqual(self.seen.requests[0].peer, Peer("unix"))
        self.assertTrue(Path(path).exists(), "the server did not make the socket's file")
        with self.assertRaises(ConnectFailed):
            await self.within(connector.connect(asyncio.Protocol))

    async def test_a_client_sends_nothing_to_another_users_server(self) -> None:
        path = await self.unix_path()
        connector = UnixConnector(path, expect_uid=os.geteuid() + 1)
        async with HTTPClient(connector, host_header="x", clock=self.clock) as client:
            with self.assertRaises(PeerMismatch):
                await self.within(client.request("GET", "/seen"))
        await self.within(self.server.drain(1.0))
        self.assertEqual(self.seen.requests, [])

    async def test_a_server_sends_nothing_to_another_user(self) -> None:
        self.server.expected_uid = os.geteuid() + 1
        path = await self.unix_path()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(get("/seen"))
        try:
            self.assertEqual(await self.within(reader.read()), b"")
        except ConnectionResetError:
            pass  # a reset: our bytes were unread when the server closed
        writer.close()
        await self.within(self.server.drain(1.0))
        self.assertEqual(self.seen.requests, [])

    async def test_a_reset_after_the_last_byte_does_not_stop_the_request(self) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        await self.server.listen(sock)
        loop = asyncio.get_running_loop()
        self.seen.gate.clear()
        with socket.create_connection(sock.getsockname()) as peer:
            peer.setblocking(False)
            await loop.sock_sendall(peer, get("/seen"))
            await self.until(lambda: bool(self.seen.requests))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await self.until(lambda: not self.server.open_connections)
        self.seen.gate.set()
        await self.within(self.server.drain(1.0))
        self.assertEqual(self.seen.finished, 1)

    async def test_an_early_refusal_reaches_a_peer_that_is_still_sending(self) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        await self.server.listen(sock)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        writer.write(b"x" * 200_000)
        answer = await self.within(reader.read())
        self.assertEqual(replies(answer)[0].status, 413)
        writer.close()
        await self.within(self.server.drain(1.0))


class UnreachableTests(unittest.TestCase):
    def test_why_a_connection_could_not_be_made_is_said_once_and_without_numbers(self) -> None:
        refused = "[Errno 111] Connect call failed"
        both = f"Multiple exceptions: {refused} ('::1', 1, 0, 0), {refused} ('127.0.0.1', 1)"
        for error, words in (
            (ConnectionRefusedError(111, "Connect call failed ('::1', 1)"), "Connection refused"),
            (OSError(both), "Connection refused"),
            (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
            (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
            (ValueError("a bad name"), "a bad name"),
        ):
            with self.subTest(error):
                self.assertEqual(why_unreachable(error), words)
