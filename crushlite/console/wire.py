"""How a page gets a token: for a one-time code, or for the key of a tab."""

from __future__ import annotations

from ..protocol.codec import omitted
from ..records import dataclass


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
