"""Requests to one provider: connections, headers, time limits, and every failure as one type.

Whatever goes wrong on the way to a provider and back (no route, TLS, a status, a web page, silence,
bytes that are not JSON) leaves this module as a ProviderError. It quotes the provider, says whether
a retry can help, and never holds a secret. The module knows nothing of messages, models or tools:
what the events of an answer mean is the business of a Decoder.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import time_limit
from ...errors import BadRequest
from ...http.client import ClientError, ConnectFailed, HTTPClient
from ...outbound.connecting import USER_AGENT
from ...outbound.endpoint import Endpoint
from ...outbound.proxies import NO_PROXIES
from ...outbound.tunnel import ProxyRefused
from ...records import dataclass
from ..jsontext import LIGHT_CHARS, dumps, is_heavy
from ..listeners import is_own_listener
from .base import ProviderError
from .decoding import decode_json
from .failures import document_of, one_paragraph, refusal, retry_after
from .hiding import SecretHider
from .reply import LINE_LIMIT, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from ...clock import Clock
    from ...http.client import StreamResponse
    from ...outbound.proxies import Proxies
    from .base import Piece
    from .decoding import Decoder

T = TypeVar("T")

REQUEST_CHARS = 64 << 20  # more than any model takes; images count
MODELS_SECONDS = 2.0  # for a list of models

# How much of an error response is read, and for how long.
_ERROR_BYTES = 64 * 1024
_ERROR_SECONDS = 10.0
# Common servers close idle connections after 5 to 60 s. A request that races with the close fails,
# so a connection is kept only for the pause between two steps of a turn.
_IDLE_SECONDS = 30.0

_HEADERS = (
    USER_AGENT,
    ("Content-Type", "application/json"),
    ("Accept", "text/event-stream, application/json"),
)
_FAILURES = (ProviderError, ClientError, OSError, ValueError, RecursionError)
_ABSENT = "Does it run, and is its base_url right? `crushlite doctor` tries to reach it"
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `first_byte` includes connecting; `idle` bounds each silence after it."""

    connect: float = 30.0
    first_byte: float = 120.0
    idle: float = 120.0


class _ForeignListener(ConnectFailed):
    """The port of a server that was found on this machine belongs to another user."""


class _ProviderEndpoint(Endpoint):
    """With `own_listener`, connects only if the port belongs to this user or to root. Raises
    ProviderError for a URL that can never work."""

    def __init__(
        self, base_url: str, clock: Clock, timeout: float, proxies: Proxies, *, own_listener: bool
    ) -> None:
        self._own_listener = own_listener
        try:
            super().__init__(base_url, clock, timeout, proxies)
        except BadRequest as error:
            raise ProviderError(error.message) from None

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        transport = await super().connect(factory)
        # Looked at when the connection stands: the listener of before may have ended.
        port = self.server.port
        if self._own_listener and not await asyncio.to_thread(is_own_listener, port):
            transport.abort()
            raise _ForeignListener(f"{self.host}:{port} belongs to another user now")
        return transport


class Transport:
    """Requests to one provider. Safe to use from many tasks of one loop."""

    def __init__(  # noqa: PLR0913 - what a configuration says of a provider, by keyword
        self,
        base_url: str,
        *,
        headers: Iterable[tuple[str, str]],
        extra_headers: Iterable[tuple[str, str]] = (),
        clock: Clock,
        timeouts: Timeouts | None = None,
        proxies: Proxies = NO_PROXIES,
        own_listener: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """`headers` are the provider's own; `extra_headers`, which are configured, win over them.
        With `own_listener`, nothing is sent to a port that belongs to another user. `extra_body`
        are configured fields of the bodies that will be sent. Raises ProviderError for a base URL
        or header that can never work."""
        own, extra_headers = tuple(headers), tuple(extra_headers)
        pairs = _merged((*_HEADERS, *own), extra_headers)
        self._timeouts = timeouts or Timeouts()
        self._clock = clock
        self._tools: Any = None  # of the last request
        self._tools_text = b""
        self.endpoint = _ProviderEndpoint(
            base_url, clock, self._timeouts.connect, proxies, own_listener=own_listener
        )
        server = self.endpoint.server
        proxy_secret = server.proxy.authorization if server.proxy is not None else ""
        secret_headers = [*own, ("Proxy-Authorization", proxy_secret)]
        self._hider = SecretHider(base_url, secret_headers, extra_headers, extra_body or {})
        self._client = HTTPClient(
            self.endpoint,
            host_header=self.endpoint.host_header,
            headers=(*pairs, *server.proxy_headers),
            clock=clock,
            idle_seconds=_IDLE_SECONDS,
        )

    async def pieces(
        self, path: str, body: Callable[[], Mapping[str, Any]], decoder: Decoder, *, chars: int = 0
    ) -> AsyncGenerator[Piece, None]:
        """Send a request and yield what the decoder makes of its answer, as it comes. A `body` of
        many `chars` is made and written in a thread. Closing the generator before its end closes
        the connection at once. Raises ProviderError."""
        try:
            if chars > LIGHT_CHARS:
                encoded = await asyncio.to_thread(lambda: _encoded(body(), is_light=False))
            else:
                encoded = self._with_tools(body())
            async with self._client.stream(
                "POST",
                self.endpoint.target(path),
                body=encoded,
                timeout=self._timeouts.first_byte,
            ) as response:
                await self._check(response)
                reply = Reply(response, self._clock, self._timeouts.idle)
                async for event in reply:
                    if is_heavy(event.data):
                        pieces = await asyncio.to_thread(decoder.feed, event)
                    else:
                        pieces = decoder.feed(event)
                    for piece in pieces:
                        yield piece
                    if decoder.done:
                        break
                    if decoder.finished:
                        reply.expect_end()
                rest = decoder.end()
                await reply.drain()
        except _FAILURES as error:
            raise self._translated(error) from None
        # Outside of the block: the connection is free even if the consumer stops reading here.
        for piece in rest:
            yield piece

    def _with_tools(self, body: Mapping[str, Any]) -> bytes:
        """A small body as JSON. Its tools, which are most of a short conversation and hardly ever
        change, are written once and kept."""
        tools = body.get("tools")
        if tools is None:
            return _encoded(body, is_light=True)
        if tools != self._tools:
            self._tools, self._tools_text = tools, _encoded(tools, is_light=True)
        rest = {name: value for name, value in body.items() if name != "tools"}
        return b"".join((_encoded(rest, is_light=True)[:-1], b',"tools":', self._tools_text, b"}"))

    async def get(self, path: str, read: Callable[[Any], T], *, timeout: float) -> T:
        """Get a JSON document within `timeout` seconds and return what `read` makes of it. Raises
        ProviderError, also for one that `read` raises."""
        return await self._document("GET", path, b"", read, timeout)

    async def post(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], *, timeout: float
    ) -> T:
        """Send a small JSON document and return what `read` makes of the answer, as `get` does."""
        return await self._document("POST", path, _encoded(body, is_light=True), read, timeout)

    async def _document(
        self, method: str, path: str, body: bytes, read: Callable[[Any], T], timeout: float
    ) -> T:
        target = self.endpoint.target(path)
        try:
            try:
                async with (
                    time_limit(self._clock, timeout),
                    self._client.stream(method, target, body=body) as response,
                ):
                    await self._check(response)
                    body = await response.read(LINE_LIMIT)
            except TimeoutError:
                raise ClientError(f"no answer within {timeout:g} s") from None
            text = body.decode("utf-8-sig", "replace")
            if is_heavy(text):
                return await asyncio.to_thread(lambda: read(decode_json(text)))
            return read(decode_json(text))
        except _FAILURES as error:
            raise self._translated(error) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    def _translated(self, error: Exception) -> ProviderError:
        """Any failure of a request as a ProviderError that is safe to show."""
        if isinstance(error, ProviderError):
            return self._without_secrets(error)
        # No waiting makes a certificate good, a proxy that refuses agree, or a port ours.
        distrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
        refused = isinstance(error, ProxyRefused) and error.status < 500
        refused = refused or isinstance(error, _ForeignListener)
        said, host = str(error), self.endpoint.host
        absent = isinstance(error, ConnectFailed) and not (distrusted or refused)
        failed = ProviderError(
            said if host in said else f"{host}: {said}",
            retryable=not (distrusted or refused),
            advice=_ABSENT if absent else "",
        )
        return self._without_secrets(failed)

    def _without_secrets(self, error: ProviderError) -> ProviderError:
        return ProviderError(
            one_paragraph(self._hider.hide(error.said)),
            advice=error.advice,
            status=error.upstream_status,
            retryable=error.retryable,
            retry_after=error.retry_after,
            overflow=error.overflow,
        )

    async def _check(self, response: StreamResponse) -> None:
        """Raise ProviderError for a response that is not an answer, or cannot be read."""
        status, headers = response.status, response.headers
        if 300 <= status < 400:
            place = headers.get("location") or "nowhere"
            text = f"the provider answered {status}, a redirect to {place}: correct the base URL"
            raise ProviderError(text, status=status)
        if not 200 <= status < 300:
            error = refusal(document_of(await self._error_body(response)), status=status)
            error.retry_after = retry_after(headers, self._clock.now()) or error.retry_after
            raise error
        coding = headers.get("content-encoding") or "identity"
        if coding.strip().lower() != "identity":
            raise ProviderError(f"the provider sent a compressed answer ({coding})")

    async def _error_body(self, response: StreamResponse) -> bytes:
        body = bytearray()
        try:
            async with time_limit(self._clock, _ERROR_SECONDS):
                async for chunk in response:
                    body += chunk
                    if len(body) >= _ERROR_BYTES:
                        break
        except (ClientError, TimeoutError):
            pass  # the status is known; the error quotes as much as has come
        return bytes(body[:_ERROR_BYTES])


def _merged(
    own: Iterable[tuple[str, str]], extra: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """All headers; a configured one replaces our own of the same name. Raises ProviderError for one
    that cannot be sent, without its value, which may be a secret."""
    extra = [(name, value.strip()) for name, value in extra]
    given = {name.lower() for name, _ in extra}
    if framing := given & _FRAMING:
        raise ProviderError(f"the header {min(framing)!r} cannot be configured")
    merged = [(name, value) for name, value in own if name.lower() not in given] + extra
    for name, value in merged:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ProviderError(f"the header {name!r} has a value that cannot be sent")
    return tuple(merged)


def _encoded(body: Any, *, is_light: bool) -> bytes:
    try:
        text = dumps(body, REQUEST_CHARS, is_light=is_light)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError(f"the request cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "replace")  # half a surrogate pair becomes a question mark
