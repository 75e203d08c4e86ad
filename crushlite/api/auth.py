"""Who may talk to the daemon: checked on every request, before routing.

On a unix socket the peer's uid decides, which is checked when it connects. On TCP a token does, and
the Host header must name the listener itself, so that a page that rebinds its DNS name to loopback
is refused. Browsers say for which site they ask: an Origin other than the daemon's own is refused
everywhere, and no CORS header is ever sent. The one exception is the form with a one-time code that
a private file of the user posts to open the console: its Origin is "null".
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ..http.messages import HTTPError

if TYPE_CHECKING:
    from ..clock import Clock
    from ..http.messages import Peer, RequestHead
    from ..http.router import Route

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OWN_SITES = frozenset({"same-origin", "none"})  # the daemon's own page; an address that was typed

_BEARER = rb"\r\nauthorization:[ \t]*bearer[ \t]+([!-~]+)"

WRONG_KEYS = 100  # that may be shown at once at a port: more than any script does by mistake
WRONG_KEYS_AGAIN = 1.0  # seconds until one more may be shown


class WrongKeys:
    """Wrong tokens or codes that were shown at each port: when there are too many, who shows one is
    asked to wait. Only wrong keys are ever refused for it: all users of a machine come from its own
    addresses, of which each has millions, so nothing is to be learnt from those."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By listening port: how many may be shown, and since when.
        self._left: dict[int, tuple[float, float]] = {}

    def count(self, peer: Peer) -> None:
        """Note that a peer has shown a wrong key. Raises 429 if too many were shown."""
        port, now = peer.port or 0, self._clock.time()
        left, at = self._left.get(port, (float(WRONG_KEYS), now))
        left = min(float(WRONG_KEYS), left + (now - at) / WRONG_KEYS_AGAIN)
        self._left[port] = (max(left - 1, 0.0), now)
        if left < 1:
            wait = str(math.ceil((1 - left) * WRONG_KEYS_AGAIN))
            message = f"too many wrong keys: wait {wait} s, or show the right one"
            raise HTTPError(429, "too_many_attempts", message, (("Retry-After", wait),))


class Guard:
    """Called with each request. `tokens` holds the digest of the token of each listening port, None
    where no token is required. Public routes need none: a page asks for them before it has one."""

    def __init__(self, allowed_hosts: frozenset[str], wrong: WrongKeys) -> None:
        self.tokens: dict[int, bytes | None] = {}
        self.allowed_hosts = allowed_hosts  # NAME:PORT, for a proxy in front
        self._wrong = wrong

    def add_port(self, port: int, token: str | None) -> None:
        self.tokens[port] = None if token is None else _digest(token)

    def __call__(self, head: RequestHead, route: Route | None) -> None:
        """Raise HTTPError unless the request may pass."""
        if head.peer.kind == "tcp":
            self._check_host(head)
        self._check_origin(head, from_file=route is not None and route.from_file)
        if head.peer.kind == "tcp" and (route is None or not route.public):
            self._check_token(head)

    def has_token(self, port: int, first: bytes) -> bool:
        """Whether the first bytes of a connection to a port hold its token, if it has one."""
        wanted = self.tokens.get(port, b"")
        if wanted is None:
            return True
        found = re.search(_BEARER, first, re.IGNORECASE)
        return found is not None and _is_same(found[1].decode("latin-1"), wanted)

    def _check_host(self, head: RequestHead) -> None:
        host = head.headers.get("Host")
        if host is None:
            raise HTTPError(400, "host_required", "a Host header is required")
        own = {f"{name}:{head.peer.port}" for name in LOOPBACK}
        if host not in own and host not in self.allowed_hosts:
            raise HTTPError(
                421,
                "wrong_host",
                f"Host {host!r} is not served here: use 127.0.0.1:{head.peer.port}, or allow it, "
                "if a tunnel or a proxy leads here, with 'crushlite web --allow-host NAME:PORT'",
            )

    def _check_origin(self, head: RequestHead, *, from_file: bool) -> None:
        origins = head.headers.get_all("Origin")
        if from_file and origins == ["null"] and _posts_form(head):
            return
        own = f"http://{head.headers.get('Host')}"
        foreign = bool(origins) and (head.peer.kind != "tcp" or origins != [own])
        # Browsers leave Origin out of many GETs, but most send Sec-Fetch-Site. A person may follow
        # a link from another site; a page of another site may not embed ours.
        sites = head.headers.get_all("Sec-Fetch-Site")
        if foreign or (not OWN_SITES.issuperset(sites) and not _follows_link(head)):
            raise HTTPError(403, "foreign_origin", "requests on behalf of other sites are refused")

    def _check_token(self, head: RequestHead) -> None:
        # The digest of a token is never empty: a port that was not added lets no request pass.
        wanted = self.tokens.get(head.peer.port or 0, b"")
        if wanted is None:
            return
        given = head.headers.get_all("Authorization")
        # Of two headers a proxy in front of the daemon might check one and the daemon the other.
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not _is_same(token.strip(), wanted):
            if given:
                self._wrong.count(head.peer)
            raise HTTPError(
                401,
                "token_required",
                "send 'Authorization: Bearer TOKEN'; the token is in the file named at start",
                (("WWW-Authenticate", "Bearer"),),
            )


def _follows_link(head: RequestHead) -> bool:
    """Whether a browser opens a page because a person followed a link."""
    return (
        head.method in ("GET", "HEAD")
        and head.headers.get("Sec-Fetch-Mode") == "navigate"
        and head.headers.get("Sec-Fetch-Dest") == "document"
    )


def _posts_form(head: RequestHead) -> bool:
    """Whether a browser may have sent this to show the answer as a page; old ones do not say so."""
    return (
        head.peer.kind == "tcp"
        and head.method == "POST"
        and head.headers.get_all("Sec-Fetch-Mode") in ([], ["navigate"])
        and head.headers.get_all("Sec-Fetch-Dest") in ([], ["document"])
    )


def _is_same(token: str, wanted: bytes) -> bool:
    """Whether a token has this digest: comparing digests takes the same time for every token."""
    from hmac import compare_digest  # only for TCP: see `_digest`

    return compare_digest(_digest(token), wanted)


def _digest(token: str) -> bytes:
    import hashlib  # 2 ms that a daemon on a unix socket need not wait for

    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
