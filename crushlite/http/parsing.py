"""From bytes to a `RequestHead` and a body, refusing everything ambiguous.

h11 parses; this module decides what is accepted. h11 is lenient where RFC 9112 allows it (bare LF,
folded lines, a Content-Length beside a Transfer-Encoding, lists of equal lengths, any version, any
target). Request smuggling needs two parsers that read such a request differently, so each of these
is refused here, before or after h11 has seen the head. Every refusal is an `HTTPError`, and every
refusal of a head ends the connection: it is not certain where the next request begins.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11

from ..records import dataclass
from .messages import Headers, HTTPError, Peer, RequestHead

if TYPE_CHECKING:
    from .limits import Limits

_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*(?=\r)", re.IGNORECASE)
_BAD_ESCAPE = r"%(?![0-9A-Fa-f]{2})"

# A request line is a method, a target of at most `Limits.target` bytes and a version. In a longer
# one the target is too long.
_LINE_SLACK = 64

# Bytes of framing that a chunk needs: 16 hex digits and two CRLF, rounded up.
_CHUNK_FRAMING = 32

_SLICE = 16 * 1024

_CACHED_HEAD = 1024  # bytes, at most
_CACHED_COUNT = 256


@dataclass(frozen=True, slots=True)
class ParsedHead:
    """A head, and what of it the connection itself must act on."""

    head: RequestHead
    length: int  # of the body; 0 when chunked
    chunked: ChunkedBody | None
    keep_alive: bool
    expects_continue: bool


def _bad_request(message: str) -> HTTPError:
    return HTTPError(400, "bad_request", message)


def find_head(buffer: bytearray, scanned: int, limits: Limits) -> int:
    """The length of the complete head at the start of `buffer`, or 0 if more bytes are needed.
    `scanned` bytes were searched before. Raises HTTPError as soon as a head cannot become good: a
    peer that will never send CRLF CRLF gets an answer at once and not after a time-out."""
    if buffer[0] < 0x21:
        raise _bad_request("a request starts with a method")
    end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
    bare = _BARE_LF.search(buffer, scanned)
    if bare is not None and (end < 0 or bare.start() < end):
        raise _bad_request("lines end with CR LF")
    length = end + 4 if end >= 0 else 0
    size = length or len(buffer) + 1
    if size > limits.target:
        line = buffer.find(b"\r\n")
        if (line if line >= 0 else len(buffer)) > limits.target + _LINE_SLACK:
            raise HTTPError(414, "target_too_long", "the request target is too long")
        if size > limits.head:
            raise HTTPError(431, "head_too_large", "the request head is too large")
    return length


class HeadParser:
    """Parses complete heads, with a cache: clients repeat heads byte for byte (polling, cancelling,
    health checks), and parsing one costs more than all the rest of a request. Only small heads
    without query or chunked body are kept: these share nothing that can change."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cache: dict[tuple[object, ...], ParsedHead] = {}  # by head and peer

    def parse(self, raw: bytes, peer: Peer) -> ParsedHead:
        """Parse one head, up to and with its empty line. Raises HTTPError."""
        key = raw, peer.kind, peer.port
        known = self._cache.get(key)
        if known is None:
            known = _parsed(raw, peer, self._limits)
            if len(raw) <= _CACHED_HEAD and known.chunked is None and not known.head.query:
                if len(self._cache) >= _CACHED_COUNT:
                    self._cache.clear()
                self._cache[key] = known
        return known


def _parsed(raw: bytes, peer: Peer, limits: Limits) -> ParsedHead:
    if b"\r\n " in raw or b"\r\n\t" in raw:
        raise _bad_request("folded header lines are not accepted")
    if raw.count(b"\r\n") - 2 > limits.header_count:
        raise HTTPError(431, "too_many_headers", "too many header fields")
    # The head is complete, so h11's own limit on incomplete input cannot apply to it; it does
    # apply to a chunk's header line, which is fed to this same object later.
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.chunk_overhead)
    try:
        parser.receive_data(raw)
        event = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise _translated(error) from None
    if not isinstance(event, h11.Request):
        raise _bad_request("malformed request")
    fields = [(name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers]
    headers = Headers(fields)
    if event.http_version not in (b"1.1", b"1.0"):
        raise HTTPError(505, "version_not_supported", "this server speaks HTTP/1.1")
    length, is_chunked = _framing(raw, headers, event.http_version)
    method = event.method.decode("ascii")
    target = event.target.decode("ascii")
    if method == "CONNECT":
        raise HTTPError(405, "method_not_allowed", "this is not a proxy")
    if len(target) > limits.target:
        raise HTTPError(414, "target_too_long", "the request target is too long")
    target = _origin_form(target, headers)
    segments, query = split_target(target)
    modern = event.http_version == b"1.1"
    has_body = is_chunked or length > 0
    return ParsedHead(
        RequestHead(method, target, segments, query, headers, peer),
        length,
        ChunkedBody(parser, limits) if is_chunked else None,
        modern and not ("connection" in headers and _wants_close(headers)),
        modern and "expect" in headers and _expects_continue(headers) and has_body,
    )


def _translated(error: h11.RemoteProtocolError) -> HTTPError:
    status = error.error_status_hint
    if status == 501:
        return HTTPError(501, "not_implemented", "this transfer coding is not implemented")
    if status == 431:
        return _bad_request("a chunk header or trailer is too long")
    # Without h11's message: it quotes the input, and echoing that helps only an attacker.
    return _bad_request("malformed request")


def _framing(raw: bytes, headers: Headers, version: bytes) -> tuple[int, bool]:
    """The length of the body, and whether it is chunked. h11 has checked digits and codings."""
    has_length = "content-length" in headers
    if "transfer-encoding" in headers:
        if has_length:
            raise _bad_request("Content-Length and Transfer-Encoding exclude each other")
        if version != b"1.1":
            raise _bad_request("HTTP/1.0 has no Transfer-Encoding")
        return 0, True
    if not has_length:
        return 0, False
    # h11 has merged repeated and listed lengths that are equal, so the raw head is searched.
    values = _CONTENT_LENGTH.findall(raw)
    if len(values) != 1 or not values[0].isdigit():
        raise _bad_request("Content-Length must be one number, given once")
    return int(values[0]), False


def _wants_close(headers: Headers) -> bool:
    tokens = ",".join(headers.get_all("connection")).lower().split(",")
    return any(token.strip() == "close" for token in tokens)


def _expects_continue(headers: Headers) -> bool:
    if any(value.lower() != "100-continue" for value in headers.get_all("expect")):
        raise HTTPError(417, "expectation_failed", "the only expectation known is 100-continue")
    return True


def _origin_form(target: str, headers: Headers) -> str:
    """The path and query of a target. An absolute one must agree with Host, which guards check."""
    if "#" in target:
        raise _bad_request("a request target has no fragment")
    if target.startswith("/"):
        return target
    if not target.startswith("http://"):
        raise _bad_request("a request target starts with '/'")
    authority, slash, rest = target[len("http://") :].partition("/")
    if not slash or not authority or "?" in authority:
        raise _bad_request("a request target has a path")
    if authority != headers.get("host"):
        raise HTTPError(421, "misdirected_request", "the target names another host")
    return slash + rest


def split_target(target: str) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Segments and query of a target in origin form, each part percent-decoded exactly once.
    Raises HTTPError if one cannot be."""
    path, _, query = target.partition("?")
    segments = path[1:].split("/")
    if "%" in path:
        segments = [_decoded(segment) for segment in segments]
    fields: dict[str, list[str]] = {}
    if query:
        for field in query.split("&"):
            if field:
                name, _, value = field.replace("+", " ").partition("=")
                fields.setdefault(_decoded(name), []).append(_decoded(value))
    return tuple(segments), fields


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    if re.search(_BAD_ESCAPE, text):
        raise _bad_request("a '%' in a target is followed by two hex digits")
    from urllib.parse import unquote_to_bytes  # only now: few targets need it

    try:
        decoded = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise _bad_request("a target is UTF-8 once decoded") from None
    if "\0" in decoded:
        raise _bad_request("a target holds no NUL")
    return decoded


class ChunkedBody:
    """A chunked body while it arrives. Trailers are refused: no code here reads them, h11 accepts
    bare LF in them, and a Content-Length hidden there has fooled servers before."""

    def __init__(self, parser: h11.Connection, limits: Limits) -> None:
        self._parser = parser
        self._limits = limits
        self._data = bytearray()
        self._chunks = 0
        self._fed = 0
        self._tail = b""  # the last bytes fed: with what line ends, which h11 does not tell

    @property
    def size(self) -> int:
        """Bytes of the body that have arrived so far."""
        return len(self._data)

    def feed(self, buffer: bytearray, body_limit: int) -> bytes | None:
        """Consume `buffer` and return the body once it is complete, else None. What follows the
        body is left in `buffer`. Raises HTTPError."""
        while buffer:
            piece = bytes(memoryview(buffer)[:_SLICE])
            del buffer[:_SLICE]
            self._fed += len(piece)
            self._tail = self._tail[-4:] + piece
            if self._parse(piece):
                self._end(buffer)
                self._check(body_limit)
                return bytes(self._data)
            self._check(body_limit)
        return None

    def _parse(self, piece: bytes) -> bool:
        """Parse a piece and return whether the body has ended."""
        parser = self._parser
        try:
            parser.receive_data(piece)
            while True:
                event = parser.next_event()
                if isinstance(event, h11.Data):
                    self._data += event.data
                    self._chunks += event.chunk_start
                elif isinstance(event, h11.EndOfMessage):
                    if event.headers:
                        raise _bad_request("trailers are not accepted")
                    return True
                else:
                    return False
        except h11.RemoteProtocolError as error:
            raise _translated(error) from None

    def _end(self, buffer: bytearray) -> None:
        rest, _ = self._parser.trailing_data
        consumed = self._tail[: len(self._tail) - len(rest)]
        if not consumed.endswith(b"\r\n\r\n"):
            raise _bad_request("lines end with CR LF")
        self._fed -= len(rest)
        buffer[:0] = rest

    def _check(self, body_limit: int) -> None:
        limits, chunks, size = self._limits, self._chunks, len(self._data)
        if size > body_limit:
            raise too_large(body_limit)
        if self._fed - size > limits.chunk_overhead + _CHUNK_FRAMING * chunks:
            raise _bad_request("chunk extensions are too long")
        if (
            chunks > limits.tiny_chunk_count
            and self._fed > limits.tiny_chunk_grace
            and size < chunks * limits.tiny_chunk_mean
        ):
            raise _bad_request("too many tiny chunks")


def too_large(body_limit: int) -> HTTPError:
    """A 413 that names the limit."""
    return HTTPError(413, "body_too_large", f"the body may have {body_limit} bytes at most")
