"""What is said to a tool server over a link, in both eras of the protocol.

*Legacy* servers (versions up to 2025-11-25) are greeted with `initialize`. *Modern* ones
(2026-07-28) know no greeting: every request holds the version and what the client can do. A server
that speaks both decides by the first request, for good, so `initialize` is sent first: it locks and
kills nothing, and a modern-only server answers it with -32022 and goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..jsonrpc.errors import METHOD_NOT_FOUND, RpcError
from ..jsonrpc.values import size_of
from ..version import NAME, __version__
from .errors import ServerError

if TYPE_CHECKING:
    from ..protocol.codec import JSON
    from .links import Link

LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN = "2026-07-28"
UNSUPPORTED_VERSION = -32022
MOST_PAGES = 200
MOST_ITEMS = 10_000
LIST_CHARS = 32 << 20  # and values, of all pages of a list
INSTRUCTION_CHARS = 2000
_META = "io.modelcontextprotocol/"


class McpSession:
    """A server that has introduced itself. `modern` says in which era."""

    def __init__(self, link: Link, *, modern: bool, introduction: dict[str, Any]) -> None:
        self.link = link
        self.modern = modern
        capabilities = introduction.get("capabilities")
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        told = introduction.get("instructions")
        self.instructions = told[:INSTRUCTION_CHARS].strip() if isinstance(told, str) else ""

    def has(self, what: str) -> bool:
        """Whether the server has `tools`, `prompts` or `resources`."""
        return isinstance(self._capabilities.get(what), dict)

    def tells(self, what: str) -> bool:
        """Whether the server says that it tells of changes of such a list."""
        found = self._capabilities.get(what)
        return isinstance(found, dict) and found.get("listChanged") is True

    async def request(
        self, method: str, params: dict[str, Any] | None = None, *, seconds: float | None
    ) -> dict[str, Any]:
        """Raises PeerError, also for an answer that is no object."""
        asked = params or {}
        answer = await self.link.request(
            method, _enveloped(asked) if self.modern else asked, seconds=seconds, cancellable=True
        )
        return _object(answer, method)

    async def list(self, method: str, key: str) -> list[Any]:
        """All pages of a list, as long as the caller lets it, up to MOST_ITEMS and LIST_CHARS.
        Raises PeerError."""
        items: list[Any] = []
        cursor: object = None
        left = LIST_CHARS
        for _ in range(MOST_PAGES):
            page = await self.request(
                method, {"cursor": cursor} if cursor is not None else {}, seconds=None
            )
            found = page.get(key)
            left -= await asyncio.to_thread(size_of, found, left)
            if left < 0:
                break
            items += found if isinstance(found, list) else []
            following = page.get("nextCursor")
            if not isinstance(following, str) or following == cursor or len(items) >= MOST_ITEMS:
                break
            cursor = following
        return items[:MOST_ITEMS]

    async def listen(self) -> None:
        """Hear of changes of lists, as long as the server tells of them. Raises PeerError."""
        if not self.modern:
            return await self.link.listen()
        wanted = {
            f"{what}ListChanged": True
            for what in ("tools", "prompts", "resources")
            if self.tells(what)
        }
        if wanted:
            await self.request("subscriptions/listen", {"notifications": wanted}, seconds=None)


async def introduce(link: Link, seconds: float, *, modern_first: bool = False) -> McpSession:
    """Begin a session. `modern_first`: the server is known to be a modern one. Raises PeerError."""
    if modern_first:
        return await _discover(link, seconds)
    params = {
        "protocolVersion": LEGACY[0],
        "capabilities": {},
        "clientInfo": {"name": NAME, "version": __version__},
    }
    try:
        answer = await link.request("initialize", params, seconds=seconds, cancellable=False)
    except RpcError as error:
        if error.number not in (UNSUPPORTED_VERSION, METHOD_NOT_FOUND):
            raise
        return await _discover(link, seconds)
    introduction = _object(answer, "initialize")
    version = introduction.get("protocolVersion")
    if version not in LEGACY:
        raise ServerError(f"it speaks version {str(version)[:40]!r}, which is not known here")
    link.use_version(str(version), modern=False)
    await link.notify("notifications/initialized", {})
    return McpSession(link, modern=False, introduction=introduction)


async def _discover(link: Link, seconds: float) -> McpSession:
    link.use_version(MODERN, modern=True)
    answer = await link.request(
        "server/discover", _enveloped({}), seconds=seconds, cancellable=False
    )
    introduction = _object(answer, "server/discover")
    versions = introduction.get("supportedVersions")
    if not isinstance(versions, list) or MODERN not in versions:
        raise ServerError(f"it speaks versions {str(versions)[:100]}, none of which is known here")
    return McpSession(link, modern=True, introduction=introduction)


def _enveloped(params: dict[str, Any]) -> dict[str, Any]:
    """The params of a modern request."""
    meta = {
        f"{_META}protocolVersion": MODERN,
        f"{_META}clientInfo": {"name": NAME, "version": __version__},
        f"{_META}clientCapabilities": {},
    }
    return {**params, "_meta": meta}


def _object(answer: JSON, method: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ServerError(f"its answer to {method} is no object")
    return answer
