"""Tool servers that clients name for as long as they are connected: an editor has some of its own.

A client's request stays open while it wants its servers, and they end with it. So what it has sent,
which may hold secrets, is kept nowhere but here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..config.expand import Refused
from ..config.secrets import url_secrets
from ..config.toolservers import TYPES, ToolServer, sendable_headers
from ..errors import BadRequest
from ..http.messages import Stream
from ..protocol.codec import dumps, encode
from ..protocol.features import UsedServers

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from ..http.messages import ByteSink, Pairs
    from ..protocol.features import ClientServer

MOST = 50  # of all clients of a workspace
NAME_CHARS = 100
SECRET_CHARS = 6  # shorter values are no secrets, and stand in every other text


class ClientServers:
    """Those of one workspace. Two clients that name the same server share it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._wanted: dict[str, list[ToolServer]] = {}  # by name; equal ones, one for each request
        self._open: set[ServersWanted] = set()

    @property
    def wanted(self) -> dict[str, ToolServer]:
        return {name: servers[0] for name, servers in self._wanted.items()}

    def want(self, named: list[ClientServer], configured: Container[str]) -> ServersWanted:
        """Use these servers from now on, until the answer that this returns is closed. Those that
        cannot be used are named in it, with the reason. Raises BadRequest for too many."""
        if len(named) > MOST:
            raise BadRequest(f"{len(named)} tool servers in one request: name at most {MOST}")
        taken: list[ToolServer] = []
        answer = UsedServers()
        for each in named:
            try:
                taken.append(self._take(each, configured))
                answer.used.append(each.name)
            except Refused as reason:
                answer.refused[each.name[:NAME_CHARS]] = str(reason)
        self._changed()
        wanted = ServersWanted(self, taken, answer)
        self._open.add(wanted)
        return wanted

    def _take(self, named: ClientServer, configured: Container[str]) -> ToolServer:
        """Raises Refused."""
        server = _server(named)
        known = self._wanted.get(server.name)
        if server.name in configured:
            raise Refused("the configuration has one of this name, which is used")
        if known and known[0] != server:
            raise Refused("another client has named a different one so, which is used")
        if not known and len(self._wanted) >= MOST:
            raise Refused(f"clients have named {MOST} already")
        self._wanted.setdefault(server.name, []).append(server)
        return server

    def give_up(self, wanted: ServersWanted) -> None:
        """End the servers of a request that nobody else wants."""
        self._open.discard(wanted)
        for server in wanted.taken:
            self._wanted[server.name].remove(server)
            if not self._wanted[server.name]:
                del self._wanted[server.name]
        self._changed()

    def secrets(self) -> Iterator[str]:
        """Every text in what clients have sent that may be secret."""
        for server in self.wanted.values():
            values = [value for _, value in (*server.env, *server.headers)]
            for value in (*values, *(value.rpartition(" ")[2] for value in values)):
                if len(value) >= SECRET_CHARS:
                    yield value
            with contextlib.suppress(ValueError):
                yield from url_secrets(server.url)

    def close(self) -> None:
        """End all requests."""
        for wanted in tuple(self._open):
            wanted.end()


class ServersWanted(Stream):
    """The answer to such a request: a line that says which servers are used, then, if there are
    some, nothing more until one side ends it."""

    headers: Pairs = (("Content-Type", "application/json"), ("Cache-Control", "no-cache"))

    def __init__(
        self, servers: ClientServers, taken: list[ToolServer], answer: UsedServers
    ) -> None:
        self.taken = taken
        self.answer = answer
        self._servers = servers
        self._sink: ByteSink | None = None

    def opened(self, sink: ByteSink) -> None:
        self._sink = sink
        sink.write(dumps(encode(self.answer)) + b"\n")
        if not self.taken:
            sink.close()

    def end(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def closed(self) -> None:
        self._servers.give_up(self)


def _server(named: ClientServer) -> ToolServer:
    """Raises Refused if it cannot be one."""
    texts = (named.name, named.command, *named.args, *named.env, *named.env.values(), named.url)
    if not 0 < len(named.name) <= NAME_CHARS or any("\0" in text for text in texts):
        raise Refused(f"a name of at most {NAME_CHARS} characters is needed, and no NUL anywhere")
    if named.type not in TYPES:
        raise Refused(f"type must be one of {', '.join(TYPES)}")
    is_program = named.type == "stdio"
    if not (named.command if is_program else named.url):
        raise Refused("it has no command" if is_program else "it has no url")
    return ToolServer(
        named.name,
        type=named.type,
        command=named.command if is_program else "",
        args=tuple(named.args) if is_program else (),
        env=tuple(named.env.items()) if is_program else (),
        url="" if is_program else named.url,
        headers=() if is_program else sendable_headers(named.headers),
    )
