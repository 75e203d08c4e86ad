"""Whether an address is this machine: a secret sent there, or a request without a proxy, leaves
nothing behind elsewhere."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine, whoever answers for names: of these only `localhost`
    itself stands in a file of the machine."""
    host = urlsplit(url).hostname or ""
    address = ip_address(host)
    return host == "localhost" or (address is not None and "%" not in host and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, is this machine."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = ip_address(name)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
