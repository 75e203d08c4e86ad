"""HTTP/1.1 for a local daemon: a server, a client, and Server-Sent Events, over asyncio and h11.

Usable on its own: imports the package's clock and nothing else of it. Start reading at `messages`
(the values), then `connection` (the server's life of a connection). The names below are loaded on
first use, so that a program that is only a client never loads the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import (
        ClientError,
        ClientResponse,
        ConnectFailed,
        ConnectionLost,
        HTTPClient,
        PeerMismatch,
        ProtocolError,
        ResponseTimeout,
        StreamResponse,
        TCPConnector,
        UnixConnector,
    )
    from .limits import Limits
    from .messages import (
        ByteSink,
        Headers,
        HTTPError,
        Peer,
        Request,
        RequestHead,
        Response,
        Stream,
    )
    from .router import Admission, Route, Router
    from .server import HTTPServer, Statistics
    from .sse import SSEEvent, SSEParser, SSETooLong

__all__ = [
    "Admission",
    "ByteSink",
    "ClientError",
    "ClientResponse",
    "ConnectFailed",
    "ConnectionLost",
    "HTTPClient",
    "HTTPError",
    "HTTPServer",
    "Headers",
    "Limits",
    "Peer",
    "PeerMismatch",
    "ProtocolError",
    "Request",
    "RequestHead",
    "Response",
    "ResponseTimeout",
    "Route",
    "Router",
    "SSEEvent",
    "SSEParser",
    "SSETooLong",
    "Statistics",
    "Stream",
    "StreamResponse",
    "TCPConnector",
    "UnixConnector",
]

_HOMES = {
    **dict.fromkeys(("Headers", "HTTPError", "Peer", "Request", "RequestHead"), "messages"),
    **dict.fromkeys(("Response", "ByteSink", "Stream"), "messages"),
    **dict.fromkeys(("Admission", "Route", "Router"), "router"),
    **dict.fromkeys(("HTTPServer", "Statistics"), "server"),
    **dict.fromkeys(("SSEEvent", "SSEParser", "SSETooLong"), "sse"),
    "Limits": "limits",
}  # the others are the client's


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'client')}")
    return getattr(home, name)
