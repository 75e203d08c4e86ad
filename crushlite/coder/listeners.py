"""Whose program listens on a port of this machine.

Any user of a machine can listen on a free port. Before a server that nobody has configured gets a
prompt, its listener must belong to the user who runs the daemon, or to root. Linux says so in
/proc/net; elsewhere there is no way to find out that is cheap and needs no rights, so there no such
server is used.
"""

from __future__ import annotations

import os
import sys

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
# The local addresses that take a connection to 127.0.0.1, as the tables spell them on a machine
# with the low byte first: any or this one, of IPv4, of IPv6, and of IPv4 within IPv6.
_ANY, _THIS, _PREFIX = "00000000", "0100007F", "0000000000000000FFFF0000"
if sys.byteorder == "big":
    _THIS, _PREFIX = "7F000001", "00000000000000000000FFFF"
_TAKING = frozenset({_ANY, _THIS, _ANY * 4, _PREFIX + _ANY, _PREFIX + _THIS})


def listener_owners(port: int) -> set[int] | None:
    """The users whose programs take connections to this port of 127.0.0.1; None if that cannot be
    found out. Reads files of the kernel, which may be long: call it in a thread."""
    owners: set[int] = set()
    known = False
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                for line in lines:
                    fields = line.split()
                    if _takes(fields, port):
                        owners.add(int(fields[7]))
        except FileNotFoundError:
            continue  # IPv6 may be switched off, and other systems have no such file
        except (OSError, ValueError, IndexError):
            return None
        known = True
    return owners if known else None


def is_own_listener(port: int) -> bool:
    """Whether something listens on a port, and all of it belongs to this user or to root."""
    owners = listener_owners(port)
    return bool(owners) and not (owners or set()) - {os.geteuid(), 0}


def _takes(fields: list[str], port: int) -> bool:
    """Whether a line of a table is that of a listener which takes connections to this port."""
    address, _, number = fields[1].partition(":")
    return fields[3] == _LISTEN and address in _TAKING and int(number, 16) == port
