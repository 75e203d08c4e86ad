"""The web console: its files, and the one-time codes that let a page in.

A page has no token when it is loaded, so its files and the exchange of a code are the only routes
that require none (`public` in the route table); Host and Origin are checked on them as everywhere.
A code is in the fragment of a URL, which a browser does not send. It is valid once, for a minute,
and for the port it was made for, whose token the page gets for it.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.resources
import os
import secrets
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING

from ..api.context import answer, body, optional_body
from ..api.entry import Entry
from ..errors import BadRequest, Conflict, UsageError
from ..http.messages import HTTPError, Response
from ..protocol.web import WebAddress, WebCode, WebRequest, WebToken
from ..records import dataclass
from ..wing import Wing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..api.context import Context
    from ..clock import Clock
    from ..http.messages import Request
    from ..wing import Ports

CODE_SECONDS = 60.0
CODES = 32  # codes that are valid at a time; the oldest is dropped for the next
BAD_CODE = (403, "bad_code")
FOLDER = importlib.resources.files(__package__) / "page"
HTML = "text/html; charset=utf-8"
ANY = "*/*"
TYPES = {
    ".html": HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# What the page shows was written by models, tools and strangers. It is only ever inserted as text;
# should that fail once, these headers keep it from loading, running or sending anything.
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


class Codes:
    """One-time codes. They are kept as digests and compared in constant time, so that the time of
    an answer does not say how much of a guess was right."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By digest: port and deadline.
        self._open: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def issue(self, port: int) -> str:
        code = secrets.token_urlsafe(24)
        self._open[_digest(code)] = (port, self._clock.time() + CODE_SECONDS)
        if len(self._open) > CODES:
            self._open.popitem(last=False)
        return code

    def redeem(self, code: str, port: int) -> bool:
        """Use a code up. Returns whether it was valid, for this port and until now."""
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


class ConsoleWing(Wing):
    """The page, and the routes through which it gets a token."""

    def use_ports(self, ports: Ports, clock: Clock) -> None:
        self._ports = ports
        self._codes = Codes(clock)

    def routes(self) -> Sequence[Entry]:
        return (
            Entry("GET", "/", self.index, gives=str, media=HTML, public=True),
            Entry("GET", "/console/{file}", self.file, gives=str, media=ANY, public=True),
            Entry("POST", "/v1/web", self.invite, takes=WebRequest | None, gives=WebAddress),
            Entry(
                "POST",
                "/v1/web/token",
                self.exchange,
                takes=WebCode,
                gives=WebToken,
                public=True,
                refusals=(BAD_CODE,),
            ),
        )

    def address(self, url: str, port: int) -> WebAddress:
        """An address with a code in it, for one browser."""
        return WebAddress(f"{url}/#code={self._codes.issue(port)}", CODE_SECONDS)

    @cached_property
    def _files(self) -> dict[str, _File]:
        """The files of the page by name, read when the first one is asked for. The path of a
        request never reaches the disk."""
        found = {}
        for path in sorted(FOLDER.iterdir(), key=lambda path: path.name):
            kind = TYPES.get(os.path.splitext(path.name)[1])
            if kind is not None:
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                found[path.name] = _File(content, kind, tag)
        return found

    async def index(self, context: Context, request: Request) -> Response:
        return self._serve(request, "index.html")

    async def file(self, context: Context, request: Request) -> Response:
        return self._serve(request, request.params["file"])

    def _serve(self, request: Request, name: str) -> Response:
        # No browser uses a unix socket, and clients of the API expect a 404 at these paths.
        found = self._files.get(name) if request.peer.kind == "tcp" else None
        if found is None:
            raise HTTPError(404, "route_not_found", "no such route")
        headers = (*HEADERS, ("ETag", found.tag))
        if _is_known(found.tag, request.headers.get_all("If-None-Match")):
            return Response(304, content_type=found.kind, headers=headers)
        return Response(200, found.content, found.kind, headers)

    async def invite(self, context: Context, request: Request) -> Response:
        """Open a TCP port if there is none, and answer with an address that lets a browser in."""
        wanted = optional_body(WebRequest, request)
        if wanted.port not in range(1 << 16):
            raise BadRequest(f"port {wanted.port}: use one from 1 to 65535, or 0 for any")
        try:
            url, port = await self._ports.loopback(wanted.port)
        except UsageError as error:
            raise Conflict(error.message) from None
        return answer(self.address(url, port))

    async def exchange(self, context: Context, request: Request) -> Response:
        """Answer with the token of this port if the one-time code is valid."""
        given, port = body(WebCode, request), request.peer.port or 0
        if not self._codes.redeem(given.code, port):
            message = "this code is wrong, used or expired: run 'crushlite web' for a new one"
            raise HTTPError(*BAD_CODE, message)
        token = self._ports.token_of(port)
        return answer(WebToken(token), headers=(("Cache-Control", "no-store"),))


def _is_known(tag: str, lines: list[str]) -> bool:
    """Whether If-None-Match names this version. Weak tags count as well as strong ones, and `*` is
    any version."""
    listed = {each.strip() for line in lines for each in line.split(",")}
    return bool(listed & {tag, f"W/{tag}", "*"})
