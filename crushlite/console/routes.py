"""The web console: its files, and the one-time codes that let a page in.

A page has no token when it is loaded, so its files and the exchange of a code are the only routes
that ask for none (`public` in the route table); Host and Origin are checked on them as everywhere.
A code stands in the fragment of a URL, which a browser sends to nobody. It is good once, for a
minute, and for the port it was made for; whoever has it gets that port's token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..api.context import answer, body, optional_body
from ..errors import BadRequest, Conflict, UsageError
from ..http.messages import HTTPError, Response
from ..protocol.web import WebAddress, WebCode, WebRequest, WebToken

if TYPE_CHECKING:
    from ..api.context import Context
    from ..clock import Clock
    from ..http.messages import Request

CODE_SECONDS = 60.0
CODES = 32  # outstanding at a time; the oldest gives way
FOLDER = Path(__file__).resolve().parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# What the page shows was written by models, tools and strangers. Text is only ever inserted as
# text; should that fail once, nothing that slips in may load, run or send anything.
HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "worker-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types crushlite",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)


class Door(Protocol):
    """What the daemon can do about its ports."""

    async def loopback(self, port: int) -> tuple[str, int]:
        """URL and port of a TCP listener, opened if there is none (on this port, unless 0)."""

    def token_of(self, port: int) -> str:
        """The token of a port, empty if it asks for none."""


class Codes:
    """One-time codes. Kept as digests, and compared in constant time: no answer tells how much of
    a guess was right."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # port and deadline

    def issue(self, port: int) -> str:
        code = secrets.token_urlsafe(24)
        self._open[_digest(code)] = (port, self._clock.time() + CODE_SECONDS)
        if len(self._open) > CODES:
            self._open.popitem(last=False)
        return code

    def redeem(self, code: str, port: int) -> bool:
        """Whether the code is good here and now. It is not afterwards."""
        given = _digest(code)
        found = [known for known in self._open if hmac.compare_digest(known, given)]
        if not found:
            return False
        wanted, deadline = self._open[found[0]]
        if wanted != port:
            return False
        del self._open[found[0]]
        return self._clock.time() < deadline


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    kind: str
    tag: str


class Console:
    """What the routes in here share. The files are read once, when the first page asks."""

    def __init__(self, door: Door, clock: Clock) -> None:
        self.door = door
        self.codes = Codes(clock)

    def address(self, url: str, port: int) -> WebAddress:
        """One that lets a browser in, once."""
        return WebAddress(f"{url}/#code={self.codes.issue(port)}", CODE_SECONDS)

    @cached_property
    def files(self) -> dict[str, _File]:
        """By name, and only what is there: no path of a request ever reaches the disk."""
        found = {}
        for path in sorted(FOLDER.iterdir()):
            if path.suffix in TYPES:
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                found[path.name] = _File(content, TYPES[path.suffix], tag)
        return found


async def index(context: Context, request: Request) -> Response:
    return _serve(context, request, "index.html")


async def file(context: Context, request: Request) -> Response:
    return _serve(context, request, request.params["file"])


def _serve(context: Context, request: Request, name: str) -> Response:
    # A unix socket has no browser behind it, and its clients look for routes of the API.
    found = context.console.files.get(name) if request.peer.kind == "tcp" else None
    if found is None:
        raise HTTPError(404, "route_not_found", "no such route")
    headers = (*HEADERS, ("ETag", found.tag))
    if _is_known(found.tag, request.headers.get_all("If-None-Match")):
        return Response(304, content_type=found.kind, headers=headers)
    return Response(200, found.content, found.kind, headers)


def _is_known(tag: str, lines: list[str]) -> bool:
    """Whether If-None-Match names this version. A weak tag is as good as a strong one here; `*`
    stands for whatever there is."""
    listed = {each.strip() for line in lines for each in line.split(",")}
    return bool(listed & {tag, f"W/{tag}", "*"})


async def invite(context: Context, request: Request) -> Response:
    """Make sure that a browser can reach us, and hand out an address that lets it in."""
    wanted = optional_body(WebRequest, request)
    if wanted.port not in range(1 << 16):
        raise BadRequest(f"port {wanted.port}: use one from 1 to 65535, or 0 for any")
    try:
        url, port = await context.console.door.loopback(wanted.port)
    except UsageError as error:
        raise Conflict(error.message) from None
    return answer(context.console.address(url, port))


async def exchange(context: Context, request: Request) -> Response:
    """The token of this port for a one-time code."""
    given, port = body(WebCode, request), request.peer.port or 0
    if not context.console.codes.redeem(given.code, port):
        raise HTTPError(
            403,
            "bad_code",
            "this code is wrong, used or expired: run 'crushlite web' for a new one",
        )
    token = context.console.door.token_of(port)
    return answer(WebToken(token), headers=(("Cache-Control", "no-store"),))
