"""How providers are reached: one HTTP client each, streamed answers, and every failure as one type.

Whatever goes wrong between us and a provider (no route, TLS, a status, a web page, silence, bytes
that are not JSON) leaves this module as a ProviderError that holds the provider's own words, says
whether a retry can help, and never holds a secret. Knows nothing of messages, models or tools:
what the events of an answer mean is the business of the module of each kind of provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import re
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from ...clock import time_limit
from ...errors import BadRequest
from ...http.client import ClientError, ConnectFailed, HTTPClient, TCPConnector
from ...http.sse import SSEEvent, SSEParser, SSETooLong
from ...version import __version__
from ..proxies import NO_PROXIES
from ..tunnel import Proxy, ProxyRefused, TunnelConnector
from .base import ProviderError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from ...clock import Clock
    from ...http.client import Connector, StreamResponse
    from ...http.messages import Headers
    from ..proxies import Proxies

T = TypeVar("T")

MODELS_SECONDS = 2.0  # for a list of models

# The `event` of a body that was no event stream but one JSON document.
WHOLE = "whole"

_LINE_LIMIT = 8 << 20
_TOTAL_LIMIT = 64 << 20
# An error answer is read as far as somebody might read it, and not for long.
_ERROR_BYTES = 64 * 1024
_ERROR_SECONDS = 10.0
_MESSAGE_LIMIT = 2000
# After the end of the answer only the usage can follow, and some servers never close.
_HURRY_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 64 * 1024
# Common servers close idle connections after 5 to 60 s; we notice, but a request that races with
# the close fails, so keep them only for the pause between two steps of a turn.
_IDLE_SECONDS = 30.0

_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "text/event-stream, application/json"),
)
_BOM = b"\xef\xbb\xbf"
_HOST = re.compile(r"[A-Za-z0-9._~:%-]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)

_RETRYABLE = frozenset({408, 409, 425, 429})
# What errors are called when they come without a status, inside a stream.
_KINDS = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "content_policy_violation": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `first_byte` includes connecting; `idle` bounds each silence after it."""

    connect: float = 30.0
    first_byte: float = 120.0
    idle: float = 120.0


# Values from outside.


class Mender:
    """Text in pieces, made sound: JSON can carry halves of a surrogate pair, even one half at the
    end of a piece and the other in the next. Pairs are joined, lone halves become U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def __call__(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if text and 0xD800 <= ord(text[-1]) <= 0xDBFF:
            text, self._half = text[:-1], text[-1]
        if _SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


def decoded(data: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise malformed(f"something that is not JSON: {data}") from None


def malformed(what: str) -> ProviderError:
    return ProviderError(f"the provider sent {what}", retryable=True)


def count(value: object) -> int | None:
    """A number of tokens; anything else is no report at all."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def model_ids(answer: Any) -> list[str]:
    """The ids in a list of models, in its order."""
    found = answer
    if isinstance(answer, dict):
        found = answer.get("data", answer.get("models"))
    if not isinstance(found, list):
        raise refusal(answer)
    ids = [m.get("id") or m.get("name") if isinstance(m, dict) else m for m in found]
    return [id_ for id_ in ids if isinstance(id_, str) and id_]


# Errors. Their texts are cut and cleared of secrets in one place, when they leave `Transport`: half
# a secret would no longer be recognised.


def refusal(value: Any, *, status: int = 0) -> ProviderError:
    """The error for an error document, in the provider's words. Inside a stream there is no
    status, and the document must say all of it."""
    inner, kinds = _error_of(value)
    said = status or _status_in(inner) or next((_KINDS[k] for k in kinds if k in _KINDS), 0)
    text = _words(inner) or _phrase(said)
    if kinds and kinds[0] not in text:
        text = f"{text} ({kinds[0]})"
    # An empty account is answered with 429 too, and no waiting fills it.
    empty = "insufficient_quota" in kinds
    waiting_helps = (not said or said in _RETRYABLE or said >= 500) and not empty
    number = f" {status}" if status else ""
    message = f"the provider answered{number}: {text}"
    return ProviderError(message, status=said, retryable=waiting_helps)


def _error_of(value: Any) -> tuple[Any, list[str]]:
    """The object that describes the error, and what it calls itself."""
    if isinstance(value, list):
        value = next((item for item in value if isinstance(item, dict)), value)
    if isinstance(value, dict) and isinstance(value.get("error"), dict | str) and value["error"]:
        value = value["error"]
    if not isinstance(value, dict):
        return value, []
    found = (value.get(name) for name in ("code", "type", "status"))
    return value, [kind for kind in found if isinstance(kind, str) and kind]


def _status_in(error: Any) -> int:
    """Gateways put the status of the server behind them into the document."""
    if not isinstance(error, dict):
        return 0
    for name in ("code", "status", "status_code"):
        value = error.get(name)
        if isinstance(value, str) and len(value) == 3 and value.isdecimal():
            value = int(value)
        number = count(value)
        if number is not None and 400 <= number <= 599:
            return number
    return 0


def _words(error: Any) -> str:
    """What an error object says, in whichever of the usual fields it says it."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return json.dumps(error) if error else ""
    for name in ("message", "msg", "detail", "error_description", "description", "title"):
        value = error.get(name)
        if isinstance(value, list):
            value = "; ".join(_complaint(item) for item in value)
        elif isinstance(value, dict):
            value = _words(value)
        if isinstance(value, str) and value.strip():
            return value + _raw(error.get("metadata"))
    return json.dumps(error) if error else ""


def _complaint(item: Any) -> str:
    """One line of a list of validation errors."""
    if not isinstance(item, dict):
        return str(item)
    place = item.get("loc")
    where = ".".join(str(step) for step in place) + ": " if isinstance(place, list) else ""
    return where + str(item.get("msg") or item.get("message") or json.dumps(item))


def _raw(metadata: Any) -> str:
    """A gateway's message is only a frame; the words of the server behind it stand here."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw}" if isinstance(raw, str) and raw else ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no reason given"


def _shown(text: str) -> str:
    """One readable paragraph of bounded length: it may have been a page or a memory dump."""
    plain = "".join(c if c.isprintable() else " " for c in text[: _MESSAGE_LIMIT * 4])
    plain = " ".join(plain.split())
    return plain if len(plain) <= _MESSAGE_LIMIT else plain[: _MESSAGE_LIMIT - 3] + "..."


def _page_text(page: str) -> str:
    # The cut keeps the pattern cheap on pages made to be expensive.
    return " ".join(_MARKUP.sub(" ", page[:8192]).split())


def _document(body: bytes) -> Any:
    """An error body: JSON if it is JSON, else the text that a reader would see."""
    text = body.decode("utf-8-sig", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _page_text(text) if text.startswith("<") else text


def _retry_after(headers: Headers, now: float) -> float:
    """Seconds, from milliseconds, seconds or a date; 0 if nothing usable is said."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (wait := _number(headers.get(name))) is not None:
            return wait / 1000
    value = headers.get("retry-after")
    if (wait := _number(value)) is not None or value is None:
        return wait or 0.0
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


# Connecting.


def _merged(
    own: Iterable[tuple[str, str]], extra: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Configured headers win over our own of the same name. Raises ProviderError for one that
    cannot be sent, without its value, which may be a secret."""
    extra = [(name, value.strip()) for name, value in extra]
    given = {name.lower() for name, _ in extra}
    if framing := given & _FRAMING:
        raise ProviderError(f"the header {min(framing)!r} cannot be configured")
    merged = [(name, value) for name, value in own if name.lower() not in given] + extra
    for name, value in merged:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ProviderError(f"the header {name!r} has a value that cannot be sent")
    return tuple(merged)


class _Endpoint:
    """A base URL, taken apart. Also the client's connector: connects within a time limit, and
    makes the TLS context on first use, in a thread, since it reads every root certificate."""

    def __init__(self, base_url: str, clock: Clock, timeout: float, proxies: Proxies) -> None:
        try:
            url = urlsplit(base_url.strip())
            host = (url.hostname or "").encode("idna").decode("ascii")
            port = url.port
        except ValueError as error:  # includes UnicodeError
            raise ProviderError(f"not a base URL: {error}") from None
        if url.scheme not in ("http", "https") or not _HOST.fullmatch(host):
            raise ProviderError("a base URL looks like https://host/prefix")
        if "@" in url.netloc:
            raise ProviderError("a base URL holds no user name: use api_key or extra_headers")
        self.secure = url.scheme == "https"
        self.host = host
        self.port = port or (443 if self.secure else 80)
        shown = f"[{host}]" if ":" in host else host
        self.host_header = shown if port is None else f"{shown}:{port}"
        self.prefix = quote(url.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self.query = f"?{quote(url.query, safe='/%:@!$&()*+,;=~?')}" if url.query else ""
        self._clock = clock
        self._timeout = timeout
        self._context: ssl.SSLContext | None = None
        self.proxy: Proxy | None = None
        self._no_way = ""  # why there is none: said by the first request, not to whoever starts
        try:
            self.proxy = proxies.find(self.host, self.port, secure=self.secure)
        except BadRequest as error:
            self._no_way = error.message

    def target(self, path: str) -> str:
        target = f"{self.prefix}{path}{self.query}"
        whole = self.proxy is not None and not self.secure  # a proxy must be told whom to ask
        return f"http://{self.host_header}{target}" if whole else target

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        place = f"{self.host}:{self.port}"
        if self._no_way:
            raise ProxyRefused(self._no_way)
        try:
            async with time_limit(self._clock, self._timeout):
                connector = await self._connector()
                return await connector.connect(factory)
        except TimeoutError:
            reason = f"no connection within {self._timeout:g} s"
            raise ConnectFailed(f"cannot connect to {place}: {reason}") from None
        except (OSError, ValueError, ImportError) as error:  # a bad name, a bad CA file, no TLS
            raise ConnectFailed(f"cannot connect to {place}: {error}") from error

    async def _connector(self) -> Connector:
        proxy, context = self.proxy, await self.context()
        if proxy is None:
            return TCPConnector(self.host, self.port, ssl=context)
        outer = await self._tls() if proxy.secure else None
        if context is None:
            return TCPConnector(proxy.host, proxy.port, ssl=outer)
        return TunnelConnector(proxy, self.host, self.port, ssl=context, proxy_ssl=outer)

    async def context(self) -> ssl.SSLContext | None:
        return await self._tls() if self.secure else None

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(_tls)
        return self._context


def _tls() -> ssl.SSLContext:
    import ssl  # not every Python has it, and a provider on this machine needs none

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


# Asking.


class Transport:
    """Requests to one provider. Safe to use from many tasks of one loop."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Iterable[tuple[str, str]],
        extra_headers: Iterable[tuple[str, str]] = (),
        clock: Clock,
        timeouts: Timeouts | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> None:
        agent = ("User-Agent", f"crushlite/{__version__}")
        pairs = _merged((agent, *_HEADERS, *headers), extra_headers)
        self._timeouts = timeouts or Timeouts()
        self._clock = clock
        self.endpoint = _Endpoint(base_url, clock, self._timeouts.connect, proxies)
        proxy = self.endpoint.proxy
        pass_on = [("Proxy-Authorization", proxy.authorization)] if proxy else []
        self._secrets = _secrets_of([*pairs, *pass_on])
        if proxy and proxy.authorization and not self.endpoint.secure:
            pairs = (*pairs, *pass_on)  # else only the CONNECT shows it: it is not the server's
        self._client = HTTPClient(
            self.endpoint,
            host_header=self.endpoint.host_header,
            headers=pairs,
            clock=clock,
            idle_seconds=_IDLE_SECONDS,
        )

    @contextlib.asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Reply]:
        """Send a request and read its answer as it comes. Leaving the block before its end closes
        the connection at once. Errors that the block raises are made safe to show as well."""
        async with (
            self._translated(),
            self._client.stream(
                "POST",
                self.endpoint.target(path),
                body=_encoded(body),
                timeout=self._timeouts.first_byte,
            ) as response,
        ):
            await self._check(response)
            yield Reply(response, self._clock, self._timeouts.idle)

    async def get(self, path: str, read: Callable[[Any], T], *, timeout: float) -> T:
        """What `read` makes of a JSON document that arrives whole within `timeout` seconds."""
        async with self._translated():
            try:
                async with (
                    time_limit(self._clock, timeout),
                    self._client.stream("GET", self.endpoint.target(path)) as response,
                ):
                    await self._check(response)
                    body = await response.read(_LINE_LIMIT)
            except TimeoutError:
                raise ClientError(f"no answer within {timeout:g} s") from None
            return read(decoded(body.decode("utf-8-sig", "replace")))

    async def aclose(self) -> None:
        await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except ProviderError as error:
            raise self._safe(error) from None
        except (ClientError, OSError, ValueError, RecursionError) as error:
            # By name, because of a Python without `ssl`. No waiting makes a certificate good.
            distrusted = type(error.__cause__).__name__ == "SSLCertVerificationError"
            refused = isinstance(error, ProxyRefused) and error.status < 500
            message = f"{self.endpoint.host}: {error}"
            hopeless = distrusted or refused
            raise self._safe(ProviderError(message, retryable=not hopeless)) from None

    def _safe(self, error: ProviderError) -> ProviderError:
        text = str(error)
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
            # What was read may end in the middle of one.
            half = next((n for n in range(len(secret), 3, -1) if text.endswith(secret[:n])), 0)
            text = text[: len(text) - half]
        return ProviderError(
            _shown(text),
            status=error.upstream_status,
            retryable=error.retryable,
            retry_after=error.retry_after,
        )

    async def _check(self, response: StreamResponse) -> None:
        """Raise for whatever is not an answer that can be read."""
        status, headers = response.status, response.headers
        if 300 <= status < 400:
            place = headers.get("location") or "nowhere"
            text = f"the provider answered {status}, a redirect to {place}: correct the base URL"
            raise ProviderError(text, status=status)
        if not 200 <= status < 300:
            error = refusal(_document(await self._error_body(response)), status=status)
            error.retry_after = _retry_after(headers, self._clock.now())
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
            pass  # the status is known; what came of the words must do
        return bytes(body[:_ERROR_BYTES])


def _secrets_of(headers: Iterable[tuple[str, str]]) -> list[str]:
    """What must never be shown, the longest first: one may contain another. Very short ones are
    placeholders ("x", "no"), and blotting them out would spoil every message."""
    found: set[str] = set()
    for name, value in headers:
        if _SECRET_NAME.search(name):
            found |= {value, value.rpartition(" ")[2]}
    return sorted((s for s in found if len(s) >= 4), key=len, reverse=True)


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError(f"the request cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "replace")  # half a surrogate pair becomes a question mark


class Reply:
    """The answer to a request, as events. A body that is no event stream but one JSON document is
    a single event called WHOLE: some servers answer so whatever they were asked for. What the
    body is, is judged by its first byte, because declared types are often wrong."""

    def __init__(self, response: StreamResponse, clock: Clock, idle: float) -> None:
        self._response = response
        self._clock = clock
        self._patience = idle
        self._parser = SSEParser(line_limit=_LINE_LIMIT)
        self._events: deque[SSEEvent] = deque()
        self._total = 0
        self._kind = ""  # "stream", "document" or "page" once the first byte is here
        self._held = bytearray()  # a document or a page; of a stream only what precedes an event
        self._heard = False  # some event has come
        self._ended = False
        self._in_hurry = False

    def hurry(self) -> None:
        """The answer is complete: what may still come is not waited for long, and a failure from
        now on is only an end."""
        self._in_hurry = True
        self._patience = min(self._patience, _HURRY_SECONDS)

    async def drain(self) -> None:
        """Read to the end, if it is near: then the connection can serve the next request."""
        try:
            async with time_limit(self._clock, _DRAIN_SECONDS):
                left = _DRAIN_BYTES
                async for chunk in self._response:
                    left -= len(chunk)
                    if left < 0:
                        return
        except (ClientError, TimeoutError):
            pass  # the answer is complete; only the connection is lost

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> SSEEvent:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        try:
            async with time_limit(self._clock, self._patience):
                chunk = await anext(self._response, b"")
        except (ClientError, TimeoutError) as error:
            if not self._in_hurry:
                raise self._broken(error) from None
            chunk = b""
        self._total += len(chunk)
        if self._total > _TOTAL_LIMIT:
            raise ProviderError(f"the provider's answer is over {_TOTAL_LIMIT >> 20} MiB")
        try:
            self._events.extend(self._parsed(chunk) if chunk else self._rest())
        except SSETooLong:
            limit = f"{_LINE_LIMIT >> 20} MiB"
            raise ProviderError(f"a line of the provider's answer is over {limit}") from None

    def _broken(self, error: Exception) -> ProviderError:
        silent = f"the provider fell silent for {self._patience:g} s in mid-answer"
        what = silent if isinstance(error, TimeoutError) else f"the answer broke off: {error}"
        return ProviderError(what, retryable=True)

    def _parsed(self, chunk: bytes) -> list[SSEEvent]:
        fresh = chunk
        if not self._kind:
            self._held += chunk
            self._kind = _kind(self._held)
            fresh = bytes(self._held)
        elif self._kind != "stream" or (not self._heard and len(self._held) < _MESSAGE_LIMIT):
            self._held += chunk
        if self._kind == "stream":
            events = self._parser.feed(fresh)
            self._heard = self._heard or bool(events)
            return events
        if self._kind == "page" and len(self._held) > _ERROR_BYTES:
            raise self._page()
        return []

    def _rest(self) -> list[SSEEvent]:
        """The body has ended: an event without its empty line counts all the same."""
        self._ended = True
        if self._kind == "page":
            raise self._page()
        if self._kind == "document":
            return [SSEEvent(self._held.decode("utf-8-sig", "replace"), WHOLE)]
        events = [] if self._in_hurry else self._parser.feed(b"\n\n")
        if not events and not self._heard:
            lines = self._held.decode("utf-8", "replace").splitlines()
            words = " ".join(line for line in lines if not line.startswith(":"))
            if words.strip():
                raise malformed(f"no answer but this: {words}")
        return events

    def _page(self) -> ProviderError:
        text = _page_text(self._held.decode("utf-8", "replace"))
        return ProviderError(f"the provider sent a web page, not an answer: {text}")


def _kind(start: bytearray) -> str:
    """What a body is, by its first byte that is not white space; empty while there is none."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return ""
    first = start.removeprefix(_BOM).lstrip()[:1]
    if not first:
        return ""
    return {b"{": "document", b"[": "document", b"<": "page"}.get(bytes(first), "stream")
