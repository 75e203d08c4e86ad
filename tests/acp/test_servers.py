"""Tool servers that an editor names for a session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.acp.servers import MOST, servers_of
from crushlite.api.context import body
from crushlite.api.entry import Entry, W
from crushlite.features.wire import ClientServer, UsedServers, WantServers
from crushlite.http.messages import Stream
from crushlite.protocol.codec import dumps, encode
from crushlite.wing import Wing
from tests.support.editors import EditorCase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.api.context import Context
    from crushlite.http.messages import ByteSink, Request

PROGRAM = {
    "name": "files",
    "command": "/bin/files",
    "args": ["-v"],
    "env": [{"name": "TOKEN", "value": "secret"}],
}
WEB = {
    "type": "http",
    "name": "tickets",
    "url": "http://tickets",
    "headers": [{"name": "Authorization", "value": "Bearer x"}],
}
FILES = ClientServer("files", "stdio", "/bin/files", ["-v"], {"TOKEN": "secret"})
TICKETS = ClientServer(
    "tickets", "http", url="http://tickets", headers={"Authorization": "Bearer x"}
)


class OpenRequest(Stream):
    def __init__(self, servers: list[ClientServer]) -> None:
        self.servers = servers
        self.sink: ByteSink
        self.ended = asyncio.Event()

    def opened(self, sink: ByteSink) -> None:
        self.sink = sink
        refused = {server.name: "because" for server in self.servers if server.name == "tickets"}
        sink.write(dumps(encode(UsedServers(["files"], refused))) + b"\n")

    def closed(self) -> None:
        self.ended.set()


class Servers(Wing):
    """A daemon that has tool servers, by the route of the protocol."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[OpenRequest] = asyncio.Queue()

    def routes(self) -> Sequence[Entry]:
        return (Entry("POST", W + "/mcp/servers", self.want, takes=WantServers),)

    async def want(self, context: Context, request: Request) -> Stream:
        found = OpenRequest(body(WantServers, request).servers)
        self.requests.put_nowait(found)
        return found


class EditorServerTests(EditorCase):
    async def asyncSetUp(self) -> None:
        wing = Servers()
        self.requests, self.wings = wing.requests, [wing]
        await super().asyncSetUp()

    async def test_they_are_used_while_the_session_is_open(self) -> None:
        script, session = await self.thread(session={"notices": {}})
        load = {"sessionId": session, "cwd": self.cwd}
        await script.request("session/load", **load, mcpServers=[PROGRAM, WEB])
        first = await self.requests.get()
        self.assertEqual(first.servers, [FILES, TICKETS])
        await script.until(lambda: bool(script.kinds("notice")))
        self.assertIn("tickets: because", script.kinds("notice")[0]["description"])

        # Others in place of them, which the daemon ends: they are asked for again.
        await script.request("session/resume", **load, mcpServers=[PROGRAM])
        await first.ended.wait()
        second = await self.requests.get()
        self.assertEqual(second.servers, [FILES])
        second.sink.close()
        third = await self.requests.get()
        await script.request("session/close", sessionId=session)
        await third.ended.wait()

        # An editor that leaves.
        await script.request("session/new", cwd=self.cwd, mcpServers=[PROGRAM])
        fourth = await self.requests.get()
        await script.peer.close()
        await fourth.ended.wait()
        self.assertTrue(self.requests.empty())

    def test_what_makes_no_sense_is_counted(self) -> None:
        bad: list[Any] = [None, {}, {"name": "x"}, {"type": "acp", "name": "y", "id": "1"}]
        found, warning = servers_of([*bad, PROGRAM])
        self.assertEqual(
            (found, warning), ([FILES], "Tool servers of the editor: not understood: 4")
        )
        self.assertEqual(servers_of(None), ([], ""))
        found, warning = servers_of([PROGRAM] * (MOST + 3))
        self.assertEqual(len(found), MOST)
        self.assertIn(f"only the first {MOST} of {MOST + 3} are used", warning)
        self.assertNotIn("secret", repr(found))


class WithoutServersTests(EditorCase):
    wings: list[Wing] | None = []

    async def test_a_daemon_without_tool_servers_is_said_to_use_none(self) -> None:
        script, session = await self.thread(session={"notices": {}})
        self.assertEqual(script.kinds("notice"), [])
        params = {"cwd": self.cwd, "mcpServers": [PROGRAM]}
        await script.request("session/load", sessionId=session, **params)
        await script.until(lambda: bool(script.kinds("notice")))
        await script.request("session/new", **params)
        await script.until(lambda: len(script.kinds("notice")) == 2)
        self.assertIn("files: this daemon has", script.kinds("notice")[1]["description"])
