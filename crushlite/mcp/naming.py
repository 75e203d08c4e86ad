"""Names of tools that every provider takes."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

MOST_CHARS = 64
_DIGEST = 8


def safe_name(server: str, tool: str, taken: Container[str] = ()) -> str:
    """`mcp_SERVER_TOOL` with other characters than letters, digits, `_` and `-` replaced. One that
    is too long, or taken, ends with a digest of the two names, and so stays the same."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"mcp_{server}_{tool}")
    if len(plain) <= MOST_CHARS and plain not in taken:
        return plain
    found = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{plain[: MOST_CHARS - _DIGEST - 1]}_{found}"
