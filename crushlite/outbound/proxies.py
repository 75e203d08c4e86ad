"""Which proxy the environment names for a server.

The variables are those that curl and most tools read: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
NO_PROXY, in lower case or upper case; lower case wins. A host of this machine is always reached
directly, whatever the variables say: a proxy would look for it on its own machine.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..errors import BadRequest
from .tunnel import Proxy

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # a name or an address, without brackets
PORTS = {"http": 80, "https": 443}


class Proxies:
    """The proxies that an environment names."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._http = _first(env, "http_proxy", "all_proxy")
        self._https = _first(env, "https_proxy", "all_proxy")
        self._direct = [e for e in re.split(r"[,\s]+", _first(env, "no_proxy")[1].lower()) if e]

    def find(self, host: str, port: int, *, secure: bool) -> Proxy | None:
        """The proxy for a server; None if it is reached directly. Raises BadRequest if the variable
        is not a proxy's address: connecting directly is not what the user wants then."""
        variable, wanted = self._https if secure else self._http
        if not wanted or is_loopback(host) or self._is_direct(host.lower().rstrip("."), port):
            return None
        return _proxy(variable, wanted)

    def _is_direct(self, host: str, port: int) -> bool:
        return any(_covers(entry, host, port) for entry in self._direct)


def proxies_of(env: Mapping[str, str]) -> Proxies:
    """The proxies of a workspace: its client's environment counts, then the daemon's own."""
    return Proxies({**os.environ, **env})


def _first(env: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Name and value of the first of these variables that is set; empty texts if none is."""
    for spelling in (spelling for name in names for spelling in (name, name.upper())):
        if value := env.get(spelling, "").strip():
            return spelling, value
    return "", ""


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY covers a host. An entry is `*`, a name (which covers all names
    below it too) or an address, both with or without a port, or a network of addresses."""
    if entry == "*":
        return True
    if "/" in entry:
        address = ip_address(host)
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name
    if (wanted := ip_address(entry)) is not None:
        return wanted == ip_address(host)
    entry = entry.removeprefix("*").strip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _proxy(variable: str, text: str) -> Proxy:
    """The proxy that a variable names. Raises BadRequest, which names the variable and not its
    value: that may hold a password."""
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname or "", url.port
    except ValueError:
        raise BadRequest(f"{variable} is not the address of a proxy") from None
    if url.scheme not in PORTS:
        raise BadRequest(f"{variable} names a {url.scheme} proxy: only http and https ones work")
    if not HOST.fullmatch(host) or port == 0:
        raise BadRequest(f"{variable} is not the address of a proxy")
    authorization = ""
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")
    return Proxy(host, port or PORTS[url.scheme], url.scheme == "https", authorization)


NO_PROXIES = Proxies({})


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = ip_address(name)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
