"""Streamable HTTP, as servers of both eras speak it: the scripted server behind a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.errors import CrushliteError
from crushlite.mcp import server as server_module
from crushlite.mcp.web import MOST_REPLIES
from tests.support.mcp import McpTestCase
from tests.support.mcp_server import ScriptedServer

if TYPE_CHECKING:
    from crushlite.mcp.server import Server


class WebServer:
    """Answers each message as JSON, or as an event stream if it is to be `streamed`."""

    def __init__(self, *switches: str, streamed: bool = False, status: int = 0) -> None:
        self.sent: list[dict[str, Any]] = []
        self.server = ScriptedServer(dict.fromkeys(switches, ""), self.sent.append)
        self.streamed = streamed
        self.status = status  # answered to everything, if it is not 0
        self.sessions: set[str] = set()
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.first = b""  # what comes before the events of an answer to a call
        self.open = self.most_open = 0  # connections

    async def __aenter__(self) -> WebServer:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/mcp"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listener.close()
        await self._listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = [line.partition(": ") for line in head[1:] if line]
            headers = {name.lower(): value for name, _, value in fields}
            self.heads.append(headers)
            self.paths.append(head[0].split()[1])
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            writer.write(self._answer(head[0].split()[0], headers, body))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    def _answer(self, method: str, headers: dict[str, str], body: bytes) -> bytes:
        if self.status:
            seen = headers.get("x-token", "")
            return _response(self.status, f"go away {seen}".encode(), "text/plain")
        if method != "POST":
            return _response(405, b"", "text/plain")
        message = json.loads(body)
        more = ""
        if message.get("method") == "initialize" and "modern" not in self.server.switches:
            self.sessions.add("first" if not self.sessions else "second")
            more = f"Mcp-Session-Id: {sorted(self.sessions)[-1]}\r\n"
        elif self.sessions and headers.get("mcp-session-id") not in self.sessions:
            return _response(404, b"{}", "application/json")
        if (message.get("params") or {}).get("name") == "hang":
            return b""
        self.sent.clear()
        self.server.handle(message)
        if "id" not in message or not self.sent:
            return _response(202, b"", "application/json")
        if self.streamed:
            events = b"id: 1\ndata: \n\n: comment\n\n"
            events += self.first if message["method"] == "tools/call" else b""
            events += b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in self.sent)
            return _response(200, events, "text/event-stream", more)
        status = 400 if "error" in self.sent[-1] else 200
        return _response(status, json.dumps(self.sent[-1]).encode(), "application/json", more)


def _response(status: int, body: bytes, kind: str, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


class WebTests(McpTestCase):
    async def connect(self, server: WebServer, below: str = "", **more: Any) -> Server:
        """The server, after one attempt to reach it. `below` is added to its address."""
        await self.enterAsyncContext(server)
        self.configure(mcp={"web": {"type": "http", "url": server.url + below, **more}})
        self.anna = await self.join(self.folder(f"p{len(self.model.requests)}-{id(server)}"))
        (found,) = await self.ready(self.anna, "web")
        return found

    async def test_legacy_with_a_session_that_is_forgotten(self) -> None:
        for streamed in (False, True):
            served = WebServer(streamed=streamed)
            web = await self.connect(served, headers={"Authorization": "Bearer abc", "X": "$NO"})
            self.assertEqual((web.state, web.error), ("connected", ""))
            self.assertEqual((await web.call("echo", {"text": "a"})).text, "a")
            last = served.heads[-1]
            self.assertEqual(last["authorization"], "Bearer abc")
            self.assertNotIn("x", last)
            self.assertEqual(last["mcp-session-id"], "first")
            self.assertEqual(last["mcp-protocol-version"], "2025-11-25")
            served.sessions = {"other"}
            self.assertEqual((await web.call("echo", {"text": "b"})).text, "b")
            self.assertEqual(web.state, "connected")

    async def test_noise_and_many_requests_of_the_server_before_an_answer(self) -> None:
        served = WebServer(streamed=True)
        web = await self.connect(served)
        asked = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(300)]
        events = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in asked)
        served.first = b"data: no message\n\n" + events
        before = len(served.heads)
        self.assertEqual((await web.call("echo", {"text": "a"})).text, "a")
        self.assertGreater(len(served.heads), before + 300 - MOST_REPLIES)
        self.assertLess(served.most_open, 2 * MOST_REPLIES)

    async def test_a_call_whose_connection_breaks_costs_no_other(self) -> None:
        served = WebServer()
        web = await self.connect(served)
        with self.assertRaisesRegex(CrushliteError, "the connection"):
            await web.call("hang", {})
        self.assertEqual((web.state, bool(web.tools)), ("connected", True))
        self.assertEqual((await web.call("echo", {"text": "a"})).text, "a")
        methods = [message["method"] for message in served.server.seen]
        self.assertEqual(methods.count("initialize"), 1)
        await served.__aexit__()
        with self.assertRaisesRegex(CrushliteError, "is gone: cannot connect"):
            await web.call("echo", {"text": "a"})
        self.assertEqual((web.state, web.tools), ("error", ()))

    async def test_modern_servers_get_what_is_asked_for_as_headers(self) -> None:
        served = WebServer("modern")
        web = await self.connect(served)
        self.assertEqual((web.state, web.error), ("connected", ""))
        self.assertEqual((await web.call("echo", {"text": "a"})).text, "a")
        last = served.heads[-1]
        wanted = ("2026-07-28", "tools/call", "echo")
        names = ("mcp-protocol-version", "mcp-method", "mcp-name")
        self.assertEqual(tuple(last[name] for name in names), wanted)
        self.assertNotIn("mcp-session-id", last)

    async def test_a_change_while_no_stream_of_notifications_is_open_is_seen(self) -> None:
        served = WebServer("modern")  # ends such a stream at once
        with mock.patch.object(server_module, "HEAR_SECONDS", (0.1, 0.1)):
            web = await self.connect(served)
            served.server.tools.append({"name": "learnt"})
            await self.anna.events.wait_for("mcp_event", type="tools_list_changed")
        self.assertIn("learnt", [tool.name for tool in web.tools])

    async def test_the_address_is_used_as_it_is_written(self) -> None:
        for below in ("", "/", "/?a=b", "/x?a=b"):
            served = WebServer()
            web = await self.connect(served, below)
            self.assertEqual((web.state, web.error), ("connected", ""))
            self.assertEqual(set(served.paths), {f"/mcp{below}"})

    async def test_refusals_are_explained(self) -> None:
        for status, state, words in (
            (401, "needs auth", "`headers`"),
            (405, "error", '"sse"'),
            (500, "error", "500: go away"),
        ):
            web = await self.connect(WebServer(status=status))
            self.assertEqual(web.state, state)
            self.assertIn(words, web.error)

    async def test_what_a_server_repeats_of_its_headers_is_told_to_nobody(self) -> None:
        served = WebServer()
        web = await self.connect(served, headers={"X-Token": "private-0001"})
        served.status = 500
        refused = await self.anna.call("POST", "/mcp/refresh-tools", {"name": "web"})
        self.assertEqual(refused.status, 400)
        with self.assertRaises(CrushliteError) as failed:
            await web.call("echo", {"text": "a"})
        told = [str(refused.json), failed.exception.message, str(await self.states(self.anna))]
        self.assertIn("500: go away [redacted]", told[0])
        self.assertFalse([text for text in told if "private-0001" in text])
