"""The web console: its files, and the one-time codes that let a page in.

A page has no token when it is loaded, so its files and the exchange of a code are the only routes
that require none (`public` in the route table); Host and Origin are checked on them as everywhere.

A code is in no address: other users see the arguments of a browser that is started with one, and a
history keeps it. It is in a file that only its owner can read, in the daemon's runtime directory.
Opened in a browser, that file posts the code as a form; the answer to this one page load holds the
token, for a script that keeps it in the tab and replaces the page by the console. A person without
such a browser types the code. It is valid once, for ten minutes, and for the port it was made for.
How a page goes on with the next daemon is in tabs.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import time
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ..api.auth import WrongKeys
from ..api.context import answer, body, optional_body
from ..api.entry import Entry
from ..errors import BadRequest, Conflict, UsageError
from ..features.wire import WebAddress, WebRequest
from ..http.messages import HTTPError, Response
from ..listen import default_socket, private_directory
from ..records import dataclass
from ..unique import random_hex, random_text
from .tabs import Challenges
from .wire import WebChallenge, WebCode, WebHello, WebProof, WebTab, WebToken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..api.context import Context
    from ..clock import Clock, Timer
    from ..http.messages import Request
    from ..wing import Ports
    from .tabs import Tabs

CODE_SECONDS = 600.0
CODES = 32  # codes that are valid at a time; the oldest is dropped for the next
BAD_CODE = (403, "bad_code")
HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[::1\]):\d{1,5}")  # NAME:PORT, as in a Host header
PUBLIC_BODY = 1024  # bytes: a code, and no more
NO_STORE = (("Cache-Control", "no-store"),)
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
PAGE = "console-"  # how the names of private files begin
# A form of text/plain sends `name=value`: here one JSON object. The button is for a browser without
# scripts. A file has no origin and sends no referrer.
KNOCK = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<title>crushlite</title>
<form method="post" enctype="text/plain" action="{url}/v1/web/enter">
<input type="hidden" name='{{"code":"{code}","form":"' value='"}}'>
<button>Open the console</button>
</form>
<script>document.forms[0].submit()</script>
"""
# The answer to that form: `enter.js` takes the token and goes on to the console.
ENTERED = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="crushlite-token" content="{token}">
<meta name="crushlite-path" content="{path}">
<title>crushlite</title>
<script type="module" src="/console/enter.js"></script>
</head>
<body><noscript>The console needs JavaScript.</noscript></body>
</html>
"""


@dataclass(slots=True)
class _Invitation:
    """What a code was issued for. `page` is its file, which is deleted with the code."""

    port: int
    path: str
    deadline: float
    page: Path | None = None
    timer: Timer | None = None

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.page is not None:
            self.page.unlink(missing_ok=True)


class Codes:
    """One-time codes. They are kept as digests and compared in constant time, so that the time of
    an answer does not say how much of a guess was right."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, _Invitation] = OrderedDict()  # by digest

    def issue(self, port: int, path: str = "") -> str:
        code = random_text(24)
        deadline = self._clock.time() + CODE_SECONDS
        self._open[_digest(code)] = _Invitation(port, path, deadline)
        if len(self._open) > CODES:
            self._open.popitem(last=False)[1].end()
        return code

    def write_page(self, code: str, url: str) -> Path:
        """Write the file that posts an open code to `url`. Raises UsageError."""
        invitation = self._open[_digest(code)]
        folder = default_socket().parent
        private_directory(folder)
        _remove_pages_of_killed_daemons(folder)
        page = folder / f"{PAGE}{random_hex(8)}.html"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(page, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(KNOCK.format(url=_escaped(url), code=code))
        except OSError as error:
            raise UsageError(f"cannot write {page}: {error.strerror}") from None
        invitation.page = page
        invitation.timer = self._clock.call_later(CODE_SECONDS, invitation.end)
        return page

    def key(self, name: str, port: int) -> bytes | None:
        """The digest of the code with this id, which is the digest of that digest."""
        for known, invitation in self._open.items():
            if invitation.port == port and hmac.compare_digest(_id(known), name.encode()):
                return known
        return None

    def redeem(self, code: str, port: int) -> str | None:
        """Use a code up. Returns the directory that it was issued for ('' for none), or None if it
        is not valid: wrong, for another port, used or expired."""
        return self.use(_digest(code), port)

    def use(self, digest: bytes, port: int) -> str | None:
        """The same for the digest of a code."""
        found = [known for known in self._open if hmac.compare_digest(known, digest)]
        if not found or self._open[found[0]].port != port:
            return None
        invitation = self._open.pop(found[0])
        invitation.end()
        return invitation.path if self._clock.time() < invitation.deadline else None


def _remove_pages_of_killed_daemons(folder: Path) -> None:
    """Their codes are worthless. A page that is younger may be that of another living daemon."""
    oldest = time.time() - CODE_SECONDS
    for page in folder.glob(f"{PAGE}*.html"):
        with contextlib.suppress(OSError):
            if page.lstat().st_mtime < oldest:
                page.unlink()


def _id(digest: bytes) -> bytes:
    return hashlib.sha256(digest).hexdigest()[:32].encode()


def _escaped(text: str) -> str:
    """A text for HTML."""
    import html  # only now: it takes 2 ms to load, and most daemons show no page

    return html.escape(text)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    kind: str
    tag: str


class DaemonAround(Protocol):
    """What the routes use; only there once a daemon has begun."""

    clock: Clock
    ports: Ports

    @property
    def tabs(self) -> Tabs:
        """The keys of pages."""


class ConsoleRoutes:
    """The page, and the routes through which it gets a token."""

    def __init__(self, around: DaemonAround) -> None:
        self._around = around

    @cached_property
    def _codes(self) -> Codes:
        return Codes(self._around.clock)

    @cached_property
    def _wrong(self) -> WrongKeys:
        return WrongKeys(self._around.clock)

    @cached_property
    def _challenges(self) -> Challenges:
        return Challenges(self._around.clock)

    def table(self) -> Sequence[Entry]:
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
                body_limit=PUBLIC_BODY,
                public=True,
                refusals=(BAD_CODE,),
            ),
            Entry(
                "POST",
                "/v1/web/enter",
                self.enter,
                takes=WebCode,
                gives=str,
                media=HTML,
                body_limit=PUBLIC_BODY,
                public=True,
                from_file=True,
                refusals=(BAD_CODE,),
            ),
            Entry("POST", "/v1/web/tab", self.add_tab, gives=WebTab),
            Entry(
                "POST",
                "/v1/web/hello",
                self.hello,
                takes=WebHello,
                gives=WebChallenge,
                body_limit=PUBLIC_BODY,
                public=True,
                refusals=(BAD_CODE,),
            ),
            Entry(
                "POST",
                "/v1/web/renew",
                self.renew,
                takes=WebProof,
                gives=WebToken,
                body_limit=PUBLIC_BODY,
                public=True,
                refusals=(BAD_CODE,),
            ),
        )

    def address(self, url: str, port: int, path: str = "") -> WebAddress:
        """A code for one browser, and the file that brings it there. Raises UsageError."""
        code = self._codes.issue(port, path)
        return WebAddress(f"{url}/", code, str(self._codes.write_page(code, url)), CODE_SECONDS)

    @cached_property
    def _files(self) -> dict[str, _File]:
        """The files of the page by name, read when the first one is asked for. The path of a
        request never reaches the disk."""
        import importlib.resources  # only now: it takes long to load

        folder = importlib.resources.files(__package__) / "page"
        found = {}
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
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
        """Open a TCP port if there is none, and answer with a one-time code for a browser."""
        wanted = optional_body(WebRequest, request)
        if wanted.port not in range(1 << 16):
            raise BadRequest(f"port {wanted.port}: use one from 1 to 65535, or 0 for any")
        if wanted.allow_host and not HOST.fullmatch(wanted.allow_host):
            raise BadRequest(f"allow_host {wanted.allow_host!r}: use NAME:PORT")
        try:
            url, port = await self._around.ports.loopback(wanted.port)
            if wanted.allow_host:
                self._around.ports.allow_host(wanted.allow_host)
                url = f"http://{wanted.allow_host}"
            address = self.address(url, port, wanted.path)
        except UsageError as error:
            raise Conflict(error.message) from None
        return answer(address, headers=NO_STORE)

    async def exchange(self, context: Context, request: Request) -> Response:
        """Answer with the token of this port if the one-time code is valid."""
        return answer(self._redeem(body(WebCode, request), request), headers=NO_STORE)

    async def enter(self, context: Context, request: Request) -> Response:
        """Let the page in that a private file of this user opens with a one-time code."""
        given = self._redeem(body(WebCode, request), request)
        token, path = _escaped(given.token), _escaped(given.path)
        page = ENTERED.format(token=token, path=path).encode()
        return Response(200, page, HTML, (*HEADERS[:-1], *NO_STORE))

    def _redeem(self, given: WebCode, request: Request) -> WebToken:
        port = request.peer.port or 0
        path = self._codes.redeem(given.code, port)
        if path is None:
            raise self._refusal(request)
        return WebToken(self._around.ports.token_of(port), path)

    def _refusal(self, request: Request) -> HTTPError:
        """Count a wrong code, key or proof. Raises 429 if there were too many."""
        self._wrong.count(request.peer)
        message = "this code is wrong, used or expired: run 'crushlite web' for a new one"
        return HTTPError(*BAD_CODE, message)

    async def add_tab(self, context: Context, request: Request) -> Response:
        """A key for the page that asks, with which it finds back after a restart (tabs.py)."""
        port, host = _place(request)
        if not port:
            raise BadRequest("only a page has use for a key: ask on a TCP port")
        try:
            tab_id, key = self._around.tabs.add(port, host)
        except UsageError as error:
            raise Conflict(error.message) from None
        return answer(WebTab(tab_id, key), headers=NO_STORE)

    def _key(self, name: str, request: Request) -> bytes:
        """The key of a page or of a code. Raises HTTPError if it is not known here."""
        port, host = _place(request)
        key = self._around.tabs.key(port, host, name) or self._codes.key(name, port)
        if key is None:
            raise self._refusal(request)
        return key

    async def hello(self, context: Context, request: Request) -> Response:
        """Prove to a page that this daemon has its key."""
        given = body(WebHello, request)
        key, (_, host) = self._key(given.id, request), _place(request)
        made = self._challenges.begin(key, host, given.id, given.nonce)
        if made is None:
            raise BadRequest("nonce: use 16 to 64 letters, digits, '-' and '_'")
        return answer(WebChallenge(*made), headers=NO_STORE)

    async def renew(self, context: Context, request: Request) -> Response:
        """The token of this port, for a page that proves to have a key."""
        given = body(WebProof, request)
        key, (port, host) = self._key(given.id, request), _place(request)
        if not self._challenges.prove(key, host, given.id, given.proof):
            raise self._refusal(request)
        path = self._codes.use(key, port)  # None for the key of a tab, and for a code that expired
        if path is None and self._around.tabs.key(port, host, given.id) is None:
            raise self._refusal(request)
        self._around.tabs.use(port, given.id)
        return answer(WebToken(self._around.ports.token_of(port), path or ""), headers=NO_STORE)


def _place(request: Request) -> tuple[int, str]:
    """The port that a request came to, and the Host that it was sent to."""
    return request.peer.port or 0, request.headers.get("Host") or ""


def _is_known(tag: str, lines: list[str]) -> bool:
    """Whether If-None-Match names this version. Weak tags count as well as strong ones, and `*` is
    any version."""
    listed = {each.strip() for line in lines for each in line.split(",")}
    return bool(listed & {tag, f"W/{tag}", "*"})
