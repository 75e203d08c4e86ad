"""How a browser gets access to the web console: a one-time code, which is exchanged for a token."""

from __future__ import annotations

from ..records import dataclass
from .codec import omitted


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


@dataclass(slots=True)
class WebCode:
    code: str = ""


@dataclass(slots=True)
class WebToken:
    """The token, empty if the port asks for none, and the directory that the code was made for."""

    token: str
    path: str = omitted("")


@dataclass(slots=True)
class WebTab:
    """A key that lets a page get the token of the next daemon at this port."""

    id: str
    key: str


@dataclass(slots=True)
class WebHello:
    """Body of `POST /v1/web/hello`: the id of a tab's key, or of a one-time code, and a nonce."""

    id: str = ""
    nonce: str = ""


@dataclass(slots=True)
class WebChallenge:
    """The daemon's nonce, and its proof that it has the key."""

    nonce: str
    proof: str


@dataclass(slots=True)
class WebProof:
    """Body of `POST /v1/web/renew`: the page's proof that it has the key."""

    id: str = ""
    proof: str = ""
