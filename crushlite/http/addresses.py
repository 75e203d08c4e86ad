"""Whether an address is this machine: then a secret may be sent to it, and no proxy is used."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine, even if a name server lies: of the names that mean it,
    only `localhost` itself is resolved by a file of the machine."""
    host = urlsplit(url).hostname or ""
    address = ip_address(host)
    return host == "localhost" or (address is not None and "%" not in host and is_loopback(host))


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
