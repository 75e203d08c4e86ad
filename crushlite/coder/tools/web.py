"""fetch: read a page of the web; and what download needs for the same.

It always asks for permission, showing the address; an address in the local network is treated like
any other. A redirect to another server, or from https to http, asks again, since the permission
was for the first one.
Requests hold no cookies and no credentials of the user. A proxy of the environment is used.
"""

from __future__ import annotations

import re
import zlib
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from ...clock import time_limit
from ...errors import BadRequest
from ...http.client import ClientError, HTTPClient
from ...outbound.connecting import TLS, USER_AGENT, RemoteServer
from ...outbound.proxies import HOST, PORTS, proxies_of
from ...records import dataclass
from .arguments import number, schema, text
from .base import ToolOutcome, denied, failure
from .markup import markdown, plain_text
from .scope import page_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...agent.base import Verdict
    from ...clock import Clock
    from ...http.messages import Headers
    from ...outbound.proxies import Proxies
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
URL = {"type": "string", "description": "With http:// or https://"}
TIMEOUT = {
    "type": "integer",
    "description": f"Seconds, {SECONDS} if absent, at most {MOST_SECONDS}",
}

_HEADERS: tuple[tuple[str, str], ...] = (
    USER_AGENT,
    ("Accept", "text/html, text/plain, text/*;q=0.9, application/json, */*;q=0.5"),
    ("Accept-Encoding", "identity"),
    ("Connection", "close"),
)
_TEXTUAL = re.compile(r"text/|application/(?:[a-z.+-]*\+)?(?:json|xml)\b|application/javascript")
# Only encodings that pages use: some others that Python knows take very long.
_CHARSETS = re.compile(
    r"utf-?8|utf-?16(le|be)?|us-ascii|iso-?8859-\d+|latin-?1|windows-125\d|cp125\d|koi8-[ru]|"
    r"shift[_-]jis|euc-(jp|kr)|gbk|gb2312|gb18030|big5",
    re.I,
)


@dataclass(frozen=True, slots=True)
class PageAddress:
    """A URL, checked and taken apart."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def origin(self) -> str:
        """What a permission is for: scheme, host and port."""
        return f"{self.scheme}://{self.host_header.lower()}"

    @property
    def secured(self) -> str:
        """The origin with https; of an http address on the usual port, with the usual port too."""
        return self.origin.replace("http://", "https://", 1)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.target}"


def _address(url: str) -> PageAddress:
    """Take a URL apart. Raises BadRequest, phrased for the model, if it cannot be fetched. Names
    are in ASCII from here on, so that the user who is asked can see look-alike letters."""
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
    if not HOST.fullmatch(host) or port == 0:
        raise BadRequest("url names no host")
    target = quote(parts.path or "/", safe="/:@!$&'()*+,;=~-._%")
    if parts.query:
        target += "?" + quote(parts.query, safe="/?:@!$&'()*+,;=~-._%[]|")
    return PageAddress(parts.scheme, host, PORTS[parts.scheme] if port is None else port, target)


@dataclass(frozen=True, slots=True)
class Page:
    """A response. `cut` says that the body is longer than what was read."""

    status: int
    headers: Headers
    body: bytes
    cut: bool


class WebTool:
    """What fetch and download have in common: getting what is at an address, with permission for
    each server on the way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tls = TLS()

    async def _follow(
        self,
        call: ToolUse,
        permission: Callable[[PageAddress], Awaitable[Verdict]],
        timeout: int,
        most: int,
    ) -> tuple[PageAddress, Page] | ToolOutcome:
        """Get what is at the url of a call, at most so many bytes of it, and follow redirects; or
        the outcome of the call if permission was denied. Raises BadRequest if it cannot be got."""
        address = _address(text(call, "url"))
        # Those of the whole environment: the address of a proxy may hold a password.
        proxies = proxies_of({**call.context.env, **call.turn.env})
        seconds = min(timeout or SECONDS, MOST_SECONDS)
        asked: set[str] = set()
        for _ in range(REDIRECTS + 1):
            if address.origin not in asked:
                verdict = await permission(address)
                if not verdict:
                    return denied(verdict.reason)
                # A redirect to https on the same host needs no question; the other way does.
                asked |= {address.origin, address.secured}
            page = await self._get(address, seconds, proxies, most)
            location = page.headers.get("location")
            if not 300 <= page.status < 400 or not location:
                return address, page
            address = _redirected(address, location)
        raise BadRequest(f"more than {REDIRECTS} redirects, the last one to {address}")

    async def _get(self, address: PageAddress, seconds: float, proxies: Proxies, most: int) -> Page:
        """Raises BadRequest if there is no complete answer within `seconds`."""
        try:
            async with time_limit(self._clock, seconds):
                return await self._exchange(address, proxies, most)
        except TimeoutError:
            raise BadRequest(f"{address}: no complete answer within {seconds:g} s") from None
        except (ClientError, OSError, ValueError) as error:
            raise BadRequest(f"{address}: {error}") from None

    async def _exchange(self, address: PageAddress, proxies: Proxies, most: int) -> Page:
        secure = address.scheme == "https"
        proxy = proxies.find(address.host, address.port, secure=secure)
        server = RemoteServer(address.host, address.port, secure, proxy, self._tls)
        client = HTTPClient(server, host_header=address.host_header, clock=self._clock)
        target = server.target(address.host_header, address.target)
        headers = (*_HEADERS, *server.proxy_headers)
        body, cut = bytearray(), False
        async with (
            client,
            client.stream("GET", target, headers=headers, timeout=None) as response,
        ):
            async for chunk in response:
                body += chunk
                if len(body) > most:
                    cut = True
                    break
        return Page(response.status, response.headers, bytes(body[:most]), cut)


class Fetch(WebTool):
    name = "fetch"
    description = (
        "Get a web page or file by its address, as text, as Markdown, or as it is (html). Only "
        f"texts, at most {BODY_BYTES >> 20} MiB of them; for other files use download."
    )
    parameters = schema(
        {"url": URL, "format": {"type": "string", "enum": list(FORMATS)}, "timeout": TIMEOUT},
        "url",
        "format",
    )
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        wanted = text(call, "format", required=False) or "text"
        if wanted not in FORMATS:
            raise BadRequest(f"format must be one of {', '.join(FORMATS)}")
        timeout = number(call, "timeout", 0)
        ask = partial(_permission, call, wanted, timeout)
        got = await self._follow(call, ask, timeout, BODY_BYTES)
        if isinstance(got, ToolOutcome):
            return got
        return await call.context.blocking(_outcome, *got, wanted)


async def _permission(call: ToolUse, wanted: str, timeout: int, address: PageAddress) -> Verdict:
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
        scope=page_scope(address.origin),
    )


def _redirected(address: PageAddress, location: str) -> PageAddress:
    """The address that a redirect leads to. Raises BadRequest if it cannot be fetched."""
    try:
        following = urljoin(str(address), location.strip())
    except ValueError:
        raise BadRequest(f"{address} redirects to something that is no address") from None
    return _address(following)


def _outcome(address: PageAddress, page: Page, wanted: str) -> ToolOutcome:
    """The page in the wanted format. Takes its time: call it in a thread."""
    kind = (page.headers.get("content-type") or "").lower()
    content = _decoded(unpacked(page, BODY_BYTES), kind)
    if content is None or (kind and not _TEXTUAL.match(kind)):
        return failure(f"{address} is not a text but {kind or 'of an unknown kind'}: use download")
    if "html" in kind or (not kind and content.lstrip()[:1] == "<"):
        content = _CONVERTERS[wanted](content)
    if page.status >= 400:
        return failure(f"{address} answered {status_words(page.status)}\n{content[:ERROR_CHARS]}")
    if page.cut or len(content) > SHOWN_CHARS:
        content = f"{content[:SHOWN_CHARS]}\n(there is more: only the beginning is shown)"
    return ToolOutcome(content or "(the page is empty)")


def status_words(status: int) -> str:
    """A status as it is called."""
    known = {int(value): value.phrase for value in HTTPStatus}
    return f"{status} {known.get(status, '')}".rstrip()


def unpacked(page: Page, most: int) -> bytes:
    """At most so many bytes of the body, decompressed: some servers compress although they were
    asked not to."""
    encoding = (page.headers.get("content-encoding") or "identity").lower()
    if encoding in ("identity", ""):
        return page.body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadRequest(f"the answer is encoded as {encoding}, which is not supported")
    try:
        return zlib.decompressobj(wbits=47).decompress(page.body, most)
    except zlib.error as error:
        raise BadRequest(f"the answer cannot be decompressed: {error}") from None


def _decoded(data: bytes, kind: str) -> str | None:
    """The body as text, by the charset in its content type; None if it is binary."""
    found = re.search(r"charset=[\"']?([\w-]{1,30})", kind)
    charset = found[1] if found and _CHARSETS.fullmatch(found[1]) else "utf-8"
    if b"\0" in data[:8192] and "16" not in charset:
        return None
    try:
        return data.decode(charset, "replace").replace("\0", "")
    except (LookupError, UnicodeError):
        return data.decode("utf-8", "replace").replace("\0", "")
