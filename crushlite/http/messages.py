"""What passes between a connection and the code that answers: plain values, and two interfaces.

Requests and answers are frozen dataclasses. The interfaces are `ByteSink` (what a stream writes to)
and `Stream` (what a connection calls). Uses neither h11 nor routes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, Protocol

from ..records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Pairs = tuple[tuple[str, str], ...]
Kind = Literal["unix", "tcp", "memory"]  # of a connection


class Headers:
    """Immutable, ordered, case-insensitive multi-map of header fields."""

    __slots__ = ("_first", "_pairs")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs: Pairs = tuple(pairs)
        first: dict[str, str] = {}
        for name, value in self._pairs:
            first.setdefault(name.lower(), value)
        self._first = first

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a field."""
        return self._first.get(name.lower(), default)

    def get_all(self, name: str) -> list[str]:
        wanted = name.lower()
        if wanted not in self._first:
            return []
        return [value for field, value in self._pairs if field.lower() == wanted]

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._first

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __repr__(self) -> str:
        # Names only: values may hold a token, and a repr may be logged.
        return f"<Headers {', '.join(name for name, _ in self._pairs)}>"


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection comes in. On a unix socket the other end is of our own user."""

    kind: Kind
    port: int | None = None  # the LISTENER's own port: what a Host header must name


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request before its body: what a guard and the router see."""

    method: str
    target: str
    segments: tuple[str, ...]  # split on raw "/", each decoded once: "%2F" is data, not structure
    query: dict[str, list[str]]
    headers: Headers
    peer: Peer


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has arrived completely."""

    head: RequestHead
    body: bytes
    params: dict[str, str]
    parsed: object = None  # what a handler before this one has made of a large body

    @property
    def headers(self) -> Headers:
        return self.head.headers

    @property
    def peer(self) -> Peer:
        return self.head.peer

    def query_one(self, name: str) -> str | None:
        """The first value of a query parameter; None if it is not given."""
        values = self.head.query.get(name)
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer, but for Content-Length, Date and Connection, which the connection adds.
    `more` is the rest of a long body, in pieces that are written as fast as the peer takes them."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Pairs = ()
    more: tuple[bytes, ...] = ()


class HTTPError(Exception):
    """A refusal with a status. Its answer is a JSON object with `message` and a stable `code`."""

    def __init__(self, status: int, code: str, message: str, headers: Pairs = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers

    def response(self) -> Response:
        body = json.dumps({"message": self.message, "code": self.code}).encode("ascii")
        return Response(self.status, body, headers=self.headers)


def overloaded(message: str) -> HTTPError:
    """A 503 that asks the client to try again in a second."""
    return HTTPError(503, "overloaded", message, (("Retry-After", "1"),))


class ByteSink(Protocol):
    """Where a stream writes. After the end of the connection every method does nothing."""

    def write(self, data: bytes) -> None: ...

    @property
    def writable(self) -> bool:
        """False while the peer reads too slowly (wait for `Stream.resumed`) and after the end."""

    @property
    def buffered(self) -> int:
        """Bytes that were written and not yet taken by the kernel."""

    def close(self) -> None:
        """Send what was written, then FIN."""

    def abort(self) -> None:
        """End now; bytes that were not sent are lost."""


class Stream:
    """An answer whose end is not known in advance. Subclass and override.

    The calls come in the order `opened`, any number of `resumed`, `closed`. `closed` is always
    called, once, and alone if the peer had left before the answer began; never from inside a call
    to the sink, so a stream may close its sink while it iterates over its own state."""

    status: int = 200
    headers: Pairs = ()

    def opened(self, sink: ByteSink) -> None:
        """The head was written; the sink takes data from now on."""

    def resumed(self) -> None:
        """The sink is writable again."""

    def closed(self) -> None:
        """The connection has ended, by either side."""
