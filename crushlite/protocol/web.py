"""How a browser gets access to the web console: an address with a one-time code, which is exchanged
for a token."""

from __future__ import annotations

from ..records import dataclass
from .codec import omitted


@dataclass(slots=True)
class WebRequest:
    """Body of `POST /v1/web`. Port 0: the one that is served already, else a free one."""

    port: int = omitted(0)


@dataclass(slots=True)
class WebAddress:
    """`url` has a code in its fragment that can be used once, within `expires_in` seconds."""

    url: str
    expires_in: float


@dataclass(slots=True)
class WebCode:
    code: str = ""


@dataclass(slots=True)
class WebToken:
    """The token; empty if the port asks for none."""

    token: str
