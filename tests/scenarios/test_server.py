"""Scenarios P: the server under bad handlers, bad neighbours and bad senders."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import tempfile
import unittest
import uuid
from pathlib import Path
from unittest import mock

from crushlite.clock import SystemClock
from crushlite.daemon import Daemon
from crushlite.errors import UsageError
from crushlite.http.messages import ByteSink, HTTPError, Pairs, Request, Response, Stream
from crushlite.http.router import Route, Router
from crushlite.http.server import HTTPServer
from crushlite.listen import Address, default_socket, is_stale, listen
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.testing.scripted import ScriptedAgent
from tests.support.http import replies
from tests.support.scenarios import scenario

PATIENCE = 60.0
MIB = 1 << 20


class Talk:
    """One connection to a unix socket, spoken to in bytes; every wait is bounded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Talk:
        async with asyncio.timeout(PATIENCE):
            self._reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._writer.wait_closed()
        except ConnectionError:
            pass  # the server was first

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()

    async def status(self) -> int:
        """The status of the next answer."""
        async with asyncio.timeout(PATIENCE):
            return int((await self._reader.readline()).split(b" ")[1])


def request(method: str, target: str, *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *headers, "", ""]
    return "\r\n".join(lines).encode()


class Broken(Stream):
    """A stream that says one thing and then fails."""

    headers: Pairs = (("Content-Type", "text/event-stream"),)

    def opened(self, sink: ByteSink) -> None:
        sink.write(b"data: 1\n\n")
        raise RuntimeError("broken in the middle")


class Cut(Stream):
    """A stream that ends its connection on purpose."""

    def opened(self, sink: ByteSink) -> None:
        sink.abort()


class HandlerScenarios(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "d.sock"

    async def serve(self, **handlers: object) -> HTTPServer:
        """A server whose routes are called like the handlers."""

        def route(name: str, answer: object) -> Route:
            async def handler(request: Request) -> Response | Stream:
                if isinstance(answer, BaseException):
                    raise answer
                assert isinstance(answer, Response | Stream)
                return answer

            return Route("GET", f"/{name}", handler)

        router = Router([route(name, answer) for name, answer in handlers.items()])
        server = HTTPServer(router, clock=SystemClock())
        listener = listen(Address(path=str(self.path)))
        await server.listen(listener.sock)
        self.addAsyncCleanup(server.drain, 1.0)
        self.addCleanup(listener.unlink)
        return server

    async def get(self, target: str) -> bytes:
        async with Talk(self.path) as talk:
            talk.send(request("GET", target, "Connection: close"))
            return await talk.receive()

    @scenario(273)
    async def test_a_handler_that_fails_is_a_json_500_and_the_server_goes_on(self) -> None:
        """A handler's bug is a JSON 500 that names no secret but a logged id; a refusal raised on
        purpose keeps its status; a stream that breaks in the middle ends and is logged; one that
        aborts on purpose is cut without a word; and the server lives through all of it."""
        await self.serve(
            bug=KeyError("a secret"),
            refusal=HTTPError(418, "teapot", "short and stout"),
            broken=Broken(),
            cut=Cut(),
            good=Response(200, b"{}"),
        )
        with self.assertLogs("crushlite.http", logging.ERROR) as logs:
            [bug] = replies(await self.get("/bug"), eof=True)
        self.assertEqual((bug.status, bug.headers["content-type"]), (500, "application/json"))
        self.assertNotIn(b"secret", bug.body)
        [line] = logs.output
        self.assertIn("KeyError: 'a secret'", line)
        told = bug.body.partition(b"(id ")[2].partition(b")")[0].decode()
        self.assertIn(told, line)
        self.assertGreaterEqual(len(told), 8)

        with self.assertNoLogs("crushlite.http"):
            [refusal] = replies(await self.get("/refusal"), eof=True)
            cut = await self.get("/cut")
        self.assertEqual(refusal.status, 418)
        self.assertEqual(refusal.body, b'{"message": "short and stout", "code": "teapot"}')
        self.assertNotIn(b"500", cut)

        with self.assertLogs("crushlite.http", logging.ERROR) as logs:
            broken = await self.get("/broken")
        self.assertTrue(broken.startswith(b"HTTP/1.1 200"), broken)
        self.assertTrue(broken.endswith(b"\r\n\r\ndata: 1\n\n"), broken)
        self.assertIn("broken in the middle", logs.output[0])

        [good] = replies(await self.get("/good"), eof=True)
        self.assertEqual(good.status, 200)

    @scenario(280)
    async def test_a_handler_that_lets_a_cancellation_out_is_500_and_at_exit_503(self) -> None:
        """A handler that lets a cancellation out, of something it waited for, is a failed handler:
        500, not silence, and not the 503 that sends clients looking for another server. A handler
        cut off because the server leaves is that 503."""
        server = await self.serve(inner=asyncio.CancelledError(), good=Response(200, b"{}"))
        with self.assertLogs("crushlite.http", logging.ERROR):
            [inner] = replies(await self.get("/inner"), eof=True)
        self.assertEqual(inner.status, 500)
        [good] = replies(await self.get("/good"), eof=True)
        self.assertEqual(good.status, 200)

        async with Talk(self.path) as talk:
            talk.send(request("GET", "/good"))
            self.assertEqual(await talk.status(), 200)
            server.draining = True
            talk.send(request("GET", "/inner"))
            self.assertIn(b"HTTP/1.1 503", await talk.receive())


class SocketScenarios(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="crushlite-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "d.sock"

    def daemon(self) -> Daemon:
        return Daemon(agent=ScriptedAgent(), hosts=[f"unix://{self.path}"])

    async def healthy(self) -> bool:
        async with Talk(self.path) as talk:
            talk.send(request("GET", "/v1/health"))
            return await talk.status() == 200

    @scenario(275)
    async def test_the_socket_of_a_killed_daemon_does_not_hinder_the_next_one(self) -> None:
        """The socket file of a daemon that was killed does not keep the next one from serving."""
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.path))
            dead.listen()
        self.assertTrue(self.path.is_socket())
        daemon = self.daemon()
        await daemon.start()
        try:
            self.assertTrue(await self.healthy())
        finally:
            await daemon.stop()
        self.assertFalse(self.path.exists())

    @scenario(276)
    async def test_a_second_daemon_on_the_path_of_a_living_one_is_refused(self) -> None:
        """A second daemon on the path of a living one is refused and changes nothing: the first
        keeps its file, its open connections and its new ones."""
        first = self.daemon()
        await first.start()
        self.addAsyncCleanup(first.stop)
        before = os.lstat(self.path)
        async with Talk(self.path) as old:
            old.send(request("GET", "/v1/health"))
            self.assertEqual(await old.status(), 200)
            with self.assertRaisesRegex(UsageError, "another daemon listens there"):
                await self.daemon().start()
            after = os.lstat(self.path)
            self.assertEqual((after.st_ino, after.st_mode), (before.st_ino, before.st_mode))
            old.send(request("GET", "/v1/version", "Connection: close"))
            self.assertIn(b"HTTP/1.1 200", await old.receive())
        self.assertTrue(await self.healthy())

    @scenario(277)
    async def test_only_a_refused_connection_or_a_missing_file_proves_a_dead_socket(self) -> None:
        """An error raised by number is the same error; a time-out or anything else proves
        nothing."""
        for error in (
            ConnectionRefusedError(),
            FileNotFoundError(),
            OSError(errno.ECONNREFUSED, "refused"),
            OSError(errno.ENOENT, "missing"),
        ):
            self.assertTrue(is_stale(error), repr(error))
        for error in (
            TimeoutError(),
            BlockingIOError(errno.EAGAIN, "its backlog is full"),
            PermissionError(),
            ConnectionResetError(),
            OSError(errno.ENOTSOCK, "not a socket"),
            OSError("something"),
            OSError(),
        ):
            self.assertFalse(is_stale(error), repr(error))

    @scenario(279)
    async def test_the_default_socket_is_in_the_runtime_directory_or_below_tmp(self) -> None:
        """The runtime directory if there is one, else the temporary one with the user in the name;
        and below /tmp when that is too long for a socket. A daemon started without an address
        listens exactly there."""
        own = "/tmp/crushlite-5/crushlite.sock"
        for env, path in (
            ({"XDG_RUNTIME_DIR": "/run/user/5"}, "/run/user/5/crushlite/crushlite.sock"),
            ({"TMPDIR": "/scratch"}, "/scratch/crushlite-5/crushlite.sock"),
            ({}, own),
            ({"TMPDIR": "/" + "x" * 100}, own),
            ({"XDG_RUNTIME_DIR": "/" + "x" * 100}, own),
        ):
            self.assertEqual(str(default_socket(env, uid=5)), path)
        runtime = {"XDG_RUNTIME_DIR": str(self.path.parent)}
        with mock.patch.dict(os.environ, runtime):
            daemon = Daemon(agent=ScriptedAgent())
            await daemon.start()
            self.addAsyncCleanup(daemon.stop)
            self.path = default_socket()
        self.assertEqual([a.path for a in daemon.addresses], [str(self.path)])
        self.assertTrue(await self.healthy())


class InputScenarios(unittest.IsolatedAsyncioTestCase):
    @scenario(281)
    async def test_a_request_for_an_unknown_session_is_404_and_leaves_nothing(self) -> None:
        """Every request that needs a session answers 404 with a code, not 500; a
        prompt for one leaves nothing behind."""
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            gone = await anna.session()
            self.assertEqual((await anna.call("DELETE", f"/sessions/{gone}")).status, 200)
            for session in (gone, str(uuid.uuid4()), "x"):
                for method, path, body in (
                    ("POST", "/agent", {"session_id": session, "prompt": "hello"}),
                    ("GET", f"/sessions/{session}", None),
                    ("PUT", f"/sessions/{session}", {"title": "t"}),
                    ("DELETE", f"/sessions/{session}", None),
                    ("GET", f"/agent/sessions/{session}", None),
                ):
                    answer = await anna.call(method, path, body)
                    self.assertEqual(answer.status, 404, (method, path))
                    self.assertEqual(answer.json["code"], "session_not_found")
            self.assertEqual((await anna.call("GET", "/runs")).json, [])
            self.assertEqual((await anna.call("GET", "/messages/user")).json, [])
            await anna.events.never("run_complete")

    @scenario(282)
    async def test_a_prompt_that_is_too_large_or_too_slow_disturbs_no_other(self) -> None:
        """A prompt of 50 MB is refused before it is read, one that trickles in is given up after
        the silence allowed; neither disturbs the others or leaves a trace."""
        clock = FakeClock()
        async with LocalDaemon(clock=clock) as daemon:
            anna = await daemon.join()
            session = await anna.session()
            target = f"{anna.base}/agent"
            async with Talk(daemon.socket) as huge:
                huge.send(request("POST", target, f"Content-Length: {50 * MIB}"))
                huge.send(b'{"session_id":')
                self.assertIn(b"HTTP/1.1 413", await huge.receive())

            async with asyncio.timeout(PATIENCE):
                while daemon.daemon.server.open_connections > 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)  # the kernel does not announce it
            async with Talk(daemon.socket) as slow:
                head = request("POST", target, "Content-Length: 1000", "Expect: 100-continue")
                slow.send(head)
                self.assertEqual(await slow.status(), 100)  # now it waits for the body
                for _ in range(3):
                    slow.send(b"x")
                    await self._read_by(daemon)
                    await clock.advance(14.0)
                    self.assertEqual((await daemon.call("GET", "/v1/health")).status, 200)
                    self.assertEqual((await anna.prompt(session, "meanwhile")).status, 202)
                    self.assertEqual(daemon.daemon.server.open_connections, 3)
                await clock.advance(1.1)
                self.assertIn(b"HTTP/1.1 408", await slow.receive())
            runs = (await anna.call("GET", "/runs")).json
            self.assertEqual(len(runs), 3)

    async def _read_by(self, daemon: LocalDaemon) -> None:
        """A byte that was sent before a request was answered has been read by then: both sockets
        became readable in this order, and the loop serves all that are ready in each turn."""
        await daemon.call("GET", "/v1/health")
        await daemon.call("GET", "/v1/health")
