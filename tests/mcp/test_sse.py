"""The transport of 2024: the scripted server behind an event stream, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from tests.support.mcp import McpTestCase
from tests.support.mcp_server import ScriptedServer

if TYPE_CHECKING:
    from crushlite.mcp.server import Server


class EventServer:
    """One stream at a time; `endpoint` is where it wants messages to be posted."""

    def __init__(self, endpoint: str = "/message?id=1") -> None:
        self.endpoint = endpoint
        self.server = ScriptedServer({}, self.send)
        self.posts: list[tuple[str, dict[str, str]]] = []  # path and headers

    async def __aenter__(self) -> EventServer:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/sse"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listener.close()
        await self._listener.wait_closed()

    def send(self, *messages: dict[str, Any]) -> None:
        events = (f"event: message\ndata: {json.dumps(each)}\n\n" for each in messages)
        self.stream.write("".join(events).encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = [line.partition(": ") for line in head[1:] if line]
            headers = {name.lower(): value for name, _, value in fields}
            method, path, _ = head[0].split()
            if method == "GET":
                self.stream = writer
                begin = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                writer.write(f"{begin}event: endpoint\ndata: {self.endpoint}\n\n".encode())
                await reader.read()
            else:
                body = await reader.readexactly(int(headers["content-length"]))
                self.posts.append((path, headers))
                self.server.handle(json.loads(body))
                writer.write(b"HTTP/1.1 202 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


class EventTests(McpTestCase):
    async def connect(self, served: EventServer, **more: Any) -> Server:
        """The server, after one attempt to reach it."""
        await self.enterAsyncContext(served)
        self.configure(mcp={"old": {"type": "sse", "url": served.url, **more}})
        self.anna = await self.join(self.folder(f"p-{id(served)}"))
        (found,) = await self.ready(self.anna, "old")
        return found

    async def test_messages_are_posted_and_answers_come_over_the_stream(self) -> None:
        served = EventServer()
        old = await self.connect(served, headers={"Authorization": "Bearer abc"})
        self.assertEqual((old.state, old.error), ("connected", ""))
        self.assertEqual((await old.call("echo", {"text": "a"})).text, "a")
        self.assertEqual(len((await old.call("giant", {})).text), 3_000_000)
        path, headers = served.posts[-1]
        self.assertEqual((path, headers["authorization"]), ("/message?id=1", "Bearer abc"))

    async def test_messages_are_posted_nowhere_else(self) -> None:
        for endpoint, words in (
            ("http://127.0.0.2/message", "another server"),
            ("http://[", "no address"),
        ):
            served = EventServer(endpoint)
            old = await self.connect(served)
            self.assertEqual(old.state, "error")
            self.assertIn(words, old.error)
            self.assertEqual(served.posts, [])

    async def test_the_end_of_the_stream_is_noticed_behind_many_messages(self) -> None:
        served = EventServer()
        await self.connect(served)
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
        served.send(*[note] * 128)
        served.stream.close()
        await self.anna.events.wait_for("mcp_event", name="old", state="error")
