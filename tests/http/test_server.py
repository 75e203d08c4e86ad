"""The server on memory transports: keep-alive, pipelining, errors, limits, time, capacity."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

from crushlite.http.connection import Connection
from crushlite.http.limits import Limits
from crushlite.http.messages import HTTPError, Request, RequestHead, Response
from crushlite.http.router import Route
from tests.support.http import (
    HTTPTestCase,
    Recorder,
    chunked,
    fail,
    get,
    post,
    refuse,
    replies,
    state_of,
)

if TYPE_CHECKING:
    from tests.support.memory import MemoryTransport


class Requests(HTTPTestCase):
    async def test_a_request_is_the_same_however_its_bytes_arrive(self) -> None:
        bodies = (b"", b"x", b'{"a":1}' * 300)
        for step in (0, 1, 10):
            for body in bodies:
                for raw in (
                    post("/a/%2F%24$/b?x=1&x=%C3%A9+", body),
                    chunked(
                        "/a/%2F%24$/b?x=1&x=%C3%A9+",
                        [body[:5], body[5:]] if len(body) > 5 else [body] if body else [],
                    ),
                ):
                    with self.subTest(step=step, size=len(body)):
                        seen = Recorder()
                        server = self.serve(Route("POST", "/a/{id}/b", seen))
                        transport = await self.exchange(server, raw, step=step)
                        [request] = seen.requests
                        self.assertEqual(request.body, body)
                        self.assertEqual(request.params, {"id": "/$$"})
                        self.assertEqual(request.head.query, {"x": ["1", "é "]})
                        self.assertEqual(request.query_one("x"), "1")
                        self.assertIsNone(request.query_one("y"))
                        self.assertEqual(request.headers.get("HOST"), "localhost")
                        self.assertEqual(request.peer.port, 80)
                        [reply] = replies(transport.written, ["POST"])
                        self.assertEqual((reply.status, reply.body), (200, b'{"n":1}'))
                        self.assertFalse(transport.is_closing())

    async def test_a_connection_serves_request_after_request(self) -> None:
        seen = Recorder()
        server = self.serve(Route("GET", "/ok", seen))
        transport = self.connect(server)
        for _ in range(5):
            transport.feed(get())
            await self.settle()
        self.assertEqual(
            [r.body for r in replies(transport.written)], [b'{"n":%d}' % n for n in range(1, 6)]
        )
        self.assertEqual(len(seen.requests), 5)

    async def test_an_answer_in_pieces_is_one_answer(self) -> None:
        pieces = tuple(bytes([65 + n]) * 1000 for n in range(6))

        async def long(request: Request) -> Response:
            return Response(200, b"first", more=pieces)

        server = self.serve(Route("GET", "/long", long), Route("GET", "/ok", Recorder()))
        transport = self.connect(server)
        transport.feed(get("/long") + get("/ok") + get("/long"))
        for _ in range(3):  # answers, each of which takes several ticks of the loop
            await self.settle()
        whole = b"first" + b"".join(pieces)
        bodies = [reply.body for reply in replies(transport.written)]
        self.assertEqual(bodies, [whole, b'{"n":1}', whole])
        self.assertFalse(transport.is_closing())

    async def test_a_slow_reader_of_a_long_answer_is_not_sent_more_than_it_takes(self) -> None:
        pieces = tuple(b"x" * 100_000 for _ in range(8))

        async def long(request: Request) -> Response:
            return Response(200, b"", more=pieces)

        server = self.serve(Route("GET", "/long", long), Route("GET", "/ok", Recorder()))
        transport = self.connect(server)
        transport.stalled = True
        transport.feed(get("/long") + get("/ok"))
        await self.settle()
        self.assertLess(transport.get_write_buffer_size(), 300_000)
        transport.drain()
        await self.settle()
        first, second = replies(transport.written)
        self.assertEqual((len(first.body), second.body), (800_000, b'{"n":1}'))

    async def test_a_reader_that_leaves_a_long_answer_costs_nothing_more(self) -> None:
        async def long(request: Request) -> Response:
            return Response(200, b"", more=(b"x" * 100_000,) * 50)

        server = self.serve(Route("GET", "/long", long))
        transport = self.connect(server)
        transport.stalled = True
        transport.feed(get("/long"))
        await self.settle()
        protocol = transport.protocol
        assert isinstance(protocol, Connection)
        transport.abort()
        await self.settle()
        self.assertEqual(server.open_connections, 0)
        self.assertEqual(protocol._outbox.unsent, 0)

    async def test_the_head_of_a_long_answer_names_its_whole_length(self) -> None:
        async def long(request: Request) -> Response:
            return Response(200, b"ab", more=(b"cd", b"e"))

        server = self.serve(Route("GET", "/long", long))
        transport = await self.exchange(server, b"HEAD /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b"Content-Length: 5\r\n", transport.written)
        self.assertTrue(transport.written.endswith(b"\r\n\r\n"))

    async def test_a_thousand_pipelined_requests_are_answered_in_order(self) -> None:
        async def echo(request: Request) -> Response:
            # Odd ones take longer: order must not depend on it.
            if int(request.params["n"]) % 2:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return Response(200, request.params["n"].encode())

        for step in (0, 1000):
            server = self.serve(Route("GET", "/{n}", echo))
            transport = self.connect(server)
            transport.feed(b"".join(get(f"/{n}") for n in range(1000)), step=step)
            while transport.written.count(b"HTTP/1.1 200") < 1000:
                await self.settle()
            bodies = [part.rpartition(b"\r\n")[2] for part in transport.written.split(b"HTTP/1.1 ")]
            self.assertEqual(bodies[1:], [b"%d" % n for n in range(1000)])

    async def test_reading_pauses_behind_a_busy_request(self) -> None:
        seen = Recorder(gated=True)
        server = self.serve(Route("GET", "/ok", seen))
        transport = await self.exchange(server, get())
        self.assertFalse(transport.reading_paused)
        transport.feed(get())
        self.assertTrue(transport.reading_paused)
        self.assertEqual(len(seen.requests), 1)
        seen.gate.set()
        await self.settle()
        self.assertFalse(transport.reading_paused)
        self.assertEqual(len(replies(transport.written)), 2)

    async def test_first_steps_run_in_order_of_arrival_across_connections(self) -> None:
        order: list[str] = []

        async def note(request: Request) -> Response:
            order.append(request.params["n"])
            return Response(200)

        server = self.serve(Route("POST", "/{n}", note))
        transports = [self.connect(server) for _ in range(20)]
        for n, transport in enumerate(transports):
            transport.feed(post(f"/{n}", b"abc")[:-1])
        for n in reversed(range(20)):
            transports[n].feed(b"c")
        await self.settle()
        self.assertEqual(order, [str(n) for n in reversed(range(20))])

    async def test_a_complete_request_is_carried_out_though_its_sender_has_gone(self) -> None:
        for gated in (False, True):
            seen = Recorder(gated=gated)
            server = self.serve(Route("POST", "/p", seen))
            transport = self.connect(server)
            transport.feed(post("/p", b"body"))
            transport.lose(ConnectionResetError())
            await self.settle()
            seen.gate.set()
            await self.settle()
            self.assertEqual(seen.finished, 1)
            self.assertEqual(transport.written, b"")
            self.assertEqual(server.open_connections, 0)
            self.assertEqual(len(server.tasks), 0)

    async def test_an_incomplete_request_is_never_carried_out(self) -> None:
        seen = Recorder()
        server = self.serve(Route("POST", "/p", seen))
        raw = post("/p", b"body")
        for cut in range(1, len(raw)):
            transport = self.connect(server)
            transport.feed(raw[:cut])
            transport.feed_eof()
            await self.settle()
            self.assertEqual(replies(transport.written)[0].status, 400)
            self.assertTrue(transport.lost)
        self.assertEqual(seen.requests, [])

    async def test_half_close_means_answer_then_close(self) -> None:
        seen = Recorder(gated=True)
        server = self.serve(Route("GET", "/ok", seen))
        transport = self.connect(server)
        transport.feed(get() + get())
        transport.feed_eof()
        await self.settle()
        self.assertFalse(transport.is_closing())
        seen.gate.set()
        await self.settle()
        self.assertEqual(len(replies(transport.written)), 2)
        self.assertTrue(transport.lost)

    async def test_half_close_of_an_idle_connection_closes_it_silently(self) -> None:
        server = self.serve()
        transport = self.connect(server)
        transport.feed_eof()
        await self.settle()
        self.assertTrue(transport.lost)
        self.assertEqual(transport.written, b"")


class Answers(HTTPTestCase):
    async def test_head_is_get_without_a_body(self) -> None:
        server = self.serve(Route("GET", "/ok", Recorder()))
        raw = get().replace(b"GET", b"HEAD")
        transport = await self.exchange(server, raw + raw)
        first, second = replies(transport.written, ["HEAD", "HEAD"])
        self.assertEqual((first.status, first.body), (200, b""))
        self.assertEqual(first.headers["content-length"], "7")
        self.assertEqual(second.headers["content-length"], "7")

    async def test_unknown_path_and_wrong_method(self) -> None:
        seen = Recorder()
        server = self.serve(Route("GET", "/ok", seen), Route("PUT", "/ok", seen))
        transport = await self.exchange(server, get("/no") + post("/ok", b"abc") + get())
        lost, wrong, fine = replies(transport.written)
        self.assertEqual((lost.status, json.loads(lost.body)["code"]), (404, "route_not_found"))
        self.assertEqual((wrong.status, wrong.headers["allow"]), (405, "GET, HEAD, PUT"))
        self.assertEqual(json.loads(wrong.body)["code"], "method_not_allowed")
        self.assertEqual(fine.status, 200)

    async def test_the_guard_comes_before_routing_and_before_the_body(self) -> None:
        def guard(head: RequestHead, route: Route | None) -> None:
            raise HTTPError(401, "unauthorized", "who are you?")

        seen = Recorder()
        server = self.serve(Route("POST", "/ok", seen), guard=guard)
        for raw in (get("/unknown"), get("/ok"), post("/ok", b"")):
            transport = await self.exchange(server, raw)
            self.assertEqual(replies(transport.written)[0].status, 401)
        transport = await self.exchange(server, post("/ok", b"x" * 100)[:-50])
        self.assertEqual(replies(transport.written)[0].status, 401)
        self.assertTrue(transport.eof_written)
        self.assertEqual(seen.requests, [])

    async def test_a_bug_in_the_guard_refuses(self) -> None:
        def guard(head: RequestHead, route: Route | None) -> None:
            raise ZeroDivisionError

        server = self.serve(Route("GET", "/ok", Recorder()), guard=guard)
        with self.assertLogs("crushlite.http", logging.ERROR):
            transport = await self.exchange(server, get())
        self.assertEqual(replies(transport.written)[0].status, 500)

    async def test_expect_100_continue_is_granted_only_after_admission(self) -> None:
        seen = Recorder()
        server = self.serve(Route("POST", "/ok", seen, body_limit=10))
        raw = post("/ok", b"12345", "Expect: 100-Continue")
        transport = await self.exchange(server, raw[:-5])
        self.assertEqual(transport.written, b"HTTP/1.1 100 Continue\r\n\r\n")
        transport.feed(raw[-5:])
        await self.settle()
        self.assertEqual(replies(transport.written)[0].status, 200)
        for path, body, status in (("/no", b"12345", 404), ("/ok", b"1" * 11, 413)):
            raw = post(path, body, "Expect: 100-continue")
            transport = await self.exchange(server, raw[: -len(body)])
            self.assertNotIn(b"100 Continue", transport.written)
            self.assertEqual(replies(transport.written)[0].status, status)

    async def test_other_expectations_fail(self) -> None:
        server = self.serve(Route("POST", "/ok", Recorder()))
        transport = await self.exchange(server, post("/ok", b"1", "Expect: the-unexpected"))
        self.assertEqual(replies(transport.written)[0].status, 417)

    async def test_close_is_honoured_and_nothing_after_it_runs(self) -> None:
        for raw in (
            get("/ok", "Connection: close"),
            get("/ok", "Connection: foo, CLOSE"),
            b"GET /ok HTTP/1.0\r\n\r\n",
        ):
            seen = Recorder()
            server = self.serve(Route("GET", "/ok", seen))
            transport = await self.exchange(server, raw + get())
            [reply] = replies(transport.written)
            self.assertEqual(reply.headers["connection"], "close")
            self.assertTrue(transport.eof_written)
            self.assertEqual(len(seen.requests), 1)

    async def test_an_http_error_keeps_its_headers_and_the_connection(self) -> None:
        server = self.serve(Route("GET", "/ok", refuse))
        transport = await self.exchange(server, get() + get())
        first, second = replies(transport.written)
        self.assertEqual(first.headers["x-why"], "because")
        self.assertEqual(json.loads(second.body), {"message": "not now", "code": "conflict"})

    async def test_an_exception_is_a_500_with_a_logged_id_and_no_detail(self) -> None:
        server = self.serve(Route("GET", "/bad", fail), Route("GET", "/ok", Recorder()))
        with self.assertLogs("crushlite.http", logging.ERROR) as logs:
            transport = await self.exchange(server, get("/bad") + get())
        bad, good = replies(transport.written)
        answer = json.loads(bad.body)
        self.assertEqual((bad.status, answer["code"]), (500, "internal"))
        self.assertNotIn("secret", answer["message"])
        id_ = answer["message"].partition("(id ")[2].rstrip(")")
        self.assertIn(id_, logs.output[0])
        self.assertIn("boom with a secret", logs.output[0])
        self.assertEqual(good.status, 200)

    async def test_application_errors_are_translated(self) -> None:
        def translate(error: Exception) -> HTTPError | None:
            return HTTPError(418, "teapot", "short") if isinstance(error, RuntimeError) else None

        server = self.serve(Route("GET", "/bad", fail), translate=translate)
        transport = await self.exchange(server, get("/bad"))
        self.assertEqual(replies(transport.written)[0].status, 418)

    async def test_a_bug_in_the_translation_is_a_500_too(self) -> None:
        def translate(error: Exception) -> HTTPError | None:
            raise ZeroDivisionError

        server = self.serve(Route("GET", "/bad", fail), translate=translate)
        with self.assertLogs("crushlite.http", logging.ERROR):
            transport = await self.exchange(server, get("/bad"))
        self.assertEqual(replies(transport.written)[0].status, 500)

    async def test_a_handler_that_returns_no_answer_is_a_500(self) -> None:
        async def nothing(request: Request) -> Response:
            return None  # type: ignore[return-value]

        server = self.serve(Route("GET", "/bad", nothing))
        with self.assertLogs("crushlite.http", logging.ERROR):
            transport = await self.exchange(server, get("/bad"))
        self.assertEqual(replies(transport.written)[0].status, 500)

    async def test_an_answer_that_would_split_its_head_is_a_500(self) -> None:
        for pair in (
            ("X", "a\r\nY: b"),
            ("X\r\nY", "b"),
            ("X", "a\nb"),
            ("X", "\u20ac"),
            ("", "a"),
        ):

            async def split(request: Request, pair: tuple[str, str] = pair) -> Response:
                return Response(200, headers=(pair,))

            server = self.serve(Route("GET", "/bad", split))
            with self.assertLogs("crushlite.http", logging.ERROR):
                transport = await self.exchange(server, get("/bad"))
            self.assertEqual(replies(transport.written)[0].status, 500)

    async def test_a_handler_that_lets_a_cancellation_out_still_answers(self) -> None:
        async def cancelled(request: Request) -> Response:
            raise asyncio.CancelledError

        server = self.serve(Route("GET", "/bad", cancelled), Route("GET", "/ok", Recorder()))
        with self.assertLogs("crushlite.http", logging.ERROR):
            transport = await self.exchange(server, get("/bad") + get())
        self.assertEqual([r.status for r in replies(transport.written)], [500, 200])

    async def test_no_content_has_no_body(self) -> None:
        async def nothing(request: Request) -> Response:
            return Response(204, b"ignored")

        server = self.serve(Route("GET", "/ok", nothing))
        transport = await self.exchange(server, get() + get())
        self.assertEqual([r.status for r in replies(transport.written)], [204, 204])

    async def test_the_date_follows_the_clock(self) -> None:
        server = self.serve(Route("GET", "/ok", Recorder()))
        transport = await self.exchange(server, get())
        self.assertEqual(
            replies(transport.written)[0].headers["date"], "Thu, 10 Sep 2026 00:26:40 GMT"
        )


class Bounds(HTTPTestCase):
    """Each bound at n-1, n and n+1, whole and byte by byte."""

    async def status(self, raw: bytes, step: int, **limits: int) -> int:
        seen = Recorder()
        server = self.serve(
            Route("GET", "/{x}", seen),
            Route("POST", "/b", seen, body_limit=100),
            limits=Limits(**limits),
        )
        transport = await self.exchange(server, raw, step=step)
        reply = replies(transport.written)[0]
        self.assertEqual(len(seen.requests), int(reply.status == 200))
        self.assertEqual(transport.eof_written, reply.status != 200)
        return reply.status

    async def test_head(self) -> None:
        for step in (0, 1, 10):
            for delta, status in ((-1, 200), (0, 200), (1, 431), (500, 431)):
                raw = get("/x", "A: b", "Pad: ")
                size = 1024 + delta - len(raw)
                raw = get("/x", "A: b", "Pad: " + "p" * size)
                with self.subTest(step=step, delta=delta):
                    self.assertEqual(await self.status(raw, step, head=1024, target=512), status)

    async def test_head_at_its_real_size(self) -> None:
        for delta, status in ((0, 200), (1, 431), (1_000_000, 431)):
            raw = get("/x", "Pad: ")
            raw = get("/x", "Pad: " + "p" * (32 * 1024 + delta - len(raw)))
            self.assertEqual(await self.status(raw, 0), status)
            self.assertEqual(await self.status(raw[:-1], 16384) if delta else 431, 431)

    async def test_header_count(self) -> None:
        for step in (0, 10):
            for count, status in ((99, 200), (100, 200), (101, 431)):
                raw = get("/x", *(f"H{n}: v" for n in range(count - 1)))
                self.assertEqual(await self.status(raw, step), status)

    async def test_target(self) -> None:
        for step in (0, 1, 10):
            for size, status in ((299, 200), (300, 200), (301, 414), (380, 414), (2000, 414)):
                raw = get("/" + "t" * (size - 1))
                with self.subTest(step=step, size=size):
                    self.assertEqual(await self.status(raw, step, target=300), status)

    async def test_target_at_its_real_size(self) -> None:
        for size, status in ((8192, 200), (8193, 414), (100_000, 414)):
            self.assertEqual(await self.status(get("/" + "t" * (size - 1)), 0), status)

    async def test_body(self) -> None:
        for step in (0, 1, 10):
            for size, status in ((99, 200), (100, 200), (101, 413), (300_000, 413)):
                if step and size > 1000:
                    continue
                with self.subTest(step=step, size=size):
                    self.assertEqual(await self.status(post("/b", b"x" * size), step), status)
                    pieces = [b"x" * 7] * (size // 7) + ([b"x" * (size % 7)] if size % 7 else [])
                    self.assertEqual(await self.status(chunked("/b", pieces), step), status)

    async def test_a_declared_length_too_large_is_refused_before_the_body(self) -> None:
        raw = get("/b", "Content-Length: 1000000000000000000").replace(b"GET", b"POST")
        self.assertEqual(await self.status(raw, 0), 413)

    async def test_chunk_extensions(self) -> None:
        def with_extension(size: int) -> bytes:
            return chunked("/b", []).replace(
                b"0\r\n\r\n", b"1;%b\r\nx\r\n0\r\n\r\n" % (b"e" * size)
            )

        self.assertEqual(await self.status(with_extension(100), 0), 200)
        self.assertEqual(await self.status(with_extension(5000), 0), 400)
        self.assertEqual(await self.status(with_extension(5000), 10), 400)
        self.assertEqual(await self.status(with_extension(50_000)[:20_000], 10), 400)

    async def test_a_flood_of_tiny_chunks(self) -> None:
        seen = Recorder()
        server = self.serve(Route("POST", "/b", seen))
        for size, count, status in (
            (1, 4096, 200),
            (1, 20_000, 400),
            (64, 5000, 200),
            (63, 5000, 400),
        ):
            with self.subTest(size=size, count=count):
                transport = await self.exchange(
                    server, chunked("/b", [b"x" * size] * count), step=65536
                )
                self.assertEqual(replies(transport.written)[0].status, status)


class Time(HTTPTestCase):
    async def advance_to(self, seconds: float, transport: MemoryTransport) -> bool:
        await self.clock.advance(seconds)
        return transport.is_closing() or transport.eof_written

    async def test_first_byte(self) -> None:
        transport = self.connect(self.serve())
        self.assertFalse(await self.advance_to(9.9, transport))
        self.assertTrue(await self.advance_to(0.2, transport))
        self.assertEqual(transport.written, b"")
        self.assertEqual(self.clock.pending, 0)

    async def test_head(self) -> None:
        transport = self.connect(self.serve())
        await self.clock.advance(9)
        for byte in b"GET / HTTP":
            transport.feed(bytes([byte]))
            self.assertFalse(await self.advance_to(0.99, transport))
        self.assertTrue(await self.advance_to(0.2, transport))
        self.assertEqual(replies(transport.written)[0].status, 408)
        await self.clock.advance(2.1)
        self.assertTrue(transport.lost)
        self.assertEqual(self.clock.pending, 0)

    async def test_body_between_reads(self) -> None:
        seen = Recorder()
        server = self.serve(Route("POST", "/p", seen), limits=Limits(body_grace=100.0))
        transport = self.connect(server)
        raw = post("/p", b"12345")
        transport.feed(raw[:-5])
        for byte in b"1234":
            self.assertFalse(await self.advance_to(14.9, transport))
            transport.feed(bytes([byte]))
        self.assertFalse(await self.advance_to(14.9, transport))
        self.assertTrue(await self.advance_to(0.2, transport))
        self.assertEqual(replies(transport.written)[0].status, 408)
        self.assertEqual(seen.requests, [])
        transport.lose()

    async def test_idle_keep_alive(self) -> None:
        server = self.serve(Route("GET", "/ok", Recorder()))
        transport = await self.exchange(server, get())
        for _ in range(3):
            self.assertFalse(await self.advance_to(119, transport))
            transport.feed(get())
            await self.settle()
        self.assertFalse(await self.advance_to(119, transport))
        self.assertTrue(await self.advance_to(1.1, transport))
        self.assertEqual(len(replies(transport.written)), 4)
        self.assertEqual(self.clock.pending, 0)

    async def test_a_handler_may_take_its_time(self) -> None:
        seen = Recorder(gated=True)
        server = self.serve(Route("GET", "/ok", seen))
        transport = await self.exchange(server, get())
        self.assertFalse(await self.advance_to(1000, transport))
        seen.gate.set()
        await self.settle()
        self.assertEqual(replies(transport.written)[0].status, 200)
        transport.lose()

    async def test_a_peer_that_takes_no_bytes_is_cut_off(self) -> None:
        async def big(request: Request) -> Response:
            return Response(200, b"x" * 1000)

        for request in (get(), get("/ok", "Connection: close")):
            server = self.serve(Route("GET", "/ok", big))
            transport = self.connect(server)
            transport.stalled = True
            transport.feed(request)
            await self.settle()
            for _ in range(5):
                await self.clock.advance(9.9)
                self.assertFalse(transport.aborted)
                transport.drain(100)
            await self.clock.advance(9.9)
            await self.clock.advance(10.1)
            self.assertTrue(transport.aborted)
            await self.settle()
            self.assertEqual(server.open_connections, 0)
            self.assertEqual(self.clock.pending, 0)

    async def test_a_peer_that_does_not_read_gets_no_further_requests_served(self) -> None:
        seen = Recorder()

        async def big(request: Request) -> Response:
            await seen(request)
            return Response(200, b"x" * 40_000)

        server = self.serve(Route("GET", "/ok", big))
        transport = self.connect(server)
        transport.stalled = True
        transport.feed(get() * 10)
        await self.settle()
        self.assertEqual(len(seen.requests), 2)
        transport.drain()
        while len(seen.requests) < 10:
            await self.settle()
        await self.settle()
        self.assertEqual(len(replies(transport.written)), 10)
        transport.lose()

    async def test_a_peer_that_sends_but_does_not_read_cannot_fill_the_memory(self) -> None:
        async def big(request: Request) -> Response:
            return Response(200, b"x" * 70_000)

        server = self.serve(Route("GET", "/ok", big))
        transport = self.connect(server)
        transport.stalled = True
        transport.feed(get())
        await self.settle()
        self.assertFalse(transport.reading_paused)
        transport.feed(get())
        self.assertTrue(transport.reading_paused)
        transport.drain()
        await self.settle()
        self.assertFalse(transport.reading_paused)
        self.assertEqual(len(replies(transport.written)), 2)
        transport.lose()

    async def test_lingering_ends_after_bytes_or_time(self) -> None:
        for data, wait in ((b"", 2.1), (b"x" * (Limits().linger_bytes - 999), 0.0)):
            server = self.serve()
            transport = await self.exchange(server, b"BAD\r\n\r\n")
            self.assertTrue(transport.eof_written)
            self.assertFalse(transport.is_closing())
            transport.feed(b"x" * 1000)
            self.assertFalse(transport.is_closing())
            transport.feed(data)
            await self.clock.advance(wait)
            self.assertTrue(transport.lost)
            self.assertEqual(self.clock.pending, 0)


class Capacity(HTTPTestCase):
    async def test_the_last_places_are_for_urgent_routes(self) -> None:
        limits = Limits(connections=6, reserved=2, surplus=1)
        seen, busy = Recorder(), Recorder(gated=True)
        server = self.serve(
            Route("GET", "/ok", seen),
            Route("GET", "/now", seen, urgent=True),
            Route("GET", "/busy", busy),
            Route("GET", "/busy-now", busy, urgent=True),
            limits=limits,
        )

        def enter(path: str = "/busy") -> MemoryTransport:
            """A connection whose request is being carried out, and so is not closed for others."""
            transport = self.connect(server)
            transport.feed(get(path))
            return transport

        house = [enter() for _ in range(4)]
        fifth = enter("/now")
        await self.settle()
        self.assertEqual(replies(fifth.written)[0].status, 200)
        fifth.feed(get())
        await self.settle()
        reply = replies(fifth.written)[1]
        self.assertEqual((reply.status, reply.headers["retry-after"]), (503, "1"))
        self.assertTrue(fifth.eof_written)
        fifth.lose()
        [enter("/busy-now") for _ in range(2)]
        await self.settle()
        seventh = self.connect(server)
        self.assertEqual(replies(seventh.written)[0].status, 503)
        eighth = self.connect(server)
        self.assertTrue(seventh.is_closing(), "its answer is written")
        self.assertEqual(replies(eighth.written)[0].status, 503)
        self.assertFalse(any(transport.is_closing() for transport in house))
        for transport in (seventh, eighth, *house[1:]):
            transport.lose()
        await self.settle()
        last = enter("/ok")
        await self.settle()
        self.assertEqual(replies(last.written)[-1].status, 200)


class Draining(HTTPTestCase):
    async def test_drain_finishes_requests_and_closes_idle_connections(self) -> None:
        seen = Recorder(gated=True)
        server = self.serve(Route("GET", "/ok", seen))
        idle, busy = self.connect(server), self.connect(server)
        busy.feed(get())
        await self.settle()
        drained = asyncio.ensure_future(server.drain(5.0))
        await self.settle()
        self.assertTrue(idle.lost)
        self.assertFalse(drained.done())
        seen.gate.set()
        await self.within(drained)
        self.assertEqual(replies(busy.written)[0].headers["connection"], "close")
        self.assertTrue(busy.lost)
        self.assertEqual(self.clock.pending, 0)

    async def test_drain_aborts_what_is_left_after_its_time(self) -> None:
        seen = Recorder(gated=True)
        server = self.serve(Route("GET", "/ok", seen))
        busy = await self.exchange(server, get())
        drained = asyncio.ensure_future(server.drain(5.0))
        await self.clock.advance(5.1)
        await self.within(drained)
        self.assertTrue(busy.lost)
        self.assertEqual(len(server.tasks), 0)
        self.assertEqual(state_of(busy), "closed")
