"""Names of tools that every provider takes."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

MOST_CHARS = 64
_DIGEST = 8


def safe_name(
    server: str, tool: str, taken: Container[str] = (), reserved: tuple[str, ...] = ()
) -> str:
    """`mcp_SERVER_TOOL` with other characters than letters, digits, `_` and `-` replaced. One that
    is too long, taken, or begins with a `reserved` text ends with a digest of the two names, and so
    stays the same."""
    name = plain(f"mcp_{server}_{tool}")
    if len(name) <= MOST_CHARS and name not in taken and not name.startswith(reserved):
        return name
    found = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{name[: MOST_CHARS - _DIGEST - 1]}_{found}"


def reserved_for_others(server: str, servers: Iterable[str]) -> tuple[str, ...]:
    """What names of a server's tools must not begin with, since names that do so are those of
    another of the `servers`, whether or not that runs: `mcp_git_hub_find` is `find` of
    git_hub, and never `hub_find` of git, for which permission was not given."""
    own = plain(f"mcp_{server}_")
    found = {other: plain(f"mcp_{other}_") for other in servers if other != server}
    return tuple(
        prefix
        for other, prefix in found.items()
        if prefix.startswith(own) and (prefix != own or _rank(other) < _rank(server))
    )


def _rank(server: str) -> tuple[bool, str]:
    """Of servers whose names differ only in characters that are replaced, the first has the plain
    names: one in which nothing is replaced."""
    return server != plain(server), server


def plain(name: str) -> str:
    """A name with the characters replaced that some provider refuses."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
