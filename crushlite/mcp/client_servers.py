"""Tool servers that clients name for as long as they are connected: an editor has some of its own.

A client's request stays open while it wants its servers, and they end with it. What it has sent,
which may hold secrets, is written to no file.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ..config.expand import Refused
from ..config.secrets import looks_secret, url_secrets, worth_hiding
from ..config.toolservers import TYPES, ToolServer, sendable_headers
from ..errors import BadRequest
from ..features.wire import UsedServers
from ..http.messages import Stream
from ..protocol.codec import dumps, encode
from .naming import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ..features.wire import ClientServer
    from ..http.messages import ByteSink, Pairs

MOST = 50  # of all clients of a workspace
NAME_CHARS = 100
MOST_VALUES = 200  # args, env and headers of one server
MOST_CHARS = 64 * 1024  # in all of them together


class ClientServers:
    """Those of one workspace. Two clients that name the same server share it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._wanted: dict[str, list[ToolServer]] = {}  # by name; equal ones, one for each request
        self._open: set[ServersWanted] = set()
        self.secrets: tuple[str, ...] = ()  # every text in `wanted` that may be secret

    @property
    def wanted(self) -> dict[str, ToolServer]:
        return {name: servers[0] for name, servers in self._wanted.items()}

    def want(self, named: list[ClientServer], configured: Collection[str]) -> ServersWanted:
        """Use these servers from now on, until the answer that this returns is closed. Those that
        cannot be used are named in it, with the reason. Raises BadRequest for too many."""
        if len(named) > MOST:
            raise BadRequest(f"{len(named)} tool servers in one request: name at most {MOST}")
        taken: list[ToolServer] = []
        answer = UsedServers()
        for each in named:
            try:
                if each.name in answer.used:
                    raise Refused("this request names it twice")
                taken.append(self._take(each, configured))
                answer.used.append(each.name)
            except Refused as reason:
                answer.refused[each.name[:NAME_CHARS]] = str(reason)
        self._follow()
        wanted = ServersWanted(self, taken, answer)
        self._open.add(wanted)
        return wanted

    def _take(self, named: ClientServer, configured: Collection[str]) -> ToolServer:
        """Raises Refused."""
        server = _server(named)
        known = self._wanted.get(server.name)
        if server.name in configured:
            raise Refused("the configuration has one of this name, which counts more")
        for other in configured:  # a tool of it must not have the name of one of the user's
            prefixes = sorted((f"{plain(server.name)}_", f"{plain(other)}_"))
            if prefixes[1].startswith(prefixes[0]):
                raise Refused(f"the configuration has {other!r}: names of tools could be mistaken")
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
        self._follow()

    def _follow(self) -> None:
        found = {text for server in self.wanted.values() for text in _secrets(server)}
        self.secrets = tuple(filter(worth_hiding, found))
        self._changed()

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


def _secrets(server: ToolServer) -> Iterator[str]:
    """Texts that may be secret: all values of variables and headers, and arguments that look so, by
    their form or by the name of the option before them."""
    for _, value in (*server.env, *server.headers):
        yield from (value, value.rpartition(" ")[2])
    for before, argument in zip(("", *server.args), server.args, strict=False):
        option, _, value = argument.rpartition("=")
        if looks_secret(option or before, value):
            yield value
    with contextlib.suppress(ValueError):
        yield from url_secrets(server.url)


def _server(named: ClientServer) -> ToolServer:
    """Raises Refused if it cannot be one."""
    texts = (named.name, named.command, *named.args, *named.env, *named.env.values(), named.url)
    if not 0 < len(named.name) <= NAME_CHARS or any("\0" in text for text in texts):
        raise Refused(f"a name of at most {NAME_CHARS} characters is needed, and no NUL anywhere")
    values = (*named.args, *named.env, *named.env.values(), *named.headers.values())
    if len(values) > MOST_VALUES or sum(map(len, values)) > MOST_CHARS:
        raise Refused(f"it has more than {MOST_VALUES} values, or {MOST_CHARS} characters in them")
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
