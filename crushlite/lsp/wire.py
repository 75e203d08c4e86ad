"""Language servers as clients see them."""

from __future__ import annotations

from ..protocol.codec import omitted
from ..protocol.sessions import NEVER
from ..records import dataclass


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
class StartLSP:
    """Start the language servers for a file."""

    path: str
