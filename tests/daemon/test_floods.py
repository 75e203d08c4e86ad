"""Many connections of strangers, over real sockets: the owner is answered."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from unittest import mock

from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

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
