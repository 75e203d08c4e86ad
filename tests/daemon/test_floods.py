"""Many connections of strangers, over real sockets: the owner is answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from typing import TYPE_CHECKING
from unittest import mock

from crushlite.http.client import ClientError
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CROWD = 1500  # more than there are places


class Floods(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="crushlite-"))
        self.enterContext(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": folder}))
        self.daemon = await self.enterAsyncContext(LocalDaemon(tcp=True))
        self.token = self.daemon.daemon.tokens[self.daemon.port].token
        self.crowd = self.enterContext(contextlib.ExitStack())

    def connect(self, begin: bytes, *, tcp: bool) -> None:
        """A connection that sends this and then nothing."""
        sock = self.crowd.enter_context(
            socket.socket(socket.AF_INET if tcp else socket.AF_UNIX, socket.SOCK_STREAM)
        )
        sock.setblocking(False)
        address = ("127.0.0.1", self.daemon.port) if tcp else str(self.daemon.socket)
        with contextlib.suppress(BlockingIOError):
            sock.connect(address)
        with contextlib.suppress(OSError):
            sock.send(begin)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.daemon.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def answered(self) -> None:
        """Health and cancel, each on a new connection, as clients ask them."""
        for tcp in (False, True):
            for method, target, status in (
                ("GET", "/v1/health", 200),
                ("POST", "/v1/workspaces/x/agent/sessions/y/cancel", 404),
            ):
                async with self.daemon.connect(tcp=tcp, token=self.token) as http:
                    answer = await self.daemon.call(method, target, http=http)
                    self.assertEqual(answer.status, status, (tcp, target))

    async def test_a_strangers_flood_of_single_bytes_starves_none_of_the_owners_requests(
        self,
    ) -> None:
        for count in range(CROWD):
            self.connect(b"G", tcp=True)
            if count % 300 == 299:
                await self.answered()
        await self.answered()

    async def test_slow_bodies_and_unfinished_heads_of_the_owner_starve_no_cancel(self) -> None:
        head = f"POST /v1/workspaces HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\n"
        head += f"Authorization: Bearer {self.token}\r\nContent-Length: 60000\r\n\r\n{{"
        for count in range(CROWD):
            self.connect(head.encode(), tcp=count % 2 == 0)
            self.connect(b"G", tcp=count % 2 == 1)
            if count % 300 == 299:
                await self.answered()
        await self.answered()

    async def test_strangers_who_leave_at_once_are_a_flood_too(self) -> None:
        head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\n\r\n".encode()
        for _ in range(CROWD):  # all of them are in the kernel's queue before the daemon looks
            self.connect(head, tcp=True)
            self.crowd.close()
        await self.answered()
        refused = self.daemon.daemon.server.answers.get(401, 0)
        self.assertLess(refused, CROWD / 4, "the owner has waited for their answers")

    async def test_in_a_flood_all_of_the_owners_who_come_at_once_are_let_in(self) -> None:
        for _ in range(CROWD):
            self.connect(b"G", tcp=True)
        await self.answered()
        head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\n"
        head += f"Authorization: Bearer {self.token}\r\n\r\n"
        owners = [socket.create_connection(("127.0.0.1", self.daemon.port)) for _ in range(600)]
        for sock in owners:
            self.crowd.enter_context(sock).setblocking(False)
            sock.send(head.encode())
        for sock in owners:
            answer = await asyncio.get_running_loop().sock_recv(sock, 100)
            self.assertIn(b" 200 ", answer)

    async def test_the_owners_unix_socket_is_never_flooded(self) -> None:
        for _ in range(CROWD):
            self.connect(b"\0", tcp=False)  # refused, and lingering
            await asyncio.sleep(0)
        self.connect(b"", tcp=False)
        await self.answered()

    async def test_while_strangers_are_too_many_only_a_token_in_the_first_bytes_lets_in(
        self,
    ) -> None:
        for _ in range(CROWD):
            self.connect(b"G", tcp=True)
        await self.answered()  # so that all of the crowd were accepted before what follows
        for begin in (b"GET /v1/health HTTP/1.1\r\n\r\n", b"\r\nAuthorization: Bearer x\r\n"):
            async with self.open() as (reader, writer):
                writer.write(begin)
                with contextlib.suppress(ConnectionError):
                    self.assertEqual(await reader.read(), b"")

    async def test_in_a_flood_the_owner_may_be_slow_to_send_and_the_daemon_goes_without_delay(
        self,
    ) -> None:
        for _ in range(CROWD):
            self.connect(b"", tcp=True)
        connections = [await self.enterAsyncContext(self.open()) for _ in range(20)]
        await self.answered()  # so that those were accepted before what follows
        head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\n"
        for reader, writer in connections:
            writer.write(f"{head}authorization: bearer {self.token}\r\n\r\n".encode())
            self.assertIn(b" 200 ", await reader.readline())
        reader, _ = await self.enterAsyncContext(self.open())
        await self.answered()
        await self.daemon.daemon.stop()
        with contextlib.suppress(ConnectionError):
            self.assertEqual(await reader.read(), b"")

    async def test_an_owner_who_has_sent_is_not_pushed_out_by_those_who_come_at_the_same_time(
        self,
    ) -> None:
        for _ in range(CROWD):
            self.connect(b"G", tcp=True)
        head = f"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:{self.daemon.port}\r\n"
        async with self.open() as (reader, writer):
            await self.answered()  # so that it was accepted, and is held
            for _ in range(300):  # the daemon accepts them before it looks for what was sent
                self.connect(b"", tcp=True)
            writer.write(f"{head}authorization: bearer {self.token}\r\n\r\n".encode())
            self.assertIn(b" 200 ", await reader.readline())

    async def test_when_the_flood_is_over_those_without_a_token_are_answered_again(self) -> None:
        for _ in range(CROWD):
            self.connect(b"G", tcp=True)
        await self.answered()
        self.crowd.close()
        await self.answered()
        status = 0
        while not status:  # the daemon takes it for a flood for a while
            with contextlib.suppress(ClientError):
                async with self.daemon.connect(tcp=True, token="wrong") as http:
                    status = (await self.daemon.call("GET", "/v1/health", http=http)).status
        self.assertEqual(status, 401)
