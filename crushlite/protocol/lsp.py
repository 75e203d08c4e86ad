"""Language servers as clients see them."""

from __future__ import annotations

from ..records import dataclass
from .codec import omitted

NEVER = "0001-01-01T00:00:00Z"  # how the Crush client writes a time that has not been


@dataclass(slots=True)
class LSPClientInfo:
    """A language server. `state` is 0 unstarted, 1 starting, 2 ready, 3 error, 4 stopped or 5
    disabled."""

    name: str
    state: int
    connected_at: str = NEVER
    error: str = omitted()
    diagnostic_count: int = omitted(0)


@dataclass(slots=True)
class LSPEvent:
    """`type` is state_changed or diagnostics_changed."""

    type: str
    name: str
    state: int
    error: str = omitted()
    diagnostic_count: int = omitted(0)


@dataclass(slots=True)
class StartLSP:
    """Start the language servers for a file."""

    path: str
