"""How a client asks for the address of the web console, and for a code that lets a browser in."""

from __future__ import annotations

from ..protocol.codec import omitted
from ..records import dataclass


@dataclass(slots=True)
class WebRequest:
    """Body of `POST /v1/web`. Port 0: the one that is served already, else a free one. `path` is
    the directory that the page opens. `allow_host` is NAME:PORT as the browser sees the console,
    where a tunnel or a proxy is in between."""

    port: int = omitted(0)
    path: str = omitted("")
    allow_host: str = omitted("")


@dataclass(slots=True)
class WebAddress:
    """Where the console is, and a code that can be used once, within `expires_in` seconds: typed at
    `url`, or by opening `page`, a file that only its owner can read and that goes with its code."""

    url: str
    code: str
    page: str
    expires_in: float
