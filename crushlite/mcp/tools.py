"""The tools of servers as an agent gets them, and those that read resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..agent.base import Scope
from ..errors import BadRequest
from ..features.tools import OfferedTool, ToolAnswer, ToolQuestion
from .content import resource_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..agent.base import Turn
    from .items import ToolInfo
    from .server import Server

LISTED = 200  # resources that are listed at once


class ServerTool(OfferedTool):
    """A tool of a server, under the name that the model calls it by."""

    searchable = True

    def __init__(self, name: str, server: Server, tool: ToolInfo) -> None:
        self.name = name
        self.description = tool.description or f"{tool.name} of the tool server {server.name}"
        self.parameters = tool.schema
        self.read_only = tool.read_only
        self._server = server
        self._tool = tool

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion:
        words = f"Run {self._tool.name} of the tool server {self._server.name}"
        return ToolQuestion(self.name, "execute", words, dict(arguments))

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        return await self._server.call(self._tool.name, arguments)


class ListResources(OfferedTool):
    name = "list_mcp_resources"
    description = "List what tool servers have to read: their resources, with addresses (uri)."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"server": {"type": "string", "description": "Only those of this server"}},
    }
    read_only = True

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def question(self, arguments: Mapping[str, Any]) -> None:
        """Nothing is asked: the lists are known."""

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        wanted = arguments.get("server")
        lines = [
            f"{server.name}: {found.uri} {found.name} {found.mime_type}".rstrip()
            for server in self._servers
            if wanted in (None, "", server.name)
            for found in server.resources
        ]
        more = [f"({len(lines) - LISTED} more)"] if len(lines) > LISTED else []
        return ToolAnswer("\n".join([*lines[:LISTED], *more]) or "there are none")


class ReadResource(OfferedTool):
    name = "read_mcp_resource"
    description = "Read a resource of a tool server; list_mcp_resources tells what there is."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "server": {"type": "string", "description": "The name of the server"},
            "uri": {"type": "string", "description": "The address of the resource"},
        },
        "required": ["server", "uri"],
    }
    read_only = True

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion:
        server, uri = self._wanted(arguments)
        words = f"Read {uri} from the tool server {server.name}"
        scope = Scope((server.name,), f"all resources of the tool server {server.name}")
        params = {"server": server.name, "uri": uri}
        return ToolQuestion(self.name, "read", words, params, scope=scope)

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        server, uri = self._wanted(arguments)
        return resource_answer(await server.resource(uri))

    def _wanted(self, arguments: Mapping[str, Any]) -> tuple[Server, str]:
        """Raises BadRequest."""
        name, uri = arguments.get("server"), arguments.get("uri")
        server = next((each for each in self._servers if each.name == name), None)
        if server is None or not isinstance(uri, str) or not uri:
            names = ", ".join(each.name for each in self._servers)
            raise BadRequest(f"server must be one of {names}, and uri the address of a resource")
        return server, uri
