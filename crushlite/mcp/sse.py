"""The transport of 2024: answers come over one event stream, requests are posted to an address that
the stream begins with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from ..http.client import ClientError
from ..http.sse import SSEParser, SSETooLong
from ..jsonrpc.errors import RpcError
from ..jsonrpc.peer import RpcPeer
from .errors import ServerError
from .links import FRAME_BYTES, Hearing, PeerLink, peer_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .web import WebClient


class _EventReader:
    """The messages of an event stream as lines."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)  # None: the end
        self._line, self._at = b"", 0  # the line that is being read, and how far it was
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def pump(self, client: WebClient) -> None:
        """Read the stream until it ends, as fast as the lines are read."""
        error: ServerError | RpcError = ServerError("the stream has ended")
        try:
            async with client.stream("GET", headers=(("Accept", "text/event-stream"),)) as response:
                await client.check(response)
                parser = SSEParser(line_limit=FRAME_BYTES)
                async for chunk in response:
                    for event in parser.feed(chunk):
                        if event.event == "endpoint" and not self.endpoint.done():
                            self.endpoint.set_result(event.data)
                        elif event.event == "message":
                            # JSON holds no line breaks but between its values.
                            await self._lines.put(event.data.replace("\n", " ").encode() + b"\n")
        except (ServerError, RpcError) as refused:
            error = refused
        except (ClientError, OSError, SSETooLong, ValueError) as broken:
            error = ServerError(str(broken))
        if not self.endpoint.done():
            self.endpoint.set_exception(error)
            self.endpoint.exception()  # the one who waits for it may have been cancelled
        await self._lines.put(None)

    async def read(self, n: int, /) -> bytes:
        if self._at == len(self._line):
            self._line, self._at = await self._lines.get() or b"", 0
        data = self._line[self._at : self._at + n]
        self._at += len(data)
        return data


class _PostingWriter:
    """Posts each line to the address that the server gave."""

    def __init__(self, client: WebClient, target: str) -> None:
        self._client = client
        self._target = target
        self._lines: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self._lines.append(data)

    async def drain(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            try:
                await self._client.post(line.strip(), self._target)
            except (ClientError, ServerError, RpcError, ValueError) as error:
                raise ConnectionError(str(error)) from None

    def close(self) -> None:
        """The stream is closed by the link."""


class EventLink(PeerLink):
    """A link over an event stream and posts."""

    def __init__(self, peer: RpcPeer, client: WebClient, pumping: asyncio.Task[None]) -> None:
        super().__init__(peer)
        self._client = client
        self._pumping = pumping

    @classmethod
    async def open(
        cls, client: WebClient, clock: Clock, notice: Callable[[str, dict[str, Any]], None]
    ) -> EventLink:
        """Wait for the address to post to, as long as the caller lets it. Raises ServerError or
        RpcError."""
        reader = _EventReader()
        pumping = asyncio.create_task(reader.pump(client))
        try:
            target = _target(client, await reader.endpoint)
        except BaseException:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
            raise
        writer = _PostingWriter(client, target)
        peer = RpcPeer(reader, writer, Hearing(notice), clock, peer_options())
        return cls(peer, client, pumping)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
            await self._client.aclose()


def _target(client: WebClient, endpoint: str) -> str:
    """Where to post, which must be on the same server: it gets the user's headers. Raises
    ServerError."""
    try:
        there, here = urlsplit(urljoin(client.url, endpoint)), urlsplit(client.url)
    except ValueError:
        raise ServerError(f"its endpoint {endpoint[:100]!r} is no address") from None
    if (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise ServerError("the server sends requests to another server: that is refused")
    return client.target_of(there.path + (f"?{there.query}" if there.query else ""))
