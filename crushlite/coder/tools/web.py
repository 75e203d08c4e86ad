"""fetch: read a page of the web.

It always asks, showing the address; an address inside the local network is asked for like every
other one, and the user sees which it is. A redirect to another server asks again: only the first
one was agreed to. Nothing of the user goes along: no cookies, no credentials. A proxy of the
environment is used, and sees what it sees of every other program.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from ...errors import BadRequest
from ...http.client import ClientError, HTTPClient, TCPConnector
from ...version import __version__
from ..proxies import proxies_of
from ..tunnel import TunnelConnector
from .arguments import number, schema, text
from .base import ToolOutcome, denied, failure
from .markup import markdown, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...agent.base import Verdict
    from ...clock import Clock
    from ...http.client import Connector
    from ...http.messages import Headers
    from ..proxies import Proxies
    from ..tunnel import Proxy
    from .base import ToolUse

_CONVERTERS: dict[str, Callable[[str], str]] = {
    "text": plain_text,
    "markdown": markdown,
    "html": lambda page: page,
}
FORMATS = tuple(_CONVERTERS)
REDIRECTS = 5
BODY_BYTES = 1 << 20
SHOWN_CHARS = 100_000
ERROR_CHARS = 2000
SECONDS, MOST_SECONDS = 30, 120
URL_CHARS = 4000
PORTS = {"http": 80, "https": 443}

_HEADERS: tuple[tuple[str, str], ...] = (
    ("User-Agent", f"crushlite/{__version__}"),
    ("Accept", "text/html, text/plain, text/*;q=0.9, application/json, */*;q=0.5"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
)
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_TEXTUAL = re.compile(r"text/|application/(?:[a-z.+-]*\+)?(?:json|xml)\b|application/javascript")
# Only encodings of pages: among Python's others are some that take very long.
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|iso-?8859-\d+|latin-?1|windows-125\d|cp125\d|koi8-[ru]|"
    r"shift[_-]jis|euc-(jp|kr)|gbk|gb2312|gb18030|big5",
    re.I,
)


@dataclass(frozen=True, slots=True)
class _Address:
    scheme: str
    host: str
    port: int
    target: str

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def server(self) -> tuple[str, int]:
        """What a permission is for. From http to https, on their own ports, it stays the same."""
        return self.host, 0 if self.port == PORTS[self.scheme] else self.port

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.target}"


def _address(url: str) -> _Address:
    """What will be asked of whom: also what the user is shown, so that look-alikes show."""
    if len(url) > URL_CHARS or re.search(r"[\x00-\x20\x7f-\xa0\\]", url):
        raise BadRequest("url is too long, or holds blanks or control characters")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        host = host.encode("idna").decode("ascii") if not host.isascii() else host
    except ValueError as error:
        raise BadRequest(f"url is not valid: {error}") from None
    if parts.scheme not in PORTS:
        raise BadRequest("url must begin with http:// or https://")
    if "@" in parts.netloc:
        raise BadRequest("url must not hold a user name or password")
    if not _HOST.fullmatch(host) or port == 0:
        raise BadRequest("url names no host")
    target = quote(parts.path or "/", safe="/:@!$&'()*+,;=~-._%")
    if parts.query:
        target += "?" + quote(parts.query, safe="/?:@!$&'()*+,;=~-._%[]|")
    return _Address(parts.scheme, host, PORTS[parts.scheme] if port is None else port, target)


@dataclass(frozen=True, slots=True)
class _Page:
    status: int
    headers: Headers
    body: bytes
    cut: bool


class Fetch:
    name = "fetch"
    description = (
        "Get a web page or file by its address, as text, as Markdown, or as it is (html). Only "
        f"texts, at most {BODY_BYTES >> 20} MiB of them."
    )
    parameters = schema(
        {
            "url": {"type": "string", "description": "With http:// or https://"},
            "format": {"type": "string", "enum": list(FORMATS)},
            "timeout": {
                "type": "integer",
                "description": f"Seconds, {SECONDS} if absent, at most {MOST_SECONDS}",
            },
        },
        "url",
        "format",
    )
    read_only = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ssl: ssl.SSLContext | None = None

    async def run(self, call: ToolUse) -> ToolOutcome:
        wanted = text(call, "format", required=False) or "text"
        if wanted not in FORMATS:
            raise BadRequest(f"format must be one of {', '.join(FORMATS)}")
        timeout = number(call, "timeout", 0)
        address = _address(text(call, "url"))
        proxies = proxies_of(call.context.env)
        asked: set[tuple[str, int]] = set()
        for _ in range(REDIRECTS + 1):
            if address.server not in asked:
                verdict = await _permission(call, address, wanted, timeout)
                if not verdict:
                    return denied(verdict.reason)
                asked.add(address.server)
            page = await self._get(address, min(timeout or SECONDS, MOST_SECONDS), proxies)
            location = page.headers.get("location")
            if not 300 <= page.status < 400 or not location:
                return await asyncio.to_thread(_outcome, address, page, wanted)
            address = _redirected(address, location)
        return failure(f"more than {REDIRECTS} redirects, the last one to {address}")

    async def _get(self, address: _Address, seconds: float, proxies: Proxies) -> _Page:
        proxy = proxies.find(address.host, address.port, secure=address.scheme == "https")
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(address, proxy)
        except TimeoutError:
            raise BadRequest(f"{address}: no complete answer within {seconds:g} s") from None
        except (ClientError, OSError, ValueError) as error:
            raise BadRequest(f"{address}: {error}") from None

    async def _exchange(self, address: _Address, proxy: Proxy | None) -> _Page:
        connector = await self._connector(address, proxy)
        client = HTTPClient(connector, host_header=address.host_header, clock=self._clock)
        target, headers = address.target, _HEADERS
        if proxy is not None and address.scheme == "http":  # it must be told whom to ask
            target = str(address)
            if proxy.authorization:
                headers = (*headers, ("Proxy-Authorization", proxy.authorization))
        body, cut = bytearray(), False
        async with (
            client,
            client.stream("GET", target, headers=headers, timeout=None) as response,
        ):
            async for chunk in response:
                body += chunk
                if len(body) > BODY_BYTES:
                    cut = True
                    break
        return _Page(response.status, response.headers, bytes(body[:BODY_BYTES]), cut)

    async def _connector(self, address: _Address, proxy: Proxy | None) -> Connector:
        inner = await self._context() if address.scheme == "https" else None
        if proxy is None:
            return TCPConnector(address.host, address.port, ssl=inner)
        outer = await self._context() if proxy.secure else None
        if inner is None:
            return TCPConnector(proxy.host, proxy.port, ssl=outer)
        return TunnelConnector(proxy, address.host, address.port, ssl=inner, proxy_ssl=outer)

    async def _context(self) -> ssl.SSLContext:
        if self._ssl is None:
            self._ssl = await asyncio.to_thread(ssl.create_default_context)
        return self._ssl


async def _permission(call: ToolUse, address: _Address, wanted: str, timeout: int) -> Verdict:
    params: dict[str, str | int] = {"url": str(address), "format": wanted}
    if timeout:
        params["timeout"] = timeout
    return await call.turn.permission(
        call.name,
        "fetch",
        description=f"Fetch {address}",
        params=params,
        path=str(call.context.path),
        tool_call_id=call.id,
    )


def _redirected(address: _Address, location: str) -> _Address:
    try:
        following = urljoin(str(address), location.strip())
    except ValueError:
        raise BadRequest(f"{address} redirects to something that is no address") from None
    return _address(following)


def _outcome(address: _Address, page: _Page, wanted: str) -> ToolOutcome:
    kind = (page.headers.get("content-type") or "").lower()
    content = _decoded(_unpacked(page), kind)
    if content is None or (kind and not _TEXTUAL.match(kind)):
        return failure(f"{address} is not a text: {kind or 'of an unknown kind'}")
    if "html" in kind or (not kind and content.lstrip()[:1] == "<"):
        content = _CONVERTERS[wanted](content)
    if page.status >= 400:
        return failure(f"{address} answered {_status(page.status)}\n{content[:ERROR_CHARS]}")
    if page.cut or len(content) > SHOWN_CHARS:
        content = f"{content[:SHOWN_CHARS]}\n(there is more: only the beginning is shown)"
    return ToolOutcome(content or "(the page is empty)")


def _status(status: int) -> str:
    known = {int(value): value.phrase for value in HTTPStatus}
    return f"{status} {known.get(status, '')}".rstrip()


def _unpacked(page: _Page) -> bytes:
    """Some servers compress although they were asked not to."""
    encoding = (page.headers.get("content-encoding") or "identity").lower()
    if encoding in ("identity", ""):
        return page.body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadRequest(f"the answer is encoded as {encoding}, which is not supported")
    try:
        return zlib.decompressobj(wbits=47).decompress(page.body, BODY_BYTES)
    except zlib.error as error:
        raise BadRequest(f"the answer cannot be decompressed: {error}") from None


def _decoded(data: bytes, kind: str) -> str | None:
    found = re.search(r"charset=[\"']?([\w-]{1,30})", kind)
    charset = found[1] if found and _CHARSETS.fullmatch(found[1]) else "utf-8"
    if b"\0" in data[:8192] and "16" not in charset:
        return None
    try:
        return data.decode(charset, "replace").replace("\0", "")
    except (LookupError, UnicodeError):
        return data.decode("utf-8", "replace").replace("\0", "")
