"""Tool servers of others: over pipes, over streamable HTTP and over the old SSE transport."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from crushlite.clock import SystemClock, time_limit
from crushlite.errors import CrushliteError
from tests.support.mcp import McpTestCase
from tests.support.peers import npm_program, peer_environment, python_program
from tests.support.ports import reserved_port


class McpPeerTests(McpTestCase):
    def npm(self, name: str, *args: str) -> dict[str, Any]:
        env = {"PATH": peer_environment(str(self.home))["PATH"]}
        return {"command": npm_program(name), "args": args, "env": env, "timeout": 60}

    async def serve(self, kind: str) -> tuple[int, subprocess.Popen[bytes]]:
        """server-everything on a port; returns when that is open."""
        port = self.enterContext(reserved_port())
        return port, await self.serve_at(port, kind)

    async def serve_at(self, port: int, kind: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [npm_program("mcp-server-everything"), kind],
            env=peer_environment(str(self.home), PORT=str(port)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        clock = SystemClock()
        async with time_limit(clock, 60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await clock.sleep(0.1)
                else:
                    writer.close()
                    return process

    async def test_programs_of_npm_and_pypi_are_called(self) -> None:
        self.configure(
            mcp={
                "everything": self.npm("mcp-server-everything"),
                "files": self.npm("mcp-server-filesystem", str(self.home)),
                "time": {"command": python_program("mcp-server-time"), "timeout": 60},
                "git": {"command": python_program("mcp-server-git"), "timeout": 60},
            }
        )
        anna = await self.join()
        part = self.part(anna)
        for name, tool, arguments, words in (
            ("everything", "echo", {"message": "hello"}, "Echo: hello"),
            ("everything", "get-sum", {"a": 2, "b": 3}, "5"),
            ("files", "list_allowed_directories", {}, str(self.home)),
            ("time", "get_current_time", {"timezone": "UTC"}, "UTC"),
        ):
            await self.connected(anna, name)
            answer = await part.server(name).call(tool, arguments)
            self.assertIn(words, answer.text)
            self.assertFalse(answer.is_error)
        wrong = await part.server("time").call("get_current_time", {"timezone": "Nowhere"})
        self.assertTrue(wrong.is_error)
        image = await part.server("everything").call("get-tiny-image", {})
        self.assertEqual([media.mime_type for media in image.media], ["image/png"])
        git = await self.connected(anna, "git")
        self.assertIn("git_status", [tool.name for tool in git.tools])
        self.assertTrue(part.server("everything").prompts)
        self.assertTrue(part.server("everything").resources)

    async def test_streamable_http_and_a_session_that_the_server_forgot(self) -> None:
        port, process = await self.serve("streamableHttp")
        self.configure(mcp={"web": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}})
        anna = await self.join()
        web = await self.connected(anna, "web")
        self.assertEqual((await web.call("echo", {"message": "a"})).text, "Echo: a")
        process.kill()
        process.wait()
        with self.assertRaises(CrushliteError):
            await web.call("echo", {"message": "b"})
        await self.serve_at(port, "streamableHttp")
        self.assertEqual((await web.call("echo", {"message": "c"})).text, "Echo: c")

    async def test_the_old_transport(self) -> None:
        port, _ = await self.serve("sse")
        url = f"http://127.0.0.1:{port}/sse"
        servers = {"old": {"type": "sse", "url": url}, "wrong": {"type": "http", "url": url}}
        self.configure(mcp=servers)
        anna = await self.join()
        old, wrong = await self.ready(anna, "old", "wrong")
        self.assertEqual((await old.call("echo", {"message": "a"})).text, "Echo: a")
        self.assertIn('set its type to "sse"', wrong.error)
