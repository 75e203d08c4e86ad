"""Servers on the network, reached directly or through a proxy of the environment (see proxies.py).

Used for model providers and for web pages. With a proxy, https goes through a tunnel (tunnel.py)
and http is asked of the proxy itself, with the whole address as the target.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from ..http.client import TCPConnector
from ..records import dataclass
from ..version import __version__
from .tunnel import TunnelConnector

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..http.client import Connector
    from .tunnel import Proxy

USER_AGENT = ("User-Agent", f"crushlite/{__version__}")


class TLS:
    """The TLS context of outgoing connections. Made on first use and in a thread, because that
    reads every root certificate."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(_new_context)
        return self._context


def _new_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server and the way to it. Implements http.client.Connector."""

    host: str
    port: int
    secure: bool  # https
    proxy: Proxy | None
    tls: TLS

    @property
    def proxy_headers(self) -> tuple[tuple[str, str], ...]:
        """What a request needs besides its own headers. The credentials of a proxy are in a request
        only if the proxy reads it: through a tunnel, the server would get them."""
        if self.proxy is None or self.secure or not self.proxy.authorization:
            return ()
        return (("Proxy-Authorization", self.proxy.authorization),)

    def target(self, host_header: str, path: str) -> str:
        """The target of a request for a path: the whole address if a proxy reads it."""
        forwarded = self.proxy is not None and not self.secure
        return f"http://{host_header}{path}" if forwarded else path

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Raises ConnectFailed (ProxyRefused if the proxy does not let us through)."""
        return await (await self.connector()).connect(factory)

    async def connector(self) -> Connector:
        """What makes the connections: to the server, to the proxy, or through it."""
        context = await self.tls.context() if self.secure else None
        if self.proxy is None:
            return TCPConnector(self.host, self.port, ssl=context)
        outer = await self.tls.context() if self.proxy.secure else None
        if context is None:
            return TCPConnector(self.proxy.host, self.proxy.port, ssl=outer)
        return TunnelConnector(self.proxy, self.host, self.port, ssl=context, proxy_ssl=outer)
