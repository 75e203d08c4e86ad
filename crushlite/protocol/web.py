"""The web console's way in: an address with a one-time code, and the token it is exchanged for."""

from __future__ import annotations

from dataclasses import dataclass

from .codec import omitted


@dataclass(slots=True)
class WebRequest:
    """Body of `POST /v1/web`. Port 0 is any: the one that is served already, else a free one."""

    port: int = omitted(0)


@dataclass(slots=True)
class WebAddress:
    """`url` holds a code in its fragment, good once and for `expires_in` seconds."""

    url: str
    expires_in: float


@dataclass(slots=True)
class WebCode:
    code: str = ""


@dataclass(slots=True)
class WebToken:
    """Empty where the port asks for none."""

    token: str
