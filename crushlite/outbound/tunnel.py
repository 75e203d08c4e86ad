"""TLS to a server inside of a tunnel through a proxy, opened with CONNECT.

The proxy learns the name and port of the server and nothing else: the rest is encrypted for the
server. Plain http does not use a tunnel, which a proxy may well refuse for port 80: such a request
is sent to the proxy as if it were the server (see connecting.py).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import field
from typing import TYPE_CHECKING

from ..http.client import ConnectFailed, TCPConnector
from ..records import dataclass

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import Callable

_HEAD_LIMIT = 64 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: ([\x20-\x7e]*))?\r?\n")


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    secure: bool = False  # the proxy itself is reached with TLS
    authorization: str = field(default="", repr=False)  # value of Proxy-Authorization: a secret

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ProxyRefused(ConnectFailed):
    """The proxy cannot be used or refuses to connect. A retry helps only if `status` is 5xx."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class TunnelConnector:
    """Connects to `host:port` with TLS, through a proxy. `proxy_ssl` is for a secure proxy."""

    def __init__(
        self,
        proxy: Proxy,
        host: str,
        port: int,
        *,
        ssl: ssl_module.SSLContext,
        proxy_ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self._proxy = proxy
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host = host
        self._ssl = ssl
        self._to_proxy = TCPConnector(proxy.host, proxy.port, ssl=proxy_ssl)

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Raises ProxyRefused, or ConnectFailed if the connection or TLS fails."""
        answer = _ProxyAnswer()
        transport = await self._to_proxy.connect(lambda: answer)
        try:
            transport.write(self._request())
            await answer.head
            self._check(bytes(answer.data))
            return await self._start_tls(transport, factory())
        except BaseException:
            transport.abort()
            raise

    def _request(self) -> bytes:
        lines = [f"CONNECT {self._address} HTTP/1.1", f"Host: {self._address}"]
        if self._proxy.authorization:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _check(self, head: bytes) -> None:
        """Raise ProxyRefused unless the proxy's answer has a status of 2xx."""
        found = _STATUS.match(head)
        if found is None:
            raise ProxyRefused(f"the proxy {self._proxy} does not speak HTTP")
        status, reason = int(found[1]), (found[2] or b"").decode("ascii")
        if not 200 <= status < 300:
            words = f"{status} {reason}".strip()
            raise ProxyRefused(f"the proxy {self._proxy} answered {words}", status)

    async def _start_tls(
        self, transport: asyncio.Transport, protocol: asyncio.Protocol
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, protocol, self._ssl, server_hostname=self._host
            )
        except OSError as error:  # includes ssl.SSLError
            raise ConnectFailed(f"no TLS with {self._address}: {error}") from error
        if secured is None:
            raise ConnectFailed(f"no TLS with {self._address}: the connection was lost")
        protocol.connection_made(secured)  # start_tls does not call it
        return secured


class _ProxyAnswer(asyncio.Protocol):
    """Reads the head of the proxy's answer. No byte of the server can follow it: with TLS, the
    server waits for ours."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data
        if b"\r\n\r\n" in self.data or len(self.data) > _HEAD_LIMIT:
            self._resolve(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._resolve(ConnectFailed(f"the proxy hung up: {exc or 'closed'}"))

    def _resolve(self, error: Exception | None) -> None:
        if self.head.done():
            return
        if error is None:
            self.head.set_result(None)
        else:
            self.head.set_exception(error)
            self.head.exception()  # fetched, or asyncio complains when `connect` was cancelled
