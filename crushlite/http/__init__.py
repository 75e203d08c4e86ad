"""HTTP/1.1 for a local daemon: a server, a client, and Server-Sent Events, over asyncio and h11.

Usable on its own: imports the package's clock and nothing else of it. Start reading at `messages`
(the values), then `connection` (the server's life of a connection). The names below are loaded on
first use, so that a program that is only a client never loads the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crushlite.http.limits import Limits
    from crushlite.http.messages import (
        Headers,
        HTTPError,
        Peer,
        Request,
        RequestHead,
        Response,
        Sink,
        Stream,
    )
    from crushlite.http.router import Admission, Route, Router
    from crushlite.http.server import HTTPServer, Statistics

__all__ = [
    "Admission",
    "HTTPError",
    "HTTPServer",
    "Headers",
    "Limits",
    "Peer",
    "Request",
    "RequestHead",
    "Response",
    "Route",
    "Router",
    "Sink",
    "Statistics",
    "Stream",
]

_HOMES = {
    "Limits": "limits",
    "Admission": "router",
    "Route": "router",
    "Router": "router",
    "HTTPServer": "server",
    "Statistics": "server",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'messages')}")
    return getattr(home, name)
