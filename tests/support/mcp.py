"""A configured daemon with tool servers, for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.mcp.part import McpPart
from tests.support.configured import ConfiguredTestCase
from tests.support.mcp_server import scripted

if TYPE_CHECKING:
    from crushlite.mcp.server import Server
    from crushlite.testing import Participant

__all__ = ["McpTestCase", "scripted"]


class McpTestCase(ConfiguredTestCase):
    """`servers` are those of the user's crush.json."""

    servers: dict[str, Any] = {}

    def prepare_home(self) -> None:
        self.configure(mcp=self.servers)

    def part(self, client: Participant) -> McpPart:
        return self.workspace(client).part(McpPart)

    async def ready(self, client: Participant, *names: str) -> list[Server]:
        """The servers, when no attempt to start them is under way."""
        part = self.part(client)
        found = [part.server(name) for name in names or sorted(self.servers)]
        await asyncio.gather(*(server.settled(60) for server in found))
        return found

    async def connected(self, client: Participant, name: str) -> Server:
        (server,) = await self.ready(client, name)
        self.assertEqual((server.state, server.error), ("connected", ""))
        return server

    async def states(self, client: Participant) -> dict[str, Any]:
        answer = await client.call("GET", "/mcp/states")
        self.assertEqual(answer.status, 200, answer)
        return dict(answer.json)

    def offered(self, number: int = -1) -> list[str]:
        """The names of the tools that come from servers in a request to the model."""
        tools = self.model.requests[number].get("tools", [])
        names = [tool["function"]["name"] for tool in tools]
        return [name for name in names if name.startswith("mcp_")]
