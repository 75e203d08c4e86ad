"""Connections to tool servers, and the one to a program over its pipes. web.py has the streamable
HTTP transport, sse.py the old one.

A link carries requests and notifications; what they mean is the business of session.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from ..clock import wait_at_most
from ..commands.process import start_piped
from ..jsonrpc.errors import METHOD_NOT_FOUND, RpcError
from ..jsonrpc.peer import PeerOptions, RpcHandler, RpcPeer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from ..clock import Clock
    from ..commands.process import Command
    from ..jsonrpc.peer import RpcRequest
    from ..protocol.codec import JSON

FRAME_BYTES = 64 << 20
EXIT_SECONDS = 1.0  # after the end of its input, before a program is killed
END_SECONDS = 5.0  # for killed processes to be gone
ERROR_LINES = 5
ERROR_CHARS = 2000


class Link(Protocol):
    gone: asyncio.Future[str]  # set when the connection has ended by itself, with the reason

    def use_version(self, version: str, *, modern: bool) -> None:
        """Send this version with all further messages, if the transport has a place for it."""

    async def request(
        self, method: str, params: dict[str, Any], *, seconds: float | None, cancellable: bool
    ) -> JSON:
        """Ask, and return the result; None waits for ever. If the time is up or the caller is
        cancelled, the server is told, if the request is `cancellable`. Raises PeerError."""

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification. Raises PeerError."""

    async def listen(self) -> None:
        """Hear notifications that come without a request, if that needs a connection of its own.
        Returns if it does not, or if there are none. Raises PeerError."""

    def last_words(self) -> str:
        """What the server has written to its log last; empty if that is not known."""

    async def close(self) -> None:
        """End the connection and all processes behind it, in a bounded time."""


class Hearing(RpcHandler):
    """Handles the messages of a server: passes notifications on, and refuses all requests but
    `ping`, since this client advertises nothing that a server could ask for."""

    def __init__(self, notice: Callable[[str, dict[str, Any]], None]) -> None:
        self._notice = notice

    def on_request(self, request: RpcRequest) -> Awaitable[JSON]:
        return answered(request.method)

    def on_notification(self, method: str, params: dict[str, Any]) -> None:
        self._notice(method, params)


async def answered(method: str) -> JSON:
    """The answer to a request of a server. Raises RpcError."""
    if method == "ping":
        return {}
    raise RpcError(METHOD_NOT_FOUND, f"the method {method[:100]} is not known here")


class PeerLink:
    """A link over a RpcPeer."""

    def __init__(self, peer: RpcPeer) -> None:
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._peer = peer
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        await self._peer.run()
        if not self.gone.done():
            self.gone.set_result(await self._reason())

    async def _reason(self) -> str:
        return "the connection has ended"

    def use_version(self, version: str, *, modern: bool) -> None:
        """Does nothing: the version is sent only in messages."""

    async def request(
        self, method: str, params: dict[str, Any], *, seconds: float | None, cancellable: bool
    ) -> JSON:
        return await self._peer.request(method, params, seconds=seconds, cancellable=cancellable)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._peer.notify(method, params)

    async def listen(self) -> None:
        """Does nothing: notifications come over the same connection."""

    def last_words(self) -> str:
        return ""

    async def close(self) -> None:
        if not self.gone.done():
            self.gone.set_result("the connection was closed")
        await self._peer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


def peer_options() -> PeerOptions:
    return PeerOptions(
        frame=FRAME_BYTES,
        cancel_notice=lambda ident: ("notifications/cancelled", {"requestId": ident}),
    )


# A program ----------------------------------------------------------------------------------------


class ProgramLink(PeerLink):
    """A link over the pipes of a program. The program runs under a keeper, which kills everything
    that it has started together with it."""

    def __init__(self, peer: RpcPeer, command: Command, clock: Clock) -> None:
        super().__init__(peer)
        self._command = command
        self._clock = clock

    @classmethod
    async def open(
        cls,
        arguments: list[str],
        cwd: Path,
        env: Mapping[str, str],
        clock: Clock,
        notice: Callable[[str, dict[str, Any]], None],
    ) -> ProgramLink:
        """Raises CrushliteError if it cannot be started."""
        command, reader, writer = await start_piped(arguments, cwd=cwd, env=env, clock=clock)
        return cls(RpcPeer(reader, writer, Hearing(notice), clock, peer_options()), command, clock)

    async def _reason(self) -> str:
        # The end of its output comes a moment before its exit is known.
        done = self._command.done
        if await wait_at_most(self._clock, done, EXIT_SECONDS) and not done.cancelled():
            return f"it has exited with code {done.result().code}"
        return "it has closed its output"

    def last_words(self) -> str:
        lines = self._command.output.text().strip().splitlines()[-ERROR_LINES:]
        return "\n".join(lines)[-ERROR_CHARS:]

    async def close(self) -> None:
        """Close its input, which ends well-behaved servers, then kill all that is left: at once if
        this is cancelled."""
        try:
            await super().close()
            await wait_at_most(self._clock, self._command.done, EXIT_SECONDS)
        finally:
            self._command.kill()
            await wait_at_most(self._clock, self._command.done, END_SECONDS)
