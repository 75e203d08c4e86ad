"""Who may talk to the daemon: checked on every request, before routing.

A unix socket's door is the peer's uid, checked when it connects; on TCP it is a token, and the
Host header must name the listener itself, so that a page which rebinds its DNS name to loopback is
refused. A browser says on whose behalf it asks: an Origin other than the daemon's own is refused
everywhere, and no CORS header is ever sent.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..http.messages import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..http.messages import RequestHead

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
OWN_SITES = frozenset({"same-origin", "none"})  # our own page; typed by a person


@dataclass
class Guard:
    """`tokens` holds, by listening port, the digest of its token, or None where none is asked.
    `is_public` says which requests need none: those that a page makes before it has one."""

    tokens: dict[int, bytes | None] = field(default_factory=dict)
    allowed_hosts: frozenset[str] = frozenset()  # NAME:PORT, for a proxy in front
    is_public: Callable[[RequestHead], bool] = lambda head: False

    def add_port(self, port: int, token: str | None) -> None:
        self.tokens[port] = None if token is None else _digest(token)

    def __call__(self, head: RequestHead) -> None:
        """Raise HTTPError unless the request may pass."""
        if head.peer.kind == "tcp":
            self._check_host(head)
        self._check_origin(head)
        if head.peer.kind == "tcp" and not self.is_public(head):
            self._check_token(head)

    def _check_host(self, head: RequestHead) -> None:
        host = head.headers.get("Host")
        if host is None:
            raise HTTPError(400, "host_required", "a Host header is required")
        own = {f"{name}:{head.peer.port}" for name in LOOPBACK}
        if host not in own and host not in self.allowed_hosts:
            raise HTTPError(
                421, "wrong_host", f"Host {host!r} is not served here: use 127.0.0.1 and the port"
            )

    def _check_origin(self, head: RequestHead) -> None:
        origins = head.headers.get_all("Origin")
        own = f"http://{head.headers.get('Host')}"
        if origins and (head.peer.kind != "tcp" or origins != [own]):
            raise HTTPError(403, "foreign_origin", "requests on behalf of other sites are refused")
        # Browsers leave Origin out of many GETs; where they say who asks, listen. A person who
        # follows a link from elsewhere is fine, a page that embeds us is not.
        sites = head.headers.get_all("Sec-Fetch-Site")
        if not OWN_SITES.issuperset(sites) and not _follows_link(head):
            raise HTTPError(403, "foreign_origin", "requests on behalf of other sites are refused")

    def _check_token(self, head: RequestHead) -> None:
        # A listener nobody registered asks for a token nobody has.
        wanted = self.tokens.get(head.peer.port or 0, b"")
        if wanted is None:
            return
        given = head.headers.get_all("Authorization")
        # Two would let whoever stands in front of us check one and us the other.
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        # Digests, so that the comparison takes the same time for tokens of any length.
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(token.strip()), wanted):
            raise HTTPError(
                401,
                "token_required",
                "send 'Authorization: Bearer TOKEN'; the token is in the file named at start",
                (("WWW-Authenticate", "Bearer"),),
            )


def _follows_link(head: RequestHead) -> bool:
    return (
        head.method in ("GET", "HEAD")
        and head.headers.get("Sec-Fetch-Mode") == "navigate"
        and head.headers.get("Sec-Fetch-Dest") == "document"
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
