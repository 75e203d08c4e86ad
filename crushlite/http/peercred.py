"""The user at the other end of a unix socket, according to the kernel.

The server checks it so that only its own user is served even if the socket's mode was loosened, the
client so that nothing is sent to another user who listens at the path.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Protocol

_PEERCRED = getattr(socket, "SO_PEERCRED", 17)


class _HasOptions(Protocol):
    """A socket, or asyncio's read-only view of one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_uid(sock: _HasOptions) -> int | None:
    """The uid of the process that connected (or listened); None if the system does not tell."""
    try:
        if sys.platform == "darwin":
            # SOL_LOCAL, LOCAL_PEERCRED: struct xucred starts with its version and the uid.
            _, uid = struct.unpack_from("=II", sock.getsockopt(0, 1, 76))
        else:
            _, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, _PEERCRED, 12))
    except OSError:
        return None
    return int(uid)
