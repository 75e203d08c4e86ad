"""What many peers can cost: descriptors, connections, and memory for bodies and unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys
import tempfile
import tracemalloc
import unittest
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.http.connection import Connection
from crushlite.http.limits import Limits, Rank
from crushlite.http.messages import HTTPError, Kind, Request, Response, Stream
from crushlite.http.router import Route
from crushlite.http.server import Acceptor
from tests.support.basics import LIMIT
from tests.support.http import (
    HTTPTestCase,
    Recorder,
    RecordingStream,
    chunked,
    fail,
    get,
    post,
    replies,
)
from tests.support.memory import MemoryTransport
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crushlite.http.messages import ByteSink
    from crushlite.http.server import HTTPServer

KIB = 1024


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Make opening files fail in the block. Open files stay open, and closing one lets another be
    opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


class SocketTestCase(HTTPTestCase):
    """A server on a real unix socket, with clients that are plain sockets."""

    def setUp(self) -> None:
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-limits-"))
        self.path = str(Path(folder) / "s.sock")

    def bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(self.path)
        return sock

    async def listening(self, *routes: Route, limits: Limits | None = None) -> HTTPServer:
        server = self.serve(*routes, limits=limits)
        await server.listen(self.bound())
        self.addCleanup(server.stop_listening)
        return server

    def client(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(sock.close)
        sock.setblocking(False)
        return sock

    def connected(self, data: bytes = b"") -> socket.socket:
        sock = self.client()
        sock.connect(self.path)
        sock.sendall(data)
        return sock

    def is_open(self, sock: socket.socket) -> bool:
        try:
            return bool(sock.recv(1))
        except BlockingIOError:
            return True

    async def received(self, sock: socket.socket) -> bytes:
        """Everything that the server sends until it closes."""
        loop, data = asyncio.get_running_loop(), b""
        while piece := await self.within(loop.sock_recv(sock, 65536), LIMIT / 4):
            data += piece
        return data


class OpenFiles(unittest.TestCase):
    def test_connections_leave_files_for_everything_else(self) -> None:
        for files in (1, 8, 16, 64, 128, 200, 256, 512, 1024, 2431, 2432, 8192):
            limits = Limits.for_open_files(files)
            with self.subTest(files):
                places = 2 * (limits.connections + limits.surplus)  # unix and TCP
                self.assertLessEqual(places, max(2, files - 256, files // 4))
                self.assertGreaterEqual(limits.connections, 1)
                self.assertLess(limits.reserved, limits.connections)
                self.assertEqual(limits == Limits(), files >= 2432)

    def test_a_few_places_have_the_same_order(self) -> None:
        few = Limits.for_open_files(64)
        self.assertEqual((few.connections, few.reserved, few.surplus), (7, 1, 1))


class Descriptors(SocketTestCase):
    async def test_without_descriptors_new_connections_get_503_and_the_log_stays_short(
        self,
    ) -> None:
        server = await self.listening(Route("GET", "/ok", Recorder()))
        crowd = [self.connected() for _ in range(20)] + [self.connected(get())]
        with self.assertLogs("crushlite.http", logging.ERROR) as logs, no_descriptors():
            answers = [await self.received(sock) for sock in crowd]
            self.assertEqual({replies(answer)[0].status for answer in answers}, {503})
            self.assertEqual(replies(answers[0])[0].headers["retry-after"], "1")
        self.assertEqual(len(logs.output), 1, "one line for a condition that lasts")
        self.assertIn("ulimit -n", logs.output[0])
        self.assertEqual(server.answers, {503: 21})
        answer = await self.received(self.connected(get("/ok", "Connection: close")))
        self.assertEqual(replies(answer)[0].status, 200)
        self.assertEqual(self.clock.pending, 0)

    async def test_without_descriptors_an_idle_connection_gives_way(self) -> None:
        server = await self.listening(Route("GET", "/ok", Recorder()))
        idle, late = self.connected(), self.client()
        await self.within(self.until(lambda: server.open_connections == 1))
        with no_descriptors():
            late.connect(self.path)
            late.sendall(get("/ok", "Connection: close"))
            self.assertEqual(replies(await self.received(late))[0].status, 200)
        self.assertEqual(await self.received(idle), b"")

    async def test_if_even_the_spare_descriptor_is_lost_accepting_pauses(self) -> None:
        kept: list[int] = []
        test = self

        class Greedy(Acceptor):
            """Keeps the spare descriptor, as another thread that opens a file might."""

            def _close_one(self) -> bool:
                return False

            def _refuse(self, sock: socket.socket) -> None:
                kept.append(sock.detach())
                test.addCleanup(os.close, kept[-1])

        server = self.serve(Route("GET", "/ok", Recorder()))
        acceptor = Greedy(self.bound(), server, has_token=None)
        self.addCleanup(acceptor.close)
        for _ in range(3):
            self.connected()
        with self.assertLogs("crushlite.http", logging.ERROR) as logs, no_descriptors():
            await self.within(self.until(lambda: self.clock.pending == 1))
            for _ in range(20):  # accepting stays paused, with one timer
                await self.clock.advance(0.6)
                await self.within(self.until(lambda: self.clock.pending == 1))
        self.assertEqual(len(kept), 1)
        self.assertEqual(len(logs.output), 2, "12 seconds, and one line in ten")
        await self.clock.advance(0.6)
        await self.within(self.until(lambda: len(server.connections) == 2))
        self.assertEqual(self.clock.pending, 2, "one for each connection")

    async def test_in_a_flood_newcomers_that_send_nothing_are_held_for_seconds_and_no_longer(
        self,
    ) -> None:
        server = self.serve(Route("GET", "/ok", Recorder()))
        flooded = mock.patch.object(server.capacity["unix"], "is_flooded", return_value=True)
        self.enterContext(flooded)
        acceptor = Acceptor(self.bound(), server, has_token=lambda port, first: b"/ok" in first)
        self.addCleanup(acceptor.close)
        crowd = [self.connected() for _ in range(3)]
        await self.within(self.until(lambda: self.clock.pending == 3))
        await self.clock.advance(4)
        crowd.append(self.connected(get("/ok", "Connection: close")))
        self.assertEqual(replies(await self.received(crowd.pop()))[0].status, 200)
        with contextlib.suppress(ConnectionError):
            self.assertEqual(await self.received(self.connected(get("/other"))), b"")
        late = self.connected()
        self.assertTrue(all(map(self.is_open, crowd)))
        await self.clock.advance(1.5)
        for sock in crowd:
            self.assertEqual(await self.received(sock), b"")
        late.sendall(get("/ok", "Connection: close"))
        self.assertEqual(replies(await self.received(late))[0].status, 200)
        await self.clock.advance(5)
        self.assertEqual((self.clock.pending, server.open_connections), (0, 0))

    async def test_a_daemon_with_few_descriptors_serves_on_in_a_crowd(self) -> None:
        limit = "import resource as r, runpy; r.setrlimit(r.RLIMIT_NOFILE, (64, 64))"
        command = f"{limit}; runpy.run_module('crushlite', run_name='__main__')"
        environment = {"HOME": str(Path(self.path).parent), "PATH": os.environ["PATH"]}
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", command, "serve", "--agent", "offline"),
            *("--host", f"unix://{self.path}"),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert daemon.stdout is not None
            self.assertIn(b"is serving", await self.within(daemon.stdout.readline(), LIMIT / 4))
            crowd = [self.connected() for _ in range(200)]
            health = self.connected(get("/v1/health", "Connection: close"))
            self.assertEqual(replies(await self.received(health))[0].status, 200)
            places = Limits.for_open_files(64)
            stayed = sum(map(self.is_open, crowd))
            self.assertLessEqual(stayed, places.connections + places.surplus)
            for sock in crowd:
                sock.close()
            health = self.connected(get("/v1/health", "Connection: close"))
            self.assertEqual(replies(await self.received(health))[0].status, 200)
        finally:
            daemon.terminate()
            _, errors = await self.within(daemon.communicate(), LIMIT / 4)
        self.assertLess(len(errors.splitlines()), 20, errors[-1000:])


class Places(HTTPTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.busy = Recorder(gated=True)
        self.server = self.serve(
            Route("GET", "/ok", Recorder()),
            Route("GET", "/big", self.big),
            Route("GET", "/busy", self.busy),
            limits=Limits(connections=6, reserved=2, surplus=1),
        )

    async def big(self, request: Request) -> Response:
        return Response(200, b"x" * 1000)

    async def ask(self, transport: MemoryTransport, path: str = "/ok") -> int:
        before = len(replies(transport.written))
        transport.feed(get(path))
        await self.settle()
        return replies(transport.written)[before].status

    async def test_the_longest_idle_gives_way_to_a_newcomer(self) -> None:
        house = [self.connect(self.server) for _ in range(6)]
        self.assertEqual(await self.ask(house[0]), 200)
        house[2].feed(b"G")
        for leaver in (house[1], house[3], house[4], house[5], house[0]):
            self.assertFalse(leaver.is_closing())
            newcomer = self.connect(self.server)
            newcomer.feed(b"G")
            self.assertTrue(leaver.is_closing())
            self.assertFalse(leaver.aborted)
            await self.settle()
        self.assertEqual(self.server.open_connections, 6)
        house[2].feed(get()[1:])
        await self.settle()
        self.assertEqual(replies(house[2].written)[0].status, 200)

    async def test_an_ordinary_request_in_a_reserved_place_gets_that_of_an_idle_one(self) -> None:
        house = [self.connect(self.server) for _ in range(6)]
        self.assertEqual(await self.ask(house[5]), 200)
        leavers = [transport for transport in house if transport.is_closing()]
        self.assertEqual(leavers, house[:2], "as many as there are reserved places")
        self.assertEqual(await self.ask(house[4]), 200)
        self.assertEqual(self.server.open_connections, 4)

    async def test_silent_connections_do_not_keep_others_out(self) -> None:
        routes = (Route("GET", "/ok", Recorder()), Route("GET", "/now", Recorder(), urgent=True))
        server = self.serve(*routes)
        for _ in range(2000):
            self.connect(server)
        self.assertEqual(server.open_connections, Limits().connections)
        for path in ("/now", "/ok"):
            self.assertEqual(await self.ask(self.connect(server), path), 200)
        self.assertEqual(server.capacity["memory"].waiting(Rank.IDLE), server.open_connections)

    async def test_what_is_carried_out_is_not_closed_and_what_is_unfinished_gives_way(self) -> None:
        house = [self.connect(self.server) for _ in range(4)]
        for transport in house[:2]:
            transport.feed(get("/busy"))
        for transport in house[2:]:
            transport.feed(b"GET /ok HTTP/1.1\r\n")
        fifth = self.connect(self.server)
        fifth.feed(b"G")
        self.connect(self.server).feed(b"G")
        for leaver in (house[2], house[3], fifth):
            self.assertFalse(leaver.is_closing())
            self.connect(self.server).feed(b"G")
            await self.settle()
            self.assertEqual(replies(leaver.written)[0].status, 503)
            self.assertTrue(leaver.lost)
        self.assertFalse(any(transport.is_closing() for transport in house[:2]))
        self.busy.gate.set()
        await self.settle()
        for transport in house[:2]:
            self.assertEqual(replies(transport.written)[0].status, 200)

    async def test_a_last_answer_on_its_way_is_not_cut(self) -> None:
        slow = self.connect(self.server)
        slow.stalled = True
        slow.feed(get("/big"))
        await self.settle()
        other, *_ = [self.connect(self.server) for _ in range(5)]
        newcomer = self.connect(self.server)
        await self.settle()
        self.assertTrue(other.lost, "the place of the slow one is not free yet")
        self.assertFalse(slow.lost)
        slow.drain()
        await self.settle()
        self.assertTrue(slow.lost)
        self.assertEqual(len(replies(slow.written)[0].body), 1000)
        self.assertEqual(await self.ask(newcomer), 200)

    async def test_no_connection_is_closed_for_another_user(self) -> None:
        house = [self.connect(self.server) for _ in range(6)]
        stranger = MemoryTransport(Connection(self.server, "unix"))
        stranger.connect()
        await self.settle()
        self.assertEqual((stranger.aborted, stranger.written), (True, b""))
        self.assertFalse(any(transport.is_closing() for transport in house))

    async def test_those_who_left_are_not_remembered(self) -> None:
        transport = self.connect(self.server)
        await self.ask(transport)
        transport.lose()
        self.connect(self.server).feed_eof()
        await self.settle()
        waiting = [
            places.waiting(rank) for places in self.server.capacity.values() for rank in Rank
        ]
        self.assertEqual((sum(waiting), self.server.open_connections), (0, 0))


class Floods(HTTPTestCase):
    """Places of one kind of listener, of whom only some have shown a token."""

    def setUp(self) -> None:
        super().setUp()
        self.busy = Recorder(gated=True)
        self.server = self.serve(
            Route("GET", "/ok", Recorder()),
            Route("POST", "/ok", Recorder()),
            Route("GET", "/busy", self.busy),
            Route("GET", "/now", Recorder(), urgent=True),
            Route("GET", "/public", Recorder(), public=True),
            Route("POST", "/public", Recorder(), public=True),
            limits=Limits(connections=8, reserved=2, surplus=1),
        )

    def enter(self, kind: Kind = "tcp") -> MemoryTransport:
        transport = MemoryTransport(Connection(self.server, kind, 80))
        transport.connect()
        return transport

    async def ask(self, transport: MemoryTransport, path: str = "/ok") -> int:
        before = len(replies(transport.written))
        transport.feed(get(path))
        await self.settle()
        return replies(transport.written)[before].status

    async def test_no_crowd_on_one_kind_of_listener_takes_a_place_of_another(self) -> None:
        owner = [self.enter("memory") for _ in range(8)]
        for transport in owner:
            transport.feed(b"G")
        for begin in (b"", b"G", get("/public"), post("/public", b"xx")[:-1], b"\0"):
            for _ in range(50):
                self.enter().feed(begin)
        await self.settle()
        self.assertFalse(any(transport.is_closing() for transport in owner))
        for transport in owner[:6]:
            transport.feed(get()[1:])
        await self.settle()
        self.assertEqual([replies(t.written)[0].status for t in owner[:6]], [200] * 6)

    async def test_who_has_shown_no_token_is_the_first_to_go(self) -> None:
        idle, head, body = self.enter(), self.enter(), self.enter()
        for transport in (idle, head, body):
            self.assertEqual(await self.ask(transport), 200)
        head.feed(b"G")
        body.feed(post("/ok", b"xx")[:-1])
        for begin in (b"", b"G", get("/public"), post("/public", b"xx")[:-1], b"\0"):
            for _ in range(20):
                self.enter().feed(begin)
                await self.settle()
        self.assertFalse(any(transport.is_closing() for transport in (idle, head, body)))
        for path in ("/now", "/ok"):
            self.assertEqual(await self.ask(self.enter(), path), 200)
        head.feed(get()[1:])
        body.feed(b"x")
        await self.settle()
        self.assertEqual([replies(t.written)[1].status for t in (head, body)], [200, 200])

    async def test_unfinished_requests_of_those_who_have_a_token_keep_no_urgent_one_out(
        self,
    ) -> None:
        for begin in (b"G", post("/ok", b"xx")[:-1]):
            crowd = []
            for _ in range(8):
                transport = self.enter()
                await self.ask(transport, "/now")
                transport.feed(begin)
                crowd.append(transport)
            for _ in range(20):
                self.assertEqual(await self.ask(self.enter(), "/now"), 200)
            for transport in crowd:
                transport.lose()
            await self.settle()

    async def test_only_so_many_may_be_without_a_token_and_the_oldest_gives_way(self) -> None:
        server = self.serve(Route("GET", "/ok", Recorder()), limits=Limits(without_token=3))
        crowd = []
        for _ in range(20):
            transport = MemoryTransport(Connection(server, "tcp", 80))
            transport.connect()
            transport.feed(b"G")
            crowd.append(transport)
        await self.settle()
        self.assertEqual([transport.lost for transport in crowd], [True] * 17 + [False] * 3)
        for transport in crowd[-3:]:
            transport.feed(get()[1:])
        await self.settle()
        self.assertEqual([replies(each.written)[0].status for each in crowd[-3:]], [200] * 3)

    async def test_of_many_who_arrive_at_once_none_is_closed_before_it_could_speak(self) -> None:
        for _ in range(8):
            self.enter("memory").feed(b"G")
        newcomers = [self.enter("memory") for _ in range(6)]
        for transport in newcomers:
            transport.feed(get("/now"))
        await self.settle()
        self.assertEqual([replies(each.written)[0].status for each in newcomers], [200] * 6)

    async def test_a_flood_of_refused_requests_that_linger_keeps_none_out(self) -> None:
        for _ in range(30):
            self.enter().feed(b"\0")
        self.assertEqual(await self.ask(self.enter(), "/ok"), 200)


class Bodies(HTTPTestCase):
    """1000 bytes for all bodies, of which those up to 100 do not count."""

    def setUp(self) -> None:
        super().setUp()
        self.seen = Recorder()
        self.gated = Recorder(gated=True)
        self.server = self.serve(
            Route("POST", "/b", self.seen, body_limit=5000),
            Route("POST", "/slow", self.gated, body_limit=5000),
            Route("POST", "/fail", fail, body_limit=5000),
            Route("POST", "/now", self.seen, body_limit=5000, urgent=True),
            Route("POST", "/public", self.seen, body_limit=1024, public=True),
            limits=Limits(bodies=1000, urgent_bodies=700, small_body=100),
        )

    async def status(self, raw: bytes) -> int:
        transport = await self.exchange(self.server, raw)
        reply = replies(transport.written)[0]
        if reply.status == 503:
            self.assertIn(b'"overloaded"', reply.body)
            self.assertEqual(reply.headers["retry-after"], "1")
            self.assertTrue(transport.eof_written)
        transport.lose()
        await self.settle()
        return reply.status

    async def test_bodies_together_have_a_bound_and_small_or_urgent_ones_pass(self) -> None:
        first = await self.exchange(self.server, post("/b", b"x" * 600)[:-1])
        self.assertEqual(self.server.bodies.used, 600)
        self.assertEqual(await self.status(post("/b", b"x" * 400)), 200)
        self.assertEqual(await self.status(post("/b", b"x" * 401)), 503)
        self.assertEqual(await self.status(post("/b", b"x" * 401)[:-300]), 503, "before it is read")
        self.assertEqual(await self.status(chunked("/b", [b"x" * 401])), 503)
        self.assertEqual(await self.status(chunked("/b", [b"x" * 400])), 200)
        second = await self.exchange(self.server, post("/b", b"x" * 400)[:-1])
        for small in (post("/b", b"x" * 100), chunked("/b", [b"x" * 100]), post("/b", b"x")):
            self.assertEqual(await self.status(small), 200)
        self.assertEqual(await self.status(post("/b", b"x" * 101)), 503)
        self.assertEqual(await self.status(post("/now", b"x" * 500)), 200)
        for transport in (first, second):
            transport.feed(b"x")
        await self.settle()
        self.assertEqual([len(r.body) for r in self.seen.requests[-2:]], [600, 400])
        self.assertEqual(self.server.bodies.used, 0)
        self.assertEqual(await self.status(post("/b", b"x" * 1000)), 200)

    async def test_a_body_alone_always_passes(self) -> None:
        self.assertEqual(await self.status(post("/b", b"x" * 5000)), 200)
        self.assertEqual(await self.status(chunked("/b", [b"x" * 500] * 10)), 200)
        self.assertEqual(self.server.bodies.used, 0)

    async def test_a_chunked_body_counts_what_has_arrived(self) -> None:
        raw = chunked("/b", [b"x" * 300] * 3)
        grower = self.connect(self.server)
        grower.feed(raw[:450])
        self.assertTrue(200 < self.server.bodies.used < 450, self.server.bodies.used)
        other = await self.exchange(self.server, post("/b", b"x" * 500)[:-1])
        grower.feed(raw[450:])
        self.assertEqual(replies(grower.written)[0].status, 503)
        self.assertEqual(self.server.bodies.used, 500)
        other.feed(b"x")
        await self.settle()
        self.assertEqual((len(self.seen.requests), self.server.bodies.used), (1, 0))

    async def test_every_end_gives_back_what_was_counted_once(self) -> None:
        def lose(transport: MemoryTransport) -> None:
            transport.lose(ConnectionResetError())

        def finish(transport: MemoryTransport) -> None:
            transport.feed(b"x" + get("/none"))

        ends: dict[str, tuple[bytes, Callable[[MemoryTransport], None]]] = {
            "answered": (post("/b", b"x" * 500), finish),
            "failed": (post("/fail", b"x" * 500), finish),
            "lost": (post("/b", b"x" * 500), lose),
            "half-closed": (post("/b", b"x" * 500), lambda transport: transport.feed_eof()),
            "malformed": (chunked("/b", [b"x" * 500])[:-5], lambda t: t.feed(b"no number\r\n")),
            "too large": (
                chunked("/b", [b"x" * 500])[:-5],
                lambda t: t.feed(b"1388\r\n" + b"x" * 4999),
            ),
        }
        for name, (raw, end) in ends.items():
            with self.subTest(name):
                transport = await self.exchange(self.server, raw[:-1])
                self.assertEqual(self.server.bodies.used, 500)
                end(transport)
                await self.settle()
                self.assertEqual(self.server.bodies.used, 0)
                transport.lose()
                await self.settle()
                self.assertEqual(self.server.bodies.used, 0)

    async def test_a_body_that_stops_arriving_is_given_back_at_its_time_limit(self) -> None:
        transport = await self.exchange(self.server, post("/b", b"x" * 500)[:-1])
        await self.clock.advance(15.1)
        self.assertEqual(replies(transport.written)[0].status, 408)
        self.assertEqual(self.server.bodies.used, 0)
        await self.clock.advance(10)
        self.assertEqual((transport.lost, self.server.bodies.used), (True, 0))

    async def test_bodies_of_urgent_routes_have_a_bound_of_their_own(self) -> None:
        first = await self.exchange(self.server, post("/now", b"x" * 500)[:-1])
        self.assertEqual((self.server.urgent_bodies.used, self.server.bodies.used), (500, 0))
        self.assertEqual(await self.status(post("/now", b"x" * 200)), 200)
        self.assertEqual(await self.status(post("/now", b"x" * 201)), 503)
        self.assertEqual(await self.status(post("/now", b"x" * 100)), 200, "a small one")
        self.assertEqual(await self.status(post("/b", b"x" * 1000)), 200)
        first.feed(b"x")
        await self.settle()
        self.assertEqual(self.server.urgent_bodies.used, 0)
        self.assertEqual(await self.status(post("/now", b"x" * 2000)), 200, "one alone")

    async def test_a_body_that_comes_drop_by_drop_has_a_limit_as_a_whole(self) -> None:
        for raw, most in ((post("/b", b"x" * 500), 60), (post("/public", b"x" * 500), 5)):
            transport = await self.exchange(self.server, raw[:-400])
            for second in range(most):
                self.assertEqual(transport.written, b"", second)
                transport.feed(b"x")
                await self.clock.advance(1.0)
            await self.clock.advance(0.1)
            self.assertEqual(replies(transport.written)[0].status, 408)
        self.assertEqual(self.server.bodies.used, 0)

    async def test_a_long_body_has_as_long_as_a_slow_line_needs(self) -> None:
        size = 4 * 1024 * 1024
        server = self.serve(Route("POST", "/b", self.seen, body_limit=size))
        transport = await self.exchange(server, post("/b", b"x" * size)[:-size])
        for _ in range(64):
            transport.feed(b"x" * (size // 64))
            await self.clock.advance(1.0)
        self.assertEqual(replies(transport.written)[0].status, 200)

    async def test_a_public_route_takes_no_share_of_the_bodies(self) -> None:
        held = await self.exchange(self.server, post("/b", b"x" * 1000)[:-1])
        self.assertEqual(await self.status(post("/public", b"x" * 1025)), 413)
        held.lose()

    async def test_a_body_counts_as_long_as_its_request_is_carried_out(self) -> None:
        lost = await self.exchange(self.server, post("/slow", b"x" * 500))
        lost.lose()
        await self.settle()
        self.assertEqual(self.server.bodies.used, 500, "the handler still has it")
        self.gated.gate.set()
        await self.settle()
        self.assertEqual((self.gated.finished, self.server.bodies.used), (1, 0))

    async def test_a_request_cancelled_before_its_first_step_gives_it_back(self) -> None:
        transport = self.connect(self.server)
        transport.feed(post("/slow", b"x" * 500))
        await self.within(self.server.drain(0.0))
        self.assertEqual((self.gated.requests, self.server.bodies.used), ([], 0))


class LongWrites(HTTPTestCase):
    """A large event for many peers: for each that does not read, only a slice is copied."""

    SLICE = 256 * KIB
    LONG = bytes(range(256)) * 8 * KIB  # 2 MiB in which a lost or doubled byte shows

    def setUp(self) -> None:
        super().setUp()
        self.stream = RecordingStream()

    async def handle(self, request: Request) -> Stream:
        return self.stream

    async def open(self) -> MemoryTransport:
        self.server = self.serve(Route("GET", "/events", self.handle))
        transport = await self.exchange(self.server, get("/events"))
        transport.stalled = True
        transport.written.clear()
        return transport

    @property
    def sink(self) -> ByteSink:
        assert self.stream.sink is not None
        return self.stream.sink

    async def read(self, transport: MemoryTransport, size: int) -> None:
        """The peer takes `size` bytes, a little at a time; the transport never holds more."""
        for _ in range(size // (16 * KIB)):
            transport.drain(16 * KIB)
            await self.settle()
            self.assertLessEqual(transport.get_write_buffer_size(), self.SLICE + 64 * KIB)

    async def test_a_peer_that_does_not_read_holds_no_more_than_a_slice(self) -> None:
        transport = await self.open()
        self.sink.write(self.LONG)
        await self.settle()
        self.assertEqual(transport.get_write_buffer_size(), self.SLICE)
        self.assertEqual(self.sink.buffered, len(self.LONG))
        self.assertFalse(self.sink.writable)
        await self.read(transport, len(self.LONG) - 64 * KIB)
        self.assertEqual((self.stream.calls, self.sink.writable), (["opened"], False))
        self.assertEqual(self.sink.buffered, 64 * KIB)
        transport.drain(48 * KIB)
        await self.settle()
        self.assertEqual((self.stream.calls, self.sink.writable), (["opened", "resumed"], True))
        self.sink.write(b"next")
        self.assertTrue(self.sink.writable, "short writes go the short way again")
        transport.drain()
        self.assertEqual(transport.written, self.LONG + b"next")
        transport.lose()

    async def test_what_is_not_long_goes_out_in_one_piece(self) -> None:
        transport = await self.open()
        self.sink.write(self.LONG[: 2 * self.SLICE])
        self.assertEqual(transport.get_write_buffer_size(), 2 * self.SLICE)
        transport.lose()

    async def test_nothing_overtakes_the_rest(self) -> None:
        transport = await self.open()
        self.sink.write(self.LONG)
        self.sink.write(b"one")
        await self.read(transport, self.SLICE)
        self.sink.write(self.LONG)
        self.sink.write(b"")
        self.sink.write(b"two")
        self.assertEqual(self.sink.buffered, 2 * len(self.LONG) + 6 - self.SLICE)
        transport.drain()
        while not self.sink.writable:
            await self.settle()
        self.assertEqual(transport.written, self.LONG + b"one" + self.LONG + b"two")
        self.assertEqual(self.stream.calls, ["opened", "resumed"])
        transport.lose()

    async def test_a_peer_that_reads_gets_it_all_and_resumes_later_never_at_once(self) -> None:
        transport = await self.open()
        transport.stalled = False
        self.sink.write(self.LONG)
        self.assertEqual(self.stream.calls, ["opened"], "a sink does not call back")
        while not self.sink.writable:
            await self.settle()
        self.assertEqual(transport.written, self.LONG)
        self.assertEqual(self.stream.calls, ["opened", "resumed"])
        transport.lose()

    async def test_closing_flushes_the_rest(self) -> None:
        ends: dict[str, Callable[[MemoryTransport], None]] = {
            "by the stream": lambda _: self.sink.close(),
            "by the peer's half-close": lambda transport: transport.feed_eof(),
        }
        for name, end in ends.items():
            self.stream = RecordingStream()
            transport = await self.open()
            self.sink.write(self.LONG)
            await self.read(transport, self.SLICE)
            end(transport)
            await self.settle()
            self.sink.write(b"too late")
            with self.subTest(name):
                self.assertFalse(transport.lost)
                self.assertTrue(transport.reading_paused, "what it sends now is not read")
                await self.read(transport, len(self.LONG) - self.SLICE)
                transport.drain()
                await self.settle()
                self.assertEqual(transport.written, self.LONG)
                self.assertEqual((transport.lost, transport.aborted), (True, False))
                self.assertEqual(self.stream.calls, ["opened", "closed"])
                self.assertEqual(self.clock.pending, 0)

    async def test_at_the_server_s_end_a_stream_that_is_behind_gets_its_last_words(self) -> None:
        """A large event before the end of a run must not keep a client from getting that end."""
        transport = await self.open()
        self.sink.write(self.LONG)
        await self.read(transport, self.SLICE)
        draining = asyncio.ensure_future(self.server.drain(5.0))
        await self.settle()
        self.stream.on_resumed = lambda: self.sink.write(b"last words")
        await self.read(transport, len(self.LONG))
        transport.drain()
        await self.settle()
        self.assertEqual(transport.written, self.LONG + b"last words")
        self.assertEqual((transport.lost, transport.aborted), (True, False))
        self.assertEqual(self.stream.calls, ["opened", "resumed", "closed"])
        async with asyncio.timeout(5):
            await draining

    async def test_an_open_stream_that_is_behind_is_left_to_the_queue_that_feeds_it(self) -> None:
        transport = await self.open()
        self.sink.write(self.LONG)
        await self.clock.advance(10 * Limits().write_timeout)
        self.assertFalse(transport.aborted)
        transport.lose()

    async def test_a_closed_stream_with_a_rest_is_cut_off_when_nothing_moves(self) -> None:
        transport = await self.open()
        self.sink.write(self.LONG)
        self.sink.close()
        for _ in range(10):
            await self.clock.advance(9.9)
            self.assertFalse(transport.aborted)
            await self.read(transport, 128 * KIB)
        await self.clock.advance(20)
        self.assertTrue(transport.aborted)
        self.assertEqual((self.sink.buffered, self.clock.pending), (0, 0))
        self.assertEqual(self.stream.calls, ["opened", "closed"])

    async def test_an_end_without_flushing_drops_the_rest(self) -> None:
        ends: tuple[Callable[[MemoryTransport], None], ...] = (
            lambda _: self.sink.abort(),
            lambda transport: transport.lose(ConnectionResetError()),
        )
        for end in ends:
            self.stream = RecordingStream()
            transport = await self.open()
            self.sink.write(self.LONG)
            end(transport)
            await self.settle()
            self.assertEqual((transport.lost, self.sink.buffered), (True, 0))
            self.assertEqual(self.stream.calls, ["opened", "closed"])

    async def test_a_bug_in_resumed_after_the_rest_ends_that_stream(self) -> None:
        def broken() -> None:
            raise HTTPError(500, "x", "y")

        transport = await self.open()
        transport.stalled = False
        self.stream.resumed = broken  # type: ignore[method-assign]
        self.sink.write(self.LONG)
        while not transport.lost:
            await self.settle()
        self.assertEqual(transport.written, self.LONG)


class SharedEvents(SocketTestCase):
    async def test_many_who_do_not_read_share_one_large_event(self) -> None:
        streams = [RecordingStream() for _ in range(20)]
        waiting = iter(streams)

        async def handle(request: Request) -> Stream:
            return next(waiting)

        server = await self.listening(Route("GET", "/events", handle))
        for _ in streams:
            self.connected(get("/events"))
        await self.within(self.until(lambda: all(stream.calls for stream in streams)))
        frame = b"x" * (8 * KIB * KIB)
        tracemalloc.start()
        try:
            for stream in streams:
                assert stream.sink is not None
                stream.sink.write(frame)
            await self.settle()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(grown, len(frame), "less than even one further copy")
        for stream in streams:
            assert stream.sink is not None
            self.assertFalse(stream.sink.writable)
            stream.sink.abort()
        await self.within(self.until(lambda: server.open_connections == 0))
