"""The tool servers of one workspace."""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
from typing import TYPE_CHECKING

from ..clock import all_done
from ..config.secrets import redact
from ..errors import NotFound
from ..features.offers import OfferingPart
from .client_servers import ClientServers
from .naming import reserved_for_others, safe_name
from .server import CLOSE_SECONDS, Server, ServerSettings
from .tools import ListResources, ReadResource, ServerTool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..agent.base import Turn
    from ..config.profile import FileProfile
    from ..config.toolservers import ToolServer
    from ..features.tools import OfferedTool
    from ..outbound.proxies import Proxies
    from ..protocol.events import McpEvent
    from ..wing import OpenWorkspace
    from .places import StartingPlaces

log = logging.getLogger(__name__)

MOST_SERVERS = 100
HEADLESS_SECONDS = 30.0  # that a prompt without an attending user waits for servers that start
DEAD_SECONDS = 3.0  # that the next step of a turn waits for a server that has just died
RETRY_SECONDS = 30.0  # before a prompt lets a server that has failed be started again


class McpPart(OfferingPart):
    """Starts and ends servers as the configuration changes, and as clients come and go that name
    some; those whose section is the same stay as they are."""

    def __init__(
        self,
        workspace: OpenWorkspace,
        profile: FileProfile,
        proxies: Proxies,
        starting: StartingPlaces,
    ) -> None:
        self._profile = profile
        self._hub = workspace.hub
        self._clock = workspace.clock
        self._settings = ServerSettings(
            path=workspace.path,
            env=functools.partial(profile.command_env, workspace.env),
            clock=workspace.clock,
            proxies=proxies,
            starting=starting,
            redact=self._redact,
            publish=self._publish,
            changed=self._forget_tools,
        )
        self._servers: dict[str, Server] = {}
        self.of_clients = ClientServers(self.follow)
        self._offered: list[OfferedTool] | None = None
        self._closing: set[asyncio.Task[None]] = set()  # servers that end
        # Runs that have waited for servers: not at each of their steps.
        self._waited: collections.deque[str] = collections.deque(maxlen=1000)
        self._closed = False
        profile.followers.append(self.follow)
        self.follow()

    @property
    def servers(self) -> list[Server]:
        """By name."""
        return [self._servers[name] for name in sorted(self._servers)]

    def find(self, name: str) -> Server | None:
        return self._servers.get(name)

    def server(self, name: str) -> Server:
        """Raises NotFound."""
        found = self.find(name)
        if found is None:
            raise NotFound(
                f"MCP server not found: {name}: neither the configuration nor a client has named it"
            )
        return found

    @property
    def configured(self) -> Mapping[str, ToolServer]:
        return self._profile.config.tool_servers

    def follow(self) -> None:
        """Start, end and replace servers as the configuration says now, and clients besides."""
        if self._closed:
            return
        wanted = self.of_clients.wanted | dict(list(self.configured.items())[:MOST_SERVERS])
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.config:
                del self._servers[name]
                self._end(server)
        for name, config in wanted.items():
            if name not in self._servers:
                server = self._servers[name] = Server(config, self._settings)
                server.start()
        self._forget_tools()

    def _end(self, server: Server) -> None:
        task = asyncio.create_task(server.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self._closed = True
        self._profile.followers.remove(self.follow)
        self.of_clients.close()
        for server in self._servers.values():
            self._end(server)
        self._servers = {}
        await all_done(self._clock, list(self._closing), CLOSE_SECONDS)

    # For the agent -------------------------------------------------------------------------------

    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        """The tools of the servers that are connected. Starts servers that have failed, and waits
        for those that died a moment ago, mostly in a call of this turn: DEAD_SECONDS at most. If no
        user attends the turn, waits for HEADLESS_SECONDS at most, and at its first step for all
        servers that start."""
        now = self._clock.time()
        awaited: list[Server] = []
        if not turn.interactive and turn.run_id not in self._waited:
            self._waited.append(turn.run_id)
            awaited += self._servers.values()
        for server in self._servers.values():
            failed = server.state == "error" and server.usable
            if failed and server.died_at is not None:
                awaited += [server] if now - server.died_at < DEAD_SECONDS else []
                server.start()
            elif failed and now - server.tried_at >= RETRY_SECONDS:
                server.start()
        until = now + (DEAD_SECONDS if turn.interactive else HEADLESS_SECONDS)
        for server in awaited:
            await server.settled(max(0.0, until - self._clock.time()))
        if self._offered is None:
            self._offered = self._offers()
        return self._offered

    def _offers(self) -> list[OfferedTool]:
        """All tools, by server and name: the order depends on nothing else."""
        found: dict[str, OfferedTool] = {}
        for server in self.servers:
            reserved = reserved_for_others(server.name, self._servers)
            for tool in server.tools:
                name = safe_name(server.name, tool.name, found, reserved)
                found.setdefault(name, ServerTool(name, server, tool))
        readable = [server for server in self.servers if server.has_resources]
        more = [ListResources(readable), ReadResource(readable)] if readable else []
        return [*more, *found.values()]

    def instructions(self) -> Sequence[tuple[str, str]]:
        return [
            (f"tool server {server.name}", server.instructions)
            for server in self.servers
            if server.instructions
        ]

    # For servers ---------------------------------------------------------------------------------

    def _forget_tools(self) -> None:
        self._offered = None

    def _publish(self, event: McpEvent) -> None:
        if not self._closed:
            self._hub.publish("updated", event)

    def _redact(self, text: str) -> str:
        return redact(self._profile.config.redact(text), self.of_clients.secrets)
