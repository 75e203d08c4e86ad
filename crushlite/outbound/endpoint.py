"""A base URL, taken apart, and the way to its server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from ..clock import time_limit
from ..errors import BadRequest
from ..http.client import ConnectFailed, why_unreachable
from .connecting import TLS, RemoteServer
from .proxies import PORTS
from .tunnel import ProxyRefused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ..clock import Clock
    from .proxies import Proxies
    from .tunnel import Proxy

_HOST = re.compile(r"[A-Za-z0-9._~:%-]+")


class Endpoint:
    """Implements http.client.Connector. Raises BadRequest for a URL that can never work."""

    def __init__(self, base_url: str, clock: Clock, timeout: float, proxies: Proxies) -> None:
        """`timeout` bounds the time to connect."""
        try:
            url = urlsplit(base_url.strip())
            host = (url.hostname or "").encode("idna").decode("ascii")
            port = url.port
        except ValueError as error:  # includes UnicodeError
            raise BadRequest(f"not a base URL: {error}") from None
        if url.scheme not in PORTS or not _HOST.fullmatch(host):
            raise BadRequest("a base URL looks like https://host/prefix")
        if "@" in url.netloc:
            raise BadRequest("a base URL holds no user name: give credentials as a key or a header")
        self.host = host
        shown = f"[{host}]" if ":" in host else host
        self.host_header = shown if port is None else f"{shown}:{port}"
        self.prefix = quote(url.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._query = f"?{quote(url.query, safe='/%:@!$&()*+,;=~?')}" if url.query else ""
        self._clock = clock
        self._timeout = timeout
        secure, port = url.scheme == "https", port or PORTS[url.scheme]
        proxy: Proxy | None = None
        self._proxy_problem = ""  # reported by the first request: it must not prevent the start
        try:
            proxy = proxies.find(host, port, secure=secure)
        except BadRequest as error:
            self._proxy_problem = error.message
        self.server = RemoteServer(host, port, secure, proxy, TLS())

    def target(self, path: str = "") -> str:
        """The target of a request for a path below the base URL, which may have a query."""
        query = self._query.replace("?", "&", 1) if "?" in path else self._query
        return self.server.target(self.host_header, f"{self.prefix}{path}{query}")

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Raises ConnectFailed, also when it takes too long."""
        if self._proxy_problem:
            raise ProxyRefused(self._proxy_problem)
        address = f"{self.host}:{self.server.port}"
        try:
            async with time_limit(self._clock, self._timeout):
                return await self.server.connect(factory)
        except TimeoutError:
            reason = f"no connection within {self._timeout:g} s"
            raise ConnectFailed(f"cannot connect to {address}: {reason}") from None
        except (OSError, ValueError) as error:  # a bad name, a bad file of certificates
            reason = why_unreachable(error)
            raise ConnectFailed(f"cannot connect to {address}: {reason}") from error
