"""How the Crush client decides about a server that it finds on a unix socket. It asks every server
of another build to exit and, if that one agrees, starts its own: so this daemon must refuse, except
to clients of crushlite."""

from __future__ import annotations

import asyncio
import os
import socket
import stat

from tests.support.crush import Tui, WireCase
from tests.support.go import GoClient, GoError, Refused
from tests.support.gojson import VERSION, WORKSPACE, DecodeError, List
from tests.support.process import ProcessCase

OWN_VERSION = ("v0.91.2", "1lx3k2v9q0zk")  # of the client: version and build_id
SECONDS = 30.0


async def control(client: GoClient, command: str, by: str = "") -> int:
    """The status of a control request, which the client sends as text/plain and without its id."""
    body = {"command": command} | ({"client": by} if by else {})
    try:
        await client.call("POST", "/v1/control", body, kind="text/plain")
    except Refused as error:
        return error.status
    return 200


async def negotiate(path: str) -> list[str]:
    """The steps of the client's start; the last one is `use` or `spawn`."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return ["spawn"]
        # The client waits 0.2 s; connecting to a socket with room in its backlog takes no time.
        with socket.socket(socket.AF_UNIX) as dialed:
            dialed.setblocking(False)
            dialed.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return ["spawn"]
    client = GoClient(f"unix://{path}")
    try:
        return ["dial", *await _ask(client)]
    finally:
        await client.transport.close()


async def _ask(client: GoClient) -> list[str]:
    steps = ["version"]
    try:
        found = await client.call("GET", "/v1/version", None, VERSION)
    except (GoError, Refused, DecodeError):
        found = None
    if found is not None and (found["version"], found["build_id"]) != OWN_VERSION:
        status = await control(client, "shutdown_if_idle")
        steps.append(f"shutdown_if_idle {status}")
        if status == 400 and not await client.call("GET", "/v1/workspaces", None, List(WORKSPACE)):
            status = await control(client, "shutdown")
            steps.append(f"shutdown {status}")
        if status == 200:
            return [*steps, "spawn"]
    async with asyncio.timeout(SECONDS):
        await client.call("GET", "/v1/health")
    return [*steps, "health", "use"]


KEPT = ["dial", "version", "shutdown_if_idle 409", "health", "use"]


class UnixTests(WireCase):
    @property
    def path(self) -> str:
        return self.unix.removeprefix("unix://")

    async def test_an_idle_server_is_kept_and_works(self) -> None:
        self.assertEqual(await negotiate(self.path), KEPT)
        run = self.run_program(self.unix)
        self.assertEqual((await run.main("hi")).code, 0)
        self.assertEqual(await negotiate(self.path), KEPT)

    async def test_a_server_in_use_is_kept_and_works(self) -> None:
        anna = await self.tui(self.unix)
        self.assertEqual(await negotiate(self.path), KEPT)
        await anna.send("hi")
        await anna.events.wait_for("run_complete")

    async def test_every_command_of_the_client_is_answered_409(self) -> None:
        """Never 200, and never 400, which an old server would have answered."""
        client = GoClient(self.unix)
        self.addAsyncCleanup(client.transport.close)
        for command in ("shutdown_if_idle", "shutdown"):
            self.assertEqual(await control(client, command), 409)
        anna = await self.tui(self.unix)
        for command in ("shutdown_if_idle", "shutdown"):
            self.assertEqual(await control(client, command), 409)
        await anna.probe()

    async def test_the_version_is_complete_and_not_the_clients(self) -> None:
        client = GoClient(self.unix)
        self.addAsyncCleanup(client.transport.close)
        found = await client.call("GET", "/v1/version", None, VERSION)
        for key in ("version", "commit", "build_id", "go_version", "platform"):
            self.assertTrue(found[key], key)

    async def test_an_unknown_command_is_400(self) -> None:
        client = GoClient(self.unix)
        self.addAsyncCleanup(client.transport.close)
        self.assertEqual(await control(client, "dance"), 400)


class TcpTests(WireCase):
    async def test_on_tcp_an_idle_server_leaves_and_one_in_use_stays(self) -> None:
        client = GoClient(self.tcp)
        self.addAsyncCleanup(client.transport.close)
        anna = await self.tui()
        self.assertEqual(await control(client, "shutdown_if_idle"), 409)
        self.assertFalse(self.daemon.backend.leaving.is_set())
        await anna.goodbye()
        self.assertEqual(await control(client, "shutdown_if_idle"), 200)
        self.assertTrue(self.daemon.backend.leaving.is_set())


class ProcessTests(ProcessCase):
    async def leave(self, command: str, by: str = "") -> int:
        client = GoClient(self.url)
        try:
            return await control(client, command, by)
        finally:
            await client.transport.close()

    async def test_the_process_stays_for_crush_and_leaves_for_us(self) -> None:
        daemon = await self.start()
        self.assertEqual(await negotiate(str(self.socket)), KEPT)
        self.assertEqual(await self.leave("shutdown"), 409)
        anna = Tui(self.url, self.project, self.env)
        self.addAsyncCleanup(anna.close)
        await anna.start()
        self.assertEqual(await self.leave("shutdown_if_idle", by="crushlite"), 409)
        await anna.goodbye()
        self.assertIsNone(daemon.returncode)
        self.assertEqual(await self.leave("shutdown_if_idle", by="crushlite"), 200)
        async with asyncio.timeout(SECONDS):
            self.assertEqual(await daemon.wait(), 0)
        self.assertEqual(await negotiate(str(self.socket)), ["spawn"])
        self.assertFalse(self.socket.exists())
